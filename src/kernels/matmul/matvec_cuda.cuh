// The kernel behind matvec_cuda.h, one instance per weight format and number of 4-token tiles.
//
// Grid: persistent, one block per multiprocessor; block b takes the row tiles b, b + gridDim, ... A tile is
// 16 rows, as two halves of 8 that may lie apart (gate and up; the two dimensions of a rope pair). One thread
// fills the ring with bulk copies, 1024 bytes of each row per stage; sixteen warps share a stage along k,
// 64 bytes of each row for a warp; one more warp adds their parts up at the end of a tile and finishes
// it while they go on. The ring starts to fill before the previous kernel has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/matmul/matvec_cuda.h"
#include "kernels/matmul/matvec_ptx.cuh"

namespace celer::cuda::matvec {

constexpr int kWarps = 16;  // that multiply
constexpr int kConsumers = kWarps * 32;
constexpr int kProducer = kWarps, kFinisher = kWarps + 1;
constexpr int kThreads = kConsumers + 64;
constexpr int kSpanBytes = kWarps * 64;  // of one row that the warps take at once
constexpr int kSpans = 1;                // in one stage
constexpr int kChunkBytes = kSpans * kSpanBytes;
constexpr int kHalfBytes = 8 * kChunkBytes;
constexpr int kPlanePad = 64;  // the two parts of an activation fall into different halves of the banks
constexpr int kMaxStages = 12;

struct alignas(16) Params {
  MatvecArgs a;
  int tiles, chunks, stages;
  int stage_bytes, scale_half_bytes;  // a stage: 8 rows, 8 rows, then the scales of either half
  int group_shift;                    // log2 of the columns that share a scale
  int x_offset, xs_offset, xsum_offset, red_offset, sum_offset, barrier_offset;
  int plane_bytes;
};

constexpr bool IsInteger(Format f) {
  return f == Format::kInt8 || f == Format::kInt4 || f == Format::kInt4Wide;
}
template <Format F>
constexpr int kChunkCols = kChunkBytes * 8 / BitsOf(F);
template <Format F>
constexpr int kSpanCols = kSpanBytes * 8 / BitsOf(F);

// ---- where a tile's rows are

struct Half {
  const DeviceMatrix* matrix;
  int row;    // the first of eight
  int valid;  // how many of them exist
};

struct Tile {
  Half half[2];
  int part;  // kQkv: 0 q, 1 k, 2 v
  bool rotate;
};

__device__ __forceinline__ Half MakeHalf(const DeviceMatrix& m, int row) {
  return {&m, row, max(0, min(8, m.rows - row))};
}

__device__ __forceinline__ Tile Locate(const Params& p, int tile) {
  const MatvecArgs& a = p.a;
  Tile out = {};
  if (a.epilogue == Epilogue::kGateUp) {
    out.half[0] = MakeHalf(a.a, tile * 8);
    out.half[1] = MakeHalf(a.b, tile * 8);
    return out;
  }
  const DeviceMatrix* m = &a.a;
  if (a.epilogue == Epilogue::kQkv) {
    const int q_tiles = a.a.rows / 16, k_tiles = a.b.rows / 16;
    if (tile >= q_tiles + k_tiles) {
      tile -= q_tiles + k_tiles;
      m = &a.c;
      out.part = 2;
    } else if (tile >= q_tiles) {
      tile -= q_tiles;
      m = &a.b;
      out.part = 1;
    }
    const int per_head = a.kv.head_dim / 16, pairs = a.rope_dim / 16;
    if (out.part < 2 && tile % per_head < pairs) {
      const int row = tile / per_head * a.kv.head_dim + tile % per_head * 8;
      out.rotate = true;
      out.half[0] = MakeHalf(*m, row);
      out.half[1] = MakeHalf(*m, row + a.rope_dim / 2);
      return out;
    }
  }
  out.half[0] = MakeHalf(*m, tile * 16);
  out.half[1] = MakeHalf(*m, tile * 16 + 8);
  return out;
}

// ---- filling the ring

// Where a role stands in the ring. The parity is what it waits for: 0 for those who empty it, 1 for the one
// who fills.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <Format F>
__device__ __forceinline__ void CopyHalf(const Params& p, const Half& h, int chunk, uint32_t bytes,
                                         uint32_t scale_bytes, uint32_t to, uint32_t scales_to, uint32_t bar,
                                         uint64_t policy) {
  if (h.valid == 0) return;
  const DeviceMatrix& m = *h.matrix;
  BulkCopy(to, m.data + h.row * m.row_bytes + static_cast<int64_t>(chunk) * kHalfBytes, bytes, bar, policy);
  if (IsInteger(F) && scale_bytes > 0) {
    const int64_t group = static_cast<int64_t>(h.row / 8) * (m.padded >> p.group_shift) +
                          chunk * (kChunkCols<F> >> p.group_shift);
    BulkCopy(scales_to, m.scales + group * 8 * ScaleBytesOf(F), scale_bytes, bar, policy);
  }
}

// By one thread: a stage takes two copies, or four with scales.
template <Format F>
__device__ __forceinline__ void Produce(const Params& p, uint32_t shared, RingPlace& ring) {
  const uint64_t policy = StreamOncePolicy();
  const bool grouped = IsInteger(F) && p.a.a.group > 0;
  const int row_bytes = static_cast<int>(p.a.a.row_bytes), groups = p.a.a.padded >> p.group_shift;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Tile t = Locate(p, tile);
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const uint32_t bytes = 8 * min(kChunkBytes, row_bytes - chunk * kChunkBytes);
      const int in_chunk = kChunkCols<F> >> p.group_shift;
      const uint32_t scale_bytes =
          grouped ? min(in_chunk, groups - chunk * in_chunk) * 8 * ScaleBytesOf(F) : 0;
      const uint32_t full = shared + p.barrier_offset + ring.stage * 16, empty = full + 8;
      const uint32_t base = shared + ring.stage * p.stage_bytes;
      BarrierWait(empty, ring.parity);
      BarrierExpect(full, (bytes + scale_bytes) * (t.half[1].valid > 0 ? 2 : 1));
      CopyHalf<F>(p, t.half[0], chunk, bytes, scale_bytes, base, base + 2 * kHalfBytes, full, policy);
      CopyHalf<F>(p, t.half[1], chunk, bytes, scale_bytes, base + kHalfBytes,
                  base + 2 * kHalfBytes + p.scale_half_bytes, full, policy);
      ring.Advance(p.stages);
    }
  }
}

