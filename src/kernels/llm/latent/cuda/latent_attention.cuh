// The kernel of latent attention, one instance per type and width of the KV, number of rows and of keys. A row is a head of a
// token; rows are the M of products on the tensor cores, 64 or 32 keys at a time their N and then their K. The row of a key that lies in
// shared memory is its key and its value.
#pragma once

#include "kernels/llm/attention/cuda/flash_attention.cuh"
#include "kernels/llm/latent/cuda/latent_attention_plan.h"
#include "kernels/llm/latent/cuda/latent_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::latent {

using attention::AwaitCopies;
using attention::Biased;
using attention::CommitCopies;
using attention::Factor;
using attention::kNarrow;
using attention::LoadMatrices;
using attention::Mma;
using attention::PackFactors;
using attention::PackRest;
using attention::UnpackFactors;
using attention::Widen;

// T: type of the KV. D, V: columns of a row and of its value part, rounded up. kRows, kKeys: at once. kParts: 2 where queries
// and weights are multiplied as their rounding and what that left.
//
// Warps share the scores by rows and keys, sixteen of each at least, and the sums by rows and columns.
template <class T_, int D_, int V_, int kRows_, int kWarps_, int kParts_, int kKeys_ = kLatentKeys>
struct LatentForm {
  using T = T_;
  using F = Factor<T_>;
  static constexpr int D = D_, V = V_, kRows = kRows_, kWarps = kWarps_, kThreads = kWarps * 32,
                       kParts = kParts_, kKeys = kKeys_;
  static constexpr int kKeyGroups = std::min(kWarps / (kRows / 16), kKeys / 16),
                       kSteps = kKeys / kKeyGroups / 8;
  static constexpr int kScoringWarps = kKeyGroups * (kRows / 16);        // the others wait
  static constexpr int kColumnGroups = 4, kColumns = V / kColumnGroups;  // of a warp's sums
  static constexpr int kRowTiles = kRows / 16 / (kWarps / kColumnGroups);
  static_assert(D % 64 == 0 && kColumns % 16 == 0 && kSteps % 2 == 0 && kRowTiles > 0);
  // Shared memory: rows of queries and keys, their 16-byte vectors swizzled within each eight; weights; row by row the
  // largest score or the sum of weights that each warp has seen, and the factor of earlier sums. Rows of 8 bits come as
  // they are, with their scales, and are widened there.
  static constexpr int kPitch = D * 2, kQueryBytes = kRows * kPitch, kTileBytes = kKeys * kPitch;
  static constexpr int kWeightPitch = kKeys * 2 + 16, kWeightBytes = kRows * kWeightPitch;
  static constexpr bool kWidens = kNarrow<T_>;
  static constexpr int kRawBytes = kKeys * D + kKeys * 4;
  static constexpr int kTilesAt = kParts * kQueryBytes, kRawAt = kTilesAt + kTileBytes;
  // Keys are copied ahead into a second place; in generic code when the first one is free, and rows of 8 bits are
  // widened on their way. Forms of fewer keys are for GPUs with little shared memory.
  static constexpr int WeightsAt(int buffers) {
    return kTilesAt + (kWidens ? kTileBytes + (buffers - 1) * 2 * kRawBytes : buffers * kTileBytes);
  }
  static constexpr bool kSmall = kKeys < kLatentKeys;
  static constexpr int kBuffers = kHopper && !kSmall ? 2 : 1;
  static constexpr int kWeightsAt = WeightsAt(kBuffers);
  static constexpr int kTopsAt = kWeightsAt + kParts * kWeightBytes,
                       kShrinksAt = kTopsAt + kKeyGroups * kRows * 4;
  static constexpr int SharedBytes(bool hopper) {
    return WeightsAt(hopper && !kSmall ? 2 : 1) + kParts * kWeightBytes + (kKeyGroups + 1) * kRows * 4;
  }
  static_assert(SharedBytes(true) <= kMaxSharedBytes &&
                SharedBytes(false) <= (kSmall ? kSmallLatentSharedBytes : kLatentSharedBytes));
};

// Neighbouring rows of one sequence, and a run of its keys.
struct LatentUnit {
  int begin = 0, tokens = 0, first = 0;  // the sequence's tokens in the batch; the first row of them
  int key_begin = 0, key_end = 0;
  int newest = -1;             // the key that this step appends, where all others are there already
  int64_t row = 0, piece = 0;  // of the batch, and among the pieces
  int rows = 0;

