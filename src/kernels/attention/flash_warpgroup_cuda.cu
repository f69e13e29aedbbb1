// Attention of long pieces with warpgroup products, for keys and values in f16 and bf16 and heads of 64 and
// 128.
//
// A block has 128 queries of one head, 64 for each of two warpgroups. A third one brings tiles of 64 or 128
// keys and their values into a ring. While one warpgroup is at its softmax, the other multiplies.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/flash_attention_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/matmul/matvec_ptx.cuh"
#include "kernels/matmul/wgmma_cuda.cuh"
#include "kernels/matmul/wide_cuda.h"

namespace celer::cuda {
namespace {

using matvec::BarrierArrive;
using matvec::BarrierInit;
using matvec::BarrierWait;

constexpr int kGroups = 2;  // warpgroups of 64 queries each
constexpr int kQueries = kGroups * 64;
constexpr int kLoaders = 128;  // threads that bring them
constexpr int kThreads = kGroups * 128 + kLoaders;
constexpr int kStages = 3;  // K and V of a tile

// Keys in a tile. With as many keys as dimensions the results of the second tile on are wrong (nvcc 13.0);
// why is not known.
template <int D>
constexpr int kTileKeys = D == 128 ? 64 : 128;
template <int D>
constexpr int kTileBytes = kTileKeys<D>* D * 2;  // of K or V: for each 64 dimensions, rows of 128 bytes
template <int D>
constexpr int kSharedBytes = 2 * kStages* kTileBytes<D> + 1024 + 2 * kStages * 8;

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

// Sums of products that were waited for: the compiler must not use them before.
template <int N>
__device__ __forceinline__ void Settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Barriers of a stage: its tile is there, or may go.
[[maybe_unused]] __device__ __forceinline__ uint32_t Barrier(uint32_t barriers, int stage, int which) {
  return barriers + (stage * 2 + which) * 8;
}

// Keys [first_key, last_key] in tiles. A tile is announced when the next one is on its way.
template <int D>
__device__ __forceinline__ void LoadTiles(const DeviceAttentionArgs& a, const int32_t* table, int kv_head,
                                          int first_key, int last_key, uint32_t shared, uint32_t barriers,
                                          int thread) {
  constexpr int kKeys = kTileKeys<D>, kPieces = D / 8, kPerThread = kKeys * kPieces / kLoaders,
                kKeyStep = kLoaders / kPieces;
  const int at = thread % kPieces;
  int stage = 0, before = 0;
  uint32_t parity = 1;
  const auto announce = [&] {  // what was written by copies is read by products
    asm volatile("fence.proxy.async;" ::: "memory");
    BarrierArrive(Barrier(barriers, before, 0));
  };
  for (int key0 = first_key; key0 <= last_key; key0 += kKeys) {
    int blocks[kKeys / kKvBlock];
#pragma unroll
    for (int i = 0; i < kKeys / kKvBlock; ++i)
      blocks[i] = key0 + i * kKvBlock <= last_key ? __ldcg(table + key0 / kKvBlock + i) : 0;
    BarrierWait(Barrier(barriers, stage, 1), parity);
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const std::byte* base = which == 0 ? a.kv.k : a.kv.v;
      const uint32_t to = shared + (stage * 2 + which) * kTileBytes<D> + at / 8 * (kKeys * 128);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int key = thread / kPieces + i * kKeyStep;
        const std::byte* from = base + a.kv.HeadOffset(blocks[i * kKeyStep / kKvBlock], kv_head) +
                                key % kKvBlock * (D * 2) + at * 16;
        const int bytes = key0 + key <= last_key ? 16 : 0;  // the rest is filled with zeros
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + key * 128 + (at % 8 ^ key % 8) * 16),
            "l"(from), "r"(bytes)
            : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (key0 > first_key) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      announce();
    }
    before = stage;
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  announce();
}

// Grid: (heads, tiles of 128 queries, sequences).
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    WarpgroupKernel(const __grid_constant__ FlashAttentionArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kKeys = kTileKeys<D>;
  extern __shared__ char raw[];
  LetNextStart();
  const DeviceAttentionArgs& a = args.base;
  const uint32_t shared = (matvec::SharedAddress(raw) + 1023) / 1024 * 1024;
  const uint32_t barriers = shared + 2 * kStages * kTileBytes<D>;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      for (int which = 0; which < 2; ++which)
        BarrierInit(Barrier(barriers, i, which), which == 0 ? kLoaders : kGroups * 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForPrevious();
  const int sequence = blockIdx.z, head = blockIdx.x;
  const int begin = __ldcg(args.seq_start + sequence), count = __ldcg(args.seq_start + sequence + 1) - begin;
  // Late tiles see most keys: they start first.
  const int tile = static_cast<int>(gridDim.y) - 1 - static_cast<int>(blockIdx.y);
  const int first_query = tile * kQueries;
  if (first_query >= count) return;
  const int32_t* positions = a.batch.positions + begin;
  const int last_key = __ldcg(positions + min(first_query + kQueries, count) - 1);
  const int first_key =
      a.window > 0 ? max(0, __ldcg(positions + first_query) - a.window + 1) / kKeys * kKeys : 0;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    const int32_t* table =
        a.batch.block_table + static_cast<int64_t>(__ldcg(a.batch.sequence + begin)) * a.batch.max_blocks;
    LoadTiles<D>(a, table, head / (a.heads / a.kv.kv_heads), first_key, last_key, shared, barriers,
                 threadIdx.x % 128);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
  const int g = lane / 4, t = lane % 4;
  int row[2], position[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row[i] = first_query + group * 64 + warp * 16 + g + 8 * i;
    position[i] = __ldcg(positions + min(row[i], count - 1));
  }
  uint32_t q[D / 16][4];
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = __ldcg(reinterpret_cast<const float2*>(
          a.q + (static_cast<int64_t>(begin + min(row[i % 2], count - 1)) * a.heads + head) * D + k * 16 +
          i / 2 * 8 + t * 2));
      q[k][i] = Pack<T>(v.x, v.y);
    }
  // Tiles that every query of the warpgroup sees as a whole need no mask.
  const int group_first = min(first_query + group * 64, count - 1),
            group_last = min(group_first + 63, count - 1);
  const int seen_to = __ldcg(positions + group_first);
  const int seen_from = a.window > 0 ? __ldcg(positions + group_last) - a.window + 1 : 0;

  float o[D / 2], s[kKeys / 2];
  uint32_t p[kKeys / 16][4];
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] = 0;
  const float scale = a.scale * 1.4426950408889634f;
  int stage = 0, before = 0;
  uint32_t parity = 0;
  for (int key0 = first_key; key0 <= last_key; key0 += kKeys) {
    const uint32_t k_tile = shared + stage * 2 * kTileBytes<D>, v_tile = k_tile + kTileBytes<D>;
    BarrierWait(Barrier(barriers, stage, 0), parity);
    gemm::WgmmaFence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      gemm::Wgmma<T, kKeys>(s, q[k],
                            gemm::WgmmaColumns(k_tile + k / 4 * (kKeys * 128) + k % 4 * 32, 16, 1024,
                                               gemm::WgmmaLayout::kSwizzled),
                            k > 0);
    gemm::WgmmaCommit();
    gemm::WgmmaWait<0>();  // also for the last tile's V
    Settle(s);
    Settle(o);
    if (lane == 0 && key0 > first_key) BarrierArrive(Barrier(barriers, before, 1));

    float next[2] = {top[0], top[1]};
    if (key0 + kKeys - 1 > seen_to || key0 < seen_from) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = key0 + n * 8 + t * 2 + i % 2, at = position[i / 2];
          if (key > at || (a.window > 0 && key <= at - a.window)) s[n * 4 + i] = -INFINITY;
        }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) next[i / 2] = fmaxf(next[i / 2], s[n * 4 + i]);
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next[i] = fmaxf(next[i], __shfl_xor_sync(0xffffffffu, next[i], 1));
      next[i] = fmaxf(next[i], __shfl_xor_sync(0xffffffffu, next[i], 2));
      base[i] = next[i] == -INFINITY ? 0 : next[i] * scale;
      const float shrink = exp2f(top[i] * scale - base[i]);
      top[i] = next[i];
      total[i] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n * 4 + 2 * i] *= shrink;
        o[n * 4 + 2 * i + 1] *= shrink;
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n * 4 + i] = exp2f(fmaf(s[n * 4 + i], scale, -base[i / 2]));
        total[i / 2] += s[n * 4 + i];
      }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const float* x = s + k * 8;
      p[k][0] = Pack<T>(x[0], x[1]), p[k][1] = Pack<T>(x[2], x[3]);
      p[k][2] = Pack<T>(x[4], x[5]), p[k][3] = Pack<T>(x[6], x[7]);
    }
    gemm::WgmmaFence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      gemm::Wgmma<T, D, true>(
          o, p[k], gemm::WgmmaColumns(v_tile + k * 2048, kKeys * 128, 1024, gemm::WgmmaLayout::kSwizzled),
          true);
    gemm::WgmmaCommit();
    before = stage;
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  gemm::WgmmaWait<0>();
  Settle(o);

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
    if (row[i] >= count) continue;
    const float inverse = 1.0f / total[i];
    float* out = a.out + (static_cast<int64_t>(begin + row[i]) * a.heads + head) * D + t * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(out + n * 8) =
          make_float2(o[n * 4 + 2 * i] * inverse, o[n * 4 + 2 * i + 1] * inverse);
  }
