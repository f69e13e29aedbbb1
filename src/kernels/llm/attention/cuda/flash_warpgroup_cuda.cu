// Flash attention of many tokens at once with wgmma, for keys and values in f16 and bf16 and heads of 64 and
// 128, without a softcap.
//
// Grid: persistent, one block per multiprocessor, warp-specialized. A block draws one item after the other:
// 128 queries of one head, 64 for each of two consumer warpgroups. A producer warpgroup loads tiles of 64 or
// 128 keys and their values into a ring buffer, and runs ahead of the others across items. While one consumer
// is at its softmax, the other multiplies (ping-pong). Where that would leave multiprocessors idle, an item
// has a part of the keys only (split-KV); the warpgroup that finishes last combines the parts, in their
// order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/llm/attention/cuda/flash_attention_cuda.h"
#include "kernels/llm/attention/cuda/flash_store.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_ptx.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

using matvec::BarrierArrive;
using matvec::BarrierInit;
using matvec::BarrierWait;

constexpr int kGroups = 2;  // warpgroups of 64 queries each
constexpr int kQueries = kGroups * 64;
constexpr int kLoaders = 128;  // threads that bring them
constexpr int kThreads = kGroups * 128 + kLoaders;
constexpr int kStages = 6;  // K and V of a tile
constexpr int kPlaces = 2;  // for the numbers of items

// Keys in a tile. With as many keys as dimensions the results of the second tile on are wrong (nvcc 13.0);
// why is not known.
template <int D>
constexpr int kTileKeys = D == 128 ? 64 : 128;
template <int D>
constexpr int kTileBytes = kTileKeys<D>* D * 2;  // of K or V: for each 64 dimensions, rows of 128 bytes
// Tiles, then two barriers for each stage, two for each place, the places, and a word for each warpgroup.
template <int D>
constexpr int kSharedBytes = 2 * kStages* kTileBytes<D> + 1024 + (kStages + kPlaces) * 16 +
                             (kPlaces + kGroups) * 4;
[[maybe_unused]] constexpr int kLeastTiles = 8;  // of a part
// A warpgroup's result of a part: for each thread its sums, then two rows' largest score and sum of weights.
template <int D>
constexpr int kPartFloats = 128 * (D / 2 + 4);

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

[[maybe_unused]] __device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Accumulators that were waited for: the compiler must not use them before.
template <int N>
__device__ __forceinline__ void Settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// mbarriers of a stage or place: full, or empty.
[[maybe_unused]] __device__ __forceinline__ uint32_t Barrier(uint32_t barriers, int stage, int which) {
  return barriers + (stage * 2 + which) * 8;
}

// The position of a role in a ring buffer: stage and phase.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  [[maybe_unused]] __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// What is launched: tiles of 128 queries in the longest sequence, and parts of an item at most.
struct FlashLaunch {
  int tiles, parts;
};

// 128 queries of a head. Late ones see most keys: they have the low numbers.
struct Item {
  int head, first_query, part;
  int begin, count;  // of the sequence's tokens in the batch
};
[[maybe_unused]] __device__ __forceinline__ Item FindItem(const FlashAttentionArgs& args, int number,
                                                          const FlashLaunch& launch) {
  const int whole = number / launch.parts, rest = whole / args.base.heads, sequence = rest % args.sequences;
  Item item;
  item.head = whole % args.base.heads;
  item.first_query = (launch.tiles - 1 - rest / args.sequences) * kQueries;
  item.part = number % launch.parts;
  item.begin = __ldcg(args.seq_start + sequence);
  item.count = __ldcg(args.seq_start + sequence + 1) - item.begin;
  return item;
}
// What its queries see of the keys of its part. It exists if part < parts.
struct Keys {
  int first, last, parts;
};
template <int D>
__device__ __forceinline__ Keys FindKeys(const DeviceAttentionArgs& a, const Item& item,
                                         const FlashLaunch& launch) {
  const int32_t* positions = a.batch.positions + item.begin;
  constexpr int kTile = kTileKeys<D>;
  const int first =
      a.window > 0 ? max(0, __ldcg(positions + item.first_query) - a.window + 1) / kTile * kTile : 0;
  const int last = __ldcg(positions + min(item.first_query + kQueries, item.count) - 1);
  if (launch.parts == 1) return {first, last, 1};
  const int tiles = (last - first) / kTile + 1, most = max(1, min(launch.parts, tiles / kLeastTiles)),
            each = (tiles + most - 1) / most;
  const int from = first + item.part * each * kTile;
  return {from, min(last, from + each * kTile - 1), (tiles + each - 1) / each};
}

