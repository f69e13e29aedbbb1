// Attention of decode_batch_cuda.cuh: one token's head by half of a block's warps.
#pragma once

#include "kernels/llm/decode_step/decode_batch_params.cuh"
#include "kernels/llm/decode_step/key_sums.cuh"

namespace celer::cuda::batch {

// What the warps of an item leave for each other.
template <int L, int N>
struct Room {
  float m[kAttendWarps], l[kAttendWarps];
  float fresh[N];  // the scores of this step's tokens, the token's own last
  float o[kAttendWarps][L * 8];
};

__device__ __forceinline__ void HalfBarrier(int half) {
  asm volatile("bar.sync %0, %1;" ::"r"(5 + half), "n"(kAttendWarps * 32) : "memory");
}

// `warp` is one of the half's. L lanes hold one key, 8 dimensions each. Keys and values of earlier tokens are
// on their way before the query is there, and the next ones before these are done; those of this step come
// last. `turn`: of the counters; `await_room`: until the sums there have been read.
template <Format F, int L, int N, class RoomFree>
__device__ __forceinline__ void AttendItem(const BatchParams& b, const Layer& layer, Memory<F, N>& memory,
                                           int token, int head, uint32_t turn, int half, int warp, int lane,
                                           const RoomFree& await_room) {
  using step::Exp2;
  using step::LoadKv;
  constexpr int kKeys = 32 / L, kLoads = step::kKeyLoads, kStep = kKeys * kLoads;
  static_assert(sizeof(Room<L, N>) <= sizeof(memory.sums[0]));
  auto& room = *reinterpret_cast<Room<L, N>*>(memory.sums[half]);
  const int sub = lane / L, dim = lane % L * 8, head_dim = b.head_dim,
            kv_head = head / (b.heads / b.kv_heads);
  const bool inside = dim < head_dim;
  const int position = memory.position[token], old = memory.old[token];
  const int begin = layer.window > 0 ? max(0, position - static_cast<int>(layer.window) + 1) : 0;
  const int32_t* table = memory.table[token];
  const auto place = [&](int key) {
    const int64_t block = table[key / kKvBlock];
    return (((block * b.kv_heads + kv_head) * kKvBlock + key % kKvBlock) * head_dim + dim) * 2;
  };
  uint4 k[kLoads], v[kLoads];
  const auto load = [&](const std::byte* cache, int base, uint4(&to)[kLoads]) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int key = base + j * kKeys + sub;
      to[j] = make_uint4(0, 0, 0, 0);
      if (key < old && inside) to[j] = LoadKv(cache + place(key));
    }
  };
  const int first = begin + warp * kStep;
  load(layer.k_cache, first, k);
  load(layer.v_cache, first, v);

  const uint32_t wanted = turn * static_cast<uint32_t>(head_dim / 16 * kEights<N>);
  Await(b.qkv_done + head, wanted, lane);
  float q[8] = {};
  if (inside) {
    const float* from = b.q + (static_cast<int64_t>(token) * b.heads + head) * head_dim + dim;
    const float4 low = __ldcg(reinterpret_cast<const float4*>(from)),
                 high = __ldcg(reinterpret_cast<const float4*>(from) + 1);
    const float f = b.scale * 1.4426950408889634f;
    q[0] = low.x * f, q[1] = low.y * f, q[2] = low.z * f, q[3] = low.w * f;
    q[4] = high.x * f, q[5] = high.y * f, q[6] = high.z * f, q[7] = high.w * f;
  }

  step::KeySums sums;
  for (int base = first; base < old; base += kAttendWarps * kStep) {
    float score[kLoads];
    step::ScoreKeys<__half>(q, k, score);
    load(layer.k_cache, base + kAttendWarps * kStep, k);
    step::JoinScores<L>(score);
    step::WeighValues<__half, L>(score, base + sub, old, v, sums);
    load(layer.v_cache, base + kAttendWarps * kStep, v);
  }
  step::JoinLanes<L>(sums);
  await_room();
  if (sub == 0) {
    if (lane == 0) room.m[warp] = sums.m, room.l[warp] = sums.l;
#pragma unroll
    for (int e = 0; e < 8; ++e) room.o[warp][dim + e] = sums.o[e];
  }
  const int new_begin = max(begin, old), fresh = position + 1 - new_begin;
  if (warp == kAttendWarps - 1) {  // which has the fewest keys
    Await(b.qkv_done + b.heads + kv_head, wanted, lane);
    for (int base = 0; base < fresh; base += kKeys) {
      float dot = 0;
      if (inside && base + sub < fresh) {
        float f[8];
        step::Unpack<__half>(LoadKv(layer.k_cache + place(new_begin + base + sub)), f);
#pragma unroll
        for (int e = 0; e < 8; ++e) dot += q[e] * f[e];
      }
#pragma unroll
      for (int apart = 1; apart < L; apart *= 2) dot += __shfl_xor_sync(0xffffffffu, dot, apart);
      if (lane % L == 0 && base + sub < fresh) room.fresh[base + sub] = dot;
    }
  }
  Await(b.qkv_done + b.heads + b.kv_heads + kv_head, wanted, lane);
  HalfBarrier(half);
  const int at = warp * 32 + lane;
  if (at < head_dim) {
    const auto value = [&](int i) {
      const std::byte* from = layer.v_cache + place(new_begin + i) - dim * 2 + at * 2;
      return __half2float(__ushort_as_half(__ldcg(reinterpret_cast<const unsigned short*>(from))));
    };
    const float own_v = value(fresh - 1);
    float top = room.fresh[fresh - 1], total = 0, sum = 0;
    for (int i = 0; i + 1 < fresh; ++i) top = fmaxf(top, room.fresh[i]);
#pragma unroll
    for (int w = 0; w < kAttendWarps; ++w) top = fmaxf(top, room.m[w]);
#pragma unroll
    for (int w = 0; w < kAttendWarps; ++w) {
      const float f = Exp2(room.m[w] - top);
      total += room.l[w] * f;
      sum += room.o[w][at] * f;
    }
    for (int i = 0; i + 1 < fresh; ++i) {
      const float f = Exp2(room.fresh[i] - top);
      total += f;
      sum += value(i) * f;
    }
    const float f = Exp2(room.fresh[fresh - 1] - top);
    total += f;
    sum += own_v * f;
    reinterpret_cast<__nv_bfloat16*>(b.attended)[PlaceOf<F, N>(token, head * head_dim + at)] =
        __float2bfloat16(__fdividef(sum, total));
  }
  HalfBarrier(half);
  if (warp == 0 && lane == 0) {
    const int begin_chunk = head * head_dim / kChunk<N>, end_chunk = ((head + 1) * head_dim - 1) / kChunk<N>;
    for (int chunk = begin_chunk; chunk <= end_chunk; ++chunk) Signal(b.attended_done + chunk);
  }
}

}  // namespace celer::cuda::batch
