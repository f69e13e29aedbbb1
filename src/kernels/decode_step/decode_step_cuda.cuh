// The kernel behind decode_step_cuda.h.
#pragma once

#include "kernels/attention/attention_body.cuh"
#include "kernels/decode_step/decode_step_cuda.h"
#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::step {

using matvec::Params;

constexpr int kParts = 4;  // qkv, o, gate and up, down; attention stands before the second

struct StepParams {
  Params part[kParts];
  DeviceAttentionArgs attention;
  int batches, columns;
  int layer_count;
  uint32_t* counter;
  StepLayer layers[kMaxStepLayers];
};

__device__ __forceinline__ Params PartOf(const StepParams& s, int layer, int part) {
  Params p = s.part[part];
  const StepLayer& l = s.layers[layer];
  switch (part) {
    case 0:
      p.a.a.data = l.q, p.a.b.data = l.k, p.a.c.data = l.v;
      p.a.a.scales = l.q_scales, p.a.b.scales = l.k_scales, p.a.c.scales = l.v_scales;
      p.a.norm = l.attention_norm;
      p.a.a_bias = l.q_bias, p.a.b_bias = l.k_bias, p.a.c_bias = l.v_bias;
      p.a.kv.k = l.k_cache, p.a.kv.v = l.v_cache;
      break;
    case 1:
      p.a.a.data = l.o, p.a.a.scales = l.o_scales;
      break;
    case 2:
      p.a.a.data = l.gate, p.a.b.data = l.up;
      p.a.a.scales = l.gate_scales, p.a.b.scales = l.up_scales;
      p.a.norm = l.ffn_norm;
      break;
    default:
      p.a.a.data = l.down, p.a.a.scales = l.down_scales;
  }
  return p;
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
  InitBarriers(s.part[0], shared);
  LetNextStart();
  RingPlace ring;
  int parity = 0, done = 0;
  const uint32_t blocks = gridDim.x;

  if (warp == kProducer) {
    ring.parity = 1;
    if (lane == 0)
      for (int layer = 0; layer < s.layer_count; ++layer)
        for (int part = 0; part < kParts; ++part) {
          const Params p = PartOf(s, layer, part);
          Produce<F>(p, shared, ring);
        }
    return;
  }
  WaitForPrevious();
  uint32_t target = 0;  // arrivals at the counter when everything before this operator is done
  if (warp == kFinisher) {
    for (int layer = 0; layer < s.layer_count; ++layer)
      for (int part = 0; part < kParts; ++part) {
        const Params p = PartOf(s, layer, part);
        if (part == 1) target += blocks;  // attention
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

  for (int layer = 0; layer < s.layer_count; ++layer)
    for (int part = 0; part < kParts; ++part) {
      const Params p = PartOf(s, layer, part);
      float4 norm[kLoadsAtOnce];
      LoadNorm(p, warp, lane, norm);
      WaitForAll(s.counter, target);
      if (part == 1) {
        DeviceAttentionArgs a = s.attention;
        a.kv.k = s.layers[layer].k_cache, a.kv.v = s.layers[layer].v_cache;
        a.window = static_cast<int>(s.layers[layer].window);
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