// ---- activations: from f32 in global memory to two parts in shared memory

template <Format F>
__device__ __forceinline__ void StoreActivation(const Params& p, char* x, int token, int group, int lane,
                                                float4 v) {
  const MatvecArgs& a = p.a;
  const int padded = a.a.padded;
  if constexpr (!IsInteger(F)) {
    const uint32_t h0 = PackBf16(v.x, v.y), h1 = PackBf16(v.z, v.w);
    const float2 f0 = UnpackBf16(h0), f1 = UnpackBf16(h1);
    const uint32_t l0 = PackBf16(v.x - f0.x, v.y - f0.y), l1 = PackBf16(v.z - f1.x, v.w - f1.y);
    char* to = x + (static_cast<size_t>(token) * padded + group * 128 + lane * 4) * 2;
    *reinterpret_cast<uint2*>(to) = make_uint2(h0, h1);
    *reinterpret_cast<uint2*>(to + p.plane_bytes) = make_uint2(l0, l1);
  } else {
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    float sum = (v.x + v.y) + (v.z + v.w);
#pragma unroll
    for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
    // x = step * (128 high + low), |128 high + low| <= 127 * 128
    const float step = most * (1.0f / 16256.0f), inverse = most > 0 ? 16256.0f / most : 0.0f;
    uint32_t high = 0, low = 0;
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = __float2int_rn(values[i] * inverse);
      const int h = (q + 64) >> 7;
      high |= static_cast<uint32_t>(h & 255) << (8 * i);
      low |= static_cast<uint32_t>((q - (h << 7)) & 255) << (8 * i);
    }
    char* to = x + static_cast<size_t>(token) * padded + group * 128;
    if constexpr (F == Format::kInt8) {
      to += lane / 16 * 64 + lane % 8 / 2 * 16 + lane % 16 / 8 * 8 + lane % 2 * 4;
      *reinterpret_cast<uint32_t*>(to) = high;
      *reinterpret_cast<uint32_t*>(to + p.plane_bytes) = low;
    } else {
      to += lane / 16 * 64 + lane % 8 / 2 * 16 + lane % 16 / 8 * 8 + lane % 2 * 2;
      const auto evens = [](uint32_t w) { return static_cast<uint16_t>(__byte_perm(w, 0, 0x4420)); };
      const auto odds = [](uint32_t w) { return static_cast<uint16_t>(__byte_perm(w, 0, 0x4431)); };
      *reinterpret_cast<uint16_t*>(to) = evens(high);
      *reinterpret_cast<uint16_t*>(to + 4) = odds(high);
      *reinterpret_cast<uint16_t*>(to + p.plane_bytes) = evens(low);
      *reinterpret_cast<uint16_t*>(to + p.plane_bytes + 4) = odds(low);
      // The group's minimum counts once per unit of x.
      const int lanes = a.a.group / 4;
#pragma unroll
      for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
      if (lanes > 8) sum += __shfl_xor_sync(0xffffffffu, sum, 8);
      if (lanes > 16) sum += __shfl_xor_sync(0xffffffffu, sum, 16);
      if (lane % lanes == 0) {
        float* sums = reinterpret_cast<float*>(x - p.x_offset + p.xsum_offset);
        sums[token * (padded >> p.group_shift) + ((group * 128 + lane * 4) >> p.group_shift)] = sum;
      }
    }
    if (lane == 0)
      reinterpret_cast<float*>(x - p.x_offset + p.xs_offset)[token * (padded >> 7) + group] = step;
  }
}

