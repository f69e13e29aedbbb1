// What the kernel of decode_batch_cuda.cuh works on: operators and layers, shared memory, counters, and the
// order of activations.
#pragma once

#include "kernels/llm/decode_step/decode_batch_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_finish.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ring.cuh"

namespace celer::cuda::batch {

using namespace matvec;  // the ring, tiles and instructions

// N is the number of tokens that an instance has room for: 8 or 16.
constexpr int kFetcher = kWarps + 1, kLast = kWarps + 2;  // warps beside those that multiply and kProducer
constexpr int kBlockThreads = (kWarps + 3) * 32;
template <int N>
constexpr int kEights = N / 8;  // of tokens
constexpr int kOps = 4;         // of a layer: qkv, o, gate and up, down; attention before the second
template <int N>
constexpr int kChunk = 4096 / N;  // columns of activations in a slot
constexpr int kSlots = 8, kSlotBytes = 8192;
template <int N>
constexpr int kStages = N == 8 ? 4 : 3;
// Stages; three of eight tokens are 1 % slower. Generic ones are half as large.
template <int N>
constexpr int kUnderWay = kHopper ? 2 : kStages<N>;
template <int N>
constexpr int kMostTiles = N == 8 ? kBatch : 8;  // at once, of gate and up; of others kBatch
constexpr int kAttendWarps = kWarps / 2;         // two items at once
constexpr int kMaxKeys = 2048;                   // of a sequence

// Weights, then scales: of int4 one to 128 columns, of int8 one to a row.
template <Format F, int N, bool kForHopper = kHopper>
constexpr int kFullStage = StageBytesOf(kForHopper) +
                           (F == Format::kInt4   ? kWarps * SpansOf(kForHopper) * 16 * ScaleBytesOf(F)
                            : F == Format::kInt8 ? kMostTiles<N> * 16 * ScaleBytesOf(F)
                                                 : 0);

// What an operator is in all layers.
struct Op {
  int rounds, each, more, turn;   // as in Params; `turn` of layer 0
  int size;                       // tiles of a batch in the rounds
  int row_bytes, padded, chunks;  // of weights; columns and chunks of activations
  int cols, unit;                 // of x: its columns, and how many of them come at a time
  const std::byte* x;             // activations
  uint32_t* ready;                // [chunks]
  uint32_t base;                  // kBase, for integer weights
};

// The magic number of the int to bf16 conversion: in bf16, 0x43 in the upper byte makes 128 plus the lower
// seven bits. It comes to the kernel as a parameter: an instruction takes one immediate, and the compiler
// must not know that this is one.
constexpr uint32_t kBase = 0x43004300u;

enum Matrix { kQ, kK, kV, kO, kGate, kUp, kDown, kMatrices };

// Pointers of one layer.
struct alignas(16) Layer {
  const std::byte *data[kMatrices], *scales[kMatrices];
  const float* bias[3];               // of q, k, v
  const float *ffn_norm, *next_norm;  // the latter null in the last layer
  std::byte *k_cache, *v_cache;
  int64_t window;
};

struct BatchParams {
  Op op[kOps];
  const Layer* layers;
  int layer_count, turn_step;  // tiles of a layer's operators that shift the next layer's turns
  const uint32_t* step;
  DeviceBatch batch;
  std::byte *attended, *x_rows, *mid_rows, *in_rows;  // activations: of o, gate and up, down, qkv
  uint32_t *qkv_done, *attended_done, *x_done, *mid_done, *in_done;
  float *squares, *in_squares;  // [hidden / 16, N]: of x behind o, and behind down
  float* q;                     // [N, heads * head_dim]
  float* x;                     // [tokens, hidden], in and out
  float* residual;              // [hidden, N]
  int hidden, inter, heads, kv_heads, head_dim, rope_dim;
  const float *rope_cos, *rope_sin;
  DeviceActivation activation;
  float eps, scale;
};

// Shared memory. The host names the code that it is for.
template <Format F, int N, bool kForHopper = kHopper>
struct Memory {
  char ring[kStages<N>][kFullStage<F, N, kForHopper>];
  char x[kSlots][kSlotBytes];
  float4 sums[2][kEights<N>][kWarps][32];  // of two batches in turn; attention has its Rooms there
  uint64_t full[kStages<N>], empty[kStages<N>], x_full[kSlots], x_empty[kSlots], read[2], normed;
  alignas(16) float norms[N];  // sums of squares
  int position[N];
  int old[N];         // keys of earlier steps are those below
  int64_t kv_row[N];  // of head 0, in elements
  int32_t table[N][kMaxKeys / kKvBlock];
  Layer layers[1];  // layer_count
};

// ---- counters

__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void Signal(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ bool Reached(const uint32_t* counter, uint32_t wanted) {
  return static_cast<int>(LoadAcquire(counter) - wanted) >= 0;
}
// By a whole warp.
__device__ __forceinline__ void Await(const uint32_t* counter, uint32_t wanted, int lane) {
  if (lane == 0)
    while (!Reached(counter, wanted)) {
    }
  __syncwarp();
}
// What signals that it went into a chunk of an operator's x: of a tile each finishing warp, or heads of
// tokens.
template <int N>
__device__ __forceinline__ uint32_t WritersOf(const BatchParams& b, int i, int chunk) {
  const Op& op = b.op[i];
  const int begin = chunk * kChunk<N>, end = min(begin + kChunk<N>, op.cols);
  const int writers = (end - 1) / op.unit - begin / op.unit + 1;
  return static_cast<uint32_t>(i == 1 ? writers * b.batch.count : writers * kEights<N>);
}

// ---- tiles

// A block's tiles where N is 16: batches of Op::size, then one of what is left.
struct WideRun {
  int rounds, size, first, stride;
  int last, last_tiles;

  __device__ __forceinline__ int batches() const { return rounds + min(last_tiles, 1); }
  __device__ __forceinline__ int Begin(int i) const { return i < rounds ? first + i * stride : last; }
  __device__ __forceinline__ int Tiles(int i) const { return i < rounds ? size : last_tiles; }
};

template <int N>
__device__ __forceinline__ auto RunOf(const Op& op, int turn) {
  const int grid = static_cast<int>(gridDim.x);
  int block = static_cast<int>(blockIdx.x) - turn;
  if (block < 0) block += grid;
  const int size = N == 8 ? kBatch : op.size, stride = grid * size,
            first = static_cast<int>(blockIdx.x) * size,
            last = op.rounds * stride + block * op.each + min(block, op.more),
            last_tiles = op.each + (block < op.more ? 1 : 0);
  if constexpr (N == 8)
    return Run{op.rounds, first, stride, last, last_tiles};
  else
    return WideRun{op.rounds, size, first, stride, last, last_tiles};
}

// How the warps share a batch of tiles: those of four in Share's way, up to eight with as many warps for each
// as there are.
template <int N>
struct Sharing : Share {
  using Share::Share;
  __device__ __forceinline__ int Times(int n) const { return n << log2_split; }  // split
  __device__ __forceinline__ int Tile(int warp) const { return warp >> log2_split; }
  __device__ __forceinline__ int Part(int warp) const { return warp & (split - 1); }
};
template <>
struct Sharing<16> {
  int tiles, split;

  __device__ __forceinline__ explicit Sharing(int n) : tiles(n), split(kWarps / n) {}
  __device__ __forceinline__ int Times(int n) const { return n * split; }
  __device__ __forceinline__ int Tile(int warp) const { return warp / split; }  // `tiles` or more: none
  __device__ __forceinline__ int Part(int warp) const { return warp % split; }
  __device__ __forceinline__ int chunk_bytes() const { return split << kChunkShift; }
  __device__ __forceinline__ int tile_bytes() const { return split * kSpans * 1024; }
  __device__ __forceinline__ int chunks(int row_bytes) const {
    return (row_bytes + chunk_bytes() - 1) / chunk_bytes();
  }
};

// The two halves of a tile.
struct Where {
  Matrix matrix[2];
  int row[2];
  int part;  // of q, k, v
  bool rotate;
};

__device__ __forceinline__ Where Find(const BatchParams& b, int i, int tile) {
  if (i == 2) return {{kGate, kUp}, {tile * 8, tile * 8}, 0, false};
  if (i != 0) {
    const Matrix matrix = i == 1 ? kO : kDown;
    return {{matrix, matrix}, {tile * 16, tile * 16 + 8}, 0, false};
  }
  const int per_head = b.head_dim / 16, q_tiles = b.heads * per_head, k_tiles = b.kv_heads * per_head;
  const int part = tile >= q_tiles + k_tiles ? 2 : tile >= q_tiles ? 1 : 0;
  tile -= part == 2 ? q_tiles + k_tiles : part == 1 ? q_tiles : 0;
  const int head = tile / per_head, within = tile % per_head;
  const bool rotate = part < 2 && within < b.rope_dim / 16;
  const int row = head * b.head_dim + within * (rotate ? 8 : 16);
  const Matrix matrix = part == 0 ? kQ : part == 1 ? kK : kV;
  return {{matrix, matrix}, {row, row + (rotate ? b.rope_dim / 2 : 8)}, part, rotate};
}

// ---- the order of activations

// Eight columns stand in the order in which a lane's weights come out of their words: bf16 0 1 2 3 4 5 6 7,
// int8 0 2 1 3 4 6 5 7, int4 0 4 1 5 2 6 3 7. So column c and c + kNeighbour share a word.
template <Format F>
constexpr int kNeighbour = F == Format::kInt4   ? 4
                           : F == Format::kInt8 ? 2
                                                : 1;
// Of columns 0 to 7, where the neighbour's bit is not set.
template <Format F>
__device__ __forceinline__ int WordOf(int c) {
  return F == Format::kInt4 ? c & 3 : F == Format::kInt8 ? (c & 1) | (c & 4) >> 1 : c >> 1;
}
// In words of two columns. Eight tokens: of each 32 columns [token][eight of columns][word]. Sixteen: [half
// of the words][token % 8][eight of columns][word % 2][token / 8], so that a lane's four words are those that
// a product takes.
template <Format F, int N>
__device__ __forceinline__ int64_t PairOf(int token, int col) {
  const int eight = col % 32 / 8, word = WordOf<F>(col % 8);
  const int64_t block = static_cast<int64_t>(col / 32) * (N * 16);
  if constexpr (N == 8) return block + (token * 4 + eight) * 4 + word;
  return block + word / 2 * 128 + (token % 8 * 4 + eight) * 4 + word % 2 * 2 + token / 8;
}
// In elements.
template <Format F, int N>
__device__ __forceinline__ int64_t PlaceOf(int token, int col) {
  return 2 * PairOf<F, N>(token, col & ~kNeighbour<F>) + ((col & kNeighbour<F>) != 0);
}

}  // namespace celer::cuda::batch
