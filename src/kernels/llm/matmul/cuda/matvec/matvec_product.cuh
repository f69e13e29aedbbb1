// Products of a warp: 64 bytes of each of 16 rows with the activations of up to 4 NT tokens.
#pragma once

#include <cuda_fp16.h>

#include "kernels/llm/matmul/cuda/matvec/matvec_tiles.cuh"
#include "kernels/shared/cuda/fp4.cuh"
#include "kernels/shared/cuda/fp8.cuh"

namespace celer::cuda::matvec {

// Sums of a warp over its part of k: rows g and g + 8 of the tile, for token 4 nt + t.
template <Format F, int NT>
struct Accumulator {
  float c[2][NT][4];  // float formats: two chains, so that products need not wait for each other
  float sum[NT][2];   // integer formats, and fp8 in groups: with the weights' scales

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[0][n][i] = c[1][n][i] = 0;
      sum[n][0] = sum[n][1] = 0;
    }
  }
  // The two parts of a token are neighbours: columns 2t and 2t + 1.
  __device__ __forceinline__ float2 Get(int n) const {
    if constexpr (IsInteger(F)) return make_float2(sum[n][0], sum[n][1]);
    const float2 out = make_float2((c[0][n][0] + c[1][n][0]) + (c[0][n][1] + c[1][n][1]),
                                   (c[0][n][2] + c[1][n][2]) + (c[0][n][3] + c[1][n][3]));
    if constexpr (!HasScales(F)) return out;
    return make_float2(out.x + sum[n][0], out.y + sum[n][1]);  // one of them is zero
  }
};

__device__ __forceinline__ uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Where a lane finds what it multiplies, at column 0. Lanes whose column no token has load nothing: reads of
// x would cost as much of the shared memory's time as those of the weights.
template <int NT>
struct Places {
  uint32_t x[NT];              // its column of the activations, 0 beyond the last token
  uint32_t step[NT], sum[NT];  // integer formats: scale of x, and sums of x
};

// Whether a step and the sum of its columns lie together.
template <Format F, int S>
constexpr bool kPairs = HasSums(F) && S == 7;

template <Format F, int NT, int S>
__device__ __forceinline__ Places<NT> Find(const Params& p, uint32_t shared, int lane) {
  const int g = lane / 4, t = lane % 4, padded = p.a.a.padded, last = p.a.tokens - 1;
  constexpr int kBytes = IsInteger(F) ? 1 : 2;  // of an activation's part
  Places<NT> out;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int column = n * 4 + g / 2, mine = min(n * 4 + t, last);
    out.x[n] = column > last ? 0
                             : shared + p.x_offset + (g & 1) * p.plane_bytes + column * padded * kBytes +
                                   t * (F == Format::kF32 ? 8 : 16);
    out.step[n] = shared + p.xs_offset + mine * (padded >> 7) * (kPairs<F, S> ? 8 : 4);
    out.sum[n] = shared + p.xsum_offset + mine * (padded >> p.group_shift) * 4;
  }
  return out;
}

__device__ __forceinline__ float LoadFloat(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from));
  return v;
}

// Scale and minimum of a row's group.
template <Format F>
__device__ __forceinline__ float2 LoadScale(uint32_t from) {
  if constexpr (F == Format::kInt4) {
    uint32_t pair;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(from));
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  } else {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
    return v;
  }
}

// A lane's part of one warp's 64 bytes of each of the 16 rows of a tile: `wa` of the first eight rows, `wb`
// of the others. The five functions below multiply them with the activations at `col`, the first of their
// columns.

// Weights of floats, as one, two or three bf16.
template <Format F, int NT>
__device__ __forceinline__ void MultiplyFloats(Accumulator<F, NT>& acc, const Places<NT>& at, const uint4& wa,
                                               const uint4& wb, int col) {
  const uint32_t off = col * 2;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    if constexpr (F == Format::kF32) {
      uint2 x = make_uint2(0, 0);
      if (at.x[n])
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at.x[n] + off));
      uint32_t ua[4] = {wa.x, wa.y, wa.z, wa.w}, ub[4] = {wb.x, wb.y, wb.z, wb.w};
