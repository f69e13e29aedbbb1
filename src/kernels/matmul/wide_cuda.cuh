// The kernel behind wide_cuda.h, one instance per weight format and tile.
//
// Grid: persistent, one block per multiprocessor. A tile is kRows<MT> rows and N tokens. One warp fills a
// ring of weights and activations with bulk copies; two warpgroups multiply, each MT times 64 rows. A lane
// reads the 16 bytes of weights that device_matrix.h laid out for it, makes bf16 of them, and has what it
// must hold for products of 16 columns.
//
// Tiles that come out even are taken in turns; the others are cut along k so that every block gets the same
// share. The last block to finish a piece of a tile adds the pieces up, in the order of k.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/matmul/matvec_cuda.cuh"
#include "kernels/matmul/matvec_ptx.cuh"
#include "kernels/matmul/wgmma_cuda.cuh"
#include "kernels/matmul/wide_cuda.h"

namespace celer::cuda::wide {

using matvec::BarrierArrive;
using matvec::BarrierExpect;
using matvec::BarrierInit;
using matvec::BarrierWait;
using matvec::Load16;
using matvec::PackBf16;
using matvec::RingPlace;
using matvec::SharedAddress;

constexpr int kGroups = 2;                    // warpgroups that multiply
constexpr int kMultipliers = kGroups * 128;   // threads
constexpr int kThreads = kMultipliers + 128;  // a warpgroup for the warp that fills the ring
constexpr int kMaxStages = 12;
constexpr int kSharedLimit = 216 * 1024;
constexpr int kSlice = 64;  // tokens that kGateUp writes at once
constexpr int kStagingBytes = kGroups * kSlice * 64;
constexpr int kMaxAccumulators = 128;  // of a thread

template <int MT>
constexpr int kRows = kGroups* MT * 64;
template <int MT>
constexpr int kEights = kRows<MT> / 8;

// Columns in a stage, and of them in one batch of products.
template <Format F, int N>
constexpr int kStageCols = F == Format::kF32                         ? 32
                           : F == Format::kF16 || F == Format::kBf16 ? 64
                           : F == Format::kInt8&& N == 256           ? 64
                                                                     : 128;
template <Format F>
constexpr int kUnitCols = F == Format::kF32 ? 32 : 64;

struct Params {
  CUtensorMap weights[3], scales[3];  // of the matrices: eights of rows, an eight's bytes
  WideArgs a;
  int row_tiles, token_tiles, chunks;
  int tiles_of[3];                                               // of the matrices; kGateUp: of both
  int waves;                                                     // of tiles that are taken whole
  int stages, stage_bytes, scale_offset, x_offset, scale_bytes;  // scale_bytes: of an eight in a stage
  int group_shift;
  int staging_offset, barrier_offset;
};

// ---- which part of which tile comes next

struct Piece {
  int tile = 0, begin = 0, end = 0;  // chunks
};

// Tiles in pieces are numbered along k; every block has a run of their chunks.
struct Schedule {
  int64_t at, stop, total;
  int wave = 0;

