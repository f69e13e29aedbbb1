// What follows the products of decode_batch_cuda.cuh: norm, bias, rope, KV append, activation, residual. By
// one warp for each eight tokens, while the others multiply.
#pragma once

#include "kernels/decode_step/decode_batch_params.cuh"

namespace celer::cuda::batch {

// What a lane needs beside the sums of rows g and g + 8, tokens 2t and 2t + 1 of its warp's eight.
struct Beside {
  float add[2][2];  // [row, token]
  float next[2];    // the next norm's weights
  float cosine[2], sine[2];
};

// Two columns that share a word meet: of two lanes' two tokens each takes one, and stores both columns.
template <Format F, int N>
__device__ __forceinline__ void StorePair(std::byte* rows, int col, int first, int g, int t,
                                          const float (&v)[2]) {
  const bool second = g & kNeighbour<F>;
  const float other = __shfl_xor_sync(0xffffffffu, second ? v[0] : v[1], 4 * kNeighbour<F>);
  const uint32_t pair = second ? PackBf16(other, v[1]) : PackBf16(v[0], other);
  reinterpret_cast<uint32_t*>(rows)[PairOf<F, N>(first + 2 * t + second, col & ~kNeighbour<F>)] = pair;
}

// What an operator of a layer is finished with: the same for all its tiles.
struct Finish {
  const BatchParams& b;
  const Layer& layer;
  int index;      // of the layer
  int i;          // the operator: qkv, o, gate and up, down
  uint32_t turn;  // of the counters
  int lane, g, t, tokens;
  int first;  // of the warp's eight tokens
  bool last_layer;
};

// The norm of tokens 2t and 2t + 1 in front of the operator, once all of x is there: then its squares are.
template <Format F, int N>
__device__ __forceinline__ void LoadNorms(const Finish& f, Memory<F, N>& memory, float (&norm)[2]) {
  const BatchParams& b = f.b;
  const Op& op = b.op[f.i];
  const int i = f.i, lane = f.lane;
  for (int chunk = lane; chunk < op.chunks; chunk += 32)
    while (!Reached(op.ready + chunk, WritersOf<N>(b, i, chunk) * f.turn)) {
    }
  __syncwarp();
  const float* squares = i == 0 ? b.in_squares : b.squares;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int tile = lane / 2; tile < b.hidden / 16; tile += 16) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(squares + tile * N + f.first + lane % 2 * 4));
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
#pragma unroll
  for (int apart = 2; apart < 32; apart *= 2) {
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, apart);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, apart);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, apart);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, apart);
  }
  if (lane < 2) reinterpret_cast<float4*>(memory.norms + f.first)[lane] = sum;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 2; ++j)
    norm[j] = rsqrtf(memory.norms[f.first + 2 * f.t + j] / static_cast<float>(b.hidden) + b.eps);
  __syncwarp();
}

template <Format F, int N>
__device__ __forceinline__ void LoadBeside(const Finish& f, const Where& w, const Memory<F, N>& memory,
                                           Beside& out) {
  const BatchParams& b = f.b;
  const Layer& layer = f.layer;
  const int i = f.i, index = f.index, g = f.g, t = f.t, token = f.first + 2 * t;
  if (i == 0) {
    const float* bias = layer.bias[w.part];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (bias) out.add[h][0] = out.add[h][1] = __ldg(bias + w.row[h] + g);
    if (w.rotate) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int64_t at =
            static_cast<int64_t>(memory.position[token + j]) * (b.rope_dim / 2) + w.row[0] % b.head_dim + g;
        out.cosine[j] = __ldg(b.rope_cos + at), out.sine[j] = __ldg(b.rope_sin + at);
      }
    }
  } else if (i != 2) {
    const float* next = i == 1 ? layer.ffn_norm : layer.next_norm;
    // The residual: of o, x in front of the layer; of down, x behind o.
    const int chunk = w.row[0] / kChunk<N>;
    if (i == 1 && index > 0) Await(b.in_done + chunk, WritersOf<N>(b, 0, chunk) * f.turn, f.lane);
    if (i == 3) Await(b.x_done + chunk, WritersOf<N>(b, 2, chunk) * f.turn, f.lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.row[h] + g;
      if (next) out.next[h] = __ldg(next + row);
      if (i == 1 && index == 0) {
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (token + j < f.tokens)
            out.add[h][j] = __ldcg(b.x + static_cast<int64_t>(token + j) * b.hidden + row);
      } else {
        const float2 pair = __ldcg(reinterpret_cast<const float2*>(b.residual + row * N + f.first) + t);
        out.add[h][0] = pair.x, out.add[h][1] = pair.y;
      }
    }
  }
}

// q, k or v: rotated if it must be, then to q or into the KV cache.
template <Format F, int N>
__device__ __forceinline__ void StoreQkv(const Finish& f, const Where& w, const Beside& with,
                                         const Memory<F, N>& memory, float (&v)[2][2]) {
  const BatchParams& b = f.b;
  const int g = f.g, t = f.t;
  if (w.rotate) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float first = v[0][j], second = v[1][j];
      v[0][j] = first * with.cosine[j] - second * with.sine[j];
      v[1][j] = second * with.cosine[j] + first * with.sine[j];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = f.first + 2 * t + j, row = w.row[h] + g;
      if (token >= f.tokens) continue;
      if (w.part == 0) {
        __stcg(b.q + static_cast<int64_t>(token) * b.heads * b.head_dim + row, v[h][j]);
      } else {
        const int64_t at = memory.kv_row[token] +
                           static_cast<int64_t>(row / b.head_dim) * kKvBlock * b.head_dim + row % b.head_dim;
        reinterpret_cast<__half*>(w.part == 1 ? f.layer.k_cache : f.layer.v_cache)[at] =
            __float2half_rn(v[h][j]);
      }
    }
}