#else
  __trap();
#endif
}

template <class T, int D>
cudaError_t LaunchShape(const FlashAttentionArgs& args, cudaStream_t stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      WarpgroupKernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>);
  if (allowed != cudaSuccess) return allowed;
  const dim3 grid(static_cast<unsigned>(args.base.heads),
                  static_cast<unsigned>((args.longest + kQueries - 1) / kQueries),
                  static_cast<unsigned>(args.sequences));
  return Launch(WarpgroupKernel<T, D>, grid, dim3(kThreads), kSharedBytes<D>, stream, args);
}

}  // namespace

namespace attention {

bool FlashWarpgroupRuns(const FlashAttentionArgs& args) {
  const DeviceKv& kv = args.base.kv;
  return WideRuns() && (kv.dtype == DType::kF16 || kv.dtype == DType::kBf16) &&
         (kv.head_dim == 64 || kv.head_dim == 128) && args.longest > 64;
}

cudaError_t LaunchFlashWarpgroup(const FlashAttentionArgs& args, cudaStream_t stream) {
  const bool bf16 = args.base.kv.dtype == DType::kBf16;
  if (args.base.kv.head_dim == 64)
    return bf16 ? LaunchShape<__nv_bfloat16, 64>(args, stream) : LaunchShape<__half, 64>(args, stream);
  return bf16 ? LaunchShape<__nv_bfloat16, 128>(args, stream) : LaunchShape<__half, 128>(args, stream);
}

}  // namespace attention
}  // namespace celer::cuda
