// The kernel behind flash_attention_cuda.h, one instance per type of the KV and width of its heads.
#pragma once

#include "kernels/llm/attention/cuda/attention_unit.cuh"
#include "kernels/llm/attention/cuda/flash_attention_cuda.h"
#include "kernels/llm/attention/cuda/flash_store.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::attention {

constexpr int kFlashThreads = 128;
constexpr int kTileQueries = kFlashThreads / 2;  // 16 to a warp
// Of a tile; generic code has half as many where heads are wide, so that 99 KB of shared memory suffice.
constexpr int KeysOf(int d, bool hopper) {
  return d > 128 && !hopper ? 32 : 64;
}
template <int D>
constexpr int kKeys = KeysOf(D, kHopper);

template <int D>
constexpr int kPitch = D * 2 + 16;  // bytes of a row in shared memory; the pad spreads rows over the banks
template <int D>
constexpr int kTileBytes = kKeys<D>* kPitch<D>;
// Wide heads leave no room for the queries in registers.
template <int D>
constexpr bool kQueriesInShared = D > 128;
template <int D>
constexpr int SharedBytes(bool hopper) {
  return 4 * KeysOf(D, hopper) * kPitch<D> +  // K and V, two of each
         (kQueriesInShared<D> ? kTileQueries * kPitch<D> : 0);
}
static_assert(SharedBytes<256>(false) <= 99 * 1024);

template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t from) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

// What a thread brings of a tile of K and V: 16 bytes of a row at a time.
template <class T, int D>
struct TileLoad {
  static constexpr int kElements = 16 / sizeof(T), kInRow = D / kElements;
  static constexpr int kCount = kKeys<D> * kInRow / kFlashThreads;
  static_assert(kKeys<D> * kInRow % kFlashThreads == 0);
  uint4 raw[kNarrow<T> ? kCount : 1][2];
  float scale[std::is_same_v<T, int8_t> ? kCount : 1][2];

  // Rows of keys beyond last_key are zeros.
  __device__ __forceinline__ void Load(const DeviceKv& kv, const int32_t* table, int key0, int last_key,
                                       int row_bytes, int64_t block_bytes, int64_t head_at, uint32_t to) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int vector = threadIdx.x + i * kFlashThreads, key = vector / kInRow, at = vector % kInRow * 16;
      const bool exists = key0 + key <= last_key && at < row_bytes;
      const int64_t block = exists ? __ldcg(table + (key0 + key) / kKvBlock) : 0;
      const int64_t base = block * block_bytes + head_at;
      const int64_t from = base + key % kKvBlock * row_bytes + (exists ? at : 0);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const std::byte* cache = part == 0 ? kv.k : kv.v;
        if constexpr (kNarrow<T>) {
          raw[i][part] = make_uint4(0, 0, 0, 0);
          if (exists) raw[i][part] = __ldcg(reinterpret_cast<const uint4*>(cache + from));
          if constexpr (std::is_same_v<T, int8_t>)
            scale[i][part] =
                exists ? __ldcg(reinterpret_cast<const float*>(cache + base + kKvBlock * row_bytes) +
                                key % kKvBlock)
                       : 0.0f;
        } else {
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + part * kTileBytes<D> +
                                                                             key * kPitch<D> + at),
                       "l"(cache + from), "r"(exists ? 16 : 0));  // 0: the rest is filled with zeros
        }
      }
    }
    if constexpr (!kNarrow<T>) asm volatile("cp.async.commit_group;");
  }
  __device__ __forceinline__ void Store(uint32_t to) const {
    if constexpr (kNarrow<T>) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int vector = threadIdx.x + i * kFlashThreads, key = vector / kInRow, at = vector % kInRow * 32;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint32_t words[4] = {raw[i][part].x, raw[i][part].y, raw[i][part].z, raw[i][part].w};
          uint32_t as_f16[8];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            uint2 two = Widen<T>(Biased<T>(words[w]));
            if constexpr (std::is_same_v<T, int8_t>) {
              const float by = scale[i][part];
              const float2 low = UnpackFactors<__half>(two.x), high = UnpackFactors<__half>(two.y);
              two.x = PackFactors<__half>(low.x * by, low.y * by);
              two.y = PackFactors<__half>(high.x * by, high.y * by);
            }
            as_f16[2 * w] = two.x, as_f16[2 * w + 1] = two.y;
          }
          const uint32_t at_row = to + part * kTileBytes<D> + key * kPitch<D> + at;