// The next item that has queries and keys; `end` or more: there is none. The last block to learn that makes
// the counter ready for the next launch.
template <int D>
__device__ __forceinline__ int Draw(const FlashAttentionArgs& args, const FlashLaunch& launch, int end) {
  while (true) {
    const int number = atomicAdd(args.base.tickets, 1);
    if (number >= end) {
      if (number == end + static_cast<int>(gridDim.x) - 1) atomicExch(args.base.tickets, 0);
      return number;
    }
    const Item item = FindItem(args, number, launch);
    if (item.first_query >= item.count) continue;
    if (item.part == 0 || item.part < FindKeys<D>(args.base, item, launch).parts) return number;
  }
}

// The producer: keys in tiles. A tile is announced when the next one is in flight.
template <int D>
__device__ __forceinline__ void LoadTiles(const DeviceAttentionArgs& a, const int32_t* table, int kv_head,
                                          const Keys& keys, uint32_t shared, uint32_t barriers, int thread,
                                          Turn& ring) {
  constexpr int kKeys = kTileKeys<D>, kVectors = D / 8, kPerThread = kKeys * kVectors / kLoaders,
                kKeyStep = kLoaders / kVectors, kBlocks = kKeys / kKvBlock;
  const int at = thread % kVectors;
  int before = 0, blocks[kBlocks], coming[kBlocks];
  const auto announce = [&] {  // what was written by copies is read by products
    asm volatile("fence.proxy.async;" ::: "memory");
    BarrierArrive(Barrier(barriers, before, 0));
  };
  const auto look_up = [&](int key0) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      coming[i] = key0 + i * kKvBlock <= keys.last ? __ldcg(table + key0 / kKvBlock + i) : 0;
  };
  look_up(keys.first);
  for (int key0 = keys.first; key0 <= keys.last; key0 += kKeys) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) blocks[i] = coming[i];
    look_up(key0 + kKeys);
    const int stage = ring.stage;
    BarrierWait(Barrier(barriers, stage, 1), ring.parity ^ 1);
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const std::byte* base = which == 0 ? a.kv.k : a.kv.v;
      const uint32_t to = shared + (stage * 2 + which) * kTileBytes<D> + at / 8 * (kKeys * 128);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int key = thread / kVectors + i * kKeyStep;
        const std::byte* from = base + a.kv.HeadOffset(blocks[i * kKeyStep / kKvBlock], kv_head) +
                                key % kKvBlock * (D * 2) + at * 16;
        const int bytes = key0 + key <= keys.last ? 16 : 0;  // the rest is filled with zeros
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + key * 128 + (at % 8 ^ key % 8) * 16),
            "l"(from), "r"(bytes)
            : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (key0 > keys.first) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      announce();
    }
    before = stage;
    ring.Advance(kStages);
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  announce();
}

// Where a warpgroup leaves its parts of an item, and what counts them.
struct PartPlace {
  float* floats;    // kPartFloats of the first part; the next one follows after those of both warpgroups
  int32_t* ticket;  // zero; left zero
  uint32_t word;    // of shared memory, for this warpgroup
  int barrier;
};
// Of the parts of 64 queries: the warpgroup that finishes last combines all of them, and gets true.
template <int D>
__device__ __forceinline__ bool JoinParts(const PartPlace& place, int parts, int part, float scale,
                                          float (&o)[D / 2], float (&top)[2], float (&total)[2], int thread) {
  constexpr int kApart = kGroups * kPartFloats<D>;
  const auto sync = [&] { asm volatile("bar.sync %0, 128;" ::"r"(place.barrier) : "memory"); };
  float* mine = place.floats + static_cast<int64_t>(part) * kApart;
#pragma unroll
  for (int i = 0; i < D / 2; ++i) __stcg(mine + i * 128 + thread, o[i]);
  __stcg(reinterpret_cast<float4*>(mine + D / 2 * 128) + thread,
         make_float4(top[0], total[0], top[1], total[1]));
  __threadfence();
  sync();
  if (thread == 0) {
    const bool last = atomicAdd(place.ticket, 1) == parts - 1;
    if (last) *place.ticket = 0;
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(place.word), "r"(last ? 1 : 0) : "memory");
  }
  sync();
  int last;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(last) : "r"(place.word) : "memory");
  if (!last) return false;
  __threadfence();
  const auto rows_of = [&](int p) {
    return __ldcg(
        reinterpret_cast<const float4*>(place.floats + static_cast<int64_t>(p) * kApart + D / 2 * 128) +
        thread);
  };
  top[0] = top[1] = -INFINITY;
  for (int p = 0; p < parts; ++p) {
    const float4 rows = rows_of(p);
    top[0] = fmaxf(top[0], rows.x), top[1] = fmaxf(top[1], rows.z);
  }
  total[0] = total[1] = 0;
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] = 0;
  for (int p = 0; p < parts; ++p) {  // every row sees keys of the first part, so its largest is finite
    const float4 rows = rows_of(p);
    const float by[2] = {Exp2((rows.x - top[0]) * scale), Exp2((rows.z - top[1]) * scale)};
    total[0] += rows.y * by[0], total[1] += rows.w * by[1];
    const float* from = place.floats + static_cast<int64_t>(p) * kApart + thread;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) o[i] = fmaf(__ldcg(from + i * 128), by[i / 2 % 2], o[i]);
  }
  return true;
}

