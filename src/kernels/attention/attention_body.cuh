// One piece of attention, for 128 threads: some query heads of one token over a part of its keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/attention/attention_cuda.h"

namespace celer::cuda::attention {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kLoads = 4;           // 16-byte loads of K, and of V, in flight per lane
constexpr int kSmallestSplit = 64;  // keys; fewer are not worth a block

__device__ __forceinline__ uint4 LoadKv(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

template <class T>
__device__ __forceinline__ void Unpack(const uint4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 pair;
    if constexpr (sizeof(T) == 2 && std::is_same_v<T, __half>)
      pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
    else
      pair = make_float2(__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xffff0000u));
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

// A softmax-weighted sum over some of the keys: o / l is the mean of V, m the largest score (base 2).
template <int G>
struct State {
  float m[G], l[G], o[G][8];

  __device__ __forceinline__ void Merge(int i, float m2, float l2, const float (&o2)[8]) {
    const float top = fmaxf(m[i], m2);
    const float a = top == -INFINITY ? 0 : exp2f(m[i] - top), b = top == -INFINITY ? 0 : exp2f(m2 - top);
    m[i] = top;
    l[i] = l[i] * a + l2 * b;
#pragma unroll
    for (int e = 0; e < 8; ++e) o[i][e] = o[i][e] * a + o2[e] * b;
  }
};

struct Span {
  int first, keys, per_split, active;
};
__device__ __forceinline__ Span KeysOf(const DeviceAttentionArgs& a, int token, int splits) {
  const int position = __ldcg(a.batch.positions + token);
  Span s;
  s.first = a.window > 0 ? max(0, position - a.window + 1) : 0;
  s.keys = position + 1 - s.first;
  s.per_split = max(kSmallestSplit, ((s.keys + splits - 1) / splits + 15) / 16 * 16);
  s.active = (s.keys + s.per_split - 1) / s.per_split;
  return s;
}

template <int L, int G>
struct Shared {
  float m[kWarps][G], l[kWarps][G];
  float o[kWarps][G][L * 8];
  bool last;
};

// L lanes hold one key: 8 dimensions each, so a warp reads 32 / L keys at once, and every load of K and V
// serves G queries. `column` of `columns`: kv head and bunch of G query heads; `sync` is a barrier of the 128
// threads, all of which leave together.
template <class T, int L, int G, class Sync>
__device__ __forceinline__ void Attend(const DeviceAttentionArgs& a, int batches, int column, int columns,
                                       int split, int splits, int token, int thread, Shared<L, G>& shared,
                                       const Sync& sync) {
  constexpr int kKeys = 32 / L;
  constexpr int kStep = kKeys * kLoads;
  const Span span = KeysOf(a, token, splits);
  if (split >= span.active) return;
  const int kv_head = column / batches, group = a.heads / a.kv.kv_heads;
  const int first_head = kv_head * group + column % batches * G;
  const int count = min(G, (kv_head + 1) * group - first_head);
  const int warp = thread / 32, lane = thread % 32, sub = lane / L, dim = lane % L * 8;
  const bool inside = dim < a.kv.padded_dim;

  float q[G][8];
  const float scale = a.scale * 1.4426950408889634f;
#pragma unroll
  for (int i = 0; i < G; ++i)
#pragma unroll
    for (int e = 0; e < 8; ++e)
      q[i][e] = i < count && dim + e < a.kv.head_dim
                    ? __ldcg(a.q + (static_cast<int64_t>(token) * a.heads + first_head + i) * a.kv.head_dim +
                             dim + e) *
                          scale
                    : 0;

  State<G> s;
#pragma unroll
  for (int i = 0; i < G; ++i) {
    s.m[i] = -INFINITY;
    s.l[i] = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) s.o[i][e] = 0;
  }

  const int32_t* table =
      a.batch.block_table + static_cast<int64_t>(__ldcg(a.batch.sequence + token)) * a.batch.max_blocks;
  const int begin = span.first + split * span.per_split;
  const int end = min(begin + span.per_split, span.first + span.keys);
  for (int base = begin + warp * kStep; base < end; base += kWarps * kStep) {
    uint4 k[kLoads], v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int key = base + j * kKeys + sub;
      k[j] = v[j] = make_uint4(0, 0, 0, 0);
      if (key < end && inside) {
        const int64_t block = __ldcg(table + key / kKvBlock);
        const int64_t at =
            ((block * a.kv.kv_heads + kv_head) * kKvBlock + key % kKvBlock) * a.kv.padded_dim + dim;
        k[j] = LoadKv(a.kv.k + at * 2);
        v[j] = LoadKv(a.kv.v + at * 2);
      }
    }
    float score[G][kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      float f[8];
      Unpack<T>(k[j], f);
#pragma unroll
      for (int i = 0; i < G; ++i) {
        float dot = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) dot += q[i][e] * f[e];
#pragma unroll
        for (int x = 1; x < L; x *= 2) dot += __shfl_xor_sync(0xffffffffu, dot, x);
        score[i][j] = base + j * kKeys + sub < end ? dot : -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < G; ++i) {
      float top = s.m[i];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) top = fmaxf(top, score[i][j]);
      const float shrink = top == -INFINITY ? 1 : exp2f(s.m[i] - top);
      s.m[i] = top;
      s.l[i] *= shrink;
#pragma unroll
      for (int e = 0; e < 8; ++e) s.o[i][e] *= shrink;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        score[i][j] = top == -INFINITY ? 0 : exp2f(score[i][j] - top);
        s.l[i] += score[i][j];
      }
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      float f[8];
      Unpack<T>(v[j], f);
#pragma unroll
      for (int i = 0; i < G; ++i)
#pragma unroll
        for (int e = 0; e < 8; ++e) s.o[i][e] += score[i][j] * f[e];
    }
  }

  // Within the warp: the lanes that hold the same dimensions of other keys.
