// Loads and stores that the host and other GPUs take part in: of system scope, past this GPU's L1.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace celer::cuda::system_scope {

__device__ __forceinline__ void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t Load(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ int32_t Load(const int32_t* from) {
  int32_t v;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float Load(const float* from) {
  float v;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float4 Load(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

}  // namespace celer::cuda::system_scope