// A block's tiles of operator `i` of layer `index`, for the tokens from `first` on. Storing x stays inside:
// as a function it costs spills.
template <Format F, int N, class R>
__device__ __forceinline__ void FinishAll(const BatchParams& b, const Layer& layer, int index, int i,
                                          const R& run, uint32_t turn, Memory<F, N>& memory, int first,
                                          int lane, int& parity) {
  const int g = lane / 4, t = lane % 4, tokens = b.batch.count;
  const bool last_layer = index + 1 == b.layer_count;
  const Finish f = {b, layer, index, i, turn, lane, g, t, tokens, first, last_layer};
  if (run.batches() == 0) return;
  float norm[2] = {1, 1};
  if (i % 2 == 0) LoadNorms(f, memory, norm);
  const uint32_t read = SharedAddress(memory.read);
  constexpr int kFinished = N == 8 ? kBatch : 2;  // tiles whose loads come before they are waited for
  for (int batch = 0; batch < run.batches(); ++batch) {
    const Sharing<N> share(run.Tiles(batch));
#pragma unroll 1
    for (int at = 0; at < kMostTiles<N>; at += kFinished) {
      if (at > 0 && at >= share.tiles) break;
      const int begin = run.Begin(batch) + at;
      Beside beside[kFinished];
      Where where[kFinished];
#pragma unroll
      for (int n = 0; n < kFinished; ++n) {
        Beside& out = beside[n];
        out = {};
        if (at + n >= share.tiles) continue;
        where[n] = Find(b, i, begin + n);
        const Where& w = where[n];
        LoadBeside(f, w, memory, out);
      }
      if (at == 0) SyncFinishers<N>(2 + parity);
#pragma unroll
      for (int n = 0; n < kFinished; ++n) {
        if (at + n >= share.tiles) continue;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int w = 0; w < share.split; ++w) {
          const float4 part = memory.sums[parity][first / 8][share.Times(at + n) + w][lane];
          sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        float v[2][2] = {{sum.x * norm[0], sum.y * norm[1]}, {sum.z * norm[0], sum.w * norm[1]}};
        const Where& w = where[n];
        const Beside& with = beside[n];
        if (i == 2) {
#pragma unroll
          for (int j = 0; j < 2; ++j) v[0][j] = Activate(b.activation, v[0][j]) * v[1][j];
          StorePair<F, N>(b.mid_rows, w.row[0] + g, first, g, t, v[0]);
          continue;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int j = 0; j < 2; ++j) v[h][j] += with.add[h][j];
        if (i == 0) {
          StoreQkv(f, w, with, memory, v);
          continue;
        }
        float squares[2] = {0, 0};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = w.row[h] + g, token = first + 2 * t;
          if (i == 3 && last_layer) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
              if (token + j < tokens) b.x[static_cast<int64_t>(token + j) * b.hidden + row] = v[h][j];
            continue;
          }
          __stcg(reinterpret_cast<float2*>(b.residual + row * N + first) + t, make_float2(v[h][0], v[h][1]));
          squares[0] += v[h][0] * v[h][0], squares[1] += v[h][1] * v[h][1];
          const float scaled[2] = {v[h][0] * with.next[h], v[h][1] * with.next[h]};
          StorePair<F, N>(i == 1 ? b.x_rows : b.in_rows, row, first, g, t, scaled);
        }
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
          squares[0] += __shfl_xor_sync(0xffffffffu, squares[0], apart);
          squares[1] += __shfl_xor_sync(0xffffffffu, squares[1], apart);
        }
        if (g == 0 && !(i == 3 && last_layer))
          __stcg(reinterpret_cast<float2*>((i == 1 ? b.squares : b.in_squares) + (begin + n) * N + first) + t,
                 make_float2(squares[0], squares[1]));
      }
      __syncwarp();
      if (lane == 0 && (kMostTiles<N> == kFinished || at + kFinished >= share.tiles))
        BarrierArrive(read + parity * 8);
      if (i == 3 && last_layer) continue;
      uint32_t* counter = nullptr;
#pragma unroll
      for (int n = 0; n < kFinished; ++n) {
        if (at + n >= share.tiles || lane != n) continue;
        const Where& w = where[n];
        if (i == 0)
          counter = b.qkv_done +
                    (w.part == 0   ? 0
                     : w.part == 1 ? b.heads
                                   : b.heads + b.kv_heads) +
                    w.row[0] / b.head_dim;
        else
          counter = (i == 1 ? b.x_done : i == 2 ? b.mid_done : b.in_done) + w.row[0] / kChunk<N>;
      }
      if (counter) Signal(counter);
    }
    parity ^= 1;
  }
}

}  // namespace celer::cuda::batch