  __device__ __forceinline__ explicit Schedule(const Params& p) {
    const int64_t tiles = static_cast<int64_t>(p.row_tiles) * p.token_tiles;
    const int64_t blocks = gridDim.x, block = blockIdx.x;
    total = max(int64_t{0}, tiles - p.waves * blocks) * p.chunks;
    at = total * block / blocks;
    stop = total * (block + 1) / blocks;
  }
  __device__ __forceinline__ int OwnerOf(int64_t chunk) const {
    return static_cast<int>(((chunk + 1) * gridDim.x - 1) / total);
  }
  __device__ __forceinline__ bool Next(const Params& p, Piece& out) {
    if (wave < p.waves) {
      out.tile = wave * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
      out.begin = 0;
      out.end = p.chunks;
      ++wave;
      return out.tile < p.row_tiles * p.token_tiles;
    }
    if (at >= stop) return false;
    const int64_t tile = at / p.chunks;
    out.tile = static_cast<int>(tile + static_cast<int64_t>(p.waves) * gridDim.x);
    out.begin = static_cast<int>(at - tile * p.chunks);
    out.end = static_cast<int>(min(static_cast<int64_t>(p.chunks), out.begin + stop - at));
    at += out.end - out.begin;
    return true;
  }
};

// The rows of a tile: two halves of kEights / 2 eights each. Of one matrix they follow each other; kGateUp
// has one of either.
struct Rows {
  int matrix[2];
  int eight[2];   // the first one of a half
  int column[2];  // of the output, of a half's first row
};

template <int MT>
__device__ __forceinline__ Rows FindRows(const Params& p, int row_tile) {
  constexpr int kHalf = kEights<MT> / 2;
  Rows out;
  if (p.a.epilogue == WideEpilogue::kGateUp) {
    for (int half = 0; half < 2; ++half) {
      out.matrix[half] = half;
      out.eight[half] = row_tile * kHalf;
      out.column[half] = row_tile * kHalf * 8;
    }
    return out;
  }
  int m = 0, first = 0;
  while (m + 1 < p.a.matrices && row_tile >= p.tiles_of[m]) {
    row_tile -= p.tiles_of[m];
    first += p.a.w[static_cast<size_t>(m)].rows;
    ++m;
  }
  for (int half = 0; half < 2; ++half) {
    out.matrix[half] = m;
    out.eight[half] = row_tile * kEights<MT> + half * kHalf;
    out.column[half] = first + out.eight[half] * 8;
  }
  return out;
}

// ---- filling the ring

__device__ __forceinline__ void BulkCopyKeep(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
// A box of the map's size, from column x and row y on. What lies outside the map is zero.
__device__ __forceinline__ void BoxCopy(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t bar,
                                        uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(bar), "l"(policy)
      : "memory");
}
__device__ __forceinline__ uint64_t KeepPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// By one thread. The first stages get their weights before the kernel in front has ended, then their
// activations.
template <Format F, int N, int MT>
__device__ __forceinline__ void Produce(const Params& p, uint32_t shared) {
  constexpr int kCols = kStageCols<F, N>, kE = kEights<MT>;
  constexpr uint32_t kWeightBytes = 8 * kCols * BitsOf(F) / 8, kXBytes = kCols * N * 2;
  const uint64_t policy = p.token_tiles == 1 ? matvec::StreamOncePolicy() : KeepPolicy();
  const uint32_t bytes = kE * (kWeightBytes + p.scale_bytes) + kXBytes;

  const auto weights = [&](const Rows& rows, int chunk, int stage) {
    const uint32_t full = shared + p.barrier_offset + stage * 16, base = shared + stage * p.stage_bytes;
    BarrierExpect(full, bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      BoxCopy(base + half * (kE / 2) * kWeightBytes, &p.weights[rows.matrix[half]],
              chunk * (kWeightBytes / 8), rows.eight[half], full, policy);
      if constexpr (matvec::IsInteger(F)) {
        if (p.scale_bytes > 0)
          BoxCopy(base + p.scale_offset + half * (kE / 2) * p.scale_bytes, &p.scales[rows.matrix[half]],
                  (chunk * kCols >> p.group_shift) * (8 * ScaleBytesOf(F) / 4), rows.eight[half], full,
                  policy);
      }
    }
  };
  const auto activations = [&](int token_tile, int chunk, int stage) {
    const uint32_t full = shared + p.barrier_offset + stage * 16, base = shared + stage * p.stage_bytes;
    const char* from =
        static_cast<const char*>(p.a.x.data) +
        (static_cast<int64_t>(token_tile) * p.a.x.padded + static_cast<int64_t>(chunk) * kCols) * N * 2;
    BulkCopyKeep(base + p.x_offset, from, kXBytes, full);
  };

  int ahead = 0;
  {
    Schedule schedule(p);
    Piece piece;
    while (ahead < p.stages && schedule.Next(p, piece)) {
      const Rows rows = FindRows<MT>(p, piece.tile / p.token_tiles);
      for (int chunk = piece.begin; chunk < piece.end && ahead < p.stages; ++chunk)
        weights(rows, chunk, ahead++);
    }
  }
  WaitForPrevious();
  RingPlace ring;
  ring.parity = 1;
  Schedule schedule(p);
  Piece piece;
  int done = 0;
  while (schedule.Next(p, piece)) {
    const Rows rows = FindRows<MT>(p, piece.tile / p.token_tiles);
    const int token_tile = piece.tile % p.token_tiles;
    for (int chunk = piece.begin; chunk < piece.end; ++chunk) {
      if (done >= ahead) {
        BarrierWait(shared + p.barrier_offset + ring.stage * 16 + 8, ring.parity);
        weights(rows, chunk, ring.stage);
      }
      activations(token_tile, chunk, ring.stage);
      ++done;
      ring.Advance(p.stages);
    }
  }
}

// ---- weights to bf16

__device__ __forceinline__ uint32_t PackExact(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// The values of eight columns of a row, from the word(s) that hold them: four pairs.
__device__ __forceinline__ void FromInt8(uint32_t w0, uint32_t w1, float scale, bool scaled,
                                         uint32_t (&out)[4]) {
  w0 ^= 0x80808080u;
  w1 ^= 0x80808080u;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)  // 2^23 + byte
    v[i] = __uint_as_float(__byte_perm(i < 4 ? w0 : w1, 0x4b000000u, 0x7440 + i % 4)) - 8388736.0f;
  if (scaled) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = PackBf16(v[2 * i] * scale, v[2 * i + 1] * scale);
  } else {  // integers of 8 bits are bf16 as they are
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = PackExact(v[2 * i], v[2 * i + 1]);
  }
}
__device__ __forceinline__ void FromInt4(uint32_t w, float scale, float offset, uint32_t (&out)[4]) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // 128 + nibble
    const uint32_t at16 = i <= 4 ? w << (16 - 4 * i) : w >> (4 * i - 16);
    v[i] = fmaf(__uint_as_float((at16 & 0x000f0000u) | 0x43000000u), scale, offset);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = PackBf16(v[2 * i], v[2 * i + 1]);
}