  __device__ __forceinline__ int TokenOf(int i, int heads) const {
    return begin + min((first + i) / heads, tokens - 1);
  }
};

// The unit's tokens and rows, by a whole warp; no tokens if there is no such unit.
template <int kRows>
__device__ __forceinline__ LatentUnit FindRows(const LatentAttentionArgs& a, int index) {
  if (a.alone) {
    const int each = (a.heads + kRows - 1) / kRows;
    return {.begin = a.first + index / each, .tokens = 1, .first = index % each * kRows};
  }
  const int lane = threadIdx.x % 32;
  for (int from = 0; from < a.sequences; from += 32) {
    const int s = min(from + lane, a.sequences - 1);
    const int begin = __ldcg(a.seq_start + s), tokens = __ldcg(a.seq_start + s + 1) - begin;
    const int units = from + lane < a.sequences ? (tokens * a.heads + kRows - 1) / kRows : 0;
    int until = units;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, until, apart);
      if (lane >= apart) until += left;
    }
    const int all = __shfl_sync(0xffffffffu, until, 31);
    if (index < all) {
      const int which = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, index < until))) - 1;
      const int before = __shfl_sync(0xffffffffu, until - units, which);
      return {.begin = __shfl_sync(0xffffffffu, begin, which),
              .tokens = __shfl_sync(0xffffffffu, tokens, which),
              .first = (index - before) * kRows};
    }
    index -= all;
  }
  return {};
}

template <int kRows>
__device__ __forceinline__ LatentUnit FindUnit(const LatentAttentionArgs& a, int index, int split) {
  LatentUnit u = FindRows<kRows>(a, index);
  if (u.tokens == 0) return u;
  u.row = static_cast<int64_t>(u.begin) * a.heads + u.first;
  u.piece = u.row - static_cast<int64_t>(a.first) * a.heads;
  u.rows = min(kRows, u.tokens * a.heads - u.first);
  const int length = __ldcg(a.batch.positions + u.TokenOf(u.rows - 1, a.heads)) + 1;
  const int least = a.steady ? kSteadyLatentKeys : kLatentKeys;
  const int each = max(least, ((length + a.pieces.splits - 1) / a.pieces.splits + kLatentKeys - 1) /
                                  kLatentKeys * kLatentKeys);
  u.key_begin = min(split * each, length);
  u.key_end = min(u.key_begin + each, length);
  u.newest = a.decode ? length - 1 : -1;
  return u;
}

__device__ __forceinline__ void CopyVector(uint32_t to, const std::byte* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}

// The KV's blocks of the next keys.
template <class L>
struct LatentPages {
  int number[L::kKeys / kKvBlock];

  __device__ __forceinline__ void Load(const int32_t* table, int key, int key_end) {
#pragma unroll
    for (int i = 0; i < L::kKeys / kKvBlock; ++i)
      number[i] = __ldcg(table + min(key + i * kKvBlock, key_end - 1) / kKvBlock);
  }
};

// Starts to copy the rows of keys into one of two places; those behind the end become zeros. Of all of them key `apart` is copied
// alone or not at all.
template <class L>
__device__ __forceinline__ void CopyKeys(const DeviceKv& kv, const LatentPages<L>& pages, int key,
                                         int key_end, uint32_t memory, int buffer, int apart = -1,
                                         bool alone = false) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_bytes = kv.row_bytes(), vectors = row_bytes / 16;
  const uint32_t to =
      memory + (L::kWidens ? L::kRawAt + buffer * L::kRawBytes : L::kTilesAt + buffer * L::kTileBytes);
#pragma unroll
  for (int j = 0; j < L::kKeys / L::kWarps; ++j) {
    const int row = j * L::kWarps + warp;
    if ((key + row == apart) != alone) continue;
    const bool exists = key + row < key_end;
    const std::byte* block = kv.k + pages.number[j * L::kWarps / kKvBlock] * kv.block_bytes();
    const std::byte* from = block + row % kKvBlock * row_bytes;
    const uint32_t to_row = to + row * (L::kWidens ? L::D : L::kPitch);
#pragma unroll
    for (int first = 0; first < L::D * (L::kWidens ? 1 : 2) / 16; first += 32) {
      const int vector = first + lane;
      if (vector < vectors)
        CopyVector(to_row + (L::kWidens ? vector : vector ^ (row & 7)) * 16, from + vector * 16, exists);
    }
    if constexpr (std::is_same_v<typename L::T, int8_t>)
      if (lane == 0)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + L::kKeys * L::D + row * 4),
                     "l"(block + kKvBlock * row_bytes + row % kKvBlock * 4), "r"(exists ? 4 : 0)
                     : "memory");
  }
  CommitCopies();
}

