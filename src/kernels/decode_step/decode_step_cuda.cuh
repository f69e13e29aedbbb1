// The kernel behind decode_step_cuda.h.
#pragma once

#include "kernels/attention/attention_body.cuh"
#include "kernels/decode_step/decode_step_cuda.h"
#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::step {

using matvec::Params;

constexpr int kParts = 4;  // qkv, o, gate and up, down; attention stands before the second

struct StepParams {
  const Params* parts;  // [layers, kParts], on the device
  const StepLayer* layers;
  DeviceAttentionArgs attention;
  int batches, columns;
  int layer_count;
  int stages, barrier_offset, params_offset;
  uint32_t* counter;
};

// A part's parameters in shared memory: reading them from there costs no registers and no L1.
__device__ __forceinline__ const Params& Fetch(const Params* from, char* slot, int lane) {
  static_assert(sizeof(Params) % 16 == 0);
  for (int i = lane; i < static_cast<int>(sizeof(Params) / 16); i += 32)
    reinterpret_cast<uint4*>(slot)[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
  __syncwarp();
  return *reinterpret_cast<const Params*>(slot);
}

__device__ __forceinline__ void PollUntil(const uint32_t* counter, uint32_t target) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < target);
}

// For the warps that multiply: all blocks have come to `target`.
__device__ __forceinline__ void WaitForAll(const uint32_t* counter, uint32_t target) {
  if (threadIdx.x == 0) PollUntil(counter, target);
  matvec::ConsumerBarrier();
}

// Grid: one block per multiprocessor, all resident at once.
template <Format F, int S, class T, int L, int G>
__global__ void __launch_bounds__(matvec::kThreads, 1) StepKernel(const __grid_constant__ StepParams s) {
  using namespace matvec;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  InitBarriers(s.stages, shared + s.barrier_offset);
  LetNextStart();
  RingPlace ring;
  int parity = 0, done = 0;
  const uint32_t blocks = gridDim.x;

  // Slots: 0 the producer's, 1 the finisher's, 2 and 3 in turn those of the warps that multiply.
  char* slots = memory + s.params_offset;
  const int parts = s.layer_count * kParts;
  if (warp == kProducer) {
    ring.parity = 1;
    for (int i = 0; i < parts; ++i) {
      const Params& p = Fetch(s.parts + i, slots, lane);
      if (lane == 0) Produce<F>(p, shared, ring);
      __syncwarp();
    }
    return;
  }
  WaitForPrevious();
  uint32_t target = 0;  // arrivals at the counter when everything before this operator is done
  if (warp == kFinisher) {
    for (int i = 0; i < parts; ++i) {
      const Params& p = Fetch(s.parts + i, slots + sizeof(Params), lane);
      if (i % kParts == 1) target += blocks;  // attention
      if (lane == 0) PollUntil(s.counter, target);
      __syncwarp();
      FinishTiles<1>(p, memory, lane, parity);
      __threadfence();
      __syncwarp();
      if (lane == 0) atomicAdd(s.counter, 1u);
      target += blocks;
    }
    return;
  }

  for (int i = 0; i < parts; ++i) {
    char* slot = slots + (2 + i % 2) * sizeof(Params);
    if (warp == 0) Fetch(s.parts + i, slot, lane);
    float4 norm[kLoadsAtOnce];
    LoadNorm(s.parts[i], warp, lane, norm);
    WaitForAll(s.counter, target);
    const Params& p = *reinterpret_cast<const Params*>(slot);
    if (i % kParts == 1) {
      const StepLayer& layer = s.layers[i / kParts];
      DeviceAttentionArgs a = s.attention;
      a.kv.k = layer.k_cache, a.kv.v = layer.v_cache;
      a.window = static_cast<int>(layer.window);
      // Four groups of 128 threads; the room for activations is theirs until the output projection begins.
      const int group = warp / 4, thread = threadIdx.x % 128;
      auto& room = reinterpret_cast<attention::Shared<L, G>*>(memory + p.x_offset)[group];
      const int items = s.columns * a.splits * a.batch.count;
      for (int item = group * static_cast<int>(blocks) + static_cast<int>(blockIdx.x); item < items;
           item += 4 * static_cast<int>(blocks)) {
        const int column = item % s.columns, rest = item / s.columns;
        attention::Attend<T, L, G>(a, s.batches, column, s.columns, rest % a.splits, a.splits,
                                   rest / a.splits, thread, room, [&] {
                                     asm volatile("bar.sync %0, 128;" ::"r"(6 + group) : "memory");
                                   });
        asm volatile("bar.sync %0, 128;" ::"r"(6 + group) : "memory");
      }
      __threadfence();
      ConsumerBarrier();
      if (threadIdx.x == 0) atomicAdd(s.counter, 1u);
      target += blocks;
      WaitForAll(s.counter, target);
    }
    LoadActivations<F>(p, memory, warp, lane, norm);
    ConsumerBarrier();
    MultiplyTiles<F, 1, S>(p, memory, shared, warp, lane, ring, parity, done);
    target += blocks;
  }
}

template <Format F, int S, class T, int L, int G>
cudaError_t LaunchStep(const StepParams& s, int shared_bytes, cudaStream_t stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      StepKernel<F, S, T, L, G>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  if (allowed != cudaSuccess) return allowed;
  return Launch(StepKernel<F, S, T, L, G>, dim3(static_cast<unsigned>(matvec::Multiprocessors())),
                dim3(matvec::kThreads), static_cast<size_t>(shared_bytes), stream, s);
}

// By the shape of the heads: 7B (no GQA), 8B (GQA), 1B (GQA of 64).
template <Format F, int S>
cudaError_t LaunchShape(const StepParams& s, int shared_bytes, cudaStream_t stream) {
  const int group = s.attention.heads / s.attention.kv.kv_heads;
  if (s.attention.kv.head_dim == 64) return LaunchStep<F, S, __half, 8, 4>(s, shared_bytes, stream);
  return group == 1 ? LaunchStep<F, S, __half, 16, 1>(s, shared_bytes, stream)
                    : LaunchStep<F, S, __half, 16, 4>(s, shared_bytes, stream);
}

}  // namespace celer::cuda::step
