// Attention of 16 tokens in decode_batch_cuda.cuh: up to four query heads of one token and KV head at once,
// on the tensor cores, so that keys and values are read once for all of them (GQA).
//
// A warp takes eight keys at a time. Split precision: scores are queries (rows) by keys; row g has the f16
// rounding of head g % 4, row g + 8 its residual. The sums are values by weights: column g has the weights of
// head g, column g + 4 their residual in f16. So both products have 22 bits of their f32 factor.
#pragma once

#include <cuda_fp16.h>

#include "kernels/llm/decode_step/decode_batch_params.cuh"
#include "kernels/llm/decode_step/key_sums.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_product.cuh"

namespace celer::cuda::batch {

constexpr int kItemHeads = 4;

// What the warps of an item leave for each other; D dimensions of a head. Half of them write their sums, the
// others add theirs.
template <int D>
struct GroupRoom {
  uint4 q[D / 16][32];  // a lane's factor for 16 dimensions
  float m[kWarps / 2][kItemHeads], l[kWarps / 2][kItemHeads];
  float4 o[kWarps / 2][D / 32][32];
};

__device__ __forceinline__ void MmaF16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaF16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
// Two values in f16, and their residuals.
__device__ __forceinline__ void SplitF16(float a, float b, uint32_t& upper, uint32_t& rest) {
  const __half2 pair = __floats2half2_rn(a, b);
  const float2 taken = __half22float2(pair);
  const __half2 left = __floats2half2_rn(a - taken.x, b - taken.y);
  upper = reinterpret_cast<const uint32_t&>(pair), rest = reinterpret_cast<const uint32_t&>(left);
}
__device__ __forceinline__ void ItemBarrier(int half, int warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(5 + half), "r"(warps * 32) : "memory");
}

// How heads become items, and how many of a block's warps take one: that must not depend on how many tokens
// there are, as the order of sums does on it.
template <int N>
struct Items {
  int group, parts, count;  // query heads of a KV head; items of them; all items
  int warps;

  __device__ __forceinline__ explicit Items(const BatchParams& b)
      : group(b.heads / b.kv_heads),
        parts((group + kItemHeads - 1) / kItemHeads),
        count(b.batch.count * b.kv_heads * parts),
        warps(N * b.kv_heads * parts <= static_cast<int>(gridDim.x) ? kWarps : kWarps / 2) {}
};

// `warp` is one of the item's. Lane 4g + t. Keys and values of earlier steps are on their way before the
// query is there; those of this step come last. `turn`: of the counters; `await_room`: until the sums there
// have been read.
template <Format F, int L, int N, class RoomFree>
__device__ __forceinline__ void AttendGroup(const BatchParams& b, const Layer& layer, Memory<F, N>& memory,
                                            const Items<N>& items, int item, uint32_t turn, int half,
                                            int warp, int lane, const RoomFree& await_room) {
  using step::Exp2;
  using step::LoadKv;
  constexpr int D = L * 8, kTiles = D / 16, kKeys = 8;
  using R = GroupRoom<D>;
  static_assert(sizeof(R) <= sizeof(memory.sums) && sizeof(R) - sizeof(R::o) / 2 <= sizeof(memory.sums[0]));
  auto& room = *reinterpret_cast<R*>(memory.sums[half]);
  const int g = lane / 4, t = lane % 4, warps = items.warps, head_dim = b.head_dim;
  const int token = item / (b.kv_heads * items.parts), within = item % (b.kv_heads * items.parts);
  const int kv_head = within / items.parts, first_of_group = within % items.parts * kItemHeads;
  const int head = kv_head * items.group + first_of_group,
            heads = min(kItemHeads, items.group - first_of_group);
  const int position = memory.position[token], old = memory.old[token];
  const int begin = layer.window > 0 ? max(0, position - static_cast<int>(layer.window) + 1) : 0;
  const int32_t* table = memory.table[token];
  // A lane's bytes of a key or value, from its dimension `dim` on.
  const auto place = [&](int key, int dim) {
    const int64_t block = table[key / kKvBlock];
    return (((block * b.kv_heads + kv_head) * kKvBlock + key % kKvBlock) * head_dim + dim) * 2;
  };
  uint4 k[D / 32], v[2][D / 64];  // k: of key g, 8 of each 32 dimensions; v: of keys 2t and 2t + 1, 8 of 64
  const auto load_k = [&](int base, int end) {
    const int key = base + g;
    const std::byte* from = key < end ? layer.k_cache + place(key, t * 8) : nullptr;
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      k[c] = make_uint4(0, 0, 0, 0);
      if (from && c * 32 + t * 8 < head_dim) k[c] = LoadKv(from + c * 64);
    }
  };
  const auto load_v = [&](int base, int end) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = base + 2 * t + j;
      const std::byte* from = key < end ? layer.v_cache + place(key, g * 8) : nullptr;
