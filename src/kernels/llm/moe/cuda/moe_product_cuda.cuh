// The kernel behind LaunchMoeProduct, one instance per weight format (moe_format_cuda.cu.in): the products of
// matvec_cuda.cuh with the matrices of many experts, for jobs that only the device knows.
//
// Grid: persistent, one block per multiprocessor, the roles of matvec_cuda.cuh. All jobs' tiles are cut into
// units of a few, which only the shape decides, so that a token's sums do not depend on the jobs beside its
// own; each block has a run of units. Those of one job are a product of their own, whose matrices begin at
// its first row: each role keeps its parameters in shared memory and moves them from job to job.
#pragma once

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/moe/cuda/moe_cuda.h"

namespace celer::cuda::moe {

using matvec::Params;

// Of the units of one job: tiles 0 .. each - 1, `rounds` at once.
struct UnitParams : Params {};
struct UnitRun {
  int tiles, unit;

  __device__ __forceinline__ int batches() const { return (tiles + unit - 1) / unit; }
  __device__ __forceinline__ int Begin(int i) const { return i * unit; }
  __device__ __forceinline__ int Tiles(int i) const { return min(unit, tiles - i * unit); }
};
__device__ __forceinline__ UnitRun TilesOf(const UnitParams& p) {
  return {p.each, p.rounds};
}

struct alignas(16) ProductParams {
  UnitParams p;  // of expert 0
  int64_t data_stride, scale_stride;
  const ExpertJob* jobs;
  const int32_t* job_count;
  const int32_t* row;  // [slots]: rows of x; null if a slot is a row
  int unit, units;     // tiles of a unit, units of a job
  int tiles;           // of a job
  int tile_rows;
  int group_scale_bytes;  // of eight rows
  int slot_offset;        // kSlots times Params in shared memory
};
// Everything but what a call brings and where things lie in shared memory.
void Describe(const ExpertMatrices& w, bool gate_up, int top, ProductParams* e);

constexpr int kSlots = 4;  // the filling warp's, the finishing warp's, two of the warps that multiply

template <class P>
__device__ __forceinline__ void CopyParams(P* to, const P& from, int lane) {
  static_assert(sizeof(P) % 16 == 0);
  for (int i = lane; i < static_cast<int>(sizeof(P) / 16); i += 32)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(&from)[i];
  __syncwarp();
}

// Which rows of x a job multiplies with: those of its slots, those that a list has for them, or the only one.
enum class Rows { kSlots, kListed, kOne };

// By one lane: `to` becomes the product of `units` units of a job, from `unit` on.
__device__ __forceinline__ void MoveTo(const ProductParams& e, const ExpertJob& job, int unit, int units,
                                       Rows which, const int32_t* list, UnitParams* to) {
  const int tile = unit * e.unit, row = tile * e.tile_rows;
  const int64_t data = job.expert * e.data_stride + row * e.p.a.a.row_bytes;
  const int64_t scales = job.expert * e.scale_stride + static_cast<int64_t>(row / 8) * e.group_scale_bytes;
  to->a.a.data = e.p.a.a.data + data;
  to->a.a.scales = e.p.a.a.scales + scales;
  to->a.a.rows = e.p.a.a.rows - row;
  to->a.b.data = e.p.a.b.data + data;
  to->a.b.scales = e.p.a.b.scales + scales;
  to->a.b.rows = e.p.a.b.rows - row;
  const int64_t bias = static_cast<int64_t>(job.expert) * e.p.a.a.rows + row;
  if (e.p.a.a_bias) to->a.a_bias = e.p.a.a_bias + bias;
  if (e.p.a.b_bias) to->a.b_bias = e.p.a.b_bias + bias;
  to->each = min(e.unit * units, e.tiles - tile);
  to->rounds = e.unit;
  to->a.tokens = job.count;
  if (which == Rows::kListed) to->a.rows = list + job.begin;
  if (which == Rows::kSlots) to->a.x = e.p.a.x + job.begin * e.p.a.x_stride;
  to->a.out = e.p.a.out + job.begin * e.p.a.out_stride + row;
}

// A block's units of a product, and the way of one role through them.
template <bool kSharedJobs>
class Walk {
 public:
  __device__ __forceinline__ Walk(const ProductParams& e, const ExpertJob* jobs, int job_count, Rows which,
                                  const int32_t* list, int lane)
      : e_(e), jobs_(jobs), which_(which), list_(list), lane_(lane) {
    const int64_t total = static_cast<int64_t>(job_count) * e.units;
    const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    begin_ = static_cast<int>(total * block / grid);
    end_ = static_cast<int>(total * (block + 1) / grid);
  }
  // By a warp: `to` becomes the product of what comes next, all units of one job.
  __device__ __forceinline__ bool Next(UnitParams* to) {
    if (begin_ >= end_) return false;
    job_ = begin_ / e_.units;
    const int first = begin_ - job_ * e_.units, count = min(end_ - begin_, e_.units - first);
    begin_ += count;
    if (to == nullptr) return true;
    const int32_t* from = reinterpret_cast<const int32_t*>(jobs_ + job_);
    ExpertJob job = {};
    job.expert = kSharedJobs ? from[0] : __ldcg(from);
    job.begin = kSharedJobs ? from[1] : __ldcg(from + 1);
    job.count = kSharedJobs ? from[2] : __ldcg(from + 2);
    if (lane_ == 0) MoveTo(e_, job, first, count, which_, list_, to);
    __syncwarp();
    return true;
  }
  // Which activations that has: the same if the number is.
  __device__ __forceinline__ int activations() const { return which_ == Rows::kOne ? 0 : job_; }

