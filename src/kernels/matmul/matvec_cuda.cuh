// The kernel behind matvec_cuda.h, one instance per weight format and number of 4-token tiles.
//
// Grid: persistent, one block per multiprocessor; block b takes the row tiles b, b + gridDim, ... A tile is
// 16 rows, as two halves of 8 that may lie apart (gate and up; the two dimensions of a rope pair). One warp
// fills the ring with bulk copies, 1024 bytes of each row per stage; eight warps share a stage along k and
// add their parts up at the end of the tile. The ring starts to fill before the previous kernel has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/matmul/matvec_cuda.h"

namespace celer::cuda::matvec {

constexpr int kWarps = 8;
constexpr int kConsumers = kWarps * 32;
constexpr int kThreads = kConsumers + 32;
constexpr int kChunkBytes = 1024;  // of one row in one stage
constexpr int kHalfBytes = 8 * kChunkBytes;
constexpr int kPlanePad = 64;  // the two parts of an activation fall into different halves of the banks
constexpr int kMaxStages = 12;

struct Params {
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

// ---- small pieces of PTX

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void BarrierInit(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ __forceinline__ void BarrierExpect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred ready;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 ready, [%0], %1;\n"
      "@ready bra done;\n"
      "bra again;\n"
      "done:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
// Weights are read once per step: they must not push activations and the KV out of L2.
__device__ __forceinline__ uint64_t StreamOncePolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t bar,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(policy)
      : "memory");
}
__device__ __forceinline__ uint4 Load16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from));
  return v;
}
__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}
__device__ __forceinline__ void MmaBf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaInt8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ float2 UnpackBf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

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
__device__ __forceinline__ void Produce(const Params& p, uint32_t shared) {
  const uint64_t policy = StreamOncePolicy();
  int stage = 0;
  uint32_t phase = 1;  // the ring is empty at first
  const bool grouped = IsInteger(F) && p.a.a.group > 0;
  const int row_bytes = static_cast<int>(p.a.a.row_bytes), groups = p.a.a.padded >> p.group_shift;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Tile t = Locate(p, tile);
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const uint32_t bytes = 8 * min(kChunkBytes, row_bytes - chunk * kChunkBytes);
      const int in_chunk = kChunkCols<F> >> p.group_shift;
      const uint32_t scale_bytes =
          grouped ? min(in_chunk, groups - chunk * in_chunk) * 8 * ScaleBytesOf(F) : 0;
      const uint32_t full = shared + p.barrier_offset + stage * 16, empty = full + 8;
      const uint32_t base = shared + stage * p.stage_bytes;
      BarrierWait(empty, phase);
      BarrierExpect(full, (bytes + scale_bytes) * (t.half[1].valid > 0 ? 2 : 1));
      CopyHalf<F>(p, t.half[0], chunk, bytes, scale_bytes, base, base + 2 * kHalfBytes, full, policy);
      CopyHalf<F>(p, t.half[1], chunk, bytes, scale_bytes, base + kHalfBytes,
                  base + 2 * kHalfBytes + p.scale_half_bytes, full, policy);
      if (++stage == p.stages) {
        stage = 0;
        phase ^= 1;
      }
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

template <Format F>
__device__ __forceinline__ void LoadActivations(const Params& p, char* shared, int warp, int lane) {
  const MatvecArgs& a = p.a;
  char* x = shared + p.x_offset;
  float* sums = reinterpret_cast<float*>(shared + p.sum_offset);  // [8 tokens, 8 warps], then [8] scales
  const int groups = a.a.padded / 128;
  const int mine = (groups - warp + kWarps - 1) / kWarps;  // of each token
  const bool whole = a.x_stride % 4 == 0 && a.a.cols % 4 == 0;
  float squares = 0;
  constexpr int kAtOnce = 4;  // loads in flight
  for (int first = 0; first < mine * a.tokens; first += kAtOnce) {
    float4 v[kAtOnce], w[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = first + i;
      v[i] = w[i] = make_float4(0, 0, 0, 0);
      if (item >= mine * a.tokens) continue;
      const int token = item / mine;
      const int col = (warp + item % mine * kWarps) * 128 + lane * 4;
      const int row = a.rows ? __ldcg(a.rows + token) : token;
      const float* from = a.x + row * a.x_stride + col;
      if (whole && col < a.a.cols) {
        v[i] = __ldcg(reinterpret_cast<const float4*>(from));
        if (a.norm) w[i] = __ldg(reinterpret_cast<const float4*>(a.norm + col));
      } else if (!whole) {
        float* to = reinterpret_cast<float*>(&v[i]);
        float* weight = reinterpret_cast<float*>(&w[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (col + j < a.a.cols) {
            to[j] = __ldcg(from + j);
            if (a.norm) weight[j] = __ldg(a.norm + col + j);
          }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = first + i;
      if (item >= mine * a.tokens) break;
      const int token = item / mine, group = warp + item % mine * kWarps;
      if (a.norm) {
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        v[i] = make_float4(v[i].x * w[i].x, v[i].y * w[i].y, v[i].z * w[i].z, v[i].w * w[i].w);
        if (item % mine == mine - 1) {
#pragma unroll
          for (int j = 16; j > 0; j /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
          if (lane == 0) sums[token * kWarps + warp] = squares;
          squares = 0;
        }
      }
      StoreActivation<F>(p, x, token, group, lane, v[i]);
    }
  }
  if (a.norm && mine == 0 && lane == 0)
    for (int token = 0; token < a.tokens; ++token) sums[token * kWarps + warp] = 0;
  ConsumerBarrier();
  if (warp == 0 && lane < a.tokens) {
    float scale = 1;
    if (a.norm) {
      float total = 0;
      for (int i = 0; i < kWarps; ++i) total += sums[lane * kWarps + i];
      scale = 1.0f / sqrtf(total / static_cast<float>(a.a.cols) + a.eps);
    }
    sums[kMaxMatvecTokens * kWarps + lane] = scale;
  }
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

template <Format F, int NT>
__device__ __forceinline__ void Multiply(const Params& p, Accumulator<F, NT>& acc, uint32_t shared,
                                         uint32_t stage, int chunk, int unit, int lane) {
  const MatvecArgs& a = p.a;
  const int g = lane / 4, t = lane % 4;
  const int padded = a.a.padded;
  const uint32_t row_a = stage + lane * 16, row_b = row_a + kHalfBytes;
  const auto activation = [&](int n) {  // base address of this lane's column
    return shared + p.x_offset + (g & 1) * p.plane_bytes;
  };
  if constexpr (!IsInteger(F)) {
    // A unit is 128 bytes of each row: two blocks of 64.
    constexpr int kBlockCols = 64 * 8 / BitsOf(F);
    const int first = chunk * kChunkCols<F> + unit * 2 * kBlockCols;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const uint32_t off = (unit * 2 + block) * 512;
      const uint4 wa = Load16(row_a + off), wb = Load16(row_b + off);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int token = n * 4 + g / 2;
        const uint32_t from = activation(n) + (token * padded + first + block * kBlockCols) * 2;
        uint4 x = make_uint4(0, 0, 0, 0);
        if constexpr (F == Format::kF32) {
          if (token < a.tokens)
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from + t * 8));
          uint32_t ua[4] = {wa.x, wa.y, wa.z, wa.w}, ub[4] = {wb.x, wb.y, wb.z, wb.w};
#pragma unroll
          for (int part = 0; part < 3; ++part) {  // 3 x 8 bits of significand
            uint32_t pa[2], pb[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float* va = reinterpret_cast<float*>(ua + 2 * i);
              float* vb = reinterpret_cast<float*>(ub + 2 * i);
              pa[i] = PackBf16(va[0], va[1]);
              pb[i] = PackBf16(vb[0], vb[1]);
              const float2 fa = UnpackBf16(pa[i]), fb = UnpackBf16(pb[i]);
              va[0] -= fa.x, va[1] -= fa.y, vb[0] -= fb.x, vb[1] -= fb.y;
            }
            MmaBf16(acc.c[block][n], pa[0], pb[0], pa[1], pb[1], x.x, x.y);
          }
        } else {
          if (token < a.tokens) x = Load16(from + t * 16);
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
  } else {
    // A unit is 128 columns: four products of 32, under one scale of x per token.
    constexpr bool kFour = F != Format::kInt8;
    const int unit_cols = chunk * kChunkCols<F> + unit * 128;
    uint4 wa[2], wb[2];
    wa[0] = Load16(row_a + unit * (kFour ? 512 : 1024));
    wb[0] = Load16(row_b + unit * (kFour ? 512 : 1024));
    if constexpr (!kFour) {
      wa[1] = Load16(row_a + unit * 1024 + 512);
      wb[1] = Load16(row_b + unit * 1024 + 512);
    }
    const int shift = p.group_shift, last = (1 << (shift - 5)) - 1;  // products of a group, less one
    const uint32_t scales = stage + 2 * kHalfBytes;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int token = n * 4 + g / 2, mine = min(n * 4 + t, a.tokens - 1);
      const uint32_t from = activation(n) + token * padded + unit_cols + t * 16;
      uint4 x[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
      if (token < a.tokens) {
        x[0] = Load16(from);
        x[1] = Load16(from + 64);
      }
      float step;
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(step)
                   : "r"(shared + p.xs_offset + (mine * (padded >> 7) + (unit_cols >> 7)) * 4));
      int c[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t b0 = Word(x[j / 2], j % 2 * 2), b1 = Word(x[j / 2], j % 2 * 2 + 1);
        if constexpr (kFour) {
          const uint32_t ua = Word(wa[0], j), ub = Word(wb[0], j);
          MmaInt8(c, ua & 0x0f0f0f0fu, ub & 0x0f0f0f0fu, ua >> 4 & 0x0f0f0f0fu, ub >> 4 & 0x0f0f0f0fu, b0,
                  b1);
        } else {
          MmaInt8(c, Word(wa[j / 2], j % 2 * 2), Word(wb[j / 2], j % 2 * 2), Word(wa[j / 2], j % 2 * 2 + 1),
                  Word(wb[j / 2], j % 2 * 2 + 1), b0, b1);
        }
        if ((j & last) != last) continue;
        const float da = static_cast<float>((c[0] << 7) + c[1]) * step;
        const float db = static_cast<float>((c[2] << 7) + c[3]) * step;
        c[0] = c[1] = c[2] = c[3] = 0;
        const int in_chunk = (unit * 128 + j * 32) >> shift;
        const uint32_t at = scales + (in_chunk * 8 + g) * ScaleBytesOf(F);
        if constexpr (F == Format::kInt8) {
          float sa = 1, sb = 1;
          if (a.a.group > 0) {
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sa) : "r"(at));
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sb) : "r"(at + p.scale_half_bytes));
          }
          acc.sum[n][0] += da * sa;
          acc.sum[n][1] += db * sb;
        } else {
          float x_sum;
          asm volatile("ld.shared.f32 %0, [%1];"
                       : "=f"(x_sum)
                       : "r"(shared + p.xsum_offset +
                             (mine * (padded >> shift) + ((unit_cols + j * 32) >> shift)) * 4));
          float2 pa, pb;
          if constexpr (F == Format::kInt4) {
            uint32_t ua, ub;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(ua) : "r"(at));
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(ub) : "r"(at + p.scale_half_bytes));
            pa = __half22float2(reinterpret_cast<const __half2&>(ua));
            pb = __half22float2(reinterpret_cast<const __half2&>(ub));
          } else {
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pa.x), "=f"(pa.y) : "r"(at));
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(pb.x), "=f"(pb.y)
                         : "r"(at + p.scale_half_bytes));
          }
          acc.sum[n][0] += da * pa.x + pa.y * x_sum;
          acc.sum[n][1] += db * pb.x + pb.y * x_sum;
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