#pragma unroll
      for (int c = 0; c < D / 64; ++c) {
        v[j][c] = make_uint4(0, 0, 0, 0);
        if (from && c * 64 + g * 8 < head_dim) v[j][c] = LoadKv(from + c * 128);
      }
    }
  };
  int base = begin + warp * kKeys, end = old, stride = warps * kKeys;
  load_k(base, end);
  load_v(base, end);

  const uint32_t wanted = turn * static_cast<uint32_t>(head_dim / 16 * kEights<N>);
  await_room();
  if (warp < kTiles) {  // the factor of 16 dimensions
    if (lane < heads)
      while (!Reached(b.qkv_done + head + lane, wanted)) {
      }
    __syncwarp();
    const int dim = warp / 2 * 32 + t * 8 + warp % 2 * 4;
    float4 q = make_float4(0, 0, 0, 0);
    if (g % kItemHeads < heads && dim < head_dim)
      q = __ldcg(reinterpret_cast<const float4*>(
          b.q + (static_cast<int64_t>(token) * b.heads + head + g % kItemHeads) * head_dim + dim));
    const float f = b.scale * 1.4426950408889634f;
    uint4 a;
    SplitF16(q.x * f, q.y * f, a.x, a.y);
    SplitF16(q.z * f, q.w * f, a.z, a.w);
    room.q[warp][lane] = a;
  }
  ItemBarrier(half, warps);

  const uint32_t factors = SharedAddress(room.q) + lane * 16;
  float m = -INFINITY, l = 0,
        o[kTiles][4] = {};  // of head g % 4; o: dimensions 8g.. of columns 2t and 2t + 1
  for (bool fresh = false;; base += stride) {
    if (base >= end) {
      if (fresh || warp + 1 != warps) break;  // the last warp has the fewest keys
      fresh = true;
      Await(b.qkv_done + b.heads + kv_head, wanted, lane);
      Await(b.qkv_done + b.heads + b.kv_heads + kv_head, wanted, lane);
      base = max(begin, old), end = position + 1, stride = kKeys;
      load_k(base, end);
      load_v(base, end);
    }
    float c[2][4] = {};
#pragma unroll
    for (int s = 0; s < kTiles; ++s)
      MmaF16(c[s % 2], Load16(factors + s * 512), Word(k[s / 2], s % 2 * 2), Word(k[s / 2], s % 2 * 2 + 1));
    load_k(base + stride, end);
    float score[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      score[j] = (c[0][j] + c[1][j]) + (c[0][j + 2] + c[1][j + 2]);
      if (base + 2 * t + j >= end) score[j] = -INFINITY;
    }
    float top = fmaxf(score[0], score[1]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = fmaxf(top, m);
    const float shrink = Exp2(m - top);
    m = top;
    if (__any_sync(0xffffffffu, shrink != 1)) {
      l *= shrink;
      const float a = __shfl_sync(0xffffffffu, shrink, t * 8),
                  z = __shfl_sync(0xffffffffu, shrink, t * 8 + 4);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) o[n][0] *= a, o[n][1] *= z, o[n][2] *= a, o[n][3] *= z;
    }
    const float p0 = Exp2(score[0] - top), p1 = Exp2(score[1] - top);
    l += p0 + p1;
    uint32_t upper, rest;
    SplitF16(p0, p1, upper, rest);
    const uint32_t weights = g < kItemHeads ? upper : rest;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint32_t v0 = Word(v[0][n / 4], n % 4), v1 = Word(v[1][n / 4], n % 4);
      MmaF16(o[n], __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632), weights);
    }
    load_v(base + stride, end);
  }
  l += __shfl_xor_sync(0xffffffffu, l, 1);
  l += __shfl_xor_sync(0xffffffffu, l, 2);
  // Columns 2t and 2t + 4 meet: of the tiles a lane keeps half.
  constexpr int kKept = kTiles / 2;
  const bool later = t >= 2;
