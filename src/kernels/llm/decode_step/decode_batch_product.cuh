// The products of decode_batch_cuda.cuh, with bf16 activations.
//
// Eight tokens are the columns of an instruction, 16 rows of weights its rows. Sixteen tokens are its rows
// and eight rows of weights its columns: so a lane's 16 bytes of activations (PairOf) are one factor as they
// are, and two words of its weights the other.
//
// Integer weights are bound by instruction issue, so a span has few instructions beside its products.
#pragma once

#include "kernels/llm/decode_step/decode_batch_params.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_product.cuh"

namespace celer::cuda::batch {

// A lane's sums. Eight tokens: [0][2 half + token % 2] of row g of each half, tokens 2t and 2t + 1. Sixteen:
// [half][2 (token / 8) + row % 2] of rows 2t and 2t + 1, tokens g and g + 8.
template <int N>
using Values = float[kEights<N>][4];

// Adds the product of 16 rows of weights and 16 columns of activations to the sums: `a` and `b` are two words
// of each half of the rows.
__device__ __forceinline__ void MultiplyUnit(Values<8>& c, const uint2& x, uint32_t a0, uint32_t a1,
                                             uint32_t b0, uint32_t b1) {
  MmaBf16(c[0], a0, b0, a1, b1, x.x, x.y);
}
__device__ __forceinline__ void MultiplyUnit(Values<16>& c, const uint4& x, uint32_t a0, uint32_t a1,
                                             uint32_t b0, uint32_t b1) {
  MmaBf16(c[0], x.x, x.y, x.z, x.w, a0, a1);
  MmaBf16(c[1], x.x, x.y, x.z, x.w, b0, b1);
}

// A lane's activations of 32 columns, and the 16 of them that a product takes.
template <int N>
struct Columns;
template <>
struct Columns<8> {
  uint4 v;

  __device__ __forceinline__ explicit Columns(uint32_t from) : v(Load16(from)) {}
  __device__ __forceinline__ uint2 operator[](int unit) const {
    return unit == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w);
  }
};
template <>
struct Columns<16> {
  uint4 v[2];

  __device__ __forceinline__ explicit Columns(uint32_t from) : v{Load16(from), Load16(from + 512)} {}
  __device__ __forceinline__ const uint4& operator[](int unit) const { return v[unit]; }
};

// The half of the rows that a sum is of.
template <int N>
__device__ __forceinline__ int HalfOf(int h, int i) {
  return N == 8 ? i / 2 : h;
}

// Below: `base` is Op's. Begin() comes with the first stage. Add() takes a span's weights, `wa` of the first
// eight rows, `wb` of the others, and `x`, where this lane's activations are. `scales` are those of a lane's
// first row in the first half, `half` bytes before those of the second half.
template <Format F, int N>
struct WarpProduct;

template <int N>
struct WarpProduct<Format::kBf16, N> {
  Values<N> c[2] = {};  // two chains

  __device__ __forceinline__ explicit WarpProduct(uint32_t) {}
  __device__ __forceinline__ void Begin(uint32_t) {}
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, uint32_t x, uint32_t, int) {
    const Columns<N> columns(x);
    MultiplyUnit(c[0], columns[0], wa.x, wa.y, wb.x, wb.y);
    MultiplyUnit(c[1], columns[1], wa.z, wa.w, wb.z, wb.w);
  }
  __device__ __forceinline__ void Get(Values<N>& out) const {
#pragma unroll
    for (int h = 0; h < kEights<N>; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[h][i] = c[0][h][i] + c[1][h][i];
  }
};

// One scale to a row.
template <int N>
struct WarpProduct<Format::kInt8, N> {
  Values<N> c[2] = {};  // two chains
  float channel[2][2];  // [half][row % 2]; of eight tokens only row g
  uint32_t base;

  __device__ __forceinline__ explicit WarpProduct(uint32_t base) : base(base) {}

  __device__ __forceinline__ void Begin(uint32_t scales) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      channel[h][0] = LoadFloat(scales + h * 32);
      if constexpr (N == 16) channel[h][1] = LoadFloat(scales + h * 32 + 4);
    }
  }
  // Bytes 0 and 2 of a word: 128 plus the lower seven bits, less 128 or, if the upper bit is set, 256.
  __device__ __forceinline__ uint32_t Pair(uint32_t w) const {
    const uint32_t low = (w & 0x007f007fu) | base, high = (w & 0x00800080u) | base;
    const __nv_bfloat162 v =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(high));
    return reinterpret_cast<const uint32_t&>(v);
  }
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, uint32_t x, uint32_t, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Columns<N> columns(x + j * (N * 64));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t a = Word(wa, 2 * j + n), b = Word(wb, 2 * j + n);
        MultiplyUnit(c[n], columns[n], Pair(a), Pair(a >> 8), Pair(b), Pair(b >> 8));
      }
    }
  }
  __device__ __forceinline__ void Get(Values<N>& out) const {
#pragma unroll
    for (int h = 0; h < kEights<N>; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[h][i] = (c[0][h][i] + c[1][h][i]) * channel[HalfOf<N>(h, i)][N == 8 ? 0 : i % 2];
  }
};

