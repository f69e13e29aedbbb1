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
constexpr int kSlots = 4;  // the filling warp's, the finishing warp's, two of the warps that multiply

__device__ __forceinline__ void CopyParams(Params* to, const Params& from, int lane) {
  static_assert(sizeof(Params) % 16 == 0);
  for (int i = lane; i < static_cast<int>(sizeof(Params) / 16); i += 32)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(&from)[i];
  __syncwarp();
}

// By one lane: `to` becomes the product of this unit.
__device__ __forceinline__ void MoveTo(const ProductParams& e, const ExpertJob& job, int unit, Params* to) {
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
  if (e.row) {
    to->a.rows = e.row + job.begin;
  } else {
    to->a.x = e.p.a.x + job.begin * e.p.a.x_stride;
  }
  to->a.out = e.p.a.out + job.begin * e.p.a.out_stride + row;
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
  const int64_t total = static_cast<int64_t>(__ldcg(e.job_count)) * e.units;
  const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(total * block / grid),
            end = static_cast<int>(total * (block + 1) / grid);
  Params* const slots = reinterpret_cast<Params*>(memory + e.slot_offset);
  ExpertJob job = {};
  int job_index = -1;  // of `job`
  const auto move = [&](int i, Params* to) {
    if (job_index != i / e.units) {
      job_index = i / e.units;
      const int32_t* from = reinterpret_cast<const int32_t*>(e.jobs + job_index);
      job.expert = __ldcg(from), job.begin = __ldcg(from + 1), job.count = __ldcg(from + 2);
    }
    if (lane == 0) MoveTo(e, job, i % e.units, to);
    __syncwarp();
  };
  int parity = 0, done = 0;

  if (warp == kProducer) {
    CopyParams(slots, e.p, lane);
    Filling filling;
    for (int i = begin; i < end; ++i) {
      move(i, slots);
      Produce<F>(*slots, shared, lane, filling);
      __syncwarp();
    }
    return;
  }
  if (!e.row) WaitForPrevious();
  if (warp == kFinisher) {
    CopyParams(slots + 1, e.p, lane);
    auto* places = reinterpret_cast<TokenPlace*>(memory + e.p.place_offset);
    if (lane < kMaxMatvecTokens) places[lane] = TokenPlace();
    for (int i = begin; i < end; ++i) {
      move(i, slots + 1);
      FinishTiles<NT>(slots[1], memory, lane, places, parity);
      __syncwarp();
    }
    return;
  }
  if (warp < 2) CopyParams(slots + 2 + warp, e.p, lane);
  ConsumerBarrier();
  RingPlace ring;
  int loaded = -1;  // the job whose activations are in shared memory
  for (int i = begin; i < end; ++i) {
    Params* const p = slots + 2 + i % 2;  // nobody works on unit i - 2 any more
    if (warp == 0) move(i, p);
    ConsumerBarrier();  // nor on unit i - 1
    Feed<F, S> feed(*p, memory, warp, lane, kUntagged);
    if (loaded == i / e.units)
      feed.Skip();
    else
      feed.Start([] {});
    loaded = i / e.units;
    MultiplyTiles<F, NT, S>(*p, memory, shared, warp, lane, feed, ring, parity, done, [] {});
  }
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