#pragma unroll
  for (int n = 0; n < kKept; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float give = later ? o[n][e] : o[n + kKept][e], keep = later ? o[n + kKept][e] : o[n][e];
      o[n][e] = keep + __shfl_xor_sync(0xffffffffu, give, 2);
    }
  const int slots = warps / 2, slot = warp % slots, its = t % 2 * 8;  // its: lane of head 2 (t % 2)
  if (warp >= slots) {
    if (t == 0 && g < kItemHeads) room.m[slot][g] = m, room.l[slot][g] = l;
#pragma unroll
    for (int n = 0; n < kKept; ++n) room.o[slot][n][lane] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
  }
  ItemBarrier(half, warps);
  if (warp < slots) {
    const float m2 = room.m[slot][g % kItemHeads], l2 = room.l[slot][g % kItemHeads], top = fmaxf(m, m2);
    const float f = top == -INFINITY ? 0 : Exp2(m - top), f2 = top == -INFINITY ? 0 : Exp2(m2 - top);
    __syncwarp();
    if (t == 0 && g < kItemHeads) room.m[slot][g] = top, room.l[slot][g] = l * f + l2 * f2;
    const float a = __shfl_sync(0xffffffffu, f, its), z = __shfl_sync(0xffffffffu, f, its + 4);
    const float a2 = __shfl_sync(0xffffffffu, f2, its), z2 = __shfl_sync(0xffffffffu, f2, its + 4);
#pragma unroll
    for (int n = 0; n < kKept; ++n) {
      float4& at = room.o[slot][n][lane];
      const float4 other = at;
      at = make_float4(o[n][0] * a + other.x * a2, o[n][1] * z + other.y * z2, o[n][2] * a + other.z * a2,
                       o[n][3] * z + other.w * z2);
    }
  }
  ItemBarrier(half, warps);
  for (int i = warp * 32 + lane; i < D * kItemHeads; i += warps * 32) {
    // The value is element i % 4 of what lane i / 4 % 32 kept of its tile i / 128.
    const int g2 = i / 16 % 8, t2 = i / 4 % 4, tile = i / 128 + (t2 >= 2 ? kKept : 0);
    const int h = t2 % 2 * 2 + i % 2, dim = tile / 4 * 64 + g2 * 8 + tile % 4 * 2 + i / 2 % 2;
    if (h >= heads || dim >= head_dim) continue;
    float top = -INFINITY, total = 0, sum = 0;
    for (int s = 0; s < slots; ++s) top = fmaxf(top, room.m[s][h]);
    for (int s = 0; s < slots; ++s) {
      const float f = Exp2(room.m[s][h] - top);
      total += room.l[s][h] * f;
      sum += reinterpret_cast<const float*>(room.o[s])[i] * f;
    }
    reinterpret_cast<__nv_bfloat16*>(b.attended)[PlaceOf<F, N>(token, (head + h) * head_dim + dim)] =
        __float2bfloat16(__fdividef(sum, total));
  }
  ItemBarrier(half, warps);
  if (warp == 0 && lane < heads) {
    const int from = (head + lane) * head_dim;
    for (int chunk = from / kChunk<N>; chunk <= (from + head_dim - 1) / kChunk<N>; ++chunk)
      Signal(b.attended_done + chunk);
  }
}

}  // namespace celer::cuda::batch
