// A mixture-of-experts block: norm, route each token to its top experts, run them, add their weighted sum
// (and an always-active shared expert's) to the residual. Mixtral, Qwen2-MoE and Qwen3-MoE differ in these
// fields alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/llm/gate_up/gate_up.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct ExpertWeights {
  WeightView gate, up;  // [intermediate, hidden]
  WeightView down;      // [hidden, intermediate]
};

struct MoeArgs {
  float* x = nullptr;  // [tokens, hidden], the residual; the result is added to it
  int64_t tokens = 0;
  const float* norm = nullptr;  // [hidden]
  float eps = 1e-5f;
  WeightView router;  // [experts, hidden]
  std::span<const ExpertWeights> experts;
  int64_t experts_per_token = 0;
  bool normalize_top = true;              // the chosen experts' weights are made to sum to 1
  const ExpertWeights* shared = nullptr;  // none in Mixtral and Qwen3
  WeightView shared_gate;                 // [1, hidden]: sigmoid of it scales the shared expert; may be none
  Activation activation = Activation::kSilu;
  ThreadPool* pool = nullptr;
};

void Moe(const MoeArgs& args);

// Which experts a token goes to, largest weight first (ties: lower index first), from its router logits.
struct Route {
  int32_t expert;
  float weight;
};
std::vector<Route> RouteToken(std::span<const float> logits, int64_t count, bool normalize);

}  // namespace celer