// The consumer: one warpgroup's 64 queries of an item. One long function: its accumulators stay in registers
// that running wgmmas own, and nvcc 13.0 is known to get the order of such parts wrong (see kTileKeys).
template <class T, int D>
__device__ __forceinline__ void Attend(const DeviceAttentionArgs& a, const AttentionScores& scores,
                                       const Item& item, const Keys& keys, const PartPlace& place,
                                       uint32_t shared, uint32_t barriers, int group, int warp, int lane,
                                       Turn& ring) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kKeys = kTileKeys<D>;
  const int g = lane / 4, t = lane % 4;
  const int32_t* positions = a.batch.positions + item.begin;
  int row[2], position[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row[i] = item.first_query + group * 64 + warp * 16 + g + 8 * i;
    position[i] = __ldcg(positions + min(row[i], item.count - 1));
  }
  uint32_t q[D / 16][4];
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at =
          (static_cast<int64_t>(item.begin + min(row[i % 2], item.count - 1)) * a.heads + item.head) * D +
          k * 16 + i / 2 * 8 + t * 2;
      if (a.narrow_q) {
        q[k][i] = __ldcg(static_cast<const uint32_t*>(a.narrow_q) + at / 2);
      } else {
        const float2 v = __ldcg(reinterpret_cast<const float2*>(a.q + at));
        q[k][i] = Pack<T>(v.x, v.y);
      }
    }
  // Tiles that are unmasked for every query of the warpgroup need no mask.
  const int group_first = min(item.first_query + group * 64, item.count - 1),
            group_last = min(group_first + 63, item.count - 1);
  const int seen_to = __ldcg(positions + group_first);
  const int seen_from = a.window > 0 ? __ldcg(positions + group_last) - a.window + 1 : 0;

  float o[D / 2], s[kKeys / 2];
  uint32_t p[kKeys / 16][4];
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < D / 2; ++i) o[i] = 0;
  const float scale = a.scale * 1.4426950408889634f;
  int before = 0;
  for (int key0 = keys.first; key0 <= keys.last; key0 += kKeys) {
    const int stage = ring.stage;
    const uint32_t k_tile = shared + stage * 2 * kTileBytes<D>, v_tile = k_tile + kTileBytes<D>;
    BarrierWait(Barrier(barriers, stage, 0), ring.parity);
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
    if (lane == 0 && key0 > keys.first) BarrierArrive(Barrier(barriers, before, 1));

    if (key0 + kKeys - 1 > seen_to || key0 < seen_from) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = key0 + n * 8 + t * 2 + i % 2, at = position[i / 2];
          if (key > at || (a.window > 0 && key <= at - a.window)) s[n * 4 + i] = -INFINITY;
        }
    }
    // Maxima and sums in two dependency chains each.
    float base[2], more[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float next = top[i], other = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        next = fmaxf(next, s[n * 4 + 2 * i]);
        other = fmaxf(other, s[n * 4 + 2 * i + 1]);
      }
      next = fmaxf(next, other);
      next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
      next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 2));
      base[i] = next == -INFINITY ? 0 : next * scale;
      const float shrink = Exp2(fmaf(top[i], scale, -base[i]));
      top[i] = next;
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
        s[n * 4 + i] = Exp2(fmaf(s[n * 4 + i], scale, -base[i / 2]));
        (i % 2 == 0 ? total : more)[i / 2] += s[n * 4 + i];
      }
    total[0] += more[0], total[1] += more[1];
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
    ring.Advance(kStages);
  }
  gemm::WgmmaWait<0>();
  Settle(o);
  if (lane == 0) BarrierArrive(Barrier(barriers, before, 1));

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 1);
    total[i] += __shfl_xor_sync(0xffffffffu, total[i], 2);
  }
  if (keys.parts > 1 && !JoinParts<D>(place, keys.parts, item.part, scale, o, top, total, warp * 32 + lane))
    return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float inverse = 1.0f / (total[i] + attention::SinkWeight(scores, item.head, top[i] * scale));
    attention::StoreResult<D>(a, item.begin + row[i], item.head, D, t, row[i] < item.count, [&](int n) {
      return make_float2(o[n * 4 + 2 * i] * inverse, o[n * 4 + 2 * i + 1] * inverse);
    });
  }