constexpr int kLoadsAtOnce = 4;

// The norm's weights for the first columns of a warp; they do not wait for the previous kernel.
__device__ __forceinline__ void LoadNorm(const Params& p, int warp, int lane, float4 (&out)[kLoadsAtOnce]) {
#pragma unroll
  for (int i = 0; i < kLoadsAtOnce; ++i) {
    const int col = (warp + i * kWarps) * 128 + lane * 4;
    out[i] = make_float4(1, 1, 1, 1);
    if (p.a.norm && p.a.a.cols % 4 == 0 && col < p.a.a.cols)
      out[i] = __ldg(reinterpret_cast<const float4*>(p.a.norm + col));
  }
}

// Partial sums of squares go to shared memory, [tokens, warps]; the finisher makes the norm's scale of them.
template <Format F>
__device__ __forceinline__ void LoadActivations(const Params& p, char* shared, int warp, int lane,
                                                const float4 (&norm)[kLoadsAtOnce]) {
  const MatvecArgs& a = p.a;
  char* x = shared + p.x_offset;
  float* sums = reinterpret_cast<float*>(shared + p.sum_offset);
  const int groups = a.a.padded / 128;
  const int mine = (groups - warp + kWarps - 1) / kWarps;  // of each token
  const int items = mine * a.tokens;
  const bool whole = a.x_stride % 4 == 0 && a.a.cols % 4 == 0;
  constexpr int kAtOnce = kLoadsAtOnce;
  float squares = 0;
  int token = 0, index = 0;  // of the item that is stored next
  int load_token = 0, load_index = 0;
  for (int first = 0; first < items; first += kAtOnce) {
    float4 v[kAtOnce], w[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      v[i] = make_float4(0, 0, 0, 0);
      w[i] = make_float4(1, 1, 1, 1);
      if (first + i >= items) continue;
      const int col = (warp + load_index * kWarps) * 128 + lane * 4;
      const int row = a.rows ? __ldcg(a.rows + load_token) : load_token;
      const float* from = a.x + row * a.x_stride + col;
      if (whole) {
        if (col < a.a.cols) {
          v[i] = __ldcg(reinterpret_cast<const float4*>(from));
          if (first == 0 && load_token == 0)
            w[i] = norm[i];
          else if (a.norm)
            w[i] = __ldg(reinterpret_cast<const float4*>(a.norm + col));
        }
      } else {
        float* to = reinterpret_cast<float*>(&v[i]);
        float* weight = reinterpret_cast<float*>(&w[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (col + j < a.a.cols) {
            to[j] = __ldcg(from + j);
            if (a.norm) weight[j] = __ldg(a.norm + col + j);
          }
      }
      if (++load_index == mine) load_index = 0, ++load_token;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= items) break;
      squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
      StoreActivation<F>(p, x, token, warp + index * kWarps, lane,
                         make_float4(v[i].x * w[i].x, v[i].y * w[i].y, v[i].z * w[i].z, v[i].w * w[i].w));
      if (++index == mine) {
#pragma unroll
        for (int j = 16; j > 0; j /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
        if (lane == 0) sums[token * kWarps + warp] = squares;
        squares = 0;
        index = 0;
        ++token;
      }
    }
  }
  if (mine == 0 && lane == 0)
    for (int i = 0; i < a.tokens; ++i) sums[i * kWarps + warp] = 0;
}

// ---- the products

// Sums of a warp over its part of k: rows g and g + 8 of the tile, for token 4 nt + t.
template <Format F, int NT>
struct Accumulator {
  float c[2][NT][4];  // float formats: two chains, so that products need not wait for each other
  float sum[NT][2];   // integer formats

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
    return make_float2((c[0][n][0] + c[1][n][0]) + (c[0][n][1] + c[1][n][1]),
                       (c[0][n][2] + c[1][n][2]) + (c[0][n][3] + c[1][n][3]));
  }
};

__device__ __forceinline__ uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Where a lane finds what it multiplies, but for the stage and the chunk. A column beyond the last token is a
// copy of that token's; nobody reads its sums.
template <int NT>
struct Places {
  uint32_t x[NT];              // its column of the activations, at its warp's part of a span
  uint32_t step[NT], sum[NT];  // integer formats: scale of x, and sums of x
  uint32_t scale;              // of the weights, within a stage
};

template <Format F>
constexpr int kWarpCols = 64 * 8 / BitsOf(F);  // columns of a warp in a span

template <Format F, int NT>
__device__ __forceinline__ Places<NT> Find(const Params& p, uint32_t shared, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, padded = p.a.a.padded, last = p.a.tokens - 1;
  constexpr int kBytes = IsInteger(F) ? 1 : 2;  // of an activation's part
  Places<NT> out;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int column = min(n * 4 + g / 2, last), mine = min(n * 4 + t, last);
    out.x[n] = shared + p.x_offset + (g & 1) * p.plane_bytes +
               (column * padded + warp * kWarpCols<F>)*kBytes + t * (F == Format::kF32 ? 8 : 16);
    out.step[n] = shared + p.xs_offset + (mine * (padded >> 7) + (warp * kWarpCols<F> >> 7)) * 4;
    out.sum[n] = shared + p.xsum_offset +
                 (mine * (padded >> p.group_shift) + (warp * kWarpCols<F> >> p.group_shift)) * 4;
  }
  out.scale = ((warp * kWarpCols<F> >> p.group_shift) * 8 + g) * ScaleBytesOf(F);
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

// One warp's 64 bytes of each of the 16 rows, at `weights`; `scales` is where the span's scales begin. S:
// log2 of the columns that share a scale, 0 if it is known at run time only.
template <Format F, int NT, int S>
__device__ __forceinline__ void Multiply(const Params& p, Accumulator<F, NT>& acc, const Places<NT>& at,
                                         uint32_t weights, uint32_t scales, int span) {
  const uint4 wa = Load16(weights), wb = Load16(weights + kHalfBytes);
  if constexpr (!IsInteger(F)) {
    const uint32_t off = span * kSpanCols<F> * 2;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if constexpr (F == Format::kF32) {
        uint2 x;
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
        const uint4 x = Load16(at.x[n] + off);
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
  } else {
    // Products of 32 columns, added up as integers within a group.
    constexpr bool kFour = F != Format::kInt8;
    constexpr int kProducts = kFour ? 4 : 2;
    const int shift = S > 0 ? S : p.group_shift;
    const int last = min((1 << (shift - 5)) - 1, kProducts - 1);  // products of a group, less one
    const uint32_t off = span * kSpanCols<F>;
    const uint32_t sum_off = off >> shift << 2;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4 x0 = Load16(at.x[n] + off), x1 = kFour ? Load16(at.x[n] + off + 64) : x0;
      const float step = LoadFloat(at.step[n] + (off >> 7 << 2));
      int c[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        const uint4& x = j < 2 ? x0 : x1;
        const uint32_t b0 = Word(x, j % 2 * 2), b1 = Word(x, j % 2 * 2 + 1);
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
        const int group = j * 32 >> shift;
        if constexpr (F == Format::kInt8) {
          float sa = 1, sb = 1;
          if (p.scale_half_bytes > 0) {
            sa = LoadFloat(scales + at.scale + group * 32);
            sb = LoadFloat(scales + at.scale + group * 32 + p.scale_half_bytes);
          }
          acc.sum[n][0] += da * sa;
          acc.sum[n][1] += db * sb;
        } else {
          const float x_sum = LoadFloat(at.sum[n] + sum_off + group * 4);
          const uint32_t from = scales + at.scale + group * 8 * ScaleBytesOf(F);
          const float2 pa = LoadScale<F>(from), pb = LoadScale<F>(from + p.scale_half_bytes);
          acc.sum[n][0] = fmaf(da, pa.x, fmaf(pa.y, x_sum, acc.sum[n][0]));
          acc.sum[n][1] = fmaf(db, pb.x, fmaf(pb.y, x_sum, acc.sum[n][1]));
        }
      }
    }
  }
}

// ---- what follows the product

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
  else
    reinterpret_cast<__half*>(cache)[at] = __float2half_rn(value);
}