// Groups of 128 columns with scale and minimum. A nibble is 128 too large; that and the minimum are corrected
// by the sum of the activations, which is a product with ones.
template <int N>
struct WarpProduct<Format::kInt4, N> {
  Values<N> total = {};
  uint32_t base;

  __device__ __forceinline__ explicit WarpProduct(uint32_t base) : base(base) {}
  __device__ __forceinline__ void Begin(uint32_t) {}
  __device__ __forceinline__ void Add(const uint4& wa, const uint4& wb, uint32_t x, uint32_t scales,
                                      int half) {
    constexpr uint32_t kNibbles = 0x000f000fu, kOnes = 0x3f803f80u;
    const auto nibbles = [&](uint32_t w) { return (w & kNibbles) | base; };
    Values<N> c[2] = {};  // two chains
    float sum[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Columns<N> columns(x + j * (N * 64));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t a = Word(wa, j) >> 8 * n, b = Word(wb, j) >> 8 * n;
        MultiplyUnit(c[n], columns[n], nibbles(a), nibbles(a >> 4), nibbles(b), nibbles(b >> 4));
        if constexpr (N == 8)
          MmaBf16(sum[n], kOnes, kOnes, kOnes, kOnes, columns[n].x, columns[n].y);
        else
          MmaBf16(sum[n], columns[n].x, columns[n].y, columns[n].z, columns[n].w, kOnes, kOnes);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int row = 0; row < (N == 8 ? 1 : 2); ++row) {
        const float2 p = LoadScale<Format::kInt4>(scales + h * half + row * 4);
        const float least = p.y - 128 * p.x;
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // tokens
          const int e = N == 8 ? 0 : h, i = N == 8 ? 2 * h + j : 2 * j + row;
          const int s = N == 8 ? j : 2 * j;
          total[e][i] = fmaf(p.x, c[0][e][i] + c[1][e][i], fmaf(least, sum[0][s] + sum[1][s], total[e][i]));
        }
      }
  }
  __device__ __forceinline__ void Get(Values<N>& out) const {
#pragma unroll
    for (int h = 0; h < kEights<N>; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[h][i] = total[h][i];
  }
};

// Sums of a batch, by eights of tokens.
template <int N>
using BatchSums = float4[kEights<N>][kWarps][32];

template <int N>
__device__ __forceinline__ void StoreSums(BatchSums<N>& sums, int warp, int lane, const Values<N>& v) {
#pragma unroll
  for (int e = 0; e < kEights<N>; ++e)
    sums[e][warp][lane] = N == 8 ? make_float4(v[0][0], v[0][1], v[0][2], v[0][3])
                                 : make_float4(v[0][2 * e], v[0][2 * e + 1], v[kEights<N> - 1][2 * e],
                                               v[kEights<N> - 1][2 * e + 1]);
}
// A tile's, of the warps from `first` on: for rows g and g + 8, and tokens 2t and 2t + 1 of an eight.
template <int N>
__device__ __forceinline__ float4 LoadSums(const float4 (&sums)[kWarps][32], int first, int count, int lane) {
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int w = first; w < first + count; ++w) {
    const float4 part = sums[w][lane];
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  if constexpr (N == 8) return sum;
  // Lane 4g + t has token g, rows 2t and 2t + 1 of each half.
  const int g = lane / 4, t = lane % 4;
  const auto take = [&](float even, float odd, int token) {
    const int from = token * 4 + g / 2;
    const float a = __shfl_sync(0xffffffffu, even, from), b = __shfl_sync(0xffffffffu, odd, from);
    return g % 2 == 0 ? a : b;
  };
  return make_float4(take(sum.x, sum.y, 2 * t), take(sum.x, sum.y, 2 * t + 1), take(sum.z, sum.w, 2 * t),
                     take(sum.z, sum.w, 2 * t + 1));
}

// By one lane of a whole warp.
__device__ __forceinline__ void ArriveOnce(uint32_t bar) {
#if CELER_HOPPER
  asm volatile(
      "{\n.reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "@chosen mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(bar)
      : "memory");
#else
  if (threadIdx.x % 32 == 0) BarrierArrive(bar);
#endif
}

