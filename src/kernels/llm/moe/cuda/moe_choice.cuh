// Top-k routing of a token, on the device.
#pragma once

#include <cfloat>
#include <climits>

#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}

// An expert that is chosen already has this NaN, which no arithmetic of a GPU gives.
constexpr uint32_t kTaken = 0xffc00000u;
// A monotonic key of a float, NaN above all; 0 for those taken.
__device__ __forceinline__ uint32_t OrderOf(float v) {
  const uint32_t bits = __float_as_uint(v + 0.0f);  // one zero
  return __float_as_uint(v) == kTaken ? 0
                                      : bits ^ (static_cast<int32_t>(bits) < 0 ? 0xffffffffu : 0x80000000u);
}

constexpr int kRanks = kMaxTopExperts / 32;  // of a lane: lane, lane + 32, ..

// By one warp: the experts with the largest `choice`, tie-break by the lower index, and what `values` has of each in
// `chosen`. Both are in shared memory and may be one; `choice` loses those that were taken. `start` gets the best one's
// before that.
template <class Start>
__device__ __forceinline__ void TakeBest(float* choice, const float* values, int experts, int top, int lane,
                                         int32_t* expert_of, float (&chosen)[kRanks], const Start& start) {
  constexpr uint32_t kAll = 0xffffffffu;
  uint32_t order = 0;  // of the best of this lane's experts, every 32nd
  int at = INT_MAX;
  const auto look = [&] {
    order = 0, at = INT_MAX;
    for (int e = lane; e < experts; e += 32) {
      const uint32_t other = OrderOf(choice[e]);
      if (other > order) order = other, at = e;
    }
  };
  const auto best = [&] {
    return __reduce_min_sync(kAll, order == __reduce_max_sync(kAll, order) ? at : INT_MAX);
  };
  look();
  const int first = best();
  start(first == INT_MAX ? -INFINITY : values[first]);
  __syncwarp();
#pragma unroll
  for (float& value : chosen) value = -INFINITY;
  for (int k = 0; k < top; ++k) {
    const int found = best(), expert = found == INT_MAX ? k : found;
    if (lane == 0) expert_of[k] = expert;
    const float value = found == INT_MAX ? -INFINITY : values[found];
#pragma unroll
    for (int j = 0; j < kRanks; ++j)
      if (k == j * 32 + lane) chosen[j] = value;
    __syncwarp();
    if (expert % 32 == lane) {
      choice[expert] = __uint_as_float(kTaken);
      look();
    }
  }
}

// By one warp: puts minus infinity at the experts of all but the best groups.
__device__ __forceinline__ void KeepBestGroups(const MoeForm& form, float* choice, int experts, int lane) {
  constexpr uint32_t kAll = 0xffffffffu;
  int lanes = 32;  // of a group
  while (lanes * form.groups > 32) lanes /= 2;
  const int size = experts / form.groups, group = lane / lanes;
  float first = -INFINITY, second = -INFINITY;
  const auto merge = [&](float other_first, float other_second) {
    second = other_first > first ? fmaxf(first, other_second) : fmaxf(second, other_first);
    first = fmaxf(first, other_first);
  };
  if (group < form.groups)
    for (int i = lane % lanes; i < size; i += lanes) merge(choice[group * size + i], -INFINITY);
  for (int i = lanes / 2; i > 0; i /= 2) {
    const float other_first = __shfl_xor_sync(kAll, first, i),
                other_second = __shfl_xor_sync(kAll, second, i);
    merge(other_first, other_second);
  }
  const uint32_t mine = OrderOf(form.group_by_best_two && size > 1 ? first + second : first);
  int better = 0;
  for (int g = 0; g < form.groups; ++g) {
    const uint32_t other = __shfl_sync(kAll, mine, g * lanes);
    better += other > mine || (other == mine && g < group) ? 1 : 0;
  }
  const uint32_t kept = __ballot_sync(kAll, better < form.groups_used);
  for (int e = lane; e < experts; e += 32)
    if ((kept >> (e / size * lanes) & 1) == 0) choice[e] = -INFINITY;
  __syncwarp();
}