#pragma unroll
      for (int part = 0; part < 3; ++part) {  // 3 x 8 bits of significand
        uint32_t pa[2], pb[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float a0 = __uint_as_float(ua[2 * i]), a1 = __uint_as_float(ua[2 * i + 1]);
          const float b0 = __uint_as_float(ub[2 * i]), b1 = __uint_as_float(ub[2 * i + 1]);
          pa[i] = PackBf16(a0, a1);
          pb[i] = PackBf16(b0, b1);
          const float2 fa = UnpackBf16(pa[i]), fb = UnpackBf16(pb[i]);
          ua[2 * i] = __float_as_uint(a0 - fa.x), ua[2 * i + 1] = __float_as_uint(a1 - fa.y);
          ub[2 * i] = __float_as_uint(b0 - fb.x), ub[2 * i + 1] = __float_as_uint(b1 - fb.y);
        }
        MmaBf16(acc.c[part % 2][n], pa[0], pb[0], pa[1], pb[1], x.x, x.y);
      }
    } else {
      const uint4 x = Load16If(at.x[n], off);
      if constexpr (F == Format::kBf16) {
        MmaBf16(acc.c[0][n], wa.x, wb.x, wa.y, wb.y, x.x, x.y);
        MmaBf16(acc.c[1][n], wa.z, wb.z, wa.w, wb.w, x.z, x.w);
      } else {  // f16 = bf16 + bf16, exactly: 8 bits and 3
        uint32_t high_a[4], high_b[4], low_a[4], low_b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t ua = Word(wa, i), ub = Word(wb, i);
          const float2 va = __half22float2(reinterpret_cast<const __half2&>(ua));
          const float2 vb = __half22float2(reinterpret_cast<const __half2&>(ub));
          high_a[i] = PackBf16(va.x, va.y);
          high_b[i] = PackBf16(vb.x, vb.y);
          const float2 fa = UnpackBf16(high_a[i]), fb = UnpackBf16(high_b[i]);
          low_a[i] = PackBf16(va.x - fa.x, va.y - fa.y);
          low_b[i] = PackBf16(vb.x - fb.x, vb.y - fb.y);
        }
        MmaBf16(acc.c[0][n], high_a[0], high_b[0], high_a[1], high_b[1], x.x, x.y);
        MmaBf16(acc.c[1][n], high_a[2], high_b[2], high_a[3], high_b[3], x.z, x.w);
        MmaBf16(acc.c[0][n], low_a[0], low_b[0], low_a[1], low_b[1], x.x, x.y);
        MmaBf16(acc.c[1][n], low_a[2], low_b[2], low_a[3], low_b[3], x.z, x.w);
      }
    }
  }
}

// fp8. `scales` is where the lane's first row has the scale of the group of `col`, the second row's is
// scale_half behind it; scale_half == 0: rows have one scale, which is not applied here.
template <int NT>
__device__ __forceinline__ void MultiplyFp8(Accumulator<Format::kFp8, NT>& acc, const Places<NT>& at,
                                            const uint4& wa, const uint4& wb, uint32_t scales, int scale_half,
                                            int group_shift, int col) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {  // 32 columns
    uint32_t a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = fp8::PairOf(Word(wa, j * 2 + i / 2), i % 2);
      b[i] = fp8::PairOf(Word(wb, j * 2 + i / 2), i % 2);
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4 x = Load16If(at.x[n], col * 2 + j * 64);
      MmaBf16(acc.c[0][n], a[0], b[0], a[1], b[1], x.x, x.y);
      MmaBf16(acc.c[1][n], a[2], b[2], a[3], b[3], x.z, x.w);
    }
    if (scale_half == 0 || (j == 0 && group_shift > 5)) continue;
    const uint32_t from = scales + (j * 32 >> group_shift) * 32;
    const float sa = LoadFloat(from), sb = LoadFloat(from + scale_half);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      acc.sum[n][0] =
          fmaf((acc.c[0][n][0] + acc.c[1][n][0]) + (acc.c[0][n][1] + acc.c[1][n][1]), sa, acc.sum[n][0]);
      acc.sum[n][1] =
          fmaf((acc.c[0][n][2] + acc.c[1][n][2]) + (acc.c[0][n][3] + acc.c[1][n][3]), sb, acc.sum[n][1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.c[0][n][i] = acc.c[1][n][i] = 0;
    }
  }
}