// A unit's weights of one warp's 16 rows, as the products want them: a[k step][4]. `low` and `high` are where
// the stage has the two eights.
template <Format F, int N>
__device__ __forceinline__ void LoadUnit(const Params& p, uint32_t low, uint32_t high, uint32_t low_scales,
                                         uint32_t high_scales, int unit, int lane,
                                         uint32_t (&a)[kUnitCols<F> / 16][4]) {
  const auto put = [&](int block, int half, const uint32_t(&pairs)[4]) {  // 32 columns
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      a[block * 2 + s][half] = pairs[2 * s];
      a[block * 2 + s][half + 2] = pairs[2 * s + 1];
    }
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t base = half == 0 ? low : high;
    const uint32_t scales = (half == 0 ? low_scales : high_scales) + lane / 4 * ScaleBytesOf(F);
    if constexpr (F == Format::kBf16 || F == Format::kF16) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint4 v = Load16(base + (unit * 2 + block) * 512 + lane * 16);
        uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
        if constexpr (F == Format::kF16) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 f = __half22float2(reinterpret_cast<const __half2&>(pairs[i]));
            pairs[i] = PackBf16(f.x, f.y);
          }
        }
        put(block, half, pairs);
      }
    } else if constexpr (F == Format::kF32) {  // eight columns of a lane: two quarters of 64 bytes
      const uint32_t at = base + lane % 4 / 2 * 512 + lane / 4 * 64 + lane % 2 * 32;
      const uint4 u = Load16(at), v = Load16(at + 16);
      const auto pack = [](uint32_t x, uint32_t y) {
        return PackBf16(__uint_as_float(x), __uint_as_float(y));
      };
      const uint32_t pairs[4] = {pack(u.x, u.y), pack(u.z, u.w), pack(v.x, v.y), pack(v.z, v.w)};
      put(0, half, pairs);
    } else if constexpr (F == Format::kInt8) {
      const uint4 v = Load16(base + unit * 512 + lane * 16);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const bool scaled = p.scale_bytes > 0;
        const float scale =
            scaled
                ? matvec::LoadFloat(scales + ((unit * 64 + block * 32 + lane % 4 * 8) >> p.group_shift) * 32)
                : 1.0f;
        uint32_t pairs[4];
        FromInt8(block == 0 ? v.x : v.z, block == 0 ? v.y : v.w, scale, scaled, pairs);
        put(block, half, pairs);
      }
    } else {  // the unit's half of the 16 bytes
      uint32_t w[2];
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(w[0]), "=r"(w[1])
                   : "r"(base + unit / 2 * 512 + lane * 16 + unit % 2 * 8));
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const float2 s = matvec::LoadScale<F>(
            scales + ((unit * 64 + block * 32 + lane % 4 * 8) >> p.group_shift) * 8 * ScaleBytesOf(F));
        uint32_t pairs[4];
        FromInt4(w[block], s.x, fmaf(-128.0f, s.x, s.y), pairs);
        put(block, half, pairs);
      }
    }
  }
}