#pragma unroll
          for (int h = 0; h < 2; ++h)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at_row + 16 * h),
                         "r"(as_f16[4 * h]), "r"(as_f16[4 * h + 1]), "r"(as_f16[4 * h + 2]),
                         "r"(as_f16[4 * h + 3])
                         : "memory");
        }
      }
    }
  }
};

// The lane's parts of queries `row`, as they are multiplied; those beyond `count` are not used.
template <class F, int D>
__device__ __forceinline__ void LoadQueries(const DeviceAttentionArgs& a, int begin, int count, int head,
                                            const int (&row)[2], int t, uint32_t (&q)[D / 16][4]) {
  const int dim = a.kv.head_dim;
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = min(row[i % 2], count - 1);
      const int at = k * 16 + i / 2 * 8 + t * 2;
      const int64_t from = (static_cast<int64_t>(begin + r) * a.heads + head) * dim + at;
      if (a.narrow_q) {
        q[k][i] = at < dim ? __ldcg(static_cast<const uint32_t*>(a.narrow_q) + from / 2) : 0;
        continue;
      }
      float2 v = make_float2(0, 0);
      if (at < dim) v = __ldcg(reinterpret_cast<const float2*>(a.q + from));
      q[k][i] = PackFactors<F>(v.x, v.y);
    }
}

// The same into shared memory, where a warp has the rows of its 16 queries.
template <class F, int D>
__device__ __forceinline__ void StoreQueries(const DeviceAttentionArgs& a, int begin, int count, int head,
                                             const int (&row)[2], int lane, uint32_t rows) {
  const int dim = a.kv.head_dim, t = lane % 4;
#pragma unroll 4
  for (int k = 0; k < D / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = k * 16 + i / 2 * 8 + t * 2;
      const int64_t from =
          (static_cast<int64_t>(begin + min(row[i % 2], count - 1)) * a.heads + head) * dim + at;
      uint32_t two = 0;
      if (at < dim && a.narrow_q) {
        two = __ldcg(static_cast<const uint32_t*>(a.narrow_q) + from / 2);
      } else if (at < dim) {
        const float2 v = __ldcg(reinterpret_cast<const float2*>(a.q + from));
        two = PackFactors<F>(v.x, v.y);
      }
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(rows + (lane / 4 + i % 2 * 8) * kPitch<D> + at * 2),
                   "r"(two)
                   : "memory");
    }
  __syncwarp();
}

