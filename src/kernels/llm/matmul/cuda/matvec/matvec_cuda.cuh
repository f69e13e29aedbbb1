// The kernel behind matvec_cuda.h, one instance per weight format and number of 4-token tiles.
//
// Grid: persistent, one block per multiprocessor, warp-specialized. A tile is 16 rows, as two halves of 8
// that may lie apart (gate and up; the two dimensions of a rope pair). A block has a run of tiles and takes
// four at once, a batch; the sixteen consumer warps share them: four for each of four tiles, eight for each
// of two, all for one, dividing its columns (split-K). A producer warp fills the ring buffer with bulk
// copies, 128 bytes of 16 rows per stage and consumer; one more warp reduces their partial sums at the end of
// a batch and does the epilogue while they go on. The ring starts to fill before the previous kernel has
// ended.
#pragma once

#include <utility>

#include "kernels/llm/matmul/cuda/matvec/matvec_activations.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_finish.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_product.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ring.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::matvec {

// By the warps that multiply: all tiles of this block, of which there is at least one. `feed` has the
// activations, and `loaded` is its; `parity` and `done` count the buffers of sums.
template <Format F, int NT, int S, class P, class Loaded>
__device__ __forceinline__ void MultiplyTiles(const P& p, char* memory, uint32_t shared, int warp, int lane,
                                              Feed<F, S>& feed, RingPlace& ring, int& parity, int& done,
                                              const Loaded& loaded) {
  const Places<NT> at = Find<F, NT, S>(p, shared, lane);
  const int row_bytes = static_cast<int>(p.a.a.row_bytes), group_shift = S > 0 ? S : p.group_shift;
  const int stages = p.stages, stage_bytes = p.stage_bytes;
  const bool scaled = p.a.a.group > 0;
  const uint32_t barriers = shared + p.barrier_offset;
  const uint32_t read = barriers + kMaxStages * 16;
  float2* sums = reinterpret_cast<float2*>(memory + p.red_offset) + warp * NT * 32 + lane;
  const auto run = TilesOf(p);
  for (int batch = 0; batch < run.batches(); ++batch) {
    const Share share(run.Tiles(batch));
    const int slot = warp >> share.log2_split, part = warp & (share.split - 1);
    const int half_bytes = share.tile_bytes() / 2, chunks = share.chunks(row_bytes);
    const int blocks = slot < share.tiles ? row_bytes / 64 : 0;  // of 64 bytes in a row
    const int half_scales = (share.chunk_bytes() * 8 / BitsOf(F) >> group_shift) * 8 * ScaleBytesOf(F);
    const uint32_t weights = slot * share.tile_bytes() + part * 512 + lane * 16;
    const uint32_t scales = kStageBytes + 2 * slot * half_scales + lane / 4 * ScaleBytesOf(F);
    Accumulator<F, NT> acc;
    acc.Clear();
    float channel[2] = {1, 1};  // scales of the output channels
    int block = part;           // of 64 bytes, the next one of this warp
    for (int chunk = 0; chunk < chunks;) {
      int until = chunks;  // chunks whose activations are there
      if (feed.more()) {
        feed.Next(loaded);
        if (feed.more()) until = feed.ready() * BitsOf(F) / 8 >> (share.log2_split + kChunkShift);
      }
      for (; chunk < until; ++chunk) {
        const uint32_t full = barriers + ring.stage * 16, base = shared + ring.stage * stage_bytes;
        const auto multiply = [&](int i) {
          const int within =
              ((i << share.log2_split) + part) * kWarpCols<F>;  // columns of this stage before it
          Multiply<F, NT, S>(acc, at, base + weights + (i << share.log2_split) * 512, half_bytes,
                             base + scales + (within >> group_shift) * 8 * ScaleBytesOf(F),
                             scaled ? half_scales : 0, group_shift,
                             (block + (i << share.log2_split)) * kWarpCols<F>);
        };
        // Polling a barrier takes as long as a product: the next one has been polled before.
        if (!ring.there) BarrierWait(full, ring.parity);
        ring.Advance(stages);
        ring.there = BarrierPassed(barriers + ring.stage * 16, ring.parity);
        if ((F == Format::kInt8 || F == Format::kFp8) && !scaled && chunk == 0) {
          const uint32_t from = base + kStageBytes + slot * 64 + lane / 4 * 4;
          channel[0] = LoadFloat(from), channel[1] = LoadFloat(from + 32);
        }
        if (block + share.split < blocks) {
#pragma unroll
          for (int i = 0; i < kSpans; ++i) multiply(i);
        } else if (block < blocks) {
          multiply(0);
        }
        block += kSpans << share.log2_split;
        __syncwarp();
        if (lane == 0) BarrierArrive(full + 8);
      }
    }
    if (done >= 2) BarrierWait(read + parity * 8, (done / 2 - 1) & 1);
    ++done;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const float2 sum = acc.Get(n);
      sums[parity * kWarps * NT * 32 + n * 32] = make_float2(sum.x * channel[0], sum.y * channel[1]);
    }
    ArrivePair(2 + parity);
    parity ^= 1;
  }
}

