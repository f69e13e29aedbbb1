// What follows a product: norm, bias, rope, KV append, activation, residual. By one warp, while the others
// multiply.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "kernels/matmul/handover.cuh"
#include "kernels/matmul/matvec_tiles.cuh"

namespace celer::cuda::matvec {

__device__ __forceinline__ float Activate(DeviceActivation kind, float v) {
  switch (kind) {
    case DeviceActivation::kSilu:
      return v / (1.0f + __expf(-v));
    case DeviceActivation::kGelu:
      return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    case DeviceActivation::kGeluTanh:
      return 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    case DeviceActivation::kRelu:
      return fmaxf(v, 0.0f);
  }
  return v;
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

__device__ __forceinline__ void AppendKv(const MatvecArgs& a, std::byte* cache, int64_t at, float value) {
  if (a.kv.dtype == DType::kBf16)
    reinterpret_cast<__nv_bfloat16*>(cache)[at] = __float2bfloat16(value);
  else if (a.kv.dtype == DType::kFp8E4M3)
    reinterpret_cast<__nv_fp8_storage_t*>(cache)[at] =
        __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  else
    reinterpret_cast<__half*>(cache)[at] = __float2half_rn(value);
}

// What is added or multiplied to the two sums of a lane; loaded while the products run.
struct Extras {
  float add[2] = {0, 0};  // bias and residual
  float cosine = 1, sine = 0;
};

__device__ __forceinline__ Extras LoadExtras(const Params& p, const Tile& tile, int token, int r,
                                             const TokenPlace& place) {
  const MatvecArgs& a = p.a;
  Extras out;
  const float* bias = tile.part == 0 ? a.a_bias : tile.part == 1 ? a.b_bias : a.c_bias;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r >= tile.half[i].valid) continue;
    const int row = tile.half[i].row + r;
    if (bias) out.add[i] = __ldg(bias + row);
    if (a.residual) {
      const float* from = a.residual + token * a.residual_stride + row;
      out.add[i] += p.polled ? Await(from) : __ldcg(from);
    }
  }
  if (tile.rotate) {
    const int half = a.rope_dim / 2;
    const int64_t at = static_cast<int64_t>(place.position) * half + tile.half[0].row % a.kv.head_dim + r;
    out.cosine = __ldg(a.rope_cos + at);
    out.sine = __ldg(a.rope_sin + at);
  }
  return out;
}

// `value` holds the sums of rows half[0].row + r and half[1].row + r.
__device__ __forceinline__ void Finish(const Params& p, const Tile& tile, int token, int r, float2 value,
                                       float norm, const Extras& extra, const TokenPlace& place) {
  const MatvecArgs& a = p.a;
  const int row[2] = {tile.half[0].row + r, tile.half[1].row + r};
  float v[2] = {value.x * norm, value.y * norm};
  if (a.epilogue == Epilogue::kGateUp) {
    if (r < tile.half[0].valid)
      Publish(a.out + token * a.out_stride + row[0], Activate(a.activation, v[0]) * v[1]);
    return;
  }
  v[0] += extra.add[0];
  v[1] += extra.add[1];
  if (tile.rotate) {
    const float x = v[0], y = v[1];
    v[0] = x * extra.cosine - y * extra.sine;
    v[1] = y * extra.cosine + x * extra.sine;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r >= tile.half[i].valid) continue;
    if (tile.part == 0) {
      Publish(a.out + token * a.out_stride + row[i], v[i]);
    } else {
      float* also = tile.part == 1 ? a.k_out : a.v_out;
      if (also) Publish(also + token * a.out_stride + row[i], v[i]);
      const int head = row[i] / a.kv.head_dim, dim = row[i] % a.kv.head_dim;
      AppendKv(a, tile.part == 1 ? a.kv.k : a.kv.v,
               place.kv_row + static_cast<int64_t>(head) * kKvBlock * a.kv.padded_dim + dim, v[i]);
    }
  }
}

// One warp: eight lanes finish rows r and r + 8 of a tile for one token, four such at once. `places` are
// those of the tokens, in shared memory. `before_last` is called once, before anything of the last batch is
// published and after the block's warps have loaded all activations.
template <int NT, class Call>
__device__ __forceinline__ void FinishTiles(const Params& p, char* memory, int lane, const TokenPlace* places,
                                            int& parity, const Call& before_last) {
  const MatvecArgs& a = p.a;
  const int r = lane % 8, tokens = a.tokens;
  const float* squares = reinterpret_cast<const float*>(memory + p.sum_offset);
  float* norms = reinterpret_cast<float*>(memory + p.norm_offset);  // [tokens]
  const Run run = TilesOf(p);
  const int batches = run.batches();
  for (int batch = 0; batch < batches; ++batch) {
    const Share share(run.Tiles(batch));
    const int first = run.Begin(batch), items = share.tiles * tokens;
    const bool only = batches == 1, last = batch + 1 == batches;
    if (last && !only) before_last();
    bool waited = false;
    for (int item = lane / 8; item - lane / 8 < items; item += 4) {
      const bool valid = item < items;
      const int token = valid ? item % tokens : 0, tile_index = valid ? item / tokens : 0;
      const Tile tile = Locate(p, first + tile_index);
      const TokenPlace place = places[token];
      Extras extra;
      if (valid) extra = LoadExtras(p, tile, token, r, place);
      if (!waited) {
        SyncPair(2 + parity);
        if (only) before_last();
      }
      waited = true;
      if (batch == 0 && item == lane / 8 && a.norm) {  // once
        if (lane < tokens) {
          float total = 0;
#pragma unroll
          for (int w = 0; w < kWarps; ++w) total += squares[lane * kWarps + w];
          norms[lane] = 1.0f / sqrtf(total / static_cast<float>(a.a.cols) + a.eps);
        }
        __syncwarp();
      }
      const float norm = a.norm ? norms[token] : 1.0f;
      const float2* sums = reinterpret_cast<const float2*>(memory + p.red_offset) +
                           (((parity * kWarps + (tile_index << share.log2_split)) * NT + token / 4) * 32) +
                           r * 4 + token % 4;
      float2 total = make_float2(0, 0);
#pragma unroll 4
      for (int w = 0; w < share.split; ++w) {
        const float2 part = sums[w * NT * 32];
        total.x += part.x;
        total.y += part.y;
      }
      if (valid) Finish(p, tile, token, r, total, norm, extra, place);
    }
    __syncwarp();
    ArrivePair(4 + parity);
    parity ^= 1;
  }
}

}  // namespace celer::cuda::matvec