// fp4 in groups of 32, as integers: twice the values, less an offset that counts once per unit of x. `scales` and
// `scale_half` as above.
template <int NT>
__device__ __forceinline__ void MultiplyMxfp4(Accumulator<Format::kMxfp4, NT>& acc, const Places<NT>& at,
                                              const uint4& wa, const uint4& wb, uint32_t scales,
                                              int scale_half, int col) {
  uint4 x[NT][2];
  float step[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    x[n][0] = Load16If(at.x[n], col), x[n][1] = Load16If(at.x[n], col + 64);
    step[n] = 0.5f * LoadFloat(at.step[n] + (col >> 7 << 2));
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // 32 columns
    const fp4::Bytes a = fp4::BytesOf(Word(wa, j)), b = fp4::BytesOf(Word(wb, j));
    const float sa = fp4::ScaleOf(fp4::LoadExponent(scales + j * 8)),
                sb = fp4::ScaleOf(fp4::LoadExponent(scales + j * 8 + scale_half));
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      int c[4] = {0, 0, 0, 0};
      MmaUint8(c, a.low, b.low, a.high, b.high, Word(x[n][j / 2], j % 2 * 2),
               Word(x[n][j / 2], j % 2 * 2 + 1));
      const float offset = -0.5f * fp4::kOffset * LoadFloat(at.sum[n] + (col >> 5 << 2) + j * 4);
      acc.sum[n][0] = fmaf(fmaf(static_cast<float>((c[0] << 7) + c[1]), step[n], offset), sa, acc.sum[n][0]);
      acc.sum[n][1] = fmaf(fmaf(static_cast<float>((c[2] << 7) + c[3]), step[n], offset), sb, acc.sum[n][1]);
    }
  }
}

// Int4 in groups of 128: all columns share a scale. `scales` is where the lane's first row has its scale;
// the second row's is scale_half behind it.
template <Format F, int NT>
__device__ __forceinline__ void MultiplyOneGroup(Accumulator<F, NT>& acc, const Places<NT>& at,
                                                 const uint4& wa, const uint4& wb, uint32_t scales,
                                                 int scale_half, int col) {
  // The 128 columns of one group. The upper nibbles stay where they are: 16 times their value, without a
  // sign.
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const uint4 x0 = Load16If(at.x[n], col), x1 = Load16If(at.x[n], col + 64);
    float2 of_x;  // its step and its sum
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(of_x.x), "=f"(of_x.y)
                 : "r"(at.step[n] + col / 16));
    const float2 pa = LoadScale<F>(scales), pb = LoadScale<F>(scales + scale_half);
    constexpr uint32_t kLow = 0x0f0f0f0fu, kHigh = 0xf0f0f0f0u;
    int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
    MmaUint8(low, wa.x & kLow, wb.x & kLow, wa.y & kLow, wb.y & kLow, x0.x, x0.z);
    MmaUint8(high, wa.x & kHigh, wb.x & kHigh, wa.y & kHigh, wb.y & kHigh, x0.y, x0.w);
    MmaUint8(low, wa.z & kLow, wb.z & kLow, wa.w & kLow, wb.w & kLow, x1.x, x1.z);
    MmaUint8(high, wa.z & kHigh, wb.z & kHigh, wa.w & kHigh, wb.w & kHigh, x1.y, x1.w);
    const int a = low[0] * 128 + low[1] + ((high[0] * 128 + high[1]) >> 4);
    const int b = low[2] * 128 + low[3] + ((high[2] * 128 + high[3]) >> 4);
    acc.sum[n][0] = fmaf(static_cast<float>(a), of_x.x * pa.x, fmaf(pa.y, of_x.y, acc.sum[n][0]));
    acc.sum[n][1] = fmaf(static_cast<float>(b), of_x.x * pb.x, fmaf(pb.y, of_x.y, acc.sum[n][1]));
  }
}

