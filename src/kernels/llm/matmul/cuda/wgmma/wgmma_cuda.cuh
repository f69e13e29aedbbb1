// The kernel behind wgmma_cuda.h, one instance per weight format and tile.
//
// Grid: persistent, one block per multiprocessor. A tile is kWgmmaRows rows and N tokens. Two warps fill a
// ring of weights and activations; two warpgroups multiply, each 64 rows. A lane reads the
// 16 bytes of weights that device_matrix.h laid out for it, makes bf16 of them, and has what it must hold for
// products of 16 columns.
//
// Code of 9.0a copies by TMA and multiplies by wgmma. Generic code has the same tiles and the same epilogues: what a
// warp has in registers for wgmma, of its 16 rows, is what mma.sync takes, and so are the sums; columns come from shared
// memory by ldmatrix.
//
// Stream-K: tiles that divide evenly are dealt out to the blocks; the others are cut along k so that every
// block gets the same share. The blocks that share a tile reduce its pieces, in the order of k.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/llm/matmul/cuda/wgmma/mma_columns.cuh"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_finish.cuh"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_ptx.cuh"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_weights.cuh"

namespace celer::cuda::wgmma {

template <int N>
struct Sums {
  float d[N / 2];
};

// Whether a target has the body of the kernel for tiles of N tokens. Sums of 256 leave no registers for the rest where
// the warps that copy cannot hand over theirs. Code of 9.0 without wgmma is never called.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int N>
constexpr bool kHasBody = true;
#else
template <int N>
constexpr bool kHasBody = !kHopper && N <= kGenericTile;
#endif

// kFine: HasFineScales().
template <Format F, int N, bool kFine>
__device__ __forceinline__ void MultiplyPiece(const Params& p, uint32_t shared, int group, int warp, int lane,
                                              const Piece& piece, RingPlace& ring, Sums<N>& sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kCols = kStageCols<F, N>, kSteps = kUnitCols<F> / 16, kUnits = kCols / kUnitCols<F>;
  constexpr int kParts = kWeightParts<F, N, kFine>;
  // Weights of the products that run, and of those that are made ready.
  constexpr int kSets = N < 256 && kParts == 1 ? 3 : 2;
  uint32_t sets[kSets][kParts][kSteps][4];
  bool add = false;
  uint32_t to_free[2] = {0, 0};  // barriers of the stages whose last products run, the older one first
  const LanePlaces<F, N> places = FindLanePlaces<F, N>(p, group * 4 + warp, lane);
  const auto run = [&](int set, int unit) {
    auto& a = sets[set];
    const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                   base = shared + ring.stage * p.stage_bytes;
    if (unit == 0) BarrierWait(full, ring.parity);
    LoadUnit<F, N, kFine>(p, base, places, unit, lane, a);
    gemm::WgmmaFence();
    const uint64_t columns =
        gemm::WgmmaColumns(base + p.x_offset + unit * (kUnitCols<F> / 8) * N * 16, N * 16, 128);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        gemm::Wgmma<__nv_bfloat16, N>(sums.d, a[part][s], gemm::WgmmaMoved(columns, s * 2 * N), add);
        add = true;
      }
    }
    gemm::WgmmaCommit();
    gemm::WgmmaWait<kSets - 1>();
    if (to_free[3 - kSets] != 0 && lane == 0) BarrierArrive(to_free[3 - kSets]);
    to_free[0] = to_free[1];
    to_free[1] = unit == kUnits - 1 ? full + 8 : 0;
    if (unit == kUnits - 1) ring.Advance(p.stages);
  };
  // As many stages as end with the last set.
  constexpr int kTurn = kSets / std::gcd(kSets, kUnits);
  int left = piece.end - piece.begin;
  for (; left >= kTurn; left -= kTurn) {
#pragma unroll
    for (int i = 0; i < kTurn * kUnits; ++i) run(i % kSets, i % kUnits);
  }
#pragma unroll
  for (int stage = 0; stage < kTurn - 1; ++stage) {
    if (stage < left)
#pragma unroll
      for (int i = stage * kUnits; i < (stage + 1) * kUnits; ++i) run(i % kSets, i % kUnits);
  }
  gemm::WgmmaWait<0>();
  if (lane == 0) {
    if (kSets == 3 && to_free[0] != 0) BarrierArrive(to_free[0]);
    if (to_free[1] != 0) BarrierArrive(to_free[1]);
  }
#else
  constexpr int kSteps = kUnitCols<F> / 16, kUnits = kStageCols<F, N> / kUnitCols<F>;
  constexpr int kParts = kWeightParts<F, N, kFine>;
  const LanePlaces<F, N> places = FindLanePlaces<F, N>(p, group * 4 + warp, lane);