// 16 bytes of a row as 16 bits, where products read them; int8 times the row's scale.
template <class L>
__device__ __forceinline__ void StoreWide(const uint4& bytes, float scale, char* tile_row, int row,
                                          int vector) {
  using T = typename L::T;
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
  uint2 wide[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    wide[w] = Widen<T>(Biased<T>(words[w]));
    if constexpr (std::is_same_v<T, int8_t>) {
      const float2 low = UnpackFactors<__half>(wide[w].x), high = UnpackFactors<__half>(wide[w].y);
      wide[w] = make_uint2(PackFactors<__half>(low.x * scale, low.y * scale),
                           PackFactors<__half>(high.x * scale, high.y * scale));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
    *reinterpret_cast<uint4*>(tile_row + ((2 * vector + h) ^ (row & 7)) * 16) =
        make_uint4(wide[2 * h].x, wide[2 * h].y, wide[2 * h + 1].x, wide[2 * h + 1].y);
}

// As CopyKeys(), of rows of 8 bits and at once: without a place for them as they are.
template <class L>
__device__ __forceinline__ void CopyKeysWide(const DeviceKv& kv, const LatentPages<L>& pages, int key,
                                             int key_end, char* memory) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_bytes = kv.row_bytes(), vectors = row_bytes / 16;
#pragma unroll 4
  for (int j = 0; j < L::kKeys / L::kWarps; ++j) {
    const int row = j * L::kWarps + warp;
    const bool exists = key + row < key_end;
    const std::byte* block = kv.k + pages.number[j * L::kWarps / kKvBlock] * kv.block_bytes();
    float scale = 0;
    if (exists && std::is_same_v<typename L::T, int8_t>)
      scale = __ldcg(reinterpret_cast<const float*>(block + kKvBlock * row_bytes) + row % kKvBlock);
    const auto* from = reinterpret_cast<const uint4*>(block + row % kKvBlock * row_bytes);
    for (int vector = lane; vector < vectors; vector += 32)
      StoreWide<L>(exists ? __ldcg(from + vector) : make_uint4(0, 0, 0, 0), scale,
                   memory + L::kTilesAt + row * L::kPitch, row, vector);
  }
}

// Rows of 8 bits as 16 bits, where products read them.
template <class L>
__device__ __forceinline__ void WidenKeys(const DeviceKv& kv, char* memory, int buffer) {
  using T = typename L::T;
  const char* raw = memory + L::kRawAt + buffer * L::kRawBytes;
  const int vectors = kv.row_bytes() / 16;
  for (int i = threadIdx.x; i < L::kKeys * vectors; i += L::kThreads) {
    const int row = i / vectors, vector = i % vectors;
    float scale = 0;
    if constexpr (std::is_same_v<T, int8_t>)
      scale = *reinterpret_cast<const float*>(raw + L::kKeys * L::D + row * 4);
    StoreWide<L>(*reinterpret_cast<const uint4*>(raw + row * L::D + vector * 16), scale,
                 memory + L::kTilesAt + row * L::kPitch, row, vector);
  }
}

// Zeros where no row reaches.
template <class L>
__device__ __forceinline__ void ClearMargins(const DeviceKv& kv, char* memory) {
  const int vectors = kv.row_bytes() / 16 * (L::kWidens ? 2 : 1), missing = L::D / 8 - vectors;
  for (int i = threadIdx.x; i < (L::kWidens ? 1 : L::kBuffers) * L::kKeys * missing; i += L::kThreads) {
    const int row = i / missing, vector = vectors + i % missing;
    *reinterpret_cast<uint4*>(memory + L::kTilesAt + row * L::kPitch + (vector ^ (row & 7)) * 16) =
        make_uint4(0, 0, 0, 0);
  }
}

// Queries times the scale, rounded; rows that do not exist are zeros.
template <class L>
__device__ __forceinline__ void LoadQueries(const LatentAttentionArgs& a, const LatentUnit& u, char* memory) {
  using F = typename L::F;
  const int dim = a.kv.head_dim;
  const float scale = a.scale * 1.4426950408889634f;
#pragma unroll 9
  for (int i = threadIdx.x; i < L::kRows * (L::D / 8); i += L::kThreads) {
    const int row = i / (L::D / 8), vector = i % (L::D / 8), column = vector * 8;
    const float* from = a.q + (u.row + row) * dim + column;
    float v[8] = {};
    if (row < u.rows && dim % 4 == 0) {
#pragma unroll
      for (int h = 0; h < 8; h += 4)
        if (column + h < dim) {
          const float4 four = __ldcg(reinterpret_cast<const float4*>(from + h));
          v[h] = four.x, v[h + 1] = four.y, v[h + 2] = four.z, v[h + 3] = four.w;
        }
    } else if (row < u.rows) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (column + e < dim) v[e] = __ldcg(from + e);
    }
    uint32_t top[4], rest[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const float low = v[2 * h] * scale, high = v[2 * h + 1] * scale;
      top[h] = PackFactors<F>(low, high);
      rest[h] = PackRest<F>(low, high, top[h]);
    }
    char* to = memory + row * L::kPitch + (vector ^ (row & 7)) * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(top[0], top[1], top[2], top[3]);
    if constexpr (L::kParts == 2)
      *reinterpret_cast<uint4*>(to + L::kQueryBytes) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

// A warp's place among the others.
template <class L>
struct LatentPlace {
  int lane, g, t;
  bool scores;                  // multiplies queries and keys
  int row_tile, key_group;      // of scores
  int row_group, column_group;  // of sums
  uint32_t memory;              // shared
  __device__ __forceinline__ LatentPlace(uint32_t shared) : memory(shared) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    scores = L::kScoringWarps == L::kWarps || warp < L::kScoringWarps;
    row_tile = warp / L::kKeyGroups, key_group = warp % L::kKeyGroups;
    row_group = warp / L::kColumnGroups, column_group = warp % L::kColumnGroups;
  }
};

// Scores of 16 rows and a group's keys.
template <class L>
__device__ __forceinline__ void MultiplyKeys(const LatentPlace<L>& at, uint32_t tile,
                                             float (&s)[L::kSteps][4]) {
  using F = typename L::F;
  float rest[L::kSteps][4] = {};
#pragma unroll
  for (int n = 0; n < L::kSteps; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
  const int lane = at.lane;
  const uint32_t q_at = at.memory + (at.row_tile * 16 + lane % 16) * L::kPitch;
  const uint32_t k_at = tile + (at.key_group * L::kSteps * 8 + lane % 8 + lane / 16 * 8) * L::kPitch;
  const uint32_t q_vector = ((lane / 16) ^ (lane & 7)) * 16, k_vector = ((lane / 8 & 1) ^ (lane & 7)) * 16;
#pragma unroll 1
  for (int eight = 0; eight < L::kPitch; eight += 128) {
    // Four steps of 16 columns, loaded at once.
    uint32_t q[4][L::kParts][4], b[4][L::kSteps / 2][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int part = 0; part < L::kParts; ++part)
        LoadMatrices<false>(q[k][part], q_at + part * L::kQueryBytes + eight + (q_vector ^ k * 32));
#pragma unroll
      for (int n = 0; n < L::kSteps / 2; ++n)
        LoadMatrices<false>(b[k][n], k_at + n * 16 * L::kPitch + eight + (k_vector ^ k * 32));
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int n = 0; n < L::kSteps; ++n) {
        const uint32_t b0 = b[k][n / 2][n % 2 * 2], b1 = b[k][n / 2][n % 2 * 2 + 1];
        Mma<F>(s[n], q[k][0][0], q[k][0][1], q[k][0][2], q[k][0][3], b0, b1);
        if constexpr (L::kParts == 2) Mma<F>(rest[n], q[k][1][0], q[k][1][1], q[k][1][2], q[k][1][3], b0, b1);
      }
  }
  if constexpr (L::kParts == 2)
#pragma unroll
    for (int n = 0; n < L::kSteps; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] += rest[n][i];
}

// Softmax of the rows g and g + 8 of a warp's scores.
template <class L>
struct LatentSoftmax {
  using F = typename L::F;
  int position[2];
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};  // totals of this lane's keys

  // The part between the barriers: what all warps of these rows have to know.
  __device__ __forceinline__ void Mask(const LatentPlace<L>& at, char* memory, int key,
                                       float (&s)[L::kSteps][4]) {
    auto* tops = reinterpret_cast<float*>(memory + L::kTopsAt) + at.key_group * L::kRows + at.row_tile * 16;
    float most[2] = {-INFINITY, -INFINITY};
    const int first = key + at.key_group * L::kSteps * 8 + at.t * 2;
#pragma unroll
    for (int n = 0; n < L::kSteps; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first + n * 8 + i % 2 > position[i / 2]) s[n][i] = -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], s[n][i]);
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
      if (at.t == 0) tops[at.g + 8 * i] = most[i];
    }
  }

  // Scores to weights, in shared memory.
  __device__ __forceinline__ void Weigh(const LatentPlace<L>& at, char* memory, float (&s)[L::kSteps][4]) {
    // Weights are up to 2^10, so that small ones keep their digits in f16; sums are divided by their total.
    constexpr float kUp = 10;
    const int row = at.row_tile * 16 + at.g;
    const auto* tops = reinterpret_cast<const float*>(memory + L::kTopsAt);
    auto* shrinks = reinterpret_cast<float*>(memory + L::kShrinksAt);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float next = top[i];
#pragma unroll
      for (int group = 0; group < L::kKeyGroups; ++group)
        next = fmaxf(next, tops[group * L::kRows + row + 8 * i]);
      const float shrink = next == -INFINITY ? 1 : exp2f(top[i] - next);
      top[i] = next;
      total[i] *= shrink;
      if (at.key_group == 0 && at.t == 0) shrinks[row + 8 * i] = shrink;
    }