// By one warp, as RouteToken() in moe.h, of any form: `choice` has the logits and their bias. Not inlined, so that
// kernels need no registers for it where it is not called.
inline __device__ __noinline__ void ChooseByScores(const MoeForm& form, float* choice, float* scores,
                                                   int experts, int top, int lane, int32_t* expert_of,
                                                   float* weight_of) {
  bool bad = false;
  float most = -INFINITY, total = 0;
  for (int e = lane; e < experts; e += 32) bad = bad || choice[e] != choice[e], most = fmaxf(most, choice[e]);
  bad = __any_sync(0xffffffffu, bad);
  if (!form.sigmoid) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
    for (int e = lane; e < experts; e += 32) total += expf(choice[e] - most);
    total = WarpSum(total);
  }
  const bool by_logits = !form.sigmoid && form.choice_bias == nullptr && form.groups == 1;
  for (int e = lane; e < experts; e += 32) {
    const float logit = choice[e];
    const float score = bad            ? __int_as_float(0x7fc00000)
                        : form.sigmoid ? 1.0f / (1.0f + expf(-logit))
                                       : expf(logit - most) / total;
    scores[e] = score;
    float by = by_logits ? logit : score;
    if (form.choice_bias) by += __ldg(form.choice_bias + e);
    choice[e] = by != by ? -FLT_MAX : by;
  }
  __syncwarp();
  if (form.groups > 1) KeepBestGroups(form, choice, experts, lane);
  float chosen[kRanks];
  TakeBest(choice, scores, experts, top, lane, expert_of, chosen, [](float) {});
  float divisor = 1;
  if (form.normalize) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kRanks; ++j)
      if (j * 32 + lane < top) sum += chosen[j];
    sum = WarpSum(sum);
    divisor = !form.normalize_floor      ? sum + form.normalize_eps
              : sum < form.normalize_eps ? form.normalize_eps
                                         : sum;
  }
#pragma unroll
  for (int j = 0; j < kRanks; ++j)
    if (j * 32 + lane < top) weight_of[j * 32 + lane] = chosen[j] / divisor * form.scale;
}

// By one warp: the top experts of a token and their weights, as RouteToken() in moe.h. `logits` are in shared memory,
// with their bias, and are lost; so is `scores`, of the same size. kScores: whether forms other than by logits occur.
template <bool kScores>
__device__ __forceinline__ void ChooseExperts(const MoeForm& form, float* logits, float* scores, int experts,
                                              int top, int lane, int32_t* expert_of, float* weight_of) {
  if constexpr (kScores)
    if (!form.ByLogits())
      return ChooseByScores(form, logits, scores, experts, top, lane, expert_of, weight_of);
  float total = 0, most = 0, chosen[kRanks];
  TakeBest(logits, logits, experts, top, lane, expert_of, chosen, [&](float best) {
    most = best;
    if (form.normalize) return;
    for (int e = lane; e < experts; e += 32) total += expf(logits[e] - best);
    total = WarpSum(total);
  });
#pragma unroll
  for (float& value : chosen) value = expf(value - most);
  if (form.normalize) {
#pragma unroll
    for (const float value : chosen) total += value;
    total = WarpSum(total);
  }
#pragma unroll
  for (int j = 0; j < kRanks; ++j)
    if (j * 32 + lane < top) weight_of[j * 32 + lane] = chosen[j] / total * form.scale;
}

// By one warp: shared experts behind those. `gate`: the logit of their weight, or null.
__device__ __forceinline__ void AddShared(int first, int shared, const float* gate, int lane,
                                          int32_t* expert_of, float* weight_of) {
  if (lane >= shared) return;
  expert_of[lane] = first + lane;
  weight_of[lane] = gate ? 1.0f / (1.0f + expf(-__ldcg(gate))) : 1.0f;
}

}  // namespace celer::cuda
