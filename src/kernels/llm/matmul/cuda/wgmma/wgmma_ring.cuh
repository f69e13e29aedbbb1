// What the products of wgmma_cuda.h work on: tiles, the pieces of them that a block takes, and the ring
// buffer of weights and activations that a producer fills for the others. Code of 9.0a fills it by TMA; generic code by
// copies of 16 bytes.
#pragma once

#include <cuda.h>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda::wgmma {

using matvec::BarrierArrive;
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
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kFullArrivals = 1;
#else
constexpr int kFullArrivals =
    2 * 32;  // of the warp that copies weights, and of the one that copies activations
#endif
constexpr int kSharedLimit = 216 * 1024;
constexpr int kGenericTileBytes =
    128 * 1024;             // of shared memory, from where on a tile has kGenericTile tokens
constexpr int kSlice = 64;  // tokens that kGateUp writes at once
constexpr int kStagingBytes = kGroups * kSlice * 64;
constexpr int kMaxAccumulators = 128;  // of a thread
constexpr int kTickets = 8192;         // of tiles in pieces
constexpr int kEights = kWgmmaRows / 8;
static_assert(kWgmmaRows == kGroups * 64);

// Columns in a stage, and of them in one batch of products.
constexpr int StageCols(Format f, int n) {
  return f == Format::kF32                         ? 32
         : f == Format::kF16 || f == Format::kBf16 ? 64
         : BitsOf(f) == 8 && n == 256              ? 64
                                                   : 128;
}
template <Format F, int N>
constexpr int kStageCols = StageCols(F, N);
template <Format F>
constexpr int kUnitCols = F == Format::kF32 ? 32 : 64;

constexpr uint32_t kNibbleUpper = 0x43004300u;  // beside nibbles: 128 plus each, as bf16

// Of a token, in shared memory.
struct Facts {
  float scale;  // one through the root of the mean square
  int position;
  int block;  // of the KV, that holds the position
};

constexpr int kBarrierBytes = kMaxStages * 16 + 16;
constexpr int kBesideBytes = kStagingBytes + kBarrierBytes + kWgmmaJoined * static_cast<int>(sizeof(Facts));

struct Params {
  CUtensorMap weights[3], scales[3];  // of the matrices: eights of rows, an eight's bytes
  WgmmaArgs a;
  int row_tiles, token_tiles, chunks;
  int tiles_of[3];                                               // of the matrices; kGateUp: of both
  int waves;                                                     // of tiles that are taken whole
  int stages, stage_bytes, scale_offset, x_offset, scale_bytes;  // scale_bytes: of an eight in a stage
  int group_shift;
  int pair_shift;  // a warp's two eights of rows are 1 << pair_shift eights apart
  int staging_offset, barrier_offset, facts_offset;
  uint32_t nibble_upper;  // kNibbleUpper
};

__device__ __forceinline__ bool NeedsFacts(const WgmmaArgs& a) {
  return a.squares || a.epilogue == WgmmaEpilogue::kQkv;
}

// ---- the schedule: which part of which tile comes next

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

__device__ __forceinline__ Rows FindRows(const Params& p, int row_tile) {
  constexpr int kHalf = kEights / 2;
  Rows out;
  if (p.a.epilogue == WgmmaEpilogue::kGateUp) {
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
    out.eight[half] = row_tile * kEights + half * kHalf;
    out.column[half] = first + out.eight[half] * 8;
  }
  return out;
}

// Where in a tile a warp's two eights are: `pair` of kEights / 2.
__device__ __forceinline__ int EightOf(const Params& p, int pair, int half) {
  return (pair >> p.pair_shift << (p.pair_shift + 1)) + (pair & ((1 << p.pair_shift) - 1)) +
         (half << p.pair_shift);
}

// ---- filling the ring

__device__ __forceinline__ uint64_t KeepPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#if CELER_HOPPER
// TMA: a box of the map's size, from column x and row y on. What lies outside the map is zero.
__device__ __forceinline__ void BoxCopy(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t bar,
                                        uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(bar), "l"(policy)
      : "memory");
}
#endif

// Without TMA, by a warp: `kCount` runs of `bytes`, a multiple of 16, that begin `pitch` bytes apart, from run `first`
// of `all` on. Behind the last one that again: what is made of it goes nowhere.
template <int kCount>
__device__ __forceinline__ void CopyBox(uint32_t to, const std::byte* from, int64_t pitch, int first, int all,
                                        int bytes, int lane) {
  const int vectors = bytes / 16;
  if (vectors % 32 == 0) {
#pragma unroll 4
    for (int i = 0; i < kCount; ++i)
      matvec::CopyRun(to + i * bytes, from + min(first + i, all - 1) * pitch, bytes, lane);
    return;
  }
  for (int i = lane; i < kCount * vectors; i += 32)
    matvec::CopyAsync16(to + i * 16, from + min(first + i / vectors, all - 1) * pitch + i % vectors * 16);
}
__device__ __forceinline__ int EightsOf(const DeviceMatrix& m) {
  return (m.rows + 7) / 8;
}
// Of a matrix: from byte `at` of each eight of rows on.
template <int kCount>
__device__ __forceinline__ void CopyWeights(uint32_t to, const DeviceMatrix& m, const std::byte* data, int at,
                                            int eight, int bytes, int lane) {
  CopyBox<kCount>(to, data + at, m.row_bytes * 8, eight, EightsOf(m), bytes, lane);
}
template <int kCount>
__device__ __forceinline__ void CopyScales(uint32_t to, const DeviceMatrix& m, const std::byte* scales,
                                           int scale_bytes, int at, int eight, int bytes, int lane) {
  CopyBox<kCount>(to, scales + at, int64_t{m.groups_per_row()} * 8 * scale_bytes, eight, EightsOf(m), bytes,
                  lane);
}