#pragma unroll
    for (int n = 0; n < L::kSteps; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float weight[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          weight[e] = top[i] == -INFINITY ? 0 : exp2f(s[n][2 * i + e] - top[i] + kUp);
          total[i] += weight[e];
        }
        const uint32_t packed = PackFactors<F>(weight[0], weight[1]);
        char* to = memory + L::kWeightsAt + (row + 8 * i) * L::kWeightPitch +
                   (at.key_group * L::kSteps * 8 + n * 8 + at.t * 2) * 2;
        *reinterpret_cast<uint32_t*>(to) = packed;
        if constexpr (L::kParts == 2)
          *reinterpret_cast<uint32_t*>(to + L::kWeightBytes) = PackRest<F>(weight[0], weight[1], packed);
      }
  }

  // To the pieces: the largest scores and the sums of weights.
  __device__ __forceinline__ void Store(const LatentPlace<L>& at, const LatentPieces& p, const LatentUnit& u,
                                        int split, char* memory) {
    auto* totals = reinterpret_cast<float*>(memory + L::kTopsAt);
    const int row = at.row_tile * 16 + at.g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
      if (at.scores && at.t == 0) totals[at.key_group * L::kRows + row + 8 * i] = total[i];
    }
    __syncthreads();
    if (!at.scores || at.key_group != 0 || at.t != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= u.rows) continue;
      float all = 0;