// What is added or multiplied to the two sums of a lane; loaded while the products run.
struct Extras {
  float scale[2] = {1, 1};  // of the output channel
  float add[2] = {0, 0};    // bias and residual
  float cosine = 1, sine = 0;
};

__device__ __forceinline__ Extras LoadExtras(const Params& p, const Tile& tile, int token, int r,
                                             const TokenPlace& place) {
  const MatvecArgs& a = p.a;
  Extras out;
  const bool per_channel = a.a.format == Format::kInt8 && a.a.group == 0;
  const float* bias = tile.part == 0 ? a.a_bias : tile.part == 1 ? a.b_bias : a.c_bias;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r >= tile.half[i].valid) continue;
    const int row = tile.half[i].row + r;
    if (per_channel) out.scale[i] = __ldg(reinterpret_cast<const float*>(tile.half[i].matrix->scales) + row);
    if (bias) out.add[i] = __ldg(bias + row);
    if (a.residual) out.add[i] += __ldcg(a.residual + token * a.out_stride + row);
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
  float v[2] = {value.x * norm * extra.scale[0], value.y * norm * extra.scale[1]};
  if (a.epilogue == Epilogue::kGateUp) {
    if (r < tile.half[0].valid) a.out[token * a.out_stride + row[0]] = Activate(a.activation, v[0]) * v[1];
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
      a.out[token * a.out_stride + row[i]] = v[i];
    } else {
      const int head = row[i] / a.kv.head_dim, dim = row[i] % a.kv.head_dim;
      AppendKv(a, tile.part == 1 ? a.kv.k : a.kv.v,
               place.kv_row + static_cast<int64_t>(head) * kKvBlock * a.kv.padded_dim + dim, v[i]);
    }
  }
}

