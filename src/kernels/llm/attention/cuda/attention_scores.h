// What some families do to attention's scores besides scaling them.
#pragma once

#include "kernels/llm/attention/cuda/attention_cuda.h"

namespace celer::cuda {

struct AttentionScores {
  float softcap = 0;  // score = softcap * tanh(score / softcap); 0: none
  const float* sinks =
      nullptr;  // [heads]: one more score in the softmax of each, without a value; may be none
};

// LaunchAttention() with these.
cudaError_t LaunchAttention(const DeviceAttentionArgs& args, const AttentionScores& scores,
                            cudaStream_t stream);

namespace attention {

// What the kernels take: of scores in base 2.
struct ScoredArgs : DeviceAttentionArgs {
  AttentionScores scores;
};

#ifdef __CUDACC__
constexpr float kLog2e = 1.4426950408889634f;

// `cap` and the score in base 2.
__device__ __forceinline__ float SoftCap(float score, float cap) {
  // tanh(x) = 1 - 2 / (1 + e^(2x)); off by less than 2e-7, and a NaN stays one.
  const float e = exp2f(score * (2 * kLog2e / cap));
  return cap - __fdividef(2 * cap, 1.0f + e);
}
// What a sink adds to the sum of weights that are relative to `top`; nothing where there are no sinks. NaN where no
// score is a number.
__device__ __forceinline__ float SinkWeight(const AttentionScores& scores, int head, float top) {
  if (!scores.sinks) return 0;
  return exp2f(__ldg(scores.sinks + head) * kLog2e - top) + (top == -INFINITY ? top - top : 0.0f);
}
#endif

}  // namespace attention
}  // namespace celer::cuda