// ---- the products

template <int N, int MT>
struct Sums {
  float d[MT][N / 2];
};

template <Format F, int N, int MT>
__device__ __forceinline__ void MultiplyPiece(const Params& p, uint32_t shared, int group, int warp, int lane,
                                              const Piece& piece, RingPlace& ring, Sums<N, MT>& sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kCols = kStageCols<F, N>, kSteps = kUnitCols<F> / 16, kUnits = kCols / kUnitCols<F>;
  constexpr uint32_t kWeightBytes = 8 * kCols * BitsOf(F) / 8;
  uint32_t even[MT][kSteps][4], odd[MT][kSteps][4];
  bool add = false;
  uint32_t to_free = 0;  // barrier of the stage whose last products run
  const auto run = [&](uint32_t(&a)[MT][kSteps][4], int unit) {
    const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                   base = shared + ring.stage * p.stage_bytes;
    if (unit == 0) BarrierWait(full, ring.parity);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const uint32_t e = static_cast<uint32_t>((group * MT + m) * 4 + warp);
      constexpr uint32_t kHalf = kEights<MT> / 2;
      LoadUnit<F, N>(p, base + e * kWeightBytes, base + (e + kHalf) * kWeightBytes,
                     base + p.scale_offset + e * p.scale_bytes,
                     base + p.scale_offset + (e + kHalf) * p.scale_bytes, unit, lane, a[m]);
    }
    gemm::WgmmaFence();
    const uint64_t columns =
        gemm::WgmmaColumns(base + p.x_offset + unit * (kUnitCols<F> / 8) * N * 16, N * 16, 128);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int m = 0; m < MT; ++m)
        gemm::Wgmma<__nv_bfloat16, N>(sums.d[m], a[m][s], columns + static_cast<uint64_t>(s * 2 * N), add);
      add = true;
    }
    gemm::WgmmaCommit();
    gemm::WgmmaWait<1>();
    if (unit == 0 && to_free != 0 && lane == 0) BarrierArrive(to_free);
    if (unit == kUnits - 1) {
      to_free = full + 8;
      ring.Advance(p.stages);
    }
  };
  int left = piece.end - piece.begin;
  if constexpr (kUnits == 1) {
    for (; left >= 2; left -= 2) {
      run(even, 0);
      run(odd, 0);
    }
    if (left > 0) run(even, 0);
  } else {
    static_assert(kUnits == 2);
    for (; left > 0; --left) {
      run(even, 0);
      run(odd, 1);
    }
  }
  gemm::WgmmaWait<0>();
  if (lane == 0) BarrierArrive(to_free);
#else
  __trap();
#endif
}

// ---- what follows

__device__ __forceinline__ void MultipliersBarrier() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}
__device__ __forceinline__ void GroupBarrier(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

// Where the sums of a lane go: of rows g of the two eights of its warp.
struct Place {
  bool exists[2];
  float scale[2];
  float* out[2];  // of the lane's first token of the tile
  int left;       // tokens from there on
};

template <Format F, int N, int MT>
__device__ __forceinline__ Place FindPlace(const Params& p, int tile, int pair, int lane) {
  const WideArgs& a = p.a;
  const Rows rows = FindRows<MT>(p, tile / p.token_tiles);
  const int token = (tile % p.token_tiles * N + lane % 4 * 2) / a.x.parts, g = lane / 4;
  Place out;
  out.left = a.tokens - token;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const DeviceMatrix& m = a.w[static_cast<size_t>(rows.matrix[half])];
    const int row = (rows.eight[half] + pair) * 8 + g;
    out.exists[half] = row < m.rows;
    out.scale[half] = 1;
    if (F == Format::kInt8 && p.scale_bytes == 0 && out.exists[half])
      out.scale[half] = __ldg(reinterpret_cast<const float*>(m.scales) + row);
    out.out[half] = a.out + token * a.out_stride + rows.column[half] + pair * 8 + g;
  }
  return out;
}