template <Format F, int NT, int S>
__global__ void __launch_bounds__(kThreads, 1) Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  InitBarriers(p.stages, shared + p.barrier_offset);
  LetNextStart();
  int parity = 0, done = 0;
  if (warp == kProducer) {
    Filling filling;
    Produce<F>(p, shared, lane, filling);
    return;
  }
  if (warp == kFinisher) {
    WaitForPrevious();
    auto* places = reinterpret_cast<TokenPlace*>(memory + p.place_offset);
    if (lane < p.a.tokens) places[lane] = PlaceOf(p.a, lane);
    __syncwarp();
    return FinishTiles<NT>(p, memory, lane, places, parity);
  }
  RingPlace ring;
  Feed<F, S> feed(p, memory, warp, lane, kUntagged);
  feed.Start([] { WaitForPrevious(); });
  MultiplyTiles<F, NT, S>(p, memory, shared, warp, lane, feed, ring, parity, done, [] {});
}

// Fills in everything but the number of stages and the tiles. Returns the bytes of shared memory beside the
// ring, at least `least` of them for the activations.
int Layout(const DeviceMatrix& m, int tokens, int least, Params* p);
// Puts as large a ring as fits in front of those bytes. Returns the bytes of both, or 0 if there is no room
// for a ring.
int AddRing(int beside, Params* p);

// ---- instances

// Values of Params::group_shift that a format has kernels for. The last of them serves all others; 0 reads
// the shift at run time. A float format has no groups and needs one kernel, whatever its number.
template <Format F>
constexpr auto GroupShifts() {
  if constexpr (F == Format::kInt8)
    return std::integer_sequence<int, 7, 4, 0>();
  else if constexpr (F == Format::kInt4)
    return std::integer_sequence<int, 7, 0>();
  else if constexpr (F == Format::kInt4F32)
    return std::integer_sequence<int, 4, 5>();
  else if constexpr (F == Format::kFp8)
    return std::integer_sequence<int, 0>();
  else if constexpr (F == Format::kMxfp4)
    return std::integer_sequence<int, 5>();
  else
    return std::integer_sequence<int, 7>();
}
// Calls run.operator()<S>() with the S of the list that serves `shift`.
template <int S, int... Others, class Run>
cudaError_t WithShift(std::integer_sequence<int, S, Others...>, int shift, const Run& run) {
  if constexpr (sizeof...(Others) > 0)
    if (shift != S) return WithShift(std::integer_sequence<int, Others...>(), shift, run);
  return run.template operator()<S>();
}

template <Format F>
cudaError_t LaunchKernel(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  return WithShift(GroupShifts<F>(), p.group_shift, [&]<int S>() {
    const dim3 grid(static_cast<unsigned>(blocks));
    return p.a.tokens <= 4 ? LaunchLarge<Kernel<F, 1, S>>(grid, dim3(kThreads), shared_bytes, stream, p)
                           : LaunchLarge<Kernel<F, 2, S>>(grid, dim3(kThreads), shared_bytes, stream, p);
  });
}
// LaunchKernel(), compiled in one file per format: matvec_format_cuda.cu.in.
template <Format F>
cudaError_t LaunchFormat(const Params& p, int blocks, int shared_bytes, cudaStream_t stream);

}  // namespace celer::cuda::matvec
