// The kernel behind LaunchMoeProduct, one instance per weight format: the products of matvec_cuda.cuh with
// the matrices of many experts, for jobs that only the device knows.
//
// Grid: persistent, one block per multiprocessor, the roles of matvec_cuda.cuh. All jobs' tiles are cut into
// units of a few, which only the shape decides, so that a token's sums do not depend on the jobs beside its
// own; each block has a run of units. A unit is a product of its own, whose matrices begin at its first row:
// each role keeps its parameters in shared memory and moves them from unit to unit.
#pragma once

#include "kernels/matmul/matvec_cuda.cuh"
#include "kernels/moe/moe_cuda.h"

namespace celer::cuda::moe {

using matvec::Params;

struct ProductParams {
  Params p;  // of expert 0
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

__device__ __forceinline__ void CopyParams(Params* to, const Params& from, int lane) {
  static_assert(sizeof(Params) % 16 == 0);
  for (int i = lane; i < static_cast<int>(sizeof(Params) / 16); i += 32)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(&from)[i];
  __syncwarp();
}

// By one lane: `to` becomes the product of this unit; `rows` are those of x, or null if a slot is a row.
__device__ __forceinline__ void MoveTo(const ProductParams& e, const ExpertJob& job, int unit,
                                       const int32_t* rows, Params* to) {
  const int tile = unit * e.unit, row = tile * e.tile_rows;
  const int64_t data = job.expert * e.data_stride + row * e.p.a.a.row_bytes;
  const int64_t scales = job.expert * e.scale_stride + static_cast<int64_t>(row / 8) * e.group_scale_bytes;
  to->a.a.data = e.p.a.a.data + data;
  to->a.a.scales = e.p.a.a.scales + scales;
  to->a.a.rows = e.p.a.a.rows - row;
  to->a.b.data = e.p.a.b.data + data;
  to->a.b.scales = e.p.a.b.scales + scales;
  to->a.b.rows = e.p.a.b.rows - row;
  to->each = min(e.unit, e.tiles - tile);
  to->more = 0;
  to->turn = static_cast<int>(blockIdx.x);  // whose tiles are 0 .. each - 1
  to->a.tokens = job.count;
  if (rows) {
    to->a.rows = rows + job.begin;
  } else {
    to->a.x = e.p.a.x + job.begin * e.p.a.x_stride;
  }
  to->a.out = e.p.a.out + job.begin * e.p.a.out_stride + row;
}

// A block's units of a product, and the way of one role through them.
template <bool kSharedJobs>
class Walk {
 public:
  __device__ __forceinline__ Walk(const ProductParams& e, const ExpertJob* jobs, int job_count,
                                  const int32_t* rows, int lane)
      : e_(e), jobs_(jobs), rows_(rows), lane_(lane) {
    const int64_t total = static_cast<int64_t>(job_count) * e.units;
    const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    begin_ = static_cast<int>(total * block / grid);
    end_ = static_cast<int>(total * (block + 1) / grid);
  }
  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ int end() const { return end_; }
  __device__ __forceinline__ int job(int unit) const { return unit / e_.units; }
  // By a warp: `to` becomes the product of this unit.
  __device__ __forceinline__ void Move(int unit, Params* to) {
    if (at_ != job(unit)) {
      at_ = job(unit);
      const int32_t* from = reinterpret_cast<const int32_t*>(jobs_ + at_);
      job_.expert = kSharedJobs ? from[0] : __ldcg(from);
      job_.begin = kSharedJobs ? from[1] : __ldcg(from + 1);
      job_.count = kSharedJobs ? from[2] : __ldcg(from + 2);
    }
    if (lane_ == 0) MoveTo(e_, job_, unit % e_.units, rows_, to);
    __syncwarp();
  }

 private:
  const ProductParams& e_;
  const ExpertJob* jobs_;
  const int32_t* rows_;
  int lane_, begin_, end_;
  int at_ = -1;  // the index of `job_`
  ExpertJob job_ = {};
};

// The roles, each with parameters of its own that move along.
template <Format F, class W>
__device__ __forceinline__ void FillUnits(W walk, Params* slot, uint32_t shared, int lane,
                                          matvec::Filling& filling) {
  for (int i = walk.begin(); i < walk.end(); ++i) {
    walk.Move(i, slot);
    matvec::Produce<F>(*slot, shared, lane, filling);
    __syncwarp();
  }
}

template <int NT, class W>
__device__ __forceinline__ void FinishUnits(W walk, Params* slot, char* memory, int lane,
                                            const matvec::TokenPlace* places, int& parity) {
  for (int i = walk.begin(); i < walk.end(); ++i) {
    walk.Move(i, slot);
    matvec::FinishTiles<NT>(*slot, memory, lane, places, parity);
    __syncwarp();
  }
}

// `slots` are two, used in turn.
template <Format F, int NT, int S, class W>
__device__ __forceinline__ void MultiplyUnits(W walk, Params* slots, char* memory, uint32_t shared, int warp,
                                              int lane, matvec::RingPlace& ring, int& parity, int& done) {
  int loaded = -1;  // the job whose activations are in shared memory
  for (int i = walk.begin(); i < walk.end(); ++i) {
    Params* const p = slots + i % 2;  // nobody works on unit i - 2 any more
    if (warp == 0) walk.Move(i, p);
    matvec::ConsumerBarrier();  // nor on unit i - 1
    matvec::Feed<F, S> feed(*p, memory, warp, lane, matvec::kUntagged);
    if (loaded == walk.job(i))
      feed.Skip();
    else
      feed.Start([] {});
    loaded = walk.job(i);
    matvec::MultiplyTiles<F, NT, S>(*p, memory, shared, warp, lane, feed, ring, parity, done, [] {});
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
  const Walk<false> walk(e, e.jobs, __ldcg(e.job_count), e.row, lane);
  Params* const slots = reinterpret_cast<Params*>(memory + e.slot_offset);
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
  MultiplyUnits<F, NT, S>(walk, slots + 2, memory, shared, warp, lane, ring, parity, done);
}

template <Format F, int S>
cudaError_t LaunchAs(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  const auto launch = [&](auto* kernel) {
    const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
    if (allowed != cudaSuccess) return allowed;
    return Launch(kernel, dim3(static_cast<unsigned>(matvec::Multiprocessors())), dim3(matvec::kThreads),
                  static_cast<size_t>(shared_bytes), stream, e);
  };
  return e.p.a.tokens <= 4 ? launch(ProductKernel<F, 1, S>) : launch(ProductKernel<F, 2, S>);
}

}  // namespace celer::cuda::moe