#endif
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    WarpgroupKernel(const __grid_constant__ FlashAttentionArgs args, const FlashLaunch launch) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  LetNextStart();
  const DeviceAttentionArgs& a = args.base;
  const uint32_t shared = (matvec::SharedAddress(raw) + 1023) / 1024 * 1024;
  const uint32_t barriers = shared + 2 * kStages * kTileBytes<D>, place_barriers = barriers + kStages * 16,
                 places = place_barriers + kPlaces * 16, words = places + kPlaces * 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages + kPlaces; ++i) {  // those of the places follow
      BarrierInit(Barrier(barriers, i, 0), i < kStages ? kLoaders : 1);
      BarrierInit(Barrier(barriers, i, 1), kGroups * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForPrevious();
  const int end = launch.tiles * args.sequences * a.heads * launch.parts;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  Turn ring, place;
  const auto number_there = [&] {
    int number;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(number) : "r"(places + place.stage * 4) : "memory");
    return number;
  };
  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    while (true) {
      BarrierWait(Barrier(place_barriers, place.stage, 1), place.parity ^ 1);
      if (threadIdx.x % 128 == 0) {
        asm volatile("st.shared.s32 [%0], %1;" ::"r"(places + place.stage * 4),
                     "r"(Draw<D>(args, launch, end))
                     : "memory");
        BarrierArrive(Barrier(place_barriers, place.stage, 0));
      }
      asm volatile("bar.sync 1, 128;" ::: "memory");
      const int number = number_there();
      place.Advance(kPlaces);
      if (number >= end) return;
      const Item item = FindItem(args, number, launch);
      const int32_t* table = a.batch.block_table +
                             static_cast<int64_t>(__ldcg(a.batch.sequence + item.begin)) * a.batch.max_blocks;
      LoadTiles<D>(a, table, item.head / (a.heads / a.kv.kv_heads), FindKeys<D>(a, item, launch), shared,
                   barriers, threadIdx.x % 128, ring);
    }
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
  while (true) {
    BarrierWait(Barrier(place_barriers, place.stage, 0), place.parity);
    const int number = number_there();
    __syncwarp();
    if (lane == 0) BarrierArrive(Barrier(place_barriers, place.stage, 1));
    place.Advance(kPlaces);
    if (number >= end) return;
    const Item item = FindItem(args, number, launch);
    const int whole = number / launch.parts * kGroups + group;  // the first ticket counts items
    const PartPlace part_place = {
        a.partial + (static_cast<int64_t>(number - item.part) * kGroups + group) * kPartFloats<D>,
        a.tickets + 1 + whole, words + group * 4, 2 + group};
    Attend<T, D>(a, args.scores, item, FindKeys<D>(a, item, launch), part_place, shared, barriers, group,
                 warp, lane, ring);
  }
#else
  __trap();
#endif
}

template <class T, int D>
cudaError_t LaunchShape(const FlashAttentionArgs& args, cudaStream_t stream) {
  const DeviceAttentionArgs& a = args.base;
  FlashLaunch launch{.tiles = (args.longest + kQueries - 1) / kQueries, .parts = 1};
  const int items = launch.tiles * args.sequences * a.heads;
  const int64_t room = AttentionPartialFloats(args.longest, a.heads, a.kv.kv_heads, a.kv.padded_dim);
  if (a.partial)
    launch.parts = static_cast<int>(std::clamp<int64_t>(
        std::min<int64_t>(Multiprocessors(), room / (kGroups * kPartFloats<D>)) / items, 1, 16));
  return LaunchLarge<WarpgroupKernel<T, D>, kSharedBytes<D>>(
      dim3(static_cast<unsigned>(std::min(Multiprocessors(), items * launch.parts))), dim3(kThreads),
      kSharedBytes<D>, stream, args, launch);
}

}  // namespace

namespace attention {

bool FlashWarpgroupRuns(const FlashAttentionArgs& args) {
  const DeviceKv& kv = args.base.kv;
  return WgmmaIsNative() && (kv.dtype == DType::kF16 || kv.dtype == DType::kBf16) &&
         (kv.head_dim == 64 || kv.head_dim == 128) && args.longest > 64 && args.scores.softcap == 0;
}

cudaError_t LaunchFlashWarpgroup(const FlashAttentionArgs& args, cudaStream_t stream) {
  const bool bf16 = args.base.kv.dtype == DType::kBf16;
  if (args.base.kv.head_dim == 64)
    return bf16 ? LaunchShape<__nv_bfloat16, 64>(args, stream) : LaunchShape<__half, 64>(args, stream);
  return bf16 ? LaunchShape<__nv_bfloat16, 128>(args, stream) : LaunchShape<__half, 128>(args, stream);
}

}  // namespace attention
}  // namespace celer::cuda
