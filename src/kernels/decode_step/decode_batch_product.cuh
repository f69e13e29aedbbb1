// The products of decode_batch_cuda.cuh: 16 rows by G times eight tokens, with bf16 activations.
#pragma once

#include "kernels/decode_step/decode_batch_params.cuh"
#include "kernels/matmul/cuda/matvec/matvec_product.cuh"

namespace celer::cuda::batch {

// Four values of a warp's product, by eights of tokens: rows g and g + 8, tokens 2t and 2t + 1.
template <int G>
using Values = float[G][4];

// An integer n below 128 is the bf16 128 + n without its 128: one instruction makes two of them out of a
// word, and what is too much goes out with the sum of the activations, which is a product with ones: of eight
// tokens in the place of weights, of sixteen in that of activations, with tokens for rows.
constexpr uint32_t kNibbles = 0x000f000fu, kBase = 0x43004300u, kOnes = 0x3f803f80u;

// Adds half of a lane's columns to the sums.
template <int G>
__device__ __forceinline__ void AddUp(float (&sum)[4], const uint4 (&x)[G], int half) {
  const auto word = [&](int e, int i) { return Word(x[e], 2 * half + i); };
  if constexpr (G == 1)
    MmaBf16(sum, kOnes, kOnes, kOnes, kOnes, word(0, 0), word(0, 1));
  else
    MmaBf16(sum, word(0, 0), word(1, 0), word(0, 1), word(1, 1), kOnes, kOnes);
}
// Those of tokens 2t and 2t + 1 of each eight.
template <int G>
__device__ __forceinline__ void SumsOf(const float (&sum)[4], float (&out)[G][2]) {
  if constexpr (G == 1) {
    out[0][0] = sum[0], out[0][1] = sum[1];
  } else {  // a lane has those of tokens g and g + 8, in all columns
    const int from = static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      out[0][j] = __shfl_sync(0xffffffffu, sum[0], from + j * 4);
      out[1][j] = __shfl_sync(0xffffffffu, sum[2], from + j * 4);
    }
  }
}

template <Format F, int G>
struct WarpProduct;

template <int G>
struct WarpProduct<Format::kBf16, G> {
  float c[G][2][4] = {};  // two chains

  // `x_at(j, e)`: this lane's 16 bytes of the j-th 32 columns, of eight tokens.
  template <class X>
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, const X& x_at, uint32_t, int) {
#pragma unroll
    for (int e = 0; e < G; ++e) {
      const uint4 x = x_at(0, e);
      MmaBf16(c[e][0], wa.x, wb.x, wa.y, wb.y, x.x, x.y);
      MmaBf16(c[e][1], wa.z, wb.z, wa.w, wb.w, x.z, x.w);
    }
  }
  __device__ __forceinline__ void Begin(uint32_t) {}
  __device__ __forceinline__ void Get(Values<G>& out) const {
#pragma unroll
    for (int e = 0; e < G; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[e][i] = c[e][0][i] + c[e][1][i];
  }
};

// One scale to a row. A byte is 16 high + low - 128, both nibbles without a sign.
template <int G>
struct WarpProduct<Format::kInt8, G> {
  float high[G][4] = {}, low[G][4] = {}, sum[4] = {}, channel[2];

  // With the first stage: `scales` are those of row g.
  __device__ __forceinline__ void Begin(uint32_t scales) {
    channel[0] = LoadFloat(scales), channel[1] = LoadFloat(scales + 32);
  }
  template <class X>
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, const X& x_at, uint32_t, int) {
    const auto lower = [](uint32_t w) { return (w & kNibbles) | kBase; };
    const auto upper = [](uint32_t w) { return (w & kNibbles) ^ (kBase | 0x00080008u); };
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint4 x[G];
#pragma unroll
      for (int e = 0; e < G; ++e) x[e] = x_at(j, e);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t a = Word(wa, 2 * j + n), b = Word(wb, 2 * j + n);
#pragma unroll
        for (int e = 0; e < G; ++e) {
          const uint32_t b0 = Word(x[e], 2 * n), b1 = Word(x[e], 2 * n + 1);
          MmaBf16(low[e], lower(a), lower(b), lower(a >> 8), lower(b >> 8), b0, b1);
          MmaBf16(high[e], upper(a >> 4), upper(b >> 4), upper(a >> 12), upper(b >> 12), b0, b1);
        }
        AddUp(sum, x, n);
      }
    }
  }
  __device__ __forceinline__ void Get(Values<G>& out) const {
    float sums[G][2];
    SumsOf(sum, sums);
#pragma unroll
    for (int e = 0; e < G; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[e][i] = channel[i / 2] *
                    fmaf(sums[e][i % 2], -(16.0f * 128 + 128 + 128), fmaf(high[e][i], 16.0f, low[e][i]));
  }
};

