// The epilogue of a product: norm, bias, rope, KV append, activation, residual. By one warp, while the others
// multiply.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/llm/matmul/cuda/handover.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_tiles.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda::matvec {

__device__ __forceinline__ float Activate(DeviceActivation kind, float v) {
  switch (kind) {
    case DeviceActivation::kSilu:
      return __fdividef(v, 1.0f + __expf(-v));
    case DeviceActivation::kGelu:
      return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    case DeviceActivation::kGeluTanh:
      return 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    case DeviceActivation::kRelu:
      return MaxOrNan(v, 0.0f);
    case DeviceActivation::kRelu2:
      return v * fmaxf(v, 0.0f);
  }
  return v;
}
// act(gate) * up, or with a limit a clamped SwiGLU.
__device__ __forceinline__ float ActivateMul(DeviceActivation kind, float limit, float gate, float up) {
  if (limit <= 0) return Activate(kind, gate) * up;
  const float g = MinOrNan(gate, limit), u = MinOrNan(MaxOrNan(up, -limit), limit);
  return __fdividef(g, 1.0f + __expf(-1.702f * g)) * (u + 1.0f);
}

// What the finisher knows of a token before the first product is done.
struct TokenPlace {
  int position = 0;
  int64_t kv_row = 0;  // of head 0, in elements
};

__device__ __forceinline__ TokenPlace PlaceOf(const MatvecArgs& a, int token) {
  TokenPlace out;
  if (a.epilogue != Epilogue::kQkv) return out;
  out.position = __ldcg(a.batch.positions + token);
  const int row = __ldcg(a.batch.sequence + token);
  const int block =
      __ldcg(a.batch.block_table + static_cast<int64_t>(row) * a.batch.max_blocks + out.position / kKvBlock);
  out.kv_row =
      (static_cast<int64_t>(block) * a.kv.kv_heads * kKvBlock + out.position % kKvBlock) * a.kv.padded_dim;
  return out;
}

// What a lane does with the two sums of its rows, half[0].row + r and half[1].row + r. Found, and what is
// added loaded, while the products run.
struct Target {
  float *out[2] = {nullptr, nullptr}, *plain[2] = {nullptr, nullptr};
  std::byte* cache[2] = {nullptr, nullptr};  // elements of the KV
  float add[2] = {0, 0};                     // bias and residual
  float cosine = 1, sine = 0;
};

__device__ __forceinline__ Target Aim(const Params& p, const Tile& tile, int token, int r,
                                      const TokenPlace& place, int residual_tag) {
  const MatvecArgs& a = p.a;
  Target out;
  const float* bias = tile.part == 0 ? a.a_bias : tile.part == 1 ? a.b_bias : a.c_bias;
  float* to = tile.part == 0 ? a.out : tile.part == 1 ? a.k_out : a.v_out;
  std::byte* cache = tile.part == 0 ? nullptr : tile.part == 1 ? a.kv.k : a.kv.v;
  if (to) to += token * a.out_stride;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r >= tile.half[i].valid) continue;
    const int row = tile.half[i].row + r;
    if (a.epilogue == Epilogue::kGateUp && i == 1) {
      if (a.b_bias) out.add[1] = __ldg(a.b_bias + row);
      continue;
    }
    if (to) out.out[i] = to + row;
    if (p.plain) out.plain[i] = p.plain + token * p.plain_stride + row;
    if (cache) {
      const int head = row / a.kv.head_dim, dim = row % a.kv.head_dim;
      const int64_t at = place.kv_row + static_cast<int64_t>(head) * kKvBlock * a.kv.padded_dim + dim;
      out.cache[i] = cache + at * (a.kv.dtype == DType::kFp8E4M3 ? 1 : 2);
    }
    if (bias) out.add[i] = __ldg(bias + row);
    if (a.residual) {
      const float* from = a.residual + token * a.residual_stride + row;
      out.add[i] += residual_tag == kUntagged ? __ldcg(from) : AwaitTagged(from, residual_tag);
    }
  }
  if (tile.rotate) {
    const int64_t at =
        static_cast<int64_t>(place.position) * (a.rope_dim / 2) + tile.half[0].row % a.kv.head_dim + r;
    out.cosine = __ldg(a.rope_cos + at);
    out.sine = __ldg(a.rope_sin + at);
  }
  return out;
}

