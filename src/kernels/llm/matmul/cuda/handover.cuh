// Producer-consumer handover between blocks of one kernel, without fences or counters: a value is its own
// flag, and arrives in one round trip through L2.
//
// Tagged: the lowest bit of a value says in which round of its memory it was written; a reader polls until
// the bit is this round's. Rounds alternate, so every place must be written in every round. Marked: memory is
// filled with a sentinel that no result has; a reader polls until it sees something else, and then resets it.
#pragma once

#include <cstdint>

namespace celer::cuda::matvec {

constexpr int kUntagged = -1;
// Memory of a past round holds the other tag; a value loses its lowest bit either way, so that results do not
// depend on the round.
__device__ __forceinline__ float Tagged(float v, int tag) {
  return tag == kUntagged ? v : __uint_as_float((__float_as_uint(v) & ~1u) | static_cast<uint32_t>(tag));
}
__device__ __forceinline__ float Untagged(float v) {
  return __uint_as_float(__float_as_uint(v) & ~1u);
}
__device__ __forceinline__ float4 Untagged(const float4& v) {
  return make_float4(Untagged(v.x), Untagged(v.y), Untagged(v.z), Untagged(v.w));
}
__device__ __forceinline__ bool Missing(float v, int tag) {
  return ((__float_as_uint(v) ^ static_cast<uint32_t>(tag)) & 1) != 0;
}
// The lowest bit of the result: whether a or b has another tag than t. In assembler, because the compiler
// takes each value's bit into a predicate of its own: four times the instructions, right behind the wait.
__device__ __forceinline__ uint32_t Differ(float a, float b, int t) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0x7e;"
      : "=r"(out)
      : "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(t));
  return out;
}
__device__ __forceinline__ bool Missing(const float4& v, int tag) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, 1, 0xa8;" : "=r"(out) : "r"(Differ(v.x, v.y, tag)), "r"(Differ(v.z, v.w, tag)));
  return out != 0;
}

constexpr uint32_t kUnwritten = 0xffffffffu;
__device__ __forceinline__ bool Unwritten(float v) {
  return __float_as_uint(v) == kUnwritten;
}

__device__ __forceinline__ void Publish(float* to, float v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory");
}
__device__ __forceinline__ float LoadRelaxed1(const float* from) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float4 LoadRelaxed(const float* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
// Backoff between two polls of what all blocks wait for: without it their loads would take more of L2 than
// the weights.
__device__ __forceinline__ void Pause() {
  constexpr int kCycles = 150;
  const long long begin = clock64();
  while (clock64() - begin < kCycles) {
  }
}
__device__ __forceinline__ float AwaitTagged(const float* from, int tag) {
  float v;
  do v = LoadRelaxed1(from);
  while (Missing(v, tag));
  return Untagged(v);
}

}  // namespace celer::cuda::matvec