// Groups of 128 columns with scale and minimum.
template <int G>
struct WarpProduct<Format::kInt4, G> {
  Values<G> total = {};

  __device__ __forceinline__ void Begin(uint32_t) {}
  template <class X>
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, const X& x_at, uint32_t scales,
                                      int scale_half) {
    const float2 pa = LoadScale<Format::kInt4>(scales), pb = LoadScale<Format::kInt4>(scales + scale_half);
    float c[G][2][4] = {}, sum[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint4 x[G];
#pragma unroll
      for (int e = 0; e < G; ++e) x[e] = x_at(j, e);
      const uint32_t a = Word(wa, j), b = Word(wb, j);
      const auto nibbles = [](uint32_t w) { return (w & kNibbles) | kBase; };
#pragma unroll
      for (int e = 0; e < G; ++e) {
        MmaBf16(c[e][0], nibbles(a), nibbles(b), nibbles(a >> 4), nibbles(b >> 4), x[e].x, x[e].y);
        MmaBf16(c[e][1], nibbles(a >> 8), nibbles(b >> 8), nibbles(a >> 12), nibbles(b >> 12), x[e].z,
                x[e].w);
      }
      AddUp(sum[0], x, 0);
      AddUp(sum[1], x, 1);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[0][i] += sum[1][i];
    float sums[G][2];
    SumsOf(sum[0], sums);
#pragma unroll
    for (int e = 0; e < G; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 p = i < 2 ? pa : pb;
        total[e][i] = fmaf(p.x, c[e][0][i] + c[e][1][i], fmaf(p.y - 128 * p.x, sums[e][i % 2], total[e][i]));
      }
  }
  __device__ __forceinline__ void Get(Values<G>& out) const {
#pragma unroll
    for (int e = 0; e < G; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[e][i] = total[e][i];
  }
};

// Where the warps that multiply stand.
struct Multiplier {
  RingPlace ring;
  int stages =
      0;         // that were used; 16 tokens have their place from it, which costs attention fewer registers
  int x_at = 0;  // chunks of activations before this product's
  int done = 0;  // batches

  // Until the sums of the last two batches have been read.
  __device__ __forceinline__ void AwaitRead(uint32_t read) const {
    for (int i = max(done - 2, 0); i < done; ++i) BarrierWait(read + (i & 1) * 8, i / 2 & 1);
  }
};

template <Format F, int N, class R>
__device__ __forceinline__ void MultiplyAll(const Op& op, const R& run, Memory<F, N>& memory, int warp,
                                            int lane, Multiplier& state) {
  // Columns of a stage that 16 tokens have room for are waited for, and left, span by span.
  constexpr bool kBySpan = N > 8;
  const uint32_t ring = SharedAddress(memory.ring), slots = SharedAddress(memory.x);
  const uint32_t full = SharedAddress(memory.full), empty = SharedAddress(memory.empty);
  const uint32_t x_full = SharedAddress(memory.x_full), x_empty = SharedAddress(memory.x_empty);
  const uint32_t read = SharedAddress(memory.read);
  const int row_bytes = op.row_bytes, x_chunks = op.chunks, batches = run.batches();
  const bool stays = x_chunks <= kSlots;  // activations, for all batches
  int have = 0;                           // of their chunks
  RingPlace place = state.ring;
  if (N > 8) {
    place.stage = state.stages % kStages<N>;
    place.parity = static_cast<uint32_t>(state.stages / kStages<N>) & 1;
    place.there = false;
  }
  for (int batch = 0; batch < batches; ++batch) {
    const Sharing<N> share(run.Tiles(batch));
    const int tile = share.Tile(warp), part = share.Part(warp);
    const int half_bytes = share.tile_bytes() / 2, chunks = share.chunks(row_bytes), blocks = row_bytes / 64;
    const int stage_cols = share.split * kSpans * kWarpCols<F>, span_cols = share.split * kWarpCols<F>;
    const uint32_t weights = ring + tile * share.tile_bytes() + part * 512 + lane * 16;
    // int4: of this warp's group, [tile half, groups of the stage, 8 rows]; int8: [tile half, 8 rows]
    const int half_scales = F == Format::kInt4 ? share.split * kSpans * 8 * ScaleBytesOf(F) : 32;
    const uint32_t scales = ring + kStageBytes + 2 * tile * half_scales + lane / 4 * 4;
    const bool last = !stays || batch + 1 == batches;
    if (!stays) have = 0;
    int freed = 0, block = N > 8 && tile >= share.tiles ? blocks : part;
    const auto await_x = [&](int until) {
      for (; have < until; ++have) {
        const auto at = static_cast<uint32_t>(state.x_at + have);
        BarrierWait(x_full + at % kSlots * 8, at / kSlots & 1);
      }
    };
    const auto leave_x = [&](int gone) {
      for (; freed < gone; ++freed)
        if (lane == 0) BarrierArrive(x_empty + static_cast<uint32_t>(state.x_at + freed) % kSlots * 8);
    };
    WarpProduct<F, kEights<N>> product;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t stage = place.stage, base = stage * kFullStage<F, N>;
      if (!place.there) BarrierWait(full + stage * 8, place.parity);
      place.Advance(kStages<N>);
      place.there = BarrierPassed(full + place.stage * 8, place.parity);
      const bool ends = chunk + 1 == chunks;
      if (!kBySpan) await_x(ends ? x_chunks : ((chunk + 1) * stage_cols + kChunk<N> - 1) / kChunk<N>);
      if (chunk == 0) product.Begin(scales + base);
#pragma unroll
      for (int j = 0; j < kSpans; ++j, block += share.split) {
        const int span_end = chunk * stage_cols + (j + 1) * span_cols;  // in columns
        if (kBySpan) await_x(min(x_chunks, (span_end + kChunk<N> - 1) / kChunk<N>));
        if (block < blocks) {
          const uint32_t from = weights + base + share.Times(j) * 512;
          // A span's 32, 64 or 128 columns are in one chunk.
          constexpr int kBlocks = kWarpCols<F> / 32, kInChunk = kChunk<N> / kWarpCols<F>;
          const uint32_t x_slot = static_cast<uint32_t>(state.x_at + block / kInChunk) % kSlots;
          const uint32_t x_from =
              slots + x_slot * kSlotBytes + block % kInChunk * (kBlocks * N * 64) + lane * 16;
          const auto x = [&](int n, int eight) { return Load16(x_from + n * (N * 64) + eight * 512); };
          product.Add(Load16(from), Load16(from + half_bytes), x,
                      scales + base + (share.Times(j) + part) * 32, half_scales);
        }
        if (kBySpan && last) {
          __syncwarp();
          leave_x(ends && j + 1 == kSpans ? x_chunks : min(x_chunks, span_end / kChunk<N>));
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(empty + stage * 8);
      if (!kBySpan && last) leave_x(ends ? x_chunks : (chunk + 1) * stage_cols / kChunk<N>);
    }
    if (last) state.x_at += x_chunks;
    state.stages += chunks;
    const int parity = state.done & 1;
    if (state.done >= 2) BarrierWait(read + parity * 8, (state.done / 2 - 1) & 1);
    ++state.done;
    Values<kEights<N>> v;
    product.Get(v);
#pragma unroll
    for (int e = 0; e < kEights<N>; ++e)
      memory.sums[parity][e][warp][lane] = make_float4(v[e][0], v[e][1], v[e][2], v[e][3]);
    ArriveFinishers<N>(2 + parity);
  }
  if (N == 8) state.ring = place;
}

}  // namespace celer::cuda::batch