// Integers in smaller groups, or int8 with one scale per row. `scales` and `scale_half` as above, for the
// group of `col`.
template <Format F, int NT, int S>
__device__ __forceinline__ void MultiplyGroups(Accumulator<F, NT>& acc, const Places<NT>& at, const uint4& wa,
                                               const uint4& wb, uint32_t scales, int scale_half,
                                               int group_shift, int col) {
  // Products of 32 columns, added up as integers within a group.
  constexpr bool kFour = F != Format::kInt8;
  constexpr int kProducts = kFour ? 4 : 2;
  const int shift = S > 0 ? S : group_shift;
  const int last = S == 4 ? 0 : min((1 << (shift - 5)) - 1, kProducts - 1);  // products of a group, less one
  // Groups of 16: the columns of one are with lanes t < 2, those of the next with the others. Each is a
  // product of its own in which the other lanes have zeros.
  constexpr int kGroups = S == 4 ? 2 : 1;
  const int side = threadIdx.x % 4 / 2;
  const uint32_t off = col, sum_off = off >> shift << 2;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const uint4 x0 = Load16If(at.x[n], off), x1 = kFour ? Load16If(at.x[n], off + 64) : x0;
    const float step = LoadFloat(at.step[n] + (off >> 7 << 2));
    int c[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kProducts; ++j) {
      const uint4& x = j < 2 ? x0 : x1;
#pragma unroll
      for (int h = 0; h < kGroups; ++h) {
        const bool mine = kGroups == 1 || side == h;
        const uint32_t b0 = mine ? Word(x, j % 2 * 2) : 0, b1 = mine ? Word(x, j % 2 * 2 + 1) : 0;
        if constexpr (kFour) {
          const uint32_t ua = Word(wa, j), ub = Word(wb, j);
          MmaInt8(c, ua & 0x0f0f0f0fu, ub & 0x0f0f0f0fu, ua >> 4 & 0x0f0f0f0fu, ub >> 4 & 0x0f0f0f0fu, b0,
                  b1);
        } else {
          MmaInt8(c, Word(wa, j * 2), Word(wb, j * 2), Word(wa, j * 2 + 1), Word(wb, j * 2 + 1), b0, b1);
        }
        if ((j & last) != last) continue;
        const float da = static_cast<float>((c[0] << 7) + c[1]) * step;
        const float db = static_cast<float>((c[2] << 7) + c[3]) * step;
        c[0] = c[1] = c[2] = c[3] = 0;
        const int group = (j * 32 + h * 16) >> shift;
        if constexpr (F == Format::kInt8) {
          float sa = 1, sb = 1;
          if (scale_half > 0) {
            sa = LoadFloat(scales + group * 32);
            sb = LoadFloat(scales + group * 32 + scale_half);
          }
          acc.sum[n][0] += da * sa;
          acc.sum[n][1] += db * sb;
        } else {
          const float x_sum = LoadFloat(at.sum[n] + sum_off + group * 4);
          const uint32_t from = scales + group * 8 * ScaleBytesOf(F);
          const float2 pa = LoadScale<F>(from), pb = LoadScale<F>(from + scale_half);
          acc.sum[n][0] = fmaf(da, pa.x, fmaf(pa.y, x_sum, acc.sum[n][0]));
          acc.sum[n][1] = fmaf(db, pb.x, fmaf(pb.y, x_sum, acc.sum[n][1]));
        }
      }
    }
  }
}

// One warp's 64 bytes of each of the 16 rows: `weights` is the lane's part of the first half, the second lies
// half_bytes behind it. S: log2 of the columns that share a scale, 0 if it is known at run time only.
template <Format F, int NT, int S>
__device__ __forceinline__ void Multiply(Accumulator<F, NT>& acc, const Places<NT>& at, uint32_t weights,
                                         int half_bytes, uint32_t scales, int scale_half, int group_shift,
                                         int col) {
  const uint4 wa = Load16(weights), wb = Load16(weights + half_bytes);
  if constexpr (F == Format::kFp8)
    MultiplyFp8<NT>(acc, at, wa, wb, scales, scale_half, group_shift, col);
  else if constexpr (F == Format::kMxfp4)
    MultiplyMxfp4<NT>(acc, at, wa, wb, scales, scale_half, col);
  else if constexpr (!IsInteger(F))
    MultiplyFloats<F, NT>(acc, at, wa, wb, col);
  else if constexpr (kPairs<F, S>)
    MultiplyOneGroup<F, NT>(acc, at, wa, wb, scales, scale_half, col);
  else
    MultiplyGroups<F, NT, S>(acc, at, wa, wb, scales, scale_half, group_shift, col);
}

}  // namespace celer::cuda::matvec
