// The epilogues of decode_batch_cuda.cuh: norm, bias, rope, KV append, activation, residual. Of eight tokens
// by one warp while the others multiply, of sixteen by those that multiplied.
#pragma once

#include "kernels/llm/decode_step/decode_batch_product.cuh"

namespace celer::cuda::batch {

// What a lane needs beside the sums of rows g and g + 8, tokens 2t and 2t + 1 of its warp's eight.
struct Beside {
  float add[2][2];  // [row, token]
  float next[2];    // the next norm's weights
  float cosine[2], sine[2];
};

// Two columns that share a word: of two lanes' two tokens each takes one, and stores both columns.
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
  int first;  // of the eight tokens
  bool last_layer;
};

// The sums of squares of x in front of an operator, once all of x is there: then its squares are.
template <Format F, int N>
__device__ __forceinline__ void LoadSquares(const BatchParams& b, int i, uint32_t turn, Memory<F, N>& memory,
                                            int lane) {
  const Op& op = b.op[i];
  for (int chunk = lane; chunk < op.chunks; chunk += 32)
    while (!Reached(op.ready + chunk, WritersOf<N>(b, i, chunk) * turn)) {
    }
  __syncwarp();
  const float* squares = i == 0 ? b.in_squares : b.squares;
#pragma unroll
  for (int first = 0; first < N; first += 8) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int tile = lane / 2; tile < b.hidden / 16; tile += 16) {
      const float4 part = __ldcg(reinterpret_cast<const float4*>(squares + tile * N + first + lane % 2 * 4));
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
#pragma unroll
    for (int apart = 2; apart < 32; apart *= 2) {
      sum.x += __shfl_xor_sync(0xffffffffu, sum.x, apart);
      sum.y += __shfl_xor_sync(0xffffffffu, sum.y, apart);
      sum.z += __shfl_xor_sync(0xffffffffu, sum.z, apart);
      sum.w += __shfl_xor_sync(0xffffffffu, sum.w, apart);
    }
    if (lane < 2) reinterpret_cast<float4*>(memory.norms + first)[lane] = sum;
  }
  __syncwarp();
}
// What tokens 2t and 2t + 1 are multiplied with for it.
template <Format F, int N>
__device__ __forceinline__ void LoadNorms(const Finish& f, const Memory<F, N>& memory, float (&norm)[2]) {
#pragma unroll
  for (int j = 0; j < 2; ++j)
    norm[j] = rsqrtf(memory.norms[f.first + 2 * f.t + j] / static_cast<float>(f.b.hidden) + f.b.eps);
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

// Sums of rows g and g + 8 of tile `tile`, tokens 2t and 2t + 1, to where they are read.
template <Format F, int N>
__device__ __forceinline__ void FinishTile(const Finish& f, int tile, const Where& w, const Beside& with,
                                           const float4& sum, const float (&norm)[2],
                                           const Memory<F, N>& memory) {
  const BatchParams& b = f.b;
  const int i = f.i, g = f.g, t = f.t, first = f.first;
  float v[2][2] = {{sum.x * norm[0], sum.y * norm[1]}, {sum.z * norm[0], sum.w * norm[1]}};
  if (i == 2) {
#pragma unroll
    for (int j = 0; j < 2; ++j) v[0][j] = Activate(b.activation, v[0][j]) * v[1][j];
    return StorePair<F, N>(b.mid_rows, w.row[0] + g, first, g, t, v[0]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < 2; ++j) v[h][j] += with.add[h][j];
  if (i == 0) return StoreQkv(f, w, with, memory, v);
  float squares[2] = {0, 0};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = w.row[h] + g, token = first + 2 * t;
    if (i == 3 && f.last_layer) {
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (token + j < f.tokens) b.x[static_cast<int64_t>(token + j) * b.hidden + row] = v[h][j];
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
  if (g == 0 && !(i == 3 && f.last_layer))
    __stcg(reinterpret_cast<float2*>((i == 1 ? b.squares : b.in_squares) + tile * N + first) + t,
           make_float2(squares[0], squares[1]));
}

// What counts those who finished a tile's part of the next activations; null behind the last operator.
template <int N>
__device__ __forceinline__ uint32_t* CounterOf(const Finish& f, const Where& w) {
  const BatchParams& b = f.b;
  if (f.i == 3 && f.last_layer) return nullptr;
  if (f.i == 0)
    return b.qkv_done +
           (w.part == 0   ? 0
            : w.part == 1 ? b.heads
                          : b.heads + b.kv_heads) +
           w.row[0] / b.head_dim;
  return (f.i == 1 ? b.x_done : f.i == 2 ? b.mid_done : b.in_done) + w.row[0] / kChunk<N>;
}

__device__ __forceinline__ Finish FinishOf(const BatchParams& b, const Layer& layer, int index, int i,
                                           uint32_t turn, int first, int lane) {
  return {
      b, layer, index, i, turn, lane, lane / 4, lane % 4, b.batch.count, first, index + 1 == b.layer_count};
}

// Eight tokens: a block's tiles of operator `i` of layer `index`.
template <Format F, class R>
__device__ __forceinline__ void FinishAll(const BatchParams& b, const Layer& layer, int index, int i,
                                          const R& run, uint32_t turn, Memory<F, 8>& memory, int lane,
                                          int& done) {
  constexpr int N = 8;
  const Finish f = FinishOf(b, layer, index, i, turn, 0, lane);
  if (run.batches() == 0) return;
  float norm[2] = {1, 1};
  if (i % 2 == 0) {
    LoadSquares(b, i, turn, memory, lane);
    LoadNorms(f, memory, norm);
    __syncwarp();
  }
  for (int batch = 0; batch < run.batches(); ++batch, ++done) {
    const Sharing<N> share(run.Tiles(batch));
    const int begin = run.Begin(batch), parity = done & 1;
    Beside beside[kBatch];
    Where where[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      beside[n] = {};
      if (n >= share.tiles) continue;
      where[n] = Find(b, i, begin + n);
      LoadBeside(f, where[n], memory, beside[n]);
    }
    SyncPair(2 + parity);
#pragma unroll
    for (int n = 0; n < kBatch; ++n)
      if (n < share.tiles)
        FinishTile(f, begin + n, where[n], beside[n],
                   LoadSums<N>(memory.sums[parity][0], share.Times(n), share.split, lane), norm, memory);
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(&memory.read[parity]));
    uint32_t* counter = nullptr;
#pragma unroll
    for (int n = 0; n < kBatch; ++n)
      if (n < share.tiles && lane == n) counter = CounterOf<N>(f, where[n]);
    if (counter) Signal(counter);
  }
}

// Sixteen tokens: this warp's sums of a batch `v` to the others, and this warp's share of its tiles: one, for
// eight tokens. `parity` of the batch; `normed` counts the operators with a norm before this one.
template <Format F>
__device__ __forceinline__ void FinishMine(const BatchParams& b, const Layer& layer, int index, int i,
                                           const WideRun& run, int batch, uint32_t turn,
                                           Memory<F, 16>& memory, int warp, int lane, int parity, int normed,
                                           const Values<16>& v) {
  constexpr int N = 16;
  static_assert(kMostTiles<N> * kEights<N> <= kWarps);
  const Sharing<N> share(run.Tiles(batch));
  const int n = warp / kEights<N>, eight = warp % kEights<N>, tile = run.Begin(batch) + n;
  const bool mine = n < share.tiles;
  const Finish f = FinishOf(b, layer, index, i, turn, eight * 8, lane);
  StoreSums<N>(memory.sums[parity], warp, lane, v);
  Where where = {};
  Beside beside = {};
  if (mine) {
    where = Find(b, i, tile);
    LoadBeside(f, where, memory, beside);
  }
  // All sums are there; and those of the batch before last, which were where the next ones go, were read.
  ConsumerBarrier();
  if (!mine) return;
  float norm[2] = {1, 1};
  if (i % 2 == 0) {
    BarrierWait(SharedAddress(&memory.normed), static_cast<uint32_t>(normed) & 1);
    LoadNorms(f, memory, norm);
  }
  FinishTile(f, tile, where, beside,
             LoadSums<N>(memory.sums[parity][eight], share.Times(n), share.split, lane), norm, memory);
  __syncwarp();
  if (lane == 0)
    if (uint32_t* counter = CounterOf<N>(f, where)) Signal(counter);
}

}  // namespace celer::cuda::batch
