// The tiling of a product: over blocks, into batches of tiles, over the consumer warps. See matvec_cuda.cuh.
#pragma once

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"

namespace celer::cuda::matvec {

constexpr int kWarps = 16;  // that multiply
constexpr int kBatch = 4;   // tiles at once
constexpr int kConsumers = kWarps * 32;
constexpr int kProducer = kWarps, kFinisher = kWarps + 1;
constexpr int kThreads = kConsumers + 64;
// Of 64 bytes that a warp takes of each row in a stage. Generic stages are half as large: a ring and the activations
// of wide matrices share as little as 99 KB.
constexpr int SpansOf(bool hopper) {
  return hopper ? 2 : 1;
}
constexpr int StageBytesOf(bool hopper) {  // of weights
  return kWarps * SpansOf(hopper) * 1024;
}
constexpr int kSpans = SpansOf(kHopper), kStageBytes = StageBytesOf(kHopper);
constexpr int kChunkShift = kHopper ? 7 : 6;  // kSpans * 64
static_assert(kSpans * 64 == 1 << kChunkShift);
constexpr int kPlanePad = 64;  // the two parts of an activation fall into different halves of the banks
constexpr int kMaxStages = 8;
// Stages that are on their way at once; without bulk copies, all. For integer weights two were 2 to 3 % faster than three, and
// those than six; why is not proven. Floats take one more.
constexpr int kInFlight = 2;

struct alignas(16) Params {
  MatvecArgs a;
  int stages;
  int rounds;      // in which every block has a whole batch
  int each, more;  // tiles of every block after them, and how many blocks have one more
  int turn;        // of those over the blocks, so that small products begin where the last one ended
  float* plain;    // [tokens, plain_stride], where tagged results go besides, without the tag; or null
  int64_t plain_stride;
  int stage_bytes;  // weights, then scales
  int group_shift;  // log2 of the columns that share a scale
  int in_flight;
  int x_offset, xs_offset, xsum_offset, red_offset, sum_offset, norm_offset, place_offset, barrier_offset;
  int plane_bytes;
};

// Whether activations become integers for it, too. Of the other formats they are two bf16.
constexpr bool IsInteger(Format f) {
  return f == Format::kInt8 || BitsOf(f) == 4;
}
// Whether the sums of activations count, too: of their groups.
constexpr bool HasSums(Format f) {
  return BitsOf(f) == 4;
}
// Whether its even columns come out of their bytes apart from the odd ones.
constexpr bool HasEvenOdd(Format f) {
  return f == Format::kInt4 || f == Format::kInt4F32;
}
template <Format F>
constexpr int kWarpCols = 64 * 8 / BitsOf(F);  // columns of a warp in a span

// A block's tiles, balanced; parameters of a kind of their own may divide them otherwise. In every round the
// blocks' batches follow each other, so that the first part of the rows is complete, for all who wait for it,
// when the first round is.
struct Run {
  int rounds, first, stride;  // batches of four: where the first begins, and the way to the next
  int last, last_tiles;       // what comes after them: up to three tiles; three are two batches, of 2 and 1

  __device__ __forceinline__ int batches() const {
    return rounds + (last_tiles == 3 ? 2 : min(last_tiles, 1));
  }
  __device__ __forceinline__ int Begin(int i) const {
    return i < rounds ? first + i * stride : last + (i - rounds) * 2;
  }
  __device__ __forceinline__ int Tiles(int i) const {
    return i < rounds ? kBatch : last_tiles == 3 ? 2 - (i - rounds) : last_tiles;
  }
};
__device__ __forceinline__ Run TilesOf(const Params& p) {
  const int grid = static_cast<int>(gridDim.x);
  int block = static_cast<int>(blockIdx.x) - p.turn;
  if (block < 0) block += grid;
  const int rounds = p.rounds, each = p.each, more = p.more, stride = grid * kBatch;
  return {rounds, static_cast<int>(blockIdx.x) * kBatch, stride,
          rounds * stride + block * each + min(block, more), each + (block < more ? 1 : 0)};
}

// How a batch of tiles is shared: `split` warps for each.
struct Share {
  int tiles, split, log2_split;

  __device__ __forceinline__ explicit Share(int n) : tiles(n) {
    log2_split = tiles == 1 ? 4 : tiles == 2 ? 3 : 2;
    split = 1 << log2_split;
  }
  __device__ __forceinline__ int chunk_bytes() const { return split << kChunkShift; }  // of a row in a stage
  __device__ __forceinline__ int tile_bytes() const { return split * kSpans * 1024; }
  __device__ __forceinline__ int chunks(int row_bytes) const {
    return (row_bytes + chunk_bytes() - 1) >> (log2_split + kChunkShift);
  }
};

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

// Sets rounds, each and more.
void Divide(int tiles, int blocks, Params* p);

}  // namespace celer::cuda::matvec