__device__ __forceinline__ void AppendKv(const MatvecArgs& a, std::byte* cache, int token, int row,
                                         float value) {
  const int head = row / a.kv.head_dim, dim = row % a.kv.head_dim;
  const int position = __ldcg(a.batch.positions + token);
  const int block = __ldcg(a.batch.block_table + __ldcg(a.batch.sequence + token) * a.batch.max_blocks +
                           position / kKvBlock);
  const int64_t at = ((static_cast<int64_t>(block) * a.kv.kv_heads + head) * kKvBlock + position % kKvBlock) *
                         a.kv.padded_dim +
                     dim;
  if (a.kv.dtype == DType::kBf16)
    reinterpret_cast<__nv_bfloat16*>(cache)[at] = __float2bfloat16(value);
  else
    reinterpret_cast<__half*>(cache)[at] = __float2half_rn(value);
}

// `value` holds the sums of rows half[0].row + r and half[1].row + r.
__device__ __forceinline__ void Finish(const Params& p, const Tile& tile, int token, int r, float2 value,
                                       float scale) {
  const MatvecArgs& a = p.a;
  const bool has[2] = {r < tile.half[0].valid, r < tile.half[1].valid};
  const int row[2] = {tile.half[0].row + r, tile.half[1].row + r};
  float v[2] = {value.x * scale, value.y * scale};
  if (tile.half[0].matrix->format == Format::kInt8 && tile.half[0].matrix->group == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (has[i]) v[i] *= __ldg(reinterpret_cast<const float*>(tile.half[i].matrix->scales) + row[i]);
  }
  if (a.epilogue == Epilogue::kGateUp) {
    if (has[0]) a.out[token * a.out_stride + row[0]] = Activate(a.activation, v[0]) * v[1];
    return;
  }
  const float* bias = tile.part == 0 ? a.a_bias : tile.part == 1 ? a.b_bias : a.c_bias;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (bias && has[i]) v[i] += __ldg(bias + row[i]);
  if (a.epilogue == Epilogue::kStore) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (has[i]) {
        const int64_t at = token * a.out_stride + row[i];
        a.out[at] = a.residual ? v[i] + __ldcg(a.residual + at) : v[i];
      }
    return;
  }
  if (tile.rotate) {
    const int half = a.rope_dim / 2;
    const int64_t at =
        static_cast<int64_t>(__ldcg(a.batch.positions + token)) * half + row[0] % a.kv.head_dim;
    const float cosine = __ldg(a.rope_cos + at), sine = __ldg(a.rope_sin + at);
    const float x = v[0], y = v[1];
    v[0] = x * cosine - y * sine;
    v[1] = y * cosine + x * sine;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (tile.part == 0)
      a.out[token * a.out_stride + row[i]] = v[i];
    else
      AppendKv(a, tile.part == 1 ? a.kv.k : a.kv.v, token, row[i], v[i]);
  }
}

