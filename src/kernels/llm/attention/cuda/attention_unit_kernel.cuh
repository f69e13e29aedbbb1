// The kernel around attention_unit.cuh, one instance per type of the KV and width of its heads.
#pragma once

#include <algorithm>

#include "kernels/llm/attention/cuda/attention_unit.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::attention {

// A few sequences with few KV heads: what counts is how soon the memory is saturated. Every multiprocessor
// has two blocks then, each with a deep ring buffer, and splits are short.
constexpr bool FewColumns(int columns) {
  return columns < 16;
}
// Units without splits. Up to four tokens are one kind of batch, five to eight another.
constexpr int UnitsOf(int tokens, int columns) {
  return (tokens <= 4 ? 1 : std::max(tokens, 8)) * columns;
}
inline bool FewUnits(int tokens, int columns) {
  return FewColumns(columns) && UnitsOf(tokens, columns) <= 2 * Multiprocessors();
}

// The producer of one warp's ring buffer: the KV blocks of all units of its thread block, one after the
// other, so that copies run on while a unit ends and the next one begins.
template <class W>
class Feed {
 public:
  // `unit` is the first of the units, which are gridDim apart; `rings` is where the warps' rings begin.
  __device__ __forceinline__ Feed(const DeviceAttentionArgs& a, const Bunches& b, const UnitPlan& plan,
                                  int unit, uint32_t rings, int warp, int lane)
      : a_(a),
        b_(b),
        plan_(plan),
        rings_(rings),
        warp_(warp),
        lane_(lane),
        row_bytes_(a.kv.padded_dim * W::kBytes),
        block_bytes_(a.kv.block_bytes()),
        place_(warp * W::kWarpBytes),
        unit_(unit),
        units_(plan.Count(a, b)) {
    LoadAhead();
  }

  // Starts to copy the next block, if there is one. With `early` WaitForPrevious() has not been called yet;
  // it is called here, before a block with a key that the previous kernel writes.
  __device__ __forceinline__ void Copy(bool early = false) {
    if (taken_ == now_.count) {
      now_ = ahead_;
      taken_ = 0;
      LoadAhead();
    }
    if (taken_ < now_.count) {
      if (early && taken_ * kWarps >= now_.newest) WaitForPrevious();
      const int64_t from = now_.head_at + __shfl_sync(0xffffffffu, now_.number, taken_) * block_bytes_;
      W::Copy(rings_ + place_, a_.kv.k + from, a_.kv.v + from, row_bytes_, lane_);
      ++taken_;
    }
    CommitCopies();
    place_ += W::kStageBytes;
    if (place_ == (warp_ + 1) * W::kWarpBytes) place_ -= W::kWarpBytes;
  }

  // Where the next block will go, in bytes from `rings`. The oldest one is there until then.
  __device__ __forceinline__ int place() const { return place_; }

 private:
  // Up to 32 blocks of a unit. Their numbers are loaded a group ahead, to hide the latency.
  struct Group {
    int count = 0, number = 0;  // one number per lane
    int head_at = 0;            // where the kv head begins in a block
    int newest = 0;             // the token's own block is this many behind the first one
  };

  // The next group to ahead_, an empty one behind the last.
  __device__ __forceinline__ void LoadAhead() {
    first_ += 32;
    while (first_ >= blocks_) {
      ahead_.count = 0;
      if (unit_ >= units_) return;
      const Unit u = plan_.Find(a_, b_, unit_, lane_);
      unit_ += gridDim.x;
      const int begin = u.begin + warp_;
      first_ = 0;
      blocks_ = u.BlocksOf(warp_);  // the second warp may have none
      table_ = a_.batch.block_table + static_cast<int64_t>(u.row) * a_.batch.max_blocks + begin;
      newest_ = u.span.position / kKvBlock - begin;
      ahead_.head_at = u.kv_head * a_.kv.head_bytes();
    }
    ahead_.count = min(blocks_ - first_, 32);
    ahead_.newest = newest_ - first_ * kWarps;
    if (lane_ < ahead_.count) ahead_.number = __ldcg(table_ + (first_ + lane_) * kWarps);
  }

  const DeviceAttentionArgs& a_;
  const Bunches& b_;
  const UnitPlan& plan_;
  const uint32_t rings_;
  const int warp_, lane_;
  const int row_bytes_;
  const int64_t block_bytes_;
  int place_;

  Group now_, ahead_;
  int taken_ = 0;  // of now_

  // The unit that ahead_ is of, as far as this warp has to do with it; ahead_ begins at first_.
  int first_ = 0, blocks_ = 0, newest_ = 0;
  const int32_t* table_ = nullptr;
  int unit_;  // the one behind it
  const int units_;
};

