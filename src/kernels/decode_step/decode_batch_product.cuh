// The products of decode_batch_cuda.cuh: 16 rows by eight tokens, with bf16 activations.
#pragma once

#include "kernels/decode_step/decode_batch_params.cuh"
#include "kernels/matmul/cuda/matvec/matvec_product.cuh"

namespace celer::cuda::batch {

// Four values of a warp's product: rows g and g + 8, tokens 2t and 2t + 1.
using Values = float[4];

// An integer n below 128 is the bf16 128 + n without its 128: one instruction makes two of them out of a
// word, and what is too much goes out with the sum of the activations, which is a product with ones.
constexpr uint32_t kNibbles = 0x000f000fu, kBase = 0x43004300u, kOnes = 0x3f803f80u;

template <Format F>
struct WarpProduct;

template <>
struct WarpProduct<Format::kBf16> {
  float c[2][4] = {};  // two chains

  // `x(j)`: this lane's 16 bytes of the j-th 32 columns.
  template <class X>
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, const X& x_at, uint32_t, int) {
    const uint4 x = x_at(0);
    MmaBf16(c[0], wa.x, wb.x, wa.y, wb.y, x.x, x.y);
    MmaBf16(c[1], wa.z, wb.z, wa.w, wb.w, x.z, x.w);
  }
  __device__ __forceinline__ void Begin(uint32_t) {}
  __device__ __forceinline__ void Get(Values& out) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = c[0][i] + c[1][i];
  }
};

// One scale to a row. A byte is 16 high + low - 128, both nibbles without a sign.
template <>
struct WarpProduct<Format::kInt8> {
  float high[4] = {}, low[4] = {}, sum[4] = {}, channel[2];

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
      const uint4 x = x_at(j);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t b0 = n == 0 ? x.x : x.z, b1 = n == 0 ? x.y : x.w;
        const uint32_t a = Word(wa, 2 * j + n), b = Word(wb, 2 * j + n);
        MmaBf16(low, lower(a), lower(b), lower(a >> 8), lower(b >> 8), b0, b1);
        MmaBf16(high, upper(a >> 4), upper(b >> 4), upper(a >> 12), upper(b >> 12), b0, b1);
        MmaBf16(sum, kOnes, kOnes, kOnes, kOnes, b0, b1);
      }
    }
  }
  __device__ __forceinline__ void Get(Values& out) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[i] = channel[i / 2] * fmaf(sum[i], -(16.0f * 128 + 128 + 128), fmaf(high[i], 16.0f, low[i]));
  }
};

// Groups of 128 columns with scale and minimum.
template <>
struct WarpProduct<Format::kInt4> {
  Values total = {};

  __device__ __forceinline__ void Begin(uint32_t) {}
  template <class X>
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, const X& x_at, uint32_t scales,
                                      int scale_half) {
    const float2 pa = LoadScale<Format::kInt4>(scales), pb = LoadScale<Format::kInt4>(scales + scale_half);
    float c[2][4] = {}, sum[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 x = x_at(j);
      const uint32_t a = Word(wa, j), b = Word(wb, j);
      const auto nibbles = [](uint32_t w) { return (w & kNibbles) | kBase; };
      MmaBf16(c[0], nibbles(a), nibbles(b), nibbles(a >> 4), nibbles(b >> 4), x.x, x.y);
      MmaBf16(c[1], nibbles(a >> 8), nibbles(b >> 8), nibbles(a >> 12), nibbles(b >> 12), x.z, x.w);
      MmaBf16(sum[0], kOnes, kOnes, kOnes, kOnes, x.x, x.y);
      MmaBf16(sum[1], kOnes, kOnes, kOnes, kOnes, x.z, x.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 p = i < 2 ? pa : pb;
      total[i] = fmaf(p.x, c[0][i] + c[1][i], fmaf(p.y - 128 * p.x, sum[0][i] + sum[1][i], total[i]));
    }
  }
  __device__ __forceinline__ void Get(Values& out) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = total[i];
  }
};

// Where the warps that multiply stand.
struct Multiplier {
  RingPlace ring;
  int x_at = 0;  // chunks of activations before this product's
  int done = 0;  // batches