 private:
  const ProductParams& e_;
  const ExpertJob* jobs_;
  Rows which_;
  const int32_t* list_;
  int lane_;
  int begin_, end_;  // the units that are left
  int job_ = 0;
};

// The roles, each with parameters of its own that move along.
template <Format F, class W>
__device__ __forceinline__ void FillUnits(W walk, UnitParams* slot, uint32_t shared, int lane,
                                          matvec::Filling& filling) {
  while (walk.Next(slot)) {
    matvec::Produce<F>(*slot, shared, lane, filling);
    __syncwarp();
  }
}

template <int NT, class W>
__device__ __forceinline__ void FinishUnits(W walk, UnitParams* slot, char* memory, int lane,
                                            const matvec::TokenPlace* places, int& parity) {
  while (walk.Next(slot)) {
    matvec::FinishTiles<NT>(*slot, memory, lane, places, parity);
    __syncwarp();
  }
}

// `slots` are two, used in turn. `wait` is called before activations are loaded for the first time.
template <Format F, int NT, int S, class W, class Wait>
__device__ __forceinline__ void MultiplyUnits(W walk, UnitParams* slots, char* memory, uint32_t shared,
                                              int warp, int lane, matvec::RingPlace& ring, int& parity,
                                              int& done, const Wait& wait) {
  int loaded = -1;        // which activations are in shared memory
  UnitParams* p = slots;  // of the unit before the last, which is finished
  while (walk.Next(warp == 0 ? p : nullptr)) {
    matvec::ConsumerBarrier();  // nor on the last one
    matvec::Feed<F, S> feed(*p, memory, warp, lane, matvec::kUntagged);
    if (loaded == walk.activations())
      feed.Skip();
    else
      feed.Start([&] {
        if (loaded < 0) wait();
      });
    loaded = walk.activations();
    matvec::MultiplyTiles<F, NT, S>(*p, memory, shared, warp, lane, feed, ring, parity, done, [] {});
    p = p == slots ? slots + 1 : slots;
  }
}

template <Format F, int NT, int S>
__global__ void __launch_bounds__(matvec::kThreads, 1)
    ProductKernel(const __grid_constant__ ProductParams e) {
  using namespace matvec;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  InitBarriers(e.p.stages, shared + e.p.barrier_offset);
  // The jobs come from the kernel in front (gate and up), or from the one in front of that, which has ended
  // when its successor lets this one start.
  if (e.row) WaitForPrevious();
  LetNextStart();
  const Walk<false> walk(e, e.jobs, __ldcg(e.job_count), e.row ? Rows::kListed : Rows::kSlots, e.row, lane);
  UnitParams* const slots = reinterpret_cast<UnitParams*>(memory + e.slot_offset);
  int parity = 0, done = 0;

  if (warp == kProducer) {
    CopyParams(slots, e.p, lane);
    Filling filling;
    return FillUnits<F>(walk, slots, shared, lane, filling);
  }
  if (!e.row) WaitForPrevious();
  if (warp == kFinisher) {
    CopyParams(slots + 1, e.p, lane);
    auto* places = reinterpret_cast<TokenPlace*>(memory + e.p.place_offset);
    if (lane < kMaxMatvecTokens) places[lane] = TokenPlace();
    return FinishUnits<NT>(walk, slots + 1, memory, lane, places, parity);
  }
  if (warp < 2) CopyParams(slots + 2 + warp, e.p, lane);
  ConsumerBarrier();
  RingPlace ring;
  MultiplyUnits<F, NT, S>(walk, slots + 2, memory, shared, warp, lane, ring, parity, done, [] {});
}

// As matvec::GroupShifts(), for the kernels here and in moe_step_cuda.cuh.
template <Format F>
constexpr auto GroupShifts() {
  if constexpr (F == Format::kInt8)
    return std::integer_sequence<int, 4, 0>();
  else
    return matvec::GroupShifts<F>();
}

template <Format F>
cudaError_t LaunchProduct(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  return matvec::WithShift(GroupShifts<F>(), e.p.group_shift, [&]<int S>() {
    const dim3 grid(static_cast<unsigned>(Multiprocessors())), block(matvec::kThreads);
    return e.p.a.tokens <= 4 ? LaunchLarge<ProductKernel<F, 1, S>>(grid, block, shared_bytes, stream, e)
                             : LaunchLarge<ProductKernel<F, 2, S>>(grid, block, shared_bytes, stream, e);
  });
}
// LaunchProduct(), compiled in one file per format: moe_format_cuda.cu.in.
template <Format F>
cudaError_t LaunchFormat(const ProductParams& e, int shared_bytes, cudaStream_t stream);

}  // namespace celer::cuda::moe