// By one thread, without TMA by its warp: the weights, as soon as there is room for them.
template <Format F, int N>
__device__ __forceinline__ void ProduceWeights(const Params& p, uint32_t shared, [[maybe_unused]] int lane) {
  constexpr int kCols = kStageCols<F, N>, kE = kEights;
  constexpr uint32_t kWeightBytes = 8 * kCols * BitsOf(F) / 8, kXBytes = kCols * N * 2;
  RingPlace ring;
  ring.parity = 1;
  [[maybe_unused]] const uint64_t policy = p.token_tiles == 1 ? matvec::StreamOncePolicy() : KeepPolicy();
  [[maybe_unused]] const uint32_t bytes = kE * (kWeightBytes + p.scale_bytes) + kXBytes;
  Schedule schedule(p);
  Piece piece;
  while (schedule.Next(p, piece)) {
    const Rows rows = FindRows(p, piece.tile / p.token_tiles);
    for (int chunk = piece.begin; chunk < piece.end; ++chunk) {
      const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                     base = shared + ring.stage * p.stage_bytes;
      BarrierWait(full + 8, ring.parity);
#if CELER_HOPPER
      matvec::BarrierExpect(full, bytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        BoxCopy(base + half * (kE / 2) * kWeightBytes, &p.weights[rows.matrix[half]],
                chunk * (kWeightBytes / 8), rows.eight[half], full, policy);
        if constexpr (HasScales(F)) {
          if (p.scale_bytes > 0)
            BoxCopy(base + p.scale_offset + half * (kE / 2) * p.scale_bytes, &p.scales[rows.matrix[half]],
                    (chunk * kCols >> p.group_shift) * (8 * ScaleBytesOf(F) / 4), rows.eight[half], full,
                    policy);
        }
      }
#else
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const DeviceMatrix& m = p.a.w[static_cast<size_t>(rows.matrix[half])];
        CopyWeights<kE / 2>(base + half * (kE / 2) * kWeightBytes, m, m.data, chunk * kWeightBytes,
                            rows.eight[half], kWeightBytes, lane);
        if (HasScales(F) && p.scale_bytes > 0)
          CopyScales<kE / 2>(base + p.scale_offset + half * (kE / 2) * p.scale_bytes, m, m.scales,
                             ScaleBytesOf(F), (chunk * kCols >> p.group_shift) * 8 * ScaleBytesOf(F),
                             rows.eight[half], p.scale_bytes, lane);
      }
      matvec::ArriveAfterCopies(full);
#endif
      ring.Advance(p.stages);
    }
  }
}

// By another one: their activations, when they are there.
template <Format F, int N>
__device__ __forceinline__ void ProduceActivations(const Params& p, uint32_t shared,
                                                   [[maybe_unused]] int lane) {
  constexpr int kCols = kStageCols<F, N>;
  constexpr uint32_t kXBytes = kCols * N * 2;
  RingPlace ring;
  ring.parity = 1;
  WaitForPrevious();
  Schedule schedule(p);
  Piece piece;
  while (schedule.Next(p, piece)) {
    const char* from = static_cast<const char*>(p.a.x.data) +
                       static_cast<int64_t>(piece.tile % p.token_tiles) * p.a.x.padded * N * 2;
    for (int chunk = piece.begin; chunk < piece.end; ++chunk) {
      const uint32_t full = shared + p.barrier_offset + ring.stage * 16;
      BarrierWait(full + 8, ring.parity);
      const uint32_t to = shared + ring.stage * p.stage_bytes + p.x_offset;
#if CELER_HOPPER
      matvec::BulkCopyKeep(to, from + static_cast<int64_t>(chunk) * kXBytes, kXBytes, full);
#else
      matvec::CopyRun(to, from + static_cast<int64_t>(chunk) * kXBytes, kXBytes, lane);
      matvec::ArriveAfterCopies(full);
#endif
      ring.Advance(p.stages);
    }
  }
}

// By one warp.
__device__ __forceinline__ void GatherFacts(const Params& p, char* memory, uint32_t barrier, int lane) {
  const WgmmaArgs& a = p.a;
  Facts* facts = reinterpret_cast<Facts*>(memory + p.facts_offset);
  if (a.squares || !a.qkv.decode) WaitForPrevious();
  if (NeedsFacts(a)) {
    for (int token = lane; token < a.tokens; token += 32) {
      Facts out = {1, 0, 0};
      if (a.epilogue == WgmmaEpilogue::kQkv) {
        const DeviceBatch& batch = a.qkv.batch;
        out.position = __ldcg(batch.positions + token);
        const int64_t sequence = __ldcg(batch.sequence + token);
        out.block = __ldcg(batch.block_table + sequence * batch.max_blocks + out.position / kKvBlock);
      }
      if (a.squares) {
        float sum = 0;
#pragma unroll 8
        for (int t = 0; t < (a.squares_of + kWgmmaRows - 1) / kWgmmaRows; ++t)
          sum += __ldcg(a.squares + t * kWgmmaJoined + token);
        out.scale = 1.0f / sqrtf(sum / static_cast<float>(a.squares_of) + a.eps) + ZeroOrNan(sum);
      }
      facts[token] = out;
    }
  }
  BarrierArrive(barrier);
}

}  // namespace celer::cuda::wgmma
