// A mixture-of-experts block: norm, route each token to its top experts, run them, add their weighted sum
// (and an always-active shared expert's) to the residual. Families of mixtures differ in these fields alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/llm/gate_up/gate_up.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct ExpertWeights {
  WeightView gate, up;                                   // [intermediate, hidden]; gate may be none
  WeightView down;                                       // [hidden, intermediate]
  const float *gate_bias = nullptr, *up_bias = nullptr;  // [intermediate], both or none
  const float* down_bias = nullptr;                      // [hidden]; may be none
};

// How a token's experts and their weights come from the router's logits. An expert's score is the softmax of all
// logits, or the sigmoid of its own.
struct RouterForm {
  bool sigmoid = false;
  // Sparse mixer: the best expert, and then the best of the others; the weight of each is its softmax among those of which
  // it is the best and whose logits are at most 2 * jitter below its own, relatively. Nothing below applies to it.
  bool sparse_mixer = false;
  float jitter = 0;
  const float* bias = nullptr;  // [experts], added to the logits; may be none
  // [experts], added to the scores for choosing experts, not to the weights of those chosen; may be none.
  const float* choice_bias = nullptr;
  // Experts in `groups` equal runs: only those of the best `groups_used` are chosen from. A group is as good as its best
  // expert, or as the sum of its best two.
  int64_t groups = 1;
  int64_t groups_used = 1;
  bool group_by_best_two = false;
  bool normalize = true;                // divide the chosen experts' weights by their sum,
  float normalize_eps = 0;              // plus this,
  bool normalize_floor = false;         // or by this if the sum is less
  float scale = 1;                      // of the weights, last of all
  const float* expert_scale = nullptr;  // [experts], of the weights, too; may be none
};

struct MoeArgs {
  float* x = nullptr;   // [tokens, hidden], the residual; the result is added to it,
  float* to = nullptr;  // or to this, if it is not none
  int64_t tokens = 0;
  const float* norm = nullptr;         // [hidden]
  bool layer_norm = false;             // LayerNorm instead of RMSNorm
  const float* norm_bias = nullptr;    // [hidden], of LayerNorm; may be none
  const float* router_norm = nullptr;  // [hidden], if the router's input is normed by weights of its own
  bool weight_on_input = false;        // an expert's weight multiplies its input, not its output
  float eps = 1e-5f;
  WeightView router;  // [experts, hidden]
  std::span<const ExpertWeights> experts;
  int64_t experts_per_token = 0;
  RouterForm form;
  const ExpertWeights* shared = nullptr;  // none in Mixtral and Qwen3
  WeightView shared_gate;                 // [1, hidden]: sigmoid of it scales the shared expert; may be none
  Activation activation = Activation::kSilu;
  float swiglu_limit = 0;    // as in GateUpArgs
  float residual_scale = 1;  // of what is added to the residual
  ThreadPool* pool = nullptr;
};

void Moe(const MoeArgs& args);

// Which experts a token goes to, best first (ties: lower index first), from its router logits. A logit that is NaN
// makes all weights NaN.
struct Route {
  int32_t expert;
  float weight;
};
std::vector<Route> RouteToken(std::span<const float> logits, int64_t count, const RouterForm& form);

}  // namespace celer