// Scores of a tile's keys, with queries from shared memory: a few of their dimensions at a time.
template <class F, int D>
__device__ __forceinline__ void MultiplyKeysWide(uint32_t q_rows, uint32_t k_tile, int lane,
                                                 float (&s)[kKeys<D> / 8][4]) {
#pragma unroll
  for (int n = 0; n < kKeys<D> / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 1
  for (int k = 0; k < D / 32; ++k) {  // two steps of 16 dimensions at once
    uint32_t q[2][4];
#pragma unroll
    for (int step = 0; step < 2; ++step)
      LoadMatrices<false>(q[step], q_rows + lane % 16 * kPitch<D> + (k * 32 + step * 16 + lane / 16 * 8) * 2);
#pragma unroll
    for (int n = 0; n < kKeys<D> / 8; ++n) {
      uint32_t b[4];
      LoadMatrices<false>(b, k_tile + (n * 8 + lane % 8) * kPitch<D> + (k * 32 + lane / 8 * 8) * 2);
      Mma<F>(s[n], q[0][0], q[0][1], q[0][2], q[0][3], b[0], b[1]);
      Mma<F>(s[n], q[1][0], q[1][1], q[1][2], q[1][3], b[2], b[3]);
    }
  }
}

// Scores of a tile's keys.
template <class F, int D>
__device__ __forceinline__ void MultiplyKeys(const uint32_t (&q)[D / 16][4], uint32_t k_tile, int lane,
                                             float (&s)[kKeys<D> / 8][4]) {
#pragma unroll
  for (int n = 0; n < kKeys<D> / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int n = 0; n < kKeys<D> / 8; ++n)
#pragma unroll
    for (int k = 0; k < D / 32; ++k) {  // two steps of 16 dimensions at once
      uint32_t b[4];
      LoadMatrices<false>(b, k_tile + (n * 8 + lane % 8) * kPitch<D> + (k * 32 + lane / 8 * 8) * 2);
      Mma<F>(s[n], q[2 * k][0], q[2 * k][1], q[2 * k][2], q[2 * k][3], b[0], b[1]);
      Mma<F>(s[n], q[2 * k + 1][0], q[2 * k + 1][1], q[2 * k + 1][2], q[2 * k + 1][3], b[2], b[3]);
    }
}

// T: type of the KV; D: head_dim or more, a multiple of 32.
// Grid: (tiles of 64 queries, heads, sequences). Four warps of 16 queries each; keys come in tiles of 64,
// double buffered: the next one is copied to shared memory by cp.async while this one is worked on, or where
// it must be widened to 16 bits, held in registers. Softmax and the product with V stay inline: as functions
// they cost registers.
template <class T, int D>
__global__ void __launch_bounds__(kFlashThreads)
    FlashKernel(const __grid_constant__ FlashAttentionArgs args) {
  extern __shared__ __align__(128) char memory[];
  LetNextStart();
  WaitForPrevious();
  using F = Factor<T>;
  const DeviceAttentionArgs& a = args.base;
  const int dim = a.kv.head_dim;
  const int sequence = blockIdx.z, head = blockIdx.y;
  const int begin = __ldcg(args.seq_start + sequence), count = __ldcg(args.seq_start + sequence + 1) - begin;
  // Longest first: late tiles see most keys.
  const int tile = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
  const int first_query = tile * kTileQueries;
  if (first_query >= count) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int kv_head = head / (a.heads / a.kv.kv_heads);
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));

  // This lane's two query rows.
  int row[2], position[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row[i] = first_query + warp * 16 + g + 8 * i;
    position[i] = __ldcg(a.batch.positions + begin + min(row[i], count - 1));
  }
  uint32_t q[D / 16][4];
  const uint32_t q_rows = shared + 4 * kTileBytes<D> + warp * 16 * kPitch<D>;
  if constexpr (kQueriesInShared<D>)
    StoreQueries<F, D>(a, begin, count, head, row, lane, q_rows);
  else
    LoadQueries<F, D>(a, begin, count, head, row, t, q);
  const int last_key = __ldcg(a.batch.positions + begin + min(first_query + kTileQueries, count) - 1);
  const int low_position = __ldcg(a.batch.positions + begin + first_query);
  const int first_key = a.window > 0 ? max(0, low_position - a.window + 1) / kKeys<D> * kKeys<D> : 0;
  const int32_t* table =
      a.batch.block_table + static_cast<int64_t>(__ldcg(a.batch.sequence + begin)) * a.batch.max_blocks;
  const int row_bytes = a.kv.row_bytes();
  const int64_t block_bytes = a.kv.block_bytes(), head_at = static_cast<int64_t>(kv_head) * a.kv.head_bytes();
  TileLoad<T, D> coming;
  const auto load = [&](int key0, int buffer) {
    coming.Load(a.kv, table, key0, last_key, row_bytes, block_bytes, head_at,
                shared + buffer * 2 * kTileBytes<D>);
  };

  float o[D / 8][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < D / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
  const float scale = a.scale * kLog2e, softcap = args.scores.softcap * kLog2e;

  load(first_key, 0);
  for (int key0 = first_key, buffer = 0; key0 <= last_key; key0 += kKeys<D>, buffer ^= 1) {
    coming.Store(shared + buffer * 2 * kTileBytes<D>);
    if (key0 + kKeys<D> <= last_key) {
      load(key0 + kKeys<D>, buffer ^ 1);
      if constexpr (!kNarrow<T>) asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      if constexpr (!kNarrow<T>) asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const uint32_t k_tile = shared + buffer * 2 * kTileBytes<D>, v_tile = k_tile + kTileBytes<D>;

    float s[kKeys<D> / 8][4];
    if constexpr (kQueriesInShared<D>)
      MultiplyKeysWide<F, D>(q_rows, k_tile, lane, s);
    else
      MultiplyKeys<F, D>(q, k_tile, lane, s);

    float next[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < kKeys<D> / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + n * 8 + t * 2 + i % 2, at = position[i / 2];
        const bool seen = key <= at && (a.window == 0 || key > at - a.window);
        const float score = s[n][i] * scale;
        s[n][i] = !seen ? -INFINITY : softcap != 0 ? SoftCap(score, softcap) : score;
        next[i / 2] = fmaxf(next[i / 2], s[n][i]);
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next[i] = fmaxf(next[i], __shfl_xor_sync(0xffffffffu, next[i], 1));
      next[i] = fmaxf(next[i], __shfl_xor_sync(0xffffffffu, next[i], 2));
      const float shrink = next[i] == -INFINITY ? 1 : exp2f(top[i] - next[i]);
      top[i] = next[i];
      total[i] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n][2 * i] *= shrink;
        o[n][2 * i + 1] *= shrink;
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys<D> / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = top[i / 2] == -INFINITY ? 0 : exp2f(s[n][i] - top[i / 2]);
        total[i / 2] += s[n][i];
      }
#pragma unroll
    for (int k = 0; k < kKeys<D> / 16; ++k) {
      const uint32_t p[4] = {
          PackFactors<F>(s[2 * k][0], s[2 * k][1]), PackFactors<F>(s[2 * k][2], s[2 * k][3]),
          PackFactors<F>(s[2 * k + 1][0], s[2 * k + 1][1]), PackFactors<F>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {  // two steps of 8 dimensions at once
        uint32_t b[4];
        LoadMatrices<true>(b, v_tile + (k * 16 + lane % 16) * kPitch<D> + (n * 16 + lane / 16 * 8) * 2);
        Mma<F>(o[2 * n], p[0], p[1], p[2], p[3], b[0], b[1]);
        Mma<F>(o[2 * n + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
      }
    }
    __syncthreads();  // before the next load overwrites this tile
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
    const float inverse = 1.0f / (total[i] + SinkWeight(args.scores, head, top[i]));
    StoreResult<D>(a, begin + row[i], head, dim, t, row[i] < count,
                   [&](int n) { return make_float2(o[n][2 * i] * inverse, o[n][2 * i + 1] * inverse); });
  }
}

template <class T, int D>
cudaError_t LaunchShape(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream) {
  return LaunchLarge<FlashKernel<T, D>, SharedBytes<D>(true)>(grid, dim3(kFlashThreads),
                                                              SharedBytes<D>(HopperCode()), stream, args);
}

template <class T>
cudaError_t LaunchFlashType(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream) {
  if (args.base.kv.head_dim <= 64) return LaunchShape<T, 64>(args, grid, stream);
  if (args.base.kv.head_dim <= 96) return LaunchShape<T, 96>(args, grid, stream);
  return LaunchShape<T, 128>(args, grid, stream);
}

}  // namespace celer::cuda::attention