// One warp: lane 8i + r finishes rows r and r + 8 of a tile for token i, and for token 4 + i if there are so
// many.
template <int NT>
__device__ __forceinline__ void FinishTiles(const Params& p, char* memory, int lane, int& parity) {
  const MatvecArgs& a = p.a;
  const int r = lane % 8;
  TokenPlace place[NT];
  float norm[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    norm[n] = 0;
    if (n * 4 + lane / 8 < a.tokens) place[n] = PlaceOf(a, n * 4 + lane / 8);
  }
  const float* squares = reinterpret_cast<const float*>(memory + p.sum_offset);
  bool first = true;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const Tile tile = Locate(p, index);
    Extras extra[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n)
      if (n * 4 + lane / 8 < a.tokens) extra[n] = LoadExtras(p, tile, n * 4 + lane / 8, r, place[n]);
    SyncPair(2 + parity);
    if (first) {
      first = false;
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int token = n * 4 + lane / 8;
        norm[n] = 1;
        if (!a.norm || token >= a.tokens) continue;
        float total = 0;
        for (int w = 0; w < kWarps; ++w) total += squares[token * kWarps + w];
        norm[n] = 1.0f / sqrtf(total / static_cast<float>(a.a.cols) + a.eps);
      }
    }
    const float2* sums = reinterpret_cast<const float2*>(memory + p.red_offset) + parity * kWarps * NT * 32;
    float2 total[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      total[n] = make_float2(0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 part = sums[(w * NT + n) * 32 + r * 4 + lane / 8];
        total[n].x += part.x;
        total[n].y += part.y;
      }
    }
    ArrivePair(4 + parity);
    parity ^= 1;