#pragma unroll
  for (float& sum : sums.d) sum = 0;
  const uint32_t x_lane = p.x_offset + gemm::ColumnsOfLane<N>(lane);
#pragma unroll 1
  for (int left = piece.end - piece.begin; left > 0; --left) {
    const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                   base = shared + ring.stage * p.stage_bytes;
    BarrierWait(full, ring.parity);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      uint32_t a[kParts][kSteps][4];
      LoadUnit<F, N, kFine>(p, base, places, unit, lane, a);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        gemm::MultiplyColumns<N>(sums.d, a, s, base + x_lane + (unit * (kUnitCols<F> / 8) + s * 2) * N * 16);
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(full + 8);
    ring.Advance(p.stages);
  }
#endif
}

template <Format F, int N, bool kFine>
__device__ __forceinline__ void RunTiles(const Params& p) {
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t barriers = shared + p.barrier_offset, facts_ready = barriers + kMaxStages * 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxStages; ++i) {
      BarrierInit(barriers + i * 16, kFullArrivals);
      BarrierInit(barriers + i * 16 + 8, kGroups * 4);
    }
    BarrierInit(facts_ready, 32);
    matvec::FenceBarrierInit();
  }
  __syncthreads();
  LetNextStart();
  if (warp >= kGroups * 4) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const bool copies = lane == 0;
#else
    constexpr bool copies = true;
#endif
    const int role = warp - kGroups * 4;
    if (role == 0 && copies) ProduceWeights<F, N>(p, shared, lane);
    if (role == 1 && copies) ProduceActivations<F, N>(p, shared, lane);
    if (N <= kWgmmaJoined && role == 2) GatherFacts(p, memory, facts_ready, lane);
    return;
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
  WaitForPrevious();
  RingPlace ring;
  Sums<N> sums;
  Schedule schedule(p);
  Piece piece;
  int shared_tiles = 0, shared_tile[2];
  while (schedule.Next(p, piece)) {
    const float2 scales = RowScales<F>(p, piece.tile, warp, lane);  // on their way while the sums are made
    MultiplyPiece<F, N, kFine>(p, shared, warp / 4, warp % 4, lane, piece, ring, sums);
    if (piece.end - piece.begin == p.chunks) {
      if constexpr (N <= kWgmmaJoined) BarrierWait(facts_ready, 0);
      FinishTile<N>(p, memory, warp / 4, warp % 4, lane, piece.tile, scales, sums.d);
    } else {
      PutPiece<N>(p, piece, sums.d);
      if (shared_tiles++ == 0) shared_tile[0] = piece.tile;
      shared_tile[1] = piece.tile;
    }
  }
  if constexpr (N <= kWgmmaJoined) BarrierWait(facts_ready, 0);
  if (shared_tiles > 0) FinishTogether<F, N>(p, memory, warp / 4, warp % 4, lane, shared_tile[0], schedule);
  if (shared_tiles > 1) FinishTogether<F, N>(p, memory, warp / 4, warp % 4, lane, shared_tile[1], schedule);
}

template <Format F, int N, bool kFine>
__global__ void __launch_bounds__(kThreads, 1) Kernel(const __grid_constant__ Params p) {
  if constexpr (!kHasBody<N>)
    __trap();
  else
    RunTiles<F, N, kFine>(p);
}

// Rows of `width` elements; copies take boxes of `box_width` by `box_height`.
bool MakeMap(const void* data, int element_bytes, int64_t width, int64_t height, int box_width,
             int box_height, CUtensorMap* out);