#pragma unroll
      for (int group = 0; group < L::kKeyGroups; ++group) all += totals[group * L::kRows + row + 8 * i];
      p.tops[(u.piece + row + 8 * i) * p.splits + split] = make_float2(top[i], all);
    }
  }
};

// The sums of some rows and columns.
template <class L>
struct LatentSums {
  using F = typename L::F;
  float o[L::kRowTiles][L::kColumns / 8][4];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int j = 0; j < L::kRowTiles; ++j)
#pragma unroll
      for (int n = 0; n < L::kColumns / 8; ++n) o[j][n][0] = o[j][n][1] = o[j][n][2] = o[j][n][3] = 0;
  }
  static __device__ __forceinline__ int FirstRow(const LatentPlace<L>& at, int j) {
    return (at.row_group * L::kRowTiles + j) * 16;
  }

  __device__ __forceinline__ void Shrink(const LatentPlace<L>& at, const char* memory) {
    const auto* shrinks = reinterpret_cast<const float*>(memory + L::kShrinksAt);
#pragma unroll
    for (int j = 0; j < L::kRowTiles; ++j) {
      const float by[2] = {shrinks[FirstRow(at, j) + at.g], shrinks[FirstRow(at, j) + at.g + 8]};
      if (!__any_sync(0xffffffffu, by[0] != 1 || by[1] != 1)) continue;
#pragma unroll
      for (int n = 0; n < L::kColumns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][n][i] *= by[i / 2];
    }
  }

  __device__ __forceinline__ void MultiplyValues(const LatentPlace<L>& at, uint32_t tile, int keys) {
    // The columns of a warp are whole eights of vectors, or a part of one.
    constexpr bool kWhole = L::kColumns >= 64;
    const int lane = at.lane;
    const uint32_t columns = kWhole ? at.column_group * L::kColumns * 2 : 0;
    const uint32_t vector =
        (((lane / 16) ^ (lane & 7)) * 16) ^ (kWhole ? 0 : at.column_group * L::kColumns * 2);
#pragma unroll
    for (int k = 0; k < L::kKeys / 16; ++k) {
      if (k * 16 >= keys) break;
      uint32_t p[L::kRowTiles][L::kParts][4];
#pragma unroll
      for (int j = 0; j < L::kRowTiles; ++j)
#pragma unroll
        for (int part = 0; part < L::kParts; ++part)
          LoadMatrices<false>(p[j][part], at.memory + L::kWeightsAt + part * L::kWeightBytes +
                                              (FirstRow(at, j) + lane % 16) * L::kWeightPitch +
                                              (k * 2 + lane / 16) * 16);
      const uint32_t from = tile + (k * 16 + lane % 16) * L::kPitch + columns;
      // Sixteens of columns, so that products do not wait for each other.
      constexpr int kAtOnce = L::kColumns >= 64 ? 4 : 1;
#pragma unroll
      for (int n = 0; n < L::kColumns / 16; n += kAtOnce) {
        uint32_t b[kAtOnce][4];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          LoadMatrices<true>(b[i], from + (n + i) / 4 * 128 + (vector ^ (n + i) % 4 * 32));
#pragma unroll
        for (int part = 0; part < L::kParts; ++part)
#pragma unroll
          for (int j = 0; j < L::kRowTiles; ++j)
#pragma unroll
            for (int i = 0; i < 2 * kAtOnce; ++i)
              Mma<F>(o[j][2 * n + i], p[j][part][0], p[j][part][1], p[j][part][2], p[j][part][3],
                     b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
      }
    }
  }

  __device__ __forceinline__ void Store(const LatentPlace<L>& at, const LatentPieces& p, const LatentUnit& u,
                                        int split, int rank) const {
#pragma unroll
    for (int j = 0; j < L::kRowTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = FirstRow(at, j) + at.g + 8 * i;
        if (row >= u.rows) continue;
        float* to = p.sums + ((u.piece + row) * p.splits + split) * rank;
#pragma unroll
        for (int n = 0; n < L::kColumns / 8; ++n) {
          const int column = at.column_group * L::kColumns + n * 8 + at.t * 2;
          const float low = o[j][n][2 * i], high = o[j][n][2 * i + 1];
          if (rank % 2 == 0 && column < rank)
            *reinterpret_cast<float2*>(to + column) = make_float2(low, high);
          if (rank % 2 != 0 && column < rank) to[column] = low;
          if (rank % 2 != 0 && column + 1 < rank) to[column + 1] = high;
        }
      }
  }
};