template <Format F, int NT>
__global__ void __launch_bounds__(kThreads, 2) Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      BarrierInit(shared + p.barrier_offset + i * 16, 1);
      BarrierInit(shared + p.barrier_offset + i * 16 + 8, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  LetNextStart();
  if (warp == kWarps) {
    if (lane == 0) Produce<F>(p, shared);
    return;
  }

  WaitForPrevious();
  LoadActivations<F>(p, memory, warp, lane);
  ConsumerBarrier();

  const float* scales = reinterpret_cast<const float*>(memory + p.sum_offset) + kMaxMatvecTokens * kWarps;
  constexpr int kUnitBytes = F == Format::kInt4 || F == Format::kInt4Wide ? 64 : 128;
  constexpr int kUnits = kChunkBytes / kUnitBytes / kWarps;  // of a warp in a stage
  const int row_bytes = static_cast<int>(p.a.a.row_bytes);
  int stage = 0, parity = 0;
  uint32_t phase = 0;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    Accumulator<F, NT> acc;
    acc.Clear();
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const int units = min(kChunkBytes, row_bytes - chunk * kChunkBytes) / kUnitBytes;
      const uint32_t full = shared + p.barrier_offset + stage * 16;
      BarrierWait(full, phase);
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        if (warp + i * kWarps < units)
          Multiply<F, NT>(p, acc, shared, shared + stage * p.stage_bytes, chunk, warp + i * kWarps, lane);
      __syncwarp();
      if (lane == 0) BarrierArrive(full + 8);
      if (++stage == p.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
    // Two buffers in turn: the barrier of the next tile says that this one's sums have been read.
    float2* sums = reinterpret_cast<float2*>(memory + p.red_offset) + parity * kWarps * NT * 32;
    parity ^= 1;
#pragma unroll
    for (int n = 0; n < NT; ++n) sums[(warp * NT + n) * 32 + lane] = acc.Get(n);
    ConsumerBarrier();
    if (static_cast<int>(threadIdx.x) < 8 * p.a.tokens) {
      const int token = threadIdx.x / 8, r = threadIdx.x % 8;
      float2 total = make_float2(0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 part = sums[(w * NT + token / 4) * 32 + r * 4 + token % 4];
        total.x += part.x;
        total.y += part.y;
      }
      Finish(p, Locate(p, tile), token, r, total, scales[token]);
    }
  }
}

// Chosen by matvec_cuda.cc, which does not see the kernels.
template <Format F, int NT>
cudaError_t LaunchKernel(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(Kernel<F, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  if (allowed != cudaSuccess) return allowed;
  return Launch(Kernel<F, NT>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                static_cast<size_t>(shared_bytes), stream, p);
}

}  // namespace celer::cuda::matvec