#pragma unroll
    for (int n = 0; n < NT; ++n)
      if (n * 4 + lane / 8 < a.tokens)
        Finish(p, tile, n * 4 + lane / 8, r, total[n], norm[n], extra[n], place[n]);
  }
}

// By the warps that multiply: all tiles of this block. `parity` and `done` count the buffers of sums.
template <Format F, int NT, int S>
__device__ __forceinline__ void MultiplyTiles(const Params& p, char* memory, uint32_t shared, int warp,
                                              int lane, RingPlace& ring, int& parity, int& done) {
  const Places<NT> at = Find<F, NT>(p, shared, warp, lane);
  const int blocks = static_cast<int>(p.a.a.row_bytes) / 64 - warp;  // of 64 bytes, from this warp's first on
  const int tiles = p.tiles, chunks = p.chunks, stages = p.stages, stage_bytes = p.stage_bytes;
  const uint32_t barriers = shared + p.barrier_offset;
  float2* sums = reinterpret_cast<float2*>(memory + p.red_offset) + warp * NT * 32 + lane;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    Accumulator<F, NT> acc;
    acc.Clear();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t full = barriers + ring.stage * 16, base = shared + ring.stage * stage_bytes;
      BarrierWait(full, ring.parity);
#pragma unroll
      for (int i = 0; i < kSpans; ++i) {
        const int span = chunk * kSpans + i;
        if (span * kWarps < blocks)
          Multiply<F, NT, S>(
              p, acc, at, base + (i * kWarps + warp) * 512 + lane * 16,
              base + 2 * kHalfBytes + i * (kSpanCols<F> >> p.group_shift) * 8 * ScaleBytesOf(F), span);
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(full + 8);
      ring.Advance(stages);
    }
    if (done >= 2) SyncPair(4 + parity);
    ++done;
#pragma unroll
    for (int n = 0; n < NT; ++n) sums[parity * kWarps * NT * 32 + n * 32] = acc.Get(n);
    ArrivePair(2 + parity);
    parity ^= 1;
  }
}

__device__ __forceinline__ void InitBarriers(int stages, uint32_t barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      BarrierInit(barriers + i * 16, 1);
      BarrierInit(barriers + i * 16 + 8, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

template <Format F, int NT, int S>
__global__ void __launch_bounds__(kThreads, 1) Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  InitBarriers(p.stages, shared + p.barrier_offset);
  LetNextStart();
  RingPlace ring;
  int parity = 0, done = 0;
  if (warp == kProducer) {
    ring.parity = 1;
    if (lane == 0) Produce<F>(p, shared, ring);
    return;
  }
  if (warp == kFinisher) {
    WaitForPrevious();
    return FinishTiles<NT>(p, memory, lane, parity);
  }
  float4 norm[kLoadsAtOnce];
  LoadNorm(p, warp, lane, norm);
  WaitForPrevious();
  LoadActivations<F>(p, memory, warp, lane, norm);
  ConsumerBarrier();
  MultiplyTiles<F, NT, S>(p, memory, shared, warp, lane, ring, parity, done);
}

// Everything but the number of stages and the tiles; returns the bytes beside the ring, at least `least` of
// them for the activations.
int Layout(const DeviceMatrix& m, int tokens, int least, Params* p);
// Puts as large a ring as fits in front of them; false if there is no room for one. Returns the bytes in all.
int AddRing(int beside, Params* p);
int Multiprocessors();

// Chosen by matvec_cuda.cc, which does not see the kernels.
template <Format F, int NT, int S>
cudaError_t LaunchKernel(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(Kernel<F, NT, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  if (allowed != cudaSuccess) return allowed;
  return Launch(Kernel<F, NT, S>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                static_cast<size_t>(shared_bytes), stream, p);
}

}  // namespace celer::cuda::matvec