  // Until the sums of the last two batches have been read.
  __device__ __forceinline__ void AwaitRead(uint32_t read) const {
    for (int i = max(done - 2, 0); i < done; ++i) BarrierWait(read + (i & 1) * 8, i / 2 & 1);
  }
};

template <Format F>
__device__ __forceinline__ void MultiplyAll(const Op& op, const Run& run, Memory<F>& memory, int warp,
                                            int lane, Multiplier& state) {
  const uint32_t ring = SharedAddress(memory.ring), slots = SharedAddress(memory.x);
  const uint32_t full = SharedAddress(memory.full), empty = SharedAddress(memory.empty);
  const uint32_t x_full = SharedAddress(memory.x_full), x_empty = SharedAddress(memory.x_empty);
  const uint32_t read = SharedAddress(memory.read);
  const int row_bytes = op.row_bytes, x_chunks = op.chunks, batches = run.batches();
  const bool stays = x_chunks <= kSlots;  // activations, for all batches
  int have = 0;                           // of their chunks
  for (int batch = 0; batch < batches; ++batch) {
    const Share share(run.Tiles(batch));
    const int slot = warp >> share.log2_split, part = warp & (share.split - 1);
    const int half_bytes = share.tile_bytes() / 2, chunks = share.chunks(row_bytes), blocks = row_bytes / 64;
    const int stage_cols = share.split * kSpans * kWarpCols<F>;
    const uint32_t weights = ring + slot * share.tile_bytes() + part * 512 + lane * 16;
    // int4: of this warp's group, [tile half, groups of the stage, 8 rows]; int8: [tile half, 8 rows]
    const int half_scales = F == Format::kInt4 ? share.split * kSpans * 8 * ScaleBytesOf(F) : 32;
    const uint32_t scales = ring + kStageBytes + 2 * slot * half_scales + lane / 4 * 4;
    const bool last = !stays || batch + 1 == batches;
    if (!stays) have = 0;
    int freed = 0, block = part;
    WarpProduct<F> product;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t stage = state.ring.stage, base = stage * kFullStage<F>;
      if (!state.ring.there) BarrierWait(full + stage * 8, state.ring.parity);
      state.ring.Advance(kStages);
      state.ring.there = BarrierPassed(full + state.ring.stage * 8, state.ring.parity);
      const bool ends = chunk + 1 == chunks;
      const int until = ends ? x_chunks : ((chunk + 1) * stage_cols + kChunk - 1) / kChunk;
      for (; have < until; ++have) {
        const auto at = static_cast<uint32_t>(state.x_at + have);
        BarrierWait(x_full + at % kSlots * 8, at / kSlots & 1);
      }
      if (chunk == 0) product.Begin(scales + base);
#pragma unroll
      for (int j = 0; j < kSpans; ++j, block += share.split) {
        if (block >= blocks) continue;
        const uint32_t from = weights + base + (j << share.log2_split) * 512;
        // A span's 32, 64 or 128 columns are in one chunk.
        constexpr int kBlocks = kWarpCols<F> / 32, kInChunk = kChunk / kWarpCols<F>;
        const uint32_t x_slot = static_cast<uint32_t>(state.x_at + block / kInChunk) % kSlots;
        const uint32_t x_from = slots + x_slot * kSlotBytes + block % kInChunk * (kBlocks * 512) + lane * 16;
        const auto x = [&](int n) { return Load16(x_from + n * 512); };
        product.Add(Load16(from), Load16(from + half_bytes), x,
                    scales + base + ((j << share.log2_split) + part) * 32, half_scales);
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(empty + stage * 8);
      if (last) {
        const int gone = ends ? x_chunks : (chunk + 1) * stage_cols / kChunk;
        for (; freed < gone; ++freed)
          if (lane == 0) BarrierArrive(x_empty + static_cast<uint32_t>(state.x_at + freed) % kSlots * 8);
      }
    }
    if (last) state.x_at += x_chunks;
    const int parity = state.done & 1;
    if (state.done >= 2) BarrierWait(read + parity * 8, (state.done / 2 - 1) & 1);
    ++state.done;
    Values v;
    product.Get(v);
    memory.sums[parity][warp][lane] = make_float4(v[0], v[1], v[2], v[3]);
    ArrivePair(2 + parity);
  }
}

}  // namespace celer::cuda::batch
