// NaN and infinity propagate, to be seen in the logits: they must not become a finite number on the way.
#pragma once

namespace celer::cuda {

// The larger of two numbers, or NaN if one is: fmaxf() drops it, and a scale made of the largest value would
// then make numbers of the others.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

__device__ __forceinline__ float MinOrNan(float a, float b) {
  float out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

// Added to the scale of a norm whose sum of squares has overflowed: else it would be zero, and all products
// with it.
__device__ __forceinline__ float ZeroOrNan(float v) {
  return v - v;
}

}  // namespace celer::cuda