// The j-th eight columns of a warp, `d` as in Wgmma: two tokens of a lane, or the two parts of one.
__device__ __forceinline__ void StoreEight(const WideArgs& a, const Place& place, int j, float4 d) {
  const bool parted = a.x.parts == 2;
  const float v[4] = {(parted ? d.x + d.y : d.x) * place.scale[0], d.y * place.scale[0],
                      (parted ? d.z + d.w : d.z) * place.scale[1], d.w * place.scale[1]};
  bool wanted[4];
  float* to[4];
  float old[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = parted ? j * 4 : j * 8 + i % 2;
    wanted[i] = place.exists[i / 2] && token < place.left && !(parted && i % 2);
    to[i] = place.out[i / 2] + token * a.out_stride;
  }
  if (a.epilogue == WideEpilogue::kAdd) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (wanted[i]) old[i] = __ldcg(to[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (wanted[i]) *to[i] = old[i] + v[i];
}

// act(gate) * up as pairs of neighbouring columns, which lanes g and g ^ 1 have: the one with even g gets
// both of column 2t of the eight, the other those of 2t + 1.
__device__ __forceinline__ uint32_t GateUpPair(const WideArgs& a, const Place& place, int lane, float4 d) {
  const bool parted = a.x.parts == 2, odd = lane / 4 % 2 != 0;
  if (parted) d.x += d.y, d.z += d.w;
  float v[2] = {0, 0};
  if (place.exists[0]) {
    v[0] = matvec::Activate(a.activation, d.x * place.scale[0]) * (d.z * place.scale[1]);
    if (!parted) v[1] = matvec::Activate(a.activation, d.y * place.scale[0]) * (d.w * place.scale[1]);
  }
  const float theirs = __shfl_xor_sync(0xffffffffu, odd || parted ? v[0] : v[1], 4);
  if (!parted) return odd ? PackBf16(theirs, v[1]) : PackBf16(v[0], theirs);
  const float low = odd ? theirs : v[0], high = odd ? v[0] : theirs;
  const uint32_t pair = PackBf16(low, high);
  const float2 kept = matvec::UnpackBf16(pair);
  return odd ? PackBf16(low - kept.x, high - kept.y) : pair;
}

// Where the 32 columns of four warps' eights lie in kGateUp's output.
template <int N, int MT>
__device__ __forceinline__ char* FindMid(const Params& p, int tile, int m) {
  const int block = tile / p.token_tiles * (kEights<MT> / 8) + m;
  if (block * 32 >= p.a.mid.padded) return nullptr;
  return static_cast<char*>(p.a.mid.data) +
         static_cast<int64_t>(tile % p.token_tiles) * p.a.mid.padded * N * 2 +
         static_cast<int64_t>(block) * 64 * N;
}

// A tile that this block has computed alone.
template <Format F, int N, int MT>
__device__ __forceinline__ void FinishTile(const Params& p, char* memory, int group, int warp, int lane,
                                           int tile, const Sums<N, MT>& sums) {
  const WideArgs& a = p.a;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const Place place = FindPlace<F, N, MT>(p, tile, (group * MT + m) * 4 + warp, lane);
    const auto quad = [&](int j) {
      const float* d = sums.d[m] + j * 4;
      return make_float4(d[0], d[1], d[2], d[3]);
    };
    if (a.epilogue != WideEpilogue::kGateUp) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) StoreEight(a, place, j, quad(j));
      continue;
    }
    // Through shared memory, so that whole lines are written.
    constexpr int kNow = N < kSlice ? N : kSlice;
    char* staging = memory + p.staging_offset + group * kSlice * 64;
    char* to = FindMid<N, MT>(p, tile, group * MT + m);
#pragma unroll
    for (int slice = 0; slice < N / kNow; ++slice) {
#pragma unroll
      for (int j = 0; j < kNow / 8; ++j)
        *reinterpret_cast<uint32_t*>(staging + (lane / 8 * kNow + j * 8 + lane % 4 * 2 + lane / 4 % 2) * 16 +
                                     warp * 4) = GateUpPair(a, place, lane, quad(slice * kNow / 8 + j));
      GroupBarrier(group);
      if (to)
        for (int i = threadIdx.x % 128; i < 4 * kNow; i += 128)
          *reinterpret_cast<uint4*>(to + (static_cast<int64_t>(i / kNow) * N + slice * kNow + i % kNow) *
                                             16) = *reinterpret_cast<const uint4*>(staging + i * 16);
      GroupBarrier(group);
    }
  }
}