#pragma unroll
  for (int x = L; x < 32; x *= 2)
#pragma unroll
    for (int i = 0; i < G; ++i) {
      float o2[8];
      const float m2 = __shfl_xor_sync(0xffffffffu, s.m[i], x), l2 = __shfl_xor_sync(0xffffffffu, s.l[i], x);
#pragma unroll
      for (int e = 0; e < 8; ++e) o2[e] = __shfl_xor_sync(0xffffffffu, s.o[i][e], x);
      s.Merge(i, m2, l2, o2);
    }
  // Across the warps.
  auto& sm = shared.m;
  auto& sl = shared.l;
  auto& so = shared.o;
  if (sub == 0) {
#pragma unroll
    for (int i = 0; i < G; ++i) {
      if (lane == 0) sm[warp][i] = s.m[i], sl[warp][i] = s.l[i];
#pragma unroll
      for (int e = 0; e < 8; ++e) so[warp][i][dim + e] = s.o[i][e];
    }
  }
  sync();
  const int padded = a.kv.padded_dim;
  const int slot_floats = G * (padded + 2);
  float* partial = a.partial + (static_cast<int64_t>(token) * columns + column) * splits * slot_floats;
  for (int at = thread; at < G * padded; at += kThreads) {
    const int i = at / padded, e = at % padded;
    float top = -INFINITY, l = 0, o = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, sm[w][i]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float f = sm[w][i] == -INFINITY ? 0 : exp2f(sm[w][i] - top);
      l += sl[w][i] * f;
      o += so[w][i][e] * f;
    }
    if (span.active == 1) {
      if (i < count && e < a.kv.head_dim)
        a.out[(static_cast<int64_t>(token) * a.heads + first_head + i) * a.kv.head_dim + e] = o / l;
    } else {
      float* mine = partial + split * slot_floats + i * (padded + 2);
      mine[2 + e] = o;
      if (e == 0) mine[0] = top, mine[1] = l;
    }
  }
  if (span.active == 1) return;

  // The block that ends last puts the splits together, in their order.
  __threadfence();
  sync();
  if (thread == 0) {
    int32_t* ticket = a.tickets + token * columns + column;
    shared.last = atomicAdd(ticket, 1) == span.active - 1;
    if (shared.last) *ticket = 0;
  }
  sync();
  if (!shared.last) return;
  __threadfence();
  for (int at = thread; at < count * a.kv.head_dim; at += kThreads) {
    const int i = at / a.kv.head_dim, e = at % a.kv.head_dim;
    const float* from = partial + i * (padded + 2);
    float top = -INFINITY, l = 0, o = 0;
    for (int n = 0; n < span.active; ++n) top = fmaxf(top, __ldcg(from + n * slot_floats));
    for (int n = 0; n < span.active; ++n) {
      const float f = exp2f(__ldcg(from + n * slot_floats) - top);
      l += __ldcg(from + n * slot_floats + 1) * f;
      o += __ldcg(from + n * slot_floats + 2 + e) * f;
    }
    a.out[(static_cast<int64_t>(token) * a.heads + first_head + i) * a.kv.head_dim + e] = o / l;
  }
}

}  // namespace celer::cuda::attention