__device__ __forceinline__ void AppendKv(DType type, std::byte* to, float value) {
  if (type == DType::kBf16)
    *reinterpret_cast<__nv_bfloat16*>(to) = __float2bfloat16(value);
  else if (type == DType::kFp8E4M3)
    *reinterpret_cast<__nv_fp8_storage_t*>(to) = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  else
    *reinterpret_cast<__half*>(to) = __float2half_rn(value);
}

// Tags of what the finisher reads and writes, for those whose memory other blocks of this kernel share.
struct Tags {
  int residual = kUntagged, out = kUntagged;
};

// Takes each result, for those who want more than to store it: token, row, value.
struct NoSink {
  __device__ __forceinline__ void operator()(int, int, float) const {}
};

// One warp: eight lanes finish rows r and r + 8 of a tile for one token, four such at once. `places` are
// those of the tokens, in shared memory.
template <int NT, class P, class Sink = NoSink>
__device__ __forceinline__ void FinishTiles(const P& p, char* memory, int lane, const TokenPlace* places,
                                            int& parity, Tags tags = {}, const Sink& sink = {}) {
  const int r = lane % 8, tokens = p.a.tokens;
  const Epilogue epilogue = p.a.epilogue;
  const DeviceActivation activation = p.a.activation;
  const DType kv_type = p.a.kv.dtype;
  float* norms = reinterpret_cast<float*>(memory + p.norm_offset);  // [tokens]
  const bool normed = p.a.norm != nullptr;
  const uint32_t read = SharedAddress(memory) + p.barrier_offset + kMaxStages * 16;
  const auto run = TilesOf(p);
  for (int batch = 0; batch < run.batches(); ++batch) {
    const Share share(run.Tiles(batch));
    const int first = run.Begin(batch), items = share.tiles * tokens;
    bool waited = false;
    for (int item = lane / 8; item - lane / 8 < items; item += 4) {
      const bool valid = item < items;
      const int tile_index = !valid ? 0 : tokens == 1 ? item : item / tokens;
      const int token = valid ? item - tile_index * tokens : 0;
      const Tile tile = Locate(p, first + tile_index);
      Target target;
      if (valid) target = Aim(p, tile, token, r, places[token], tags.residual);
      if (normed && batch == 0 && !waited) {
        SyncPair(4);
        if (lane < tokens) {
          const float* squares = reinterpret_cast<const float*>(memory + p.sum_offset) + lane * kWarps;
          float total = 0;
#pragma unroll
          for (int w = 0; w < kWarps; ++w) total += squares[w];
          norms[lane] = rsqrtf(total / static_cast<float>(p.a.a.cols) + p.a.eps) + ZeroOrNan(total);
        }
        __syncwarp();
      }
      const float norm = normed ? norms[token] : 1.0f;
      const float2* sums = reinterpret_cast<const float2*>(memory + p.red_offset) +
                           (((parity * kWarps + (tile_index << share.log2_split)) * NT + token / 4) * 32) +
                           r * 4 + token % 4;
      if (!waited) SyncPair(2 + parity);
      waited = true;
      float2 total = make_float2(0, 0);
#pragma unroll 4
      for (int w = 0; w < share.split; ++w) {
        const float2 part = sums[w * NT * 32];
        total.x += part.x;
        total.y += part.y;
      }
      float v[2] = {total.x * norm + target.add[0], total.y * norm + target.add[1]};
      if (epilogue == Epilogue::kGateUp) {
        v[0] = ActivateMul(activation, p.a.swiglu_limit, v[0], v[1]);
      } else if (tile.rotate) {
        const float x = v[0], y = v[1];
        v[0] = x * target.cosine - y * target.sine;
        v[1] = y * target.cosine + x * target.sine;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (target.out[i]) Publish(target.out[i], Tagged(v[i], tags.out));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (target.plain[i]) *target.plain[i] = Untagged(v[i]);
        if (target.cache[i]) AppendKv(kv_type, target.cache[i], v[i]);
        if (target.out[i]) sink(token, tile.half[i].row + r, v[i]);
      }
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(read + parity * 8);
    parity ^= 1;
  }
}

}  // namespace celer::cuda::matvec