// ---- tiles in pieces
//
// A block puts the sums of its piece into one of its two slots: 1 if the piece begins the tile, else 0. When
// all of them are there, the blocks that share the tile add them up in the order of k, each for a part of the
// tokens. All blocks are running at once, so that they can wait for each other.

constexpr int64_t kSlotQuads = int64_t{kMaxAccumulators} / 4 * kMultipliers;

template <int N, int MT>
__device__ __forceinline__ void PutPiece(const Params& p, const Piece& piece, const Sums<N, MT>& sums) {
  float4* to = reinterpret_cast<float4*>(p.a.partial) +
               (static_cast<int64_t>(blockIdx.x) * 2 + (piece.begin == 0 ? 1 : 0)) * kSlotQuads + threadIdx.x;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const float* d = sums.d[m] + j * 4;
      __stcg(to + (m * (N / 8) + j) * kMultipliers, make_float4(d[0], d[1], d[2], d[3]));
    }
  __threadfence();
  MultipliersBarrier();
  if (threadIdx.x == 0) atomicAdd(p.a.tickets + 2 * (piece.tile - p.waves * static_cast<int>(gridDim.x)), 1);
}

template <Format F, int N, int MT>
__device__ __forceinline__ void FinishTogether(const Params& p, int group, int warp, int lane, int tile,
                                               const Schedule& schedule) {
  const WideArgs& a = p.a;
  const int64_t number = tile - static_cast<int64_t>(p.waves) * gridDim.x;
  const int first = schedule.OwnerOf(number * p.chunks), last = schedule.OwnerOf((number + 1) * p.chunks - 1);
  const int pieces = last - first + 1, mine = static_cast<int>(blockIdx.x) - first;
  int32_t* arrived = a.tickets + 2 * number;
  if (threadIdx.x == 0) {
    int count;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
    } while (count < pieces);
  }
  MultipliersBarrier();
  const float4* parts = reinterpret_cast<const float4*>(a.partial) + threadIdx.x;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const Place place = FindPlace<F, N, MT>(p, tile, (group * MT + m) * 4 + warp, lane);
    char* mid = a.epilogue == WideEpilogue::kGateUp ? FindMid<N, MT>(p, tile, group * MT + m) : nullptr;
#pragma unroll 2
    for (int j = mine * (N / 8) / pieces; j < (mine + 1) * (N / 8) / pieces; ++j) {
      const float4* from = parts + (m * (N / 8) + j) * kMultipliers;
      float4 d = __ldcg(from + (first * 2 + 1) * kSlotQuads);
#pragma unroll 4
      for (int block = first + 1; block <= last; ++block) {
        const float4 more = __ldcg(from + block * 2 * kSlotQuads);
        d.x += more.x, d.y += more.y, d.z += more.z, d.w += more.w;
      }
      if (a.epilogue != WideEpilogue::kGateUp) {
        StoreEight(a, place, j, d);
        continue;
      }
      const uint32_t pair = GateUpPair(a, place, lane, d);
      if (mid)
        *reinterpret_cast<uint32_t*>(
            mid + (static_cast<int64_t>(lane / 8) * N + j * 8 + lane % 4 * 2 + lane / 4 % 2) * 16 +
            warp * 4) = pair;
    }
  }
  // The last one to leave makes the counters ready for the next product.
  if (threadIdx.x == 0 && atomicAdd(arrived + 1, 1) == pieces - 1) arrived[0] = arrived[1] = 0;
}

template <Format F, int N, int MT>
__global__ void __launch_bounds__(kThreads, 1) Kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      BarrierInit(shared + p.barrier_offset + i * 16, 1);
      BarrierInit(shared + p.barrier_offset + i * 16 + 8, kGroups * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  LetNextStart();
  if (warp >= kGroups * 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kMultipliers) Produce<F, N, MT>(p, shared);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  WaitForPrevious();
  Schedule schedule(p);
  RingPlace ring;
  Piece piece;
  Sums<N, MT> sums;
  int shared_tiles = 0, shared_tile[2];
  while (schedule.Next(p, piece)) {
    MultiplyPiece<F, N, MT>(p, shared, warp / 4, warp % 4, lane, piece, ring, sums);
    if (piece.end - piece.begin == p.chunks) {
      FinishTile<F, N, MT>(p, memory, warp / 4, warp % 4, lane, piece.tile, sums);
    } else {
      PutPiece<N, MT>(p, piece, sums);
      if (shared_tiles++ == 0) shared_tile[0] = piece.tile;
      shared_tile[1] = piece.tile;
    }
  }
  if (shared_tiles > 0) FinishTogether<F, N, MT>(p, warp / 4, warp % 4, lane, shared_tile[0], schedule);
  if (shared_tiles > 1) FinishTogether<F, N, MT>(p, warp / 4, warp % 4, lane, shared_tile[1], schedule);
#else
  __trap();
#endif
}

