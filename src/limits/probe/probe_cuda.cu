#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "limits/probe/probe_cuda.h"

namespace celer::probe {
namespace {

// Read once: not kept in L1, and through the read-only path so that loads may be batched freely.
__device__ __forceinline__ uint4 LoadOnce(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// More loads in flight need more registers, which only smaller blocks leave.
template <int kUnroll>
constexpr int kMaxThreads = 4096 / kUnroll;

// Grid: any; each block takes every gridDim.x-th tile of blockDim.x * kUnroll vectors. The loads of
// a tile do not wait for each other, so a thread has several in flight.
template <int kUnroll>
__global__ void __launch_bounds__(kMaxThreads<kUnroll>)
    ReadKernel(const uint4* data, size_t tiles, uint32_t* sink) {
  uint32_t all = 0;
  for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint4* at = data + tile * blockDim.x * kUnroll + threadIdx.x;
    uint4 v[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) v[i] = LoadOnce(at + static_cast<size_t>(i) * blockDim.x);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) all ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  for (int offset = 16; offset > 0; offset /= 2) all ^= __shfl_xor_sync(0xffffffffu, all, offset);
  if (threadIdx.x % 32 == 0) atomicXor(sink, all);
}

template <int kUnroll>
cudaError_t LaunchRead(const CudaReadConfig& config, const void* data, size_t bytes, uint32_t* sink,
                       int multiprocessors, cudaStream_t stream) {
  if (config.threads > kMaxThreads<kUnroll>) return cudaErrorInvalidConfiguration;
  const size_t tile_bytes = sizeof(uint4) * kUnroll * static_cast<size_t>(config.threads);
  const size_t tiles = bytes / tile_bytes;
  size_t blocks = tiles;
  if (config.persistent) {
    int per_multiprocessor = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &per_multiprocessor, ReadKernel<kUnroll>, config.threads, 0);
    if (error != cudaSuccess) return error;
    blocks = min(tiles, static_cast<size_t>(per_multiprocessor) * static_cast<size_t>(multiprocessors));
  }
  ReadKernel<kUnroll><<<static_cast<unsigned>(blocks), config.threads, 0, stream>>>(
      static_cast<const uint4*>(data), tiles, sink);
  return cudaGetLastError();
}

__device__ __forceinline__ uint32_t Hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// The sum of four uniform bytes: mean 510, variance 4 * (256^2 - 1) / 12 = 147.8^2.
__device__ __forceinline__ float Normal(uint32_t index, uint32_t seed) {
  const uint32_t h = Hash(index ^ Hash(seed));
  const int sum = (h & 255) + ((h >> 8) & 255) + ((h >> 16) & 255) + (h >> 24);
  return static_cast<float>(sum - 510) * (1.0f / 147.8f);
}

__device__ __forceinline__ void Store(float* to, float v) {
  *to = v;
}
__device__ __forceinline__ void Store(__half* to, float v) {
  *to = __float2half(v);
}
__device__ __forceinline__ void Store(__nv_bfloat16* to, float v) {
  *to = __float2bfloat16(v);
}
__device__ __forceinline__ void Store(__nv_fp8_e4m3* to, float v) {
  *to = __nv_fp8_e4m3(v);
}
__device__ __forceinline__ void Store(int8_t* to, float v) {
  *to = static_cast<int8_t>(fminf(fmaxf(rintf(v * 40.0f), -127.0f), 127.0f));
}

// Grid: any, striding over the elements.
template <class T>
__global__ void FillKernel(T* data, size_t elements, uint32_t seed) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += step)
    Store(data + i, Normal(static_cast<uint32_t>(i), seed));
}

template <class T>
cudaError_t LaunchFill(void* data, size_t elements, uint32_t seed, cudaStream_t stream) {
  FillKernel<T><<<2048, 256, 0, stream>>>(static_cast<T*>(data), elements, seed);
  return cudaGetLastError();
}

constexpr int kCrossingThreads = 512;

__global__ void __launch_bounds__(kCrossingThreads) CrossingKernel(const CrossingProbe p, int rounds) {
  auto* const data = reinterpret_cast<volatile float*>(p.data);
  for (uint32_t round = 1; round <= static_cast<uint32_t>(rounds); ++round) {
    for (int i = static_cast<int>(threadIdx.x); i < kCrossingFloats; i += kCrossingThreads)
      data[i] = p.sink[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
      *static_cast<volatile uint32_t*>(p.handed) = round;
      while (*static_cast<volatile uint32_t*>(p.answered) != round) __nanosleep(100);
      __threadfence_system();
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kCrossingFloats; i += kCrossingThreads)
      p.sink[i] = data[i];
  }
}

}  // namespace

cudaError_t LaunchProbeCrossing(const CrossingProbe& probe, int rounds, cudaStream_t stream) {
  CrossingKernel<<<1, kCrossingThreads, 0, stream>>>(probe, rounds);
  return cudaGetLastError();
}

cudaError_t LaunchProbeRead(const CudaReadConfig& config, const void* data, size_t bytes, uint32_t* sink,
                            int multiprocessors, cudaStream_t stream) {
  switch (config.unroll) {
    case 4:
      return LaunchRead<4>(config, data, bytes, sink, multiprocessors, stream);
    case 8:
      return LaunchRead<8>(config, data, bytes, sink, multiprocessors, stream);
    case 16:
      return LaunchRead<16>(config, data, bytes, sink, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchProbeFill(CudaFill type, void* data, size_t elements, uint32_t seed, cudaStream_t stream) {
  switch (type) {
    case CudaFill::kF32:
      return LaunchFill<float>(data, elements, seed, stream);
    case CudaFill::kF16:
      return LaunchFill<__half>(data, elements, seed, stream);
    case CudaFill::kBf16:
      return LaunchFill<__nv_bfloat16>(data, elements, seed, stream);
    case CudaFill::kInt8:
      return LaunchFill<int8_t>(data, elements, seed, stream);
    case CudaFill::kFp8E4m3:
      return LaunchFill<__nv_fp8_e4m3>(data, elements, seed, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace celer::probe
