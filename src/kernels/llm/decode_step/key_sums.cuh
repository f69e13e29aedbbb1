// Attention of one query over keys that lie in the lanes of a warp: L lanes hold one key, 8 dimensions each,
// and a warp takes 32 / L * kKeyLoads keys at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace celer::cuda::step {

constexpr int kKeyLoads = 4;  // 16-byte loads of K, and of V, in flight per lane

__device__ __forceinline__ float Exp2(float v) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}
template <class T>
__device__ __forceinline__ void Unpack(const uint4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 pair;
    if constexpr (std::is_same_v<T, __half>)
      pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
    else
      pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(words[i]));
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ uint4 LoadKv(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// The state of the online softmax: the maximum, the sum of the weights and the weighted values of the keys so
// far.
struct KeySums {
  float m = -INFINITY, l = 0, o[8] = {};
};

// q: this lane's dimensions, scaled for powers of two.
template <class T>
__device__ __forceinline__ void ScoreKeys(const float (&q)[8], const uint4 (&k)[kKeyLoads],
                                          float (&score)[kKeyLoads]) {
#pragma unroll
  for (int j = 0; j < kKeyLoads; ++j) {
    float f[8], dot = 0;
    Unpack<T>(k[j], f);
#pragma unroll
    for (int e = 0; e < 8; ++e) dot += q[e] * f[e];
    score[j] = dot;
  }
}
// Reduction over the lanes of a key.
template <int L>
__device__ __forceinline__ void JoinScores(float (&score)[kKeyLoads]) {
#pragma unroll
  for (int apart = 1; apart < L; apart *= 2)
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) score[j] += __shfl_xor_sync(0xffffffffu, score[j], apart);
}
// `key`: the lane's first; keys from `end` on do not exist.
template <class T, int L>
__device__ __forceinline__ void WeighValues(float (&score)[kKeyLoads], int key, int end,
                                            const uint4 (&v)[kKeyLoads], KeySums& sums) {
  float top = sums.m;
#pragma unroll
  for (int j = 0; j < kKeyLoads; ++j) {
    if (key + j * (32 / L) >= end) score[j] = -INFINITY;
    top = fmaxf(top, score[j]);
  }
  const float shrink = top == -INFINITY ? 1 : Exp2(sums.m - top);
  sums.m = top;
  sums.l *= shrink;
#pragma unroll
  for (int e = 0; e < 8; ++e) sums.o[e] *= shrink;
#pragma unroll
  for (int j = 0; j < kKeyLoads; ++j) {
    const float weight = top == -INFINITY ? 0 : Exp2(score[j] - top);
    sums.l += weight;
    float f[8];
    Unpack<T>(v[j], f);
#pragma unroll
    for (int e = 0; e < 8; ++e) sums.o[e] += weight * f[e];
  }
}
// Within the warp: the lanes that hold the same dimensions of other keys.
template <int L>
__device__ __forceinline__ void JoinLanes(KeySums& sums) {
#pragma unroll
  for (int apart = L; apart < 32; apart *= 2) {
    const float m2 = __shfl_xor_sync(0xffffffffu, sums.m, apart),
                l2 = __shfl_xor_sync(0xffffffffu, sums.l, apart);
    const float top = fmaxf(sums.m, m2);
    const float a = top == -INFINITY ? 0 : Exp2(sums.m - top), b = top == -INFINITY ? 0 : Exp2(m2 - top);
    sums.m = top;
    sums.l = sums.l * a + l2 * b;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      sums.o[e] = sums.o[e] * a + __shfl_xor_sync(0xffffffffu, sums.o[e], apart) * b;
  }
}

}  // namespace celer::cuda::step