// Grid: persistent, as many blocks as are resident at once, each taking every gridDim-th unit.
template <class T, int D, bool kMany, bool kDeep>
__global__ void __launch_bounds__(kThreads, kDeep ? 2 : 4)
    UnitKernel(const __grid_constant__ ScoredArgs a, const __grid_constant__ Bunches b) {
  using W = Worker<T, D, kMany, kDeep>;
  extern __shared__ __align__(128) char rings[];
  __shared__ Shared shared;
  __shared__ UnitPlan plan;
  // Each block takes 1 KB more than it asks for.
  static_assert(
      kWarps * kStageLimit + sizeof(Shared) + sizeof(UnitPlan) + 1024 <= (kMaxSharedBytes + 1024) / 4,
      "four blocks to a multiprocessor");
  LetNextStart();
  if (!a.decode) WaitForPrevious();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  plan.Fill(a, thread);
  const int units = plan.Count(a, b);
  int unit = blockIdx.x;
  if (unit >= units) return;

  // The kernel in front writes q, and each token's own key and value.
  const uint32_t rings_at = static_cast<uint32_t>(__cvta_generic_to_shared(rings));
  Feed<W> feed(a, b, plan, unit, rings_at, warp, lane);
#pragma unroll 1
  for (int i = 0; i + 1 < W::kStages; ++i) feed.Copy(/*early=*/true);
  Unit u = plan.Find(a, b, unit, lane);
  WaitForPrevious();
  for (;;) {
    W w;
    w.Start(a, u, lane);
    const int blocks = u.BlocksOf(warp);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      AwaitCopies<W::kStages - 2>();
      __syncwarp();  // all lanes have their part of this block, and are done with the one before,
      feed.Copy();   // whose place is taken now
      const uint32_t stage = rings_at + feed.place();
      const int first_key = (u.begin + warp + i * kWarps) * kKvBlock;
      float s[4];
      w.MultiplyK(stage, lane, s);
      if (a.scores.softcap != 0)
#pragma unroll
        for (float& score : s) score = SoftCap(score, a.scores.softcap * kLog2e);
      uint32_t p[W::kQParts][2];
      w.Weigh(stage, s, first_key, u.span, lane, p);
      w.MultiplyV(stage, lane, p, first_key, u.span);
    }
    __syncwarp();  // all lanes are done with the block whose place the sums take
    w.Write(shared, rings, feed.place(), warp, lane, u.queries);
    __syncthreads();
    Finish<D, kMany>(a, b, u, thread, rings, shared);
    unit += gridDim.x;
    if (unit >= units) return;
    u = plan.Find(a, b, unit, lane);
    __syncthreads();  // sums and the rest of `shared` may be overwritten
  }
}

template <class T, int D, bool kMany, bool kDeep>
cudaError_t LaunchUnits(const ScoredArgs& a, const Bunches& b, cudaStream_t stream) {
  constexpr int kRing = Worker<T, D, kMany, kDeep>::kRingBytes;
  constexpr auto kKernel = UnitKernel<T, D, kMany, kDeep>;
  static PerDevice<int> at_once;  // blocks that run at the same time
  const int most = at_once.Get([] {
    int each = 1;
    AllowShared<kKernel, kRing>();
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kKernel, kThreads, kRing);
    return std::max(each, 1) * Multiprocessors();
  });
  const int64_t units = static_cast<int64_t>(b.columns) * a.splits * a.batch.count;
  return LaunchLarge<kKernel, kRing>(dim3(static_cast<unsigned>(std::min<int64_t>(units, most))),
                                     dim3(kThreads), kRing, stream, a, b);
}

template <class T, int D>
cudaError_t LaunchWidth(const ScoredArgs& a, const Bunches& b, cudaStream_t stream) {
  // A GPU with little shared memory has no room for deep rings.
  using W = Worker<T, D, true, true>;
  const bool deep = W::kRingBytes + static_cast<int>(sizeof(Shared) + sizeof(UnitPlan)) <= SharedLimit();
  if (FewUnits(a.batch.count, b.columns) && !a.steady && deep)
    return b.at_once > 4 ? LaunchUnits<T, D, true, true>(a, b, stream)
                         : LaunchUnits<T, D, false, true>(a, b, stream);
  return b.at_once > 4 ? LaunchUnits<T, D, true, false>(a, b, stream)
                       : LaunchUnits<T, D, false, false>(a, b, stream);
}

template <class T>
cudaError_t LaunchWidthOf(const ScoredArgs& a, const Bunches& b, cudaStream_t stream) {
  if (a.kv.padded_dim <= 64) return LaunchWidth<T, 64>(a, b, stream);
  if (a.kv.padded_dim <= 128) return LaunchWidth<T, 128>(a, b, stream);
  if (a.kv.padded_dim <= 256) return LaunchWidth<T, 256>(a, b, stream);
  return cudaErrorInvalidValue;
}
// LaunchWidthOf(), compiled in one file per type of the KV: attention_kv_cuda.cu.in.
template <DType kType>
cudaError_t LaunchType(const ScoredArgs& a, const Bunches& b, cudaStream_t stream);

}  // namespace celer::cuda::attention