// A split without keys: nothing is summed, and nothing will be read but that.
__device__ __forceinline__ void StoreNothing(const LatentPieces& p, const LatentUnit& u, int split) {
  for (int i = threadIdx.x; i < u.rows; i += blockDim.x)
    p.tops[(u.piece + i) * p.splits + split] = make_float2(-INFINITY, 0);
}

// Grid: (units of rows, splits). Units of long prompts first: their last ones see most keys.
template <class L>
__device__ __forceinline__ void AttendLatent(const LatentAttentionArgs& a) {
  extern __shared__ __align__(128) char memory[];
  LetNextStart();
  if (!a.decode) WaitForPrevious();
  const int split = blockIdx.y;
  const LatentUnit u = FindUnit<L::kRows>(a, a.alone ? blockIdx.x : gridDim.x - 1 - blockIdx.x, split);
  if (u.tokens == 0) return;
  if (u.key_begin == u.key_end) {
    WaitForPrevious();
    return StoreNothing(a.pieces, u, split);
  }
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const LatentPlace<L> at(shared);
  const int32_t* table =
      a.batch.block_table + static_cast<int64_t>(__ldcg(a.batch.sequence + u.begin)) * a.batch.max_blocks;
  LatentPages<L> pages;
  pages.Load(table, u.key_begin, u.key_end);
  LatentSoftmax<L> softmax;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = at.row_tile * 16 + at.g + 8 * i;
    softmax.position[i] = row < u.rows ? __ldcg(a.batch.positions + u.TokenOf(row, a.heads)) : -1;
  }
  // The kernel in front writes queries, and the row of the step's own token.
  constexpr bool kCopies = !L::kWidens || L::kBuffers == 2;
  if constexpr (kCopies) CopyKeys<L>(a.kv, pages, u.key_begin, u.key_end, shared, 0, u.newest);
  ClearMargins<L>(a.kv, memory);
  WaitForPrevious();
  if (kCopies && u.newest >= 0)
    CopyKeys<L>(a.kv, pages, u.key_begin, u.key_end, shared, 0, u.newest, /*alone=*/true);
  LoadQueries<L>(a, u, memory);
  LatentSums<L> sums;
  sums.Clear();
  for (int key = u.key_begin, buffer = 0; key < u.key_end; key += L::kKeys, buffer ^= 1) {
    const int next = key + L::kKeys, place = L::kBuffers == 2 ? buffer : 0;
    if (L::kBuffers == 2 && next < u.key_end) pages.Load(table, next, u.key_end);
    AwaitCopies<0>();
    __syncthreads();  // these keys are there, and the ones before are done with
    if (L::kBuffers == 2 && next < u.key_end) CopyKeys<L>(a.kv, pages, next, u.key_end, shared, buffer ^ 1);
    if constexpr (L::kWidens) {
      if constexpr (L::kBuffers == 2)
        WidenKeys<L>(a.kv, memory, buffer);
      else
        CopyKeysWide<L>(a.kv, pages, key, u.key_end, memory);
      __syncthreads();
    }
    if (L::kBuffers == 1 && next < u.key_end) pages.Load(table, next, u.key_end);
    const uint32_t tile = shared + L::kTilesAt + (L::kWidens ? 0 : place * L::kTileBytes);
    float s[L::kSteps][4];
    if (at.scores) {
      MultiplyKeys<L>(at, tile, s);
      softmax.Mask(at, memory, key, s);
    }
    __syncthreads();
    if (at.scores) softmax.Weigh(at, memory, s);
    __syncthreads();
    sums.Shrink(at, memory);
    sums.MultiplyValues(at, tile, u.key_end - key);
    if constexpr (L::kBuffers == 1 && !L::kWidens) {
      __syncthreads();
      if (next < u.key_end) CopyKeys<L>(a.kv, pages, next, u.key_end, shared, 0);
    }
  }
  sums.Store(at, a.pieces, u, split, a.kv_rank);
  softmax.Store(at, a.pieces, u, split, memory);
}