// Where the warps that multiply stand.
struct Multiplier {
  int stages = 0;  // of the ring that were used
  int x_at = 0;    // chunks of activations before this product's
  int done = 0;    // batches
};

// A block's tiles of one operator. `hand_over` takes a batch's number and this warp's sums of it.
template <Format F, int N, class R, class HandOver>
__device__ __forceinline__ void MultiplyAll(const Op& op, const R& run, Memory<F, N>& memory, int warp,
                                            int lane, Multiplier& state, const HandOver& hand_over) {
  constexpr uint32_t kSpanBytes = kWarpCols<F> * N * 2;  // of activations
  static_assert(kSlotBytes % kSpanBytes == 0);
  // Of a lane's rows: the first is row g of eight tokens, row 2t of sixteen.
  const int scales_of_lane = (N == 8 ? lane / 4 : lane % 4 * 2) * 4;
  static_assert(F == Format::kBf16 || ScaleBytesOf(F) == 4);
  const uint32_t ring = SharedAddress(memory.ring), x_lane = SharedAddress(memory.x) + lane * 16;
  const uint32_t full = SharedAddress(memory.full), empty = SharedAddress(memory.empty);
  const uint32_t x_full = SharedAddress(memory.x_full), x_empty = SharedAddress(memory.x_empty);
  const auto x_chunks = static_cast<uint32_t>(op.chunks),
             x_bytes = static_cast<uint32_t>(op.row_bytes) / 64 * kSpanBytes;
  const bool stays = x_chunks <= kSlots;  // activations, for all batches
  const int batches = run.batches();
  int stage = state.stages % kStages<N>;
  uint32_t parity = static_cast<uint32_t>(state.stages / kStages<N>) & 1;
  for (int batch = 0; batch < batches; ++batch) {
    const Sharing<N> share(run.Tiles(batch));
    const int tile = share.Tile(warp), part = share.Part(warp);
    const bool works = N == 8 || tile < share.tiles;  // else it waits where the others do
    const int half_bytes = share.tile_bytes() / 2, chunks = share.chunks(op.row_bytes);
    const uint32_t weights = ring + tile * share.tile_bytes() + part * 512 + lane * 16;
    // int4: [tile half, groups of the stage, 8 rows]; int8: [tile half, 8 rows]
    const int half_scales = F == Format::kInt4 ? share.split * kSpans * 32 : 32;
    const uint32_t scales =
        ring + kStageBytes + 2 * tile * half_scales + scales_of_lane + (F == Format::kInt4 ? part * 32 : 0);
    const bool last = !stays || batch + 1 == batches;
    const uint32_t first = state.x_at;                                // chunk
    const uint32_t step = share.Times(static_cast<int>(kSpanBytes));  // from span to span, in activations
    uint32_t x = part * kSpanBytes;                                   // where the next span's begin
    uint32_t have = ~0u, freed = 0;  // chunks: the last one that is there, the first one not left
    const auto await_x = [&](uint32_t chunk) {
      BarrierWait(x_full + (first + chunk) % kSlots * 8, (first + chunk) / kSlots & 1);
    };
    const auto leave_x = [&] {
      ArriveOnce(x_empty + (first + freed) % kSlots * 8);
      ++freed;
    };
    WarpProduct<F, N> product(op.base);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t base = stage * kFullStage<F, N>;
      BarrierWait(full + stage * 8, parity);
      if (chunk == 0) product.Begin(scales + base);
#pragma unroll
      for (int j = 0; j < kSpans; ++j) {
        if (x < x_bytes) {
          if (x / kSlotBytes != have) await_x(have = x / kSlotBytes);
          if (works) {
            const uint32_t from = weights + base + share.Times(j * 512);
            product.Add(Load16(from), Load16(from + half_bytes),
                        x_lane + ((first * kSlotBytes + x) & (kSlots * kSlotBytes - 1)),
                        scales + base + share.Times(j * 32), half_scales);
          }
        }
        x += step;
        // What this warp is done with, but nothing that is not there yet: the slot may still count those who
        // leave what was there before.
        const uint32_t gone = min(x / kSlotBytes, have + 1);
        if (last && freed < gone) {
          __syncwarp();
#pragma unroll 1
          while (freed < gone) leave_x();
        }
      }
      __syncwarp();
      ArriveOnce(empty + stage * 8);
      if (++stage == kStages<N>) stage = 0, parity ^= 1;
    }
    if (last) {
#pragma unroll 1
      while (freed < x_chunks) {
        await_x(freed);
        leave_x();
      }
      state.x_at += op.chunks;
    }
    state.stages += chunks;
    Values<N> v;
    product.Get(v);
    hand_over(batch, v);
    ++state.done;
  }
}

}  // namespace celer::cuda::batch
