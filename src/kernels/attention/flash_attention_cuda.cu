#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/attention/flash_attention_cuda.h"
#include "kernels/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kQueries = 16 * kWarps;
constexpr int kKeys = 64;

template <int D>
constexpr int kPitch = D * 2 + 16;  // bytes of a row in shared memory; the pad spreads rows over the banks
template <int D>
constexpr int kTileBytes = kKeys* kPitch<D>;
template <int D>
constexpr int kSharedBytes = 4 * kTileBytes<D>;  // K and V, two of each

template <class T>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <class T>
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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

// Grid: (tiles of 64 queries, heads, sequences). Four warps of 16 queries each; keys come in tiles of 64, the
// next one on its way while this one is worked on.
template <class T, int D>
__global__ void __launch_bounds__(kThreads) FlashKernel(const __grid_constant__ FlashAttentionArgs args) {
  extern __shared__ __align__(128) char memory[];
  LetNextStart();
  WaitForPrevious();
  const DeviceAttentionArgs& a = args.base;
  const int sequence = blockIdx.z, head = blockIdx.y;
  const int begin = __ldcg(args.seq_start + sequence), count = __ldcg(args.seq_start + sequence + 1) - begin;
  // Late tiles see most keys: they start first.
  const int tile = static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x);
  const int first_query = tile * kQueries;
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
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = min(row[i % 2], count - 1);
      const float2 v = __ldcg(reinterpret_cast<const float2*>(
          a.q + (static_cast<int64_t>(begin + r) * a.heads + head) * D + k * 16 + i / 2 * 8 + t * 2));
      q[k][i] = Pack<T>(v.x, v.y);
    }

  const int last_key = __ldcg(a.batch.positions + begin + min(first_query + kQueries, count) - 1);
  const int low_position = __ldcg(a.batch.positions + begin + first_query);
  const int first_key = a.window > 0 ? max(0, low_position - a.window + 1) / kKeys * kKeys : 0;
  const int32_t* table =
      a.batch.block_table + static_cast<int64_t>(__ldcg(a.batch.sequence + begin)) * a.batch.max_blocks;
  const auto load = [&](int key0, int buffer) {
    constexpr int kPieces = D / 8;  // of 16 bytes in a row
    const uint32_t to = shared + buffer * 2 * kTileBytes<D>;
#pragma unroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int piece = threadIdx.x + i * kThreads, key = piece / kPieces, at = piece % kPieces;
      const bool exists = key0 + key <= last_key;
      const int64_t block = exists ? __ldcg(table + (key0 + key) / kKvBlock) : 0;
      const int64_t from = (((block * a.kv.kv_heads + kv_head) * kKvBlock + key % kKvBlock) * D + at * 8) * 2;
      const int bytes = exists ? 16 : 0;  // the rest is filled with zeros
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + key * kPitch<D> + at * 16),
                   "l"(a.kv.k + from), "r"(bytes));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + kTileBytes<D> +
                                                                         key * kPitch<D> + at * 16),
                   "l"(a.kv.v + from), "r"(bytes));
    }
    asm volatile("cp.async.commit_group;");
  };

  float o[D / 8][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < D / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
  const float scale = a.scale * 1.4426950408889634f;

  load(first_key, 0);
  for (int key0 = first_key, buffer = 0; key0 <= last_key; key0 += kKeys, buffer ^= 1) {
    if (key0 + kKeys <= last_key) {
      load(key0 + kKeys, buffer ^ 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const uint32_t k_tile = shared + buffer * 2 * kTileBytes<D>, v_tile = k_tile + kTileBytes<D>;

    float s[kKeys / 8][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int k = 0; k < D / 32; ++k) {  // two steps of 16 dimensions at once
        uint32_t b[4];
        LoadMatrices<false>(b, k_tile + (n * 8 + lane % 8) * kPitch<D> + (k * 32 + lane / 8 * 8) * 2);
        Mma<T>(s[n], q[2 * k], b[0], b[1]);
        Mma<T>(s[n], q[2 * k + 1], b[2], b[3]);
      }

    float next[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + n * 8 + t * 2 + i % 2, at = position[i / 2];
        const bool seen = key <= at && (a.window == 0 || key > at - a.window);
        s[n][i] = seen ? s[n][i] * scale : -INFINITY;
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
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = top[i / 2] == -INFINITY ? 0 : exp2f(s[n][i] - top[i / 2]);
        total[i / 2] += s[n][i];
      }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t p[4] = {Pack<T>(s[2 * k][0], s[2 * k][1]), Pack<T>(s[2 * k][2], s[2 * k][3]),
                             Pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]),
                             Pack<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {  // two steps of 8 dimensions at once
        uint32_t b[4];
        LoadMatrices<true>(b, v_tile + (k * 16 + lane % 16) * kPitch<D> + (n * 16 + lane / 16 * 8) * 2);
        Mma<T>(o[2 * n], p, b[0], b[1]);
        Mma<T>(o[2 * n + 1], p, b[2], b[3]);
      }
    }
    __syncthreads();  // before the next load overwrites this tile
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
    if (row[i] >= count) continue;
    const float inverse = 1.0f / total[i];
    float* out = a.out + (static_cast<int64_t>(begin + row[i]) * a.heads + head) * D + t * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(out + n * 8) = make_float2(o[n][2 * i] * inverse, o[n][2 * i + 1] * inverse);
  }
}

template <class T, int D>
cudaError_t LaunchShape(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(FlashKernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>);
  if (allowed != cudaSuccess) return allowed;
  return Launch(FlashKernel<T, D>, grid, dim3(kThreads), kSharedBytes<D>, stream, args);
}

}  // namespace

bool FlashAttentionRuns(int head_dim) {
  return head_dim == 64 || head_dim == 128;
}

cudaError_t LaunchFlashAttention(const FlashAttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.longest + kQueries - 1) / kQueries),
                  static_cast<unsigned>(args.base.heads), static_cast<unsigned>(args.sequences));
  const bool bf16 = args.base.kv.dtype == DType::kBf16;
  switch (args.base.kv.head_dim) {
    case 64:
      return bf16 ? LaunchShape<__nv_bfloat16, 64>(args, grid, stream)
                  : LaunchShape<__half, 64>(args, grid, stream);
    case 128:
      return bf16 ? LaunchShape<__nv_bfloat16, 128>(args, grid, stream)
                  : LaunchShape<__half, 128>(args, grid, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace celer::cuda
