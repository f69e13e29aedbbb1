// norm + gate and up projections + activation: act(gate(x)) * up(x), or act(up(x)) without a gate.
#pragma once

#include <cstdint>
#include <optional>

#include "device/thread_pool.h"
#include "kernels/llm/weight_view.h"
#include "kernels/shared/activation/activation.h"

namespace celer {

struct GateUpArgs {
  const float* x = nullptr;  // [tokens, hidden]
  int64_t tokens = 0;
  const float* norm = nullptr;       // [hidden]; none when x is normed already (experts share one norm)
  bool layer_norm = false;           // LayerNorm instead of RMSNorm
  const float* norm_bias = nullptr;  // [hidden], of LayerNorm; may be none
  float eps = 1e-5f;
  WeightView gate, up;  // [intermediate, hidden] each; gate may be none
  // [intermediate]; with a gate both or none.
  const float *gate_bias = nullptr, *up_bias = nullptr;
  Activation activation = Activation::kSilu;
  float swiglu_limit = 0;  // of ActivateMul
  // Of a token's gate only what lies above its mean by this many standard deviations is left, less that bound. Not with
  // biases.
  std::optional<float> cut = std::nullopt;
  float* up_out = nullptr;  // scratch [tokens, intermediate]; without a gate none is needed
  float* out = nullptr;     // [tokens, intermediate]
  int64_t out_stride = 0;   // from one token to the next, in both; 0: intermediate
  ThreadPool* pool = nullptr;
};

void GateUp(const GateUpArgs& args);

}  // namespace celer