// Rows of `width` elements; copies take boxes of `box_width` by `box_height`.
bool MakeMap(const void* data, int element_bytes, int64_t width, int64_t height, int box_width,
             int box_height, CUtensorMap* out);

template <Format F, int N, int MT>
cudaError_t LaunchShape(Params p, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(Kernel<F, N, MT>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  if (allowed != cudaSuccess) return allowed;
  constexpr int kCols = kStageCols<F, N>, kE = kEights<MT>;
  const DeviceMatrix& m = p.a.w[0];
  p.token_tiles = (p.a.tokens * p.a.x.parts + N - 1) / N;
  p.chunks = m.padded / kCols;
  p.group_shift = m.group == 16 ? 4 : m.group == 32 ? 5 : m.group == 64 ? 6 : 7;
  p.scale_bytes = m.group > 0 ? (kCols > m.group ? kCols / m.group : 1) * 8 * ScaleBytesOf(F) : 0;
  for (int i = 0; i < p.a.matrices; ++i) {
    const DeviceMatrix& w = p.a.w[static_cast<size_t>(i)];
    const int eights = (w.rows + 7) / 8;
    p.tiles_of[i] = (eights + kE - 1) / kE;
    p.row_tiles += p.tiles_of[i];
    if (!MakeMap(w.data, 8, w.row_bytes, eights, kCols * BitsOf(F) / 8, kE / 2, &p.weights[i]))
      return cudaErrorInvalidValue;
    if (p.scale_bytes > 0 && !MakeMap(w.scales, 4, int64_t{w.groups_per_row()} * 2 * ScaleBytesOf(F), eights,
                                      p.scale_bytes / 4, kE / 2, &p.scales[i]))
      return cudaErrorInvalidValue;
  }
  if (p.a.epilogue == WideEpilogue::kGateUp) p.row_tiles = (p.a.mid.padded / 8 + kE / 2 - 1) / (kE / 2);
  // Whole tiles in turns where that leaves few blocks idle; otherwise the last one to two turns in pieces.
  const int tiles = p.row_tiles * p.token_tiles;
  int blocks = matvec::Multiprocessors();
  const int turns = (tiles + blocks - 1) / blocks;
  p.waves = tiles * 100 >= turns * blocks * 93 ? turns : tiles / blocks - 1;
  if (p.waves < 0 || N <= 64) p.waves = 0;
  const int64_t pieces = static_cast<int64_t>(tiles) * p.chunks;
  if (p.waves == 0 && blocks > pieces) blocks = static_cast<int>(pieces);
  if (2 * (tiles - p.waves * blocks) > WideTickets()) p.waves = turns;
  p.scale_offset = kE * 8 * kCols * BitsOf(F) / 8;
  p.x_offset = (p.scale_offset + kE * p.scale_bytes + 127) / 128 * 128;
  p.stage_bytes = p.x_offset + kCols * N * 2;
  const int beside = kStagingBytes + kMaxStages * 16;
  p.stages = (kSharedLimit - beside) / p.stage_bytes;
  if (p.stages > kMaxStages) p.stages = kMaxStages;
  if (p.stages < 2) return cudaErrorInvalidConfiguration;
  p.staging_offset = p.stages * p.stage_bytes;
  p.barrier_offset = p.staging_offset + kStagingBytes;
  return Launch(Kernel<F, N, MT>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                static_cast<size_t>(p.barrier_offset + kMaxStages * 16), stream, p);
}

template <Format F>
cudaError_t RunFormat(const Params& p, cudaStream_t stream) {
  switch (p.a.x.tile) {
    case 16:
      return LaunchShape<F, 16, 1>(p, stream);
    case 32:
      return LaunchShape<F, 32, 1>(p, stream);
    case 64:
      return LaunchShape<F, 64, 1>(p, stream);
    case 128:
      return LaunchShape<F, 128, 1>(p, stream);
    case 256:
      return LaunchShape<F, 256, 1>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace celer::cuda::wide