// Fills in all that follows from p.a.
template <Format F, int N>
bool Prepare(Params& p, int blocks) {
  constexpr int kCols = kStageCols<F, N>, kE = kEights;
  const DeviceMatrix& m = p.a.w[0];
  p.token_tiles = (p.a.tokens * p.a.x.parts + N - 1) / N;
  if ((p.a.squares || p.a.next.data || p.a.epilogue == WgmmaEpilogue::kQkv) && N > kWgmmaJoined) return false;
  if (p.a.narrow_out && (N <= kWgmmaJoined || p.a.epilogue != WgmmaEpilogue::kStore)) return false;
  p.chunks = m.padded / kCols;
  p.group_shift = m.group == 16 ? 4 : m.group == 32 ? 5 : m.group == 64 ? 6 : 7;
  p.pair_shift = p.a.epilogue == WgmmaEpilogue::kQkv && p.a.qkv.kv.head_dim == 64 ? 2 : 3;
  p.scale_bytes = m.group > 0 ? (kCols > m.group ? kCols / m.group : 1) * 8 * ScaleBytesOf(F) : 0;
  for (int i = 0; i < p.a.matrices; ++i) {
    const DeviceMatrix& w = p.a.w[static_cast<size_t>(i)];
    const int eights = (w.rows + 7) / 8;
    p.tiles_of[i] = (eights + kE - 1) / kE;
    p.row_tiles += p.tiles_of[i];
    if (!WgmmaIsNative()) continue;  // TMA alone needs maps
    if (!MakeMap(w.data, 8, w.row_bytes, eights, kCols * BitsOf(F) / 8, kE / 2, &p.weights[i])) return false;
    if (p.scale_bytes > 0 && !MakeMap(w.scales, 4, int64_t{w.groups_per_row()} * 2 * ScaleBytesOf(F), eights,
                                      p.scale_bytes / 4, kE / 2, &p.scales[i]))
      return false;
  }
  if (p.a.epilogue == WgmmaEpilogue::kGateUp) p.row_tiles = (p.a.mid.padded / 8 + kE / 2 - 1) / (kE / 2);
  // Whole tiles (waves), where that leaves few blocks idle; otherwise the last one to two waves in pieces
  // (stream-K).
  const int tiles = p.row_tiles * p.token_tiles, turns = (tiles + blocks - 1) / blocks;
  p.waves = tiles * 100 >= turns * blocks * 96 ? turns : tiles / blocks - 1;
  if (p.waves < 0 || N <= kWgmmaJoined) p.waves = 0;
  if (p.a.whole_tiles || 2 * (tiles - p.waves * blocks) > kTickets) p.waves = turns;
  p.scale_offset = kE * 8 * kCols * BitsOf(F) / 8;
  p.x_offset = (p.scale_offset + kE * p.scale_bytes + 127) / 128 * 128;
  p.stage_bytes = p.x_offset + kCols * N * 2;
  p.stages = (std::min(kSharedLimit, SharedLimit()) - kBesideBytes) / p.stage_bytes;
  if (p.stages > kMaxStages) p.stages = kMaxStages;
  p.staging_offset = p.stages * p.stage_bytes;
  p.barrier_offset = p.staging_offset + kStagingBytes;
  p.facts_offset = p.barrier_offset + kBarrierBytes;
  p.nibble_upper = kNibbleUpper;
  return p.stages >= 2;
}

template <Format F, int N, bool kFine>
cudaError_t LaunchShape(const WgmmaArgs& args, cudaStream_t stream) {
  // Every block has a piece.
  int tiles = 0;
  for (int i = 0; i < args.matrices; ++i)
    tiles += (args.w[static_cast<size_t>(i)].rows + kWgmmaRows - 1) / kWgmmaRows;
  if (args.epilogue == WgmmaEpilogue::kGateUp) tiles = args.mid.padded / (kWgmmaRows / 2);
  tiles *= (args.tokens * args.x.parts + N - 1) / N;
  const int blocks = std::min(Multiprocessors(), tiles * (args.w[0].padded / kStageCols<F, N>));
  Params p = {};
  p.a = args;
  if (!Prepare<F, N>(p, blocks)) return cudaErrorInvalidValue;
  return LaunchLarge<Kernel<F, N, kFine>>(dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                                          p.staging_offset + kBesideBytes, stream, p);
}

template <Format F, int N>
cudaError_t LaunchTile(const WgmmaArgs& args, cudaStream_t stream) {
  if constexpr (F == Format::kMxfp4) {
    return LaunchShape<F, N, true>(args, stream);
  } else {
    if constexpr (HasScales(F) && (kWeightParts<F, N, true> == 1 || kHeldByBf16<F, false>))
      if (HasFineScales(args.w[0])) return LaunchShape<F, N, true>(args, stream);
    return LaunchShape<F, N, false>(args, stream);
  }
}

template <Format F>
cudaError_t LaunchTileOf(const WgmmaArgs& args, cudaStream_t stream) {
  switch (args.x.tile) {
    case 16:
      return LaunchTile<F, 16>(args, stream);
    case 32:
      return LaunchTile<F, 32>(args, stream);
    case 64:
      return LaunchTile<F, 64>(args, stream);
    case 128:
      return LaunchTile<F, 128>(args, stream);
    case 256:
      return LaunchTile<F, 256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}
// LaunchTileOf(), compiled in one file per format: wgmma_format_cuda.cu.in.
template <Format F>
cudaError_t LaunchFormat(const WgmmaArgs& args, cudaStream_t stream);

}  // namespace celer::cuda::wgmma