template <class L>
__global__ void __launch_bounds__(L::kThreads, 1)
    LatentKernel(const __grid_constant__ LatentAttentionArgs a) {
  if constexpr (!kHopper || !L::kSmall) AttendLatent<L>(a);  // a Hopper has room for the others
}

template <class L>
cudaError_t LaunchForm(const LatentAttentionArgs& a, int units, cudaStream_t stream) {
  return LaunchLarge<LatentKernel<L>, L::SharedBytes(true)>(
      dim3(static_cast<unsigned>(units), static_cast<unsigned>(a.pieces.splits)), dim3(L::kThreads),
      L::SharedBytes(HopperCode()), stream, a);
}

template <class T, int D, int V>
cudaError_t LaunchWidth(const LatentAttentionArgs& a, int units, cudaStream_t stream) {
  if (SmallLatentForms())
    return a.alone
               ? LaunchForm<LatentForm<T, D, V, 16, 4, 2, kSmallLatentKeys>>(a, units, stream)
               : LaunchForm<LatentForm<T, D, V, kGroupedRows / 2, 8, 1, kSmallLatentKeys>>(a, units, stream);
  if (!a.alone) return LaunchForm<LatentForm<T, D, V, kGroupedRows, 8, 1>>(a, units, stream);
  return a.heads <= 16 ? LaunchForm<LatentForm<T, D, V, 16, 4, 2>>(a, units, stream)
                       : LaunchForm<LatentForm<T, D, V, 32, 8, 2>>(a, units, stream);
}

// Compiled in one file per type of the KV: latent_attention_kv_cuda.cu.in.
template <DType kType>
cudaError_t LaunchLatentType(const LatentAttentionArgs& a, int units, cudaStream_t stream);

}  // namespace celer::cuda::latent
