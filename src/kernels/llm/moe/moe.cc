#include "kernels/llm/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "device/aligned_vector.h"
#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/moe/experts_together.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

using Floats = AlignedVector<float>;

Floats MakeFloats(int64_t n) {
  return Floats(static_cast<size_t>(n));
}

// out[tokens, hidden] = down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate
Floats RunExpert(const MoeArgs& args, const ExpertWeights& expert, const float* x, int64_t tokens,
                 const LowRankBatch& added) {
  Floats up = MakeFloats(expert.gate ? tokens * expert.up.rows : 0),
         mid = MakeFloats(tokens * expert.up.rows);
  GateUp({.x = x,
          .tokens = tokens,
          .gate = expert.gate,
          .up = expert.up,
          .gate_bias = expert.gate_bias,
          .up_bias = expert.up_bias,
          .activation = args.activation,
          .swiglu_limit = args.swiglu_limit,
          .up_out = up.data(),
          .out = mid.data(),
          .pool = args.pool},
         added);
  Floats out = MakeFloats(tokens * expert.down.rows);
  Matmul({.x = mid.data(), .tokens = tokens, .pool = args.pool},
         {.w = expert.down, .bias = expert.down_bias, .out = out.data(), .out_stride = expert.down.rows},
         added);
  return out;
}

float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// Scores of all experts. NaN in one logit is in all of them.
std::vector<float> Scores(std::span<const float> logits, const RouterForm& form) {
  std::vector<float> scores(logits.begin(), logits.end());
  if (form.bias)
    for (size_t e = 0; e < scores.size(); ++e) scores[e] += form.bias[e];
  if (form.sigmoid) {
    const bool bad = std::any_of(scores.begin(), scores.end(), [](float x) { return std::isnan(x); });
    for (float& x : scores) x = bad ? std::numeric_limits<float>::quiet_NaN() : Sigmoid(x);
    return scores;
  }
  const float max = *std::max_element(scores.begin(), scores.end());
  float total = 0;
  for (const float x : scores) total += std::exp(x - max);
  for (float& x : scores) x = std::exp(x - max) / total;
  return scores;
}

// Puts minus infinity at the experts of all but the best groups.
void KeepBestGroups(const RouterForm& form, std::vector<float>* choice) {
  const auto size = static_cast<int64_t>(choice->size()) / form.groups;
  std::vector<float> best(form.groups);
  for (int64_t g = 0; g < form.groups; ++g) {
    std::vector<float> members(choice->begin() + g * size, choice->begin() + (g + 1) * size);
    const int64_t counted = form.group_by_best_two ? std::min<int64_t>(2, size) : 1;
    std::partial_sort(members.begin(), members.begin() + counted, members.end(), std::greater<>());
    best[g] = std::accumulate(members.begin(), members.begin() + counted, 0.0f);
  }
  std::vector<int64_t> order(best.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return best[a] > best[b]; });
  for (int64_t i = form.groups_used; i < form.groups; ++i)
    std::fill_n(choice->begin() + order[i] * size, size, -std::numeric_limits<float>::infinity());
}

void ScaleWeights(const RouterForm& form, std::vector<Route>* routes) {
  float divisor = 1;
  if (form.normalize) {
    float sum = 0;
    for (const Route& route : *routes) sum += route.weight;
    divisor = sum + form.normalize_eps;
    if (form.normalize_floor) divisor = sum < form.normalize_eps ? form.normalize_eps : sum;  // NaN stays NaN
  }
  for (Route& route : *routes) {
    route.weight = route.weight / divisor * form.scale;
    if (form.expert_scale) route.weight *= form.expert_scale[route.expert];
  }
}

// The best expert but `taken` (-1: none), and its weight.
Route BestOfOthers(std::span<const float> logits, int32_t taken, float jitter) {
  int32_t best = taken == 0 ? 1 : 0;
  for (int32_t e = 0; e < std::ssize(logits); ++e)
    if (e != taken && logits[e] > logits[best]) best = e;
  float sum = 0;
  for (int32_t e = 0; e < std::ssize(logits); ++e) {
    const float behind = logits[best] - logits[e], scale = std::max(std::abs(logits[e]), logits[best]);
    if (e != taken && !(behind / scale > 2 * jitter)) sum += std::exp(-behind);
  }
  return {best, 1 / sum};
}

std::vector<Route> MixSparsely(std::span<const float> logits, float jitter) {
  const Route first = BestOfOthers(logits, -1, jitter), second = BestOfOthers(logits, first.expert, jitter);
  return {first, second};
}

// Each expert by all threads, one after the other.
void RunExpertsByTurns(const MoeArgs& args, std::span<const std::vector<MoeSlot>> by_expert,
                       const float* normed, float* to, const LowRankBatch& added) {
  const int64_t hidden = args.router.cols, top = args.experts_per_token;
  Floats contribution = MakeFloats(args.tokens * top * hidden);  // [tokens, rank, hidden], weighted
  for (size_t e = 0; e < by_expert.size(); ++e) {
    const std::vector<MoeSlot>& slots = by_expert[e];
    if (slots.empty()) continue;
    Floats gathered = MakeFloats(static_cast<int64_t>(slots.size()) * hidden);
    for (size_t i = 0; i < slots.size(); ++i) {
      float* const row = gathered.data() + static_cast<int64_t>(i) * hidden;
      std::copy_n(normed + slots[i].token * hidden, hidden, row);
      if (args.weight_on_input) vec::Scale(slots[i].weight, row, hidden);
    }
    std::vector<int32_t> mix_of;
    for (const MoeSlot& slot : slots)
      if (!added.empty()) mix_of.push_back(added.mix_of[slot.token]);
    const Floats out = RunExpert(args, args.experts[e], gathered.data(), static_cast<int64_t>(slots.size()),
                                 {.mixes = added.mixes, .mix_of = mix_of});
    for (size_t i = 0; i < slots.size(); ++i)
      vec::Axpy(args.weight_on_input ? 1.0f : slots[i].weight, out.data() + static_cast<int64_t>(i) * hidden,
                contribution.data() + (slots[i].token * top + slots[i].rank) * hidden, hidden);
  }
  for (int64_t i = 0; i < args.tokens * top; ++i)
    vec::Axpy(args.residual_scale, contribution.data() + i * hidden, to + i / top * hidden, hidden);
}

}  // namespace

std::vector<Route> RouteToken(std::span<const float> logits, int64_t count, const RouterForm& form) {
  if (form.sparse_mixer) return MixSparsely(logits, form.jitter);
  const std::vector<float> scores = Scores(logits, form);
  // What experts are chosen by; a sort needs a strict weak order, so NaN is a number here. Where nothing is added to the
  // scores, the logits themselves: scores may have rounded to equal numbers.
  std::vector<float> choice = scores;
  if (!form.choice_bias && form.groups == 1)
    for (size_t e = 0; e < choice.size(); ++e) choice[e] = logits[e] + (form.bias ? form.bias[e] : 0);
  if (form.choice_bias)
    for (size_t e = 0; e < choice.size(); ++e) choice[e] += form.choice_bias[e];
  for (float& x : choice)
    if (std::isnan(x)) x = std::numeric_limits<float>::lowest();
  if (form.groups > 1) KeepBestGroups(form, &choice);
  std::vector<int32_t> order(choice.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return choice[a] > choice[b]; });
  std::vector<Route> routes;
  for (int64_t i = 0; i < count; ++i) routes.push_back({order[i], scores[order[i]]});
  ScaleWeights(form, &routes);
  return routes;
}

void Moe(const MoeArgs& args) {
  Moe(args, {});
}

void Moe(const MoeArgs& args, const LowRankBatch& added) {
  const int64_t hidden = args.router.cols;
  const int64_t top = args.experts_per_token;
  CELER_CHECK_EQ(args.router.rows, static_cast<int64_t>(args.experts.size()));
  CELER_CHECK_LE(top, args.router.rows);
  if (args.form.sparse_mixer) CELER_CHECK_EQ(top, 2);

  Floats normed = MakeFloats(args.tokens * hidden);
  if (args.layer_norm)
    LayerNorm({.x = args.x,
               .scale = args.norm,
               .shift = args.norm_bias,
               .eps = args.eps,
               .out = normed.data(),
               .rows = args.tokens,
               .cols = hidden});
  else
    RmsNorm({.x = args.x,
             .weight = args.norm,
             .eps = args.eps,
             .rows = args.tokens,
             .cols = hidden,
             .out = normed.data()});
  float* const to = args.to ? args.to : args.x;
  Floats logits = MakeFloats(args.tokens * args.router.rows);
  const MatmulOutput to_logits = {.w = args.router, .out = logits.data(), .out_stride = args.router.rows};
  if (args.router_norm)
    Matmul({.x = args.x, .tokens = args.tokens, .norm = args.router_norm, .eps = args.eps, .pool = args.pool},
           to_logits, added);
  else
    Matmul({.x = normed.data(), .tokens = args.tokens, .pool = args.pool}, to_logits, added);

  // Tokens grouped by expert, so that each expert's weights are read once; outputs are kept per (token, rank)
  // and added in rank order, so that a token's sum does not depend on the rest of the batch.
  std::vector<std::vector<MoeSlot>> by_expert(args.experts.size());
  for (int64_t t = 0; t < args.tokens; ++t) {
    const std::span<const float> row(logits.data() + t * args.router.rows, args.experts.size());
    const std::vector<Route> routes = RouteToken(row, top, args.form);
    for (int64_t k = 0; k < top; ++k) {
      const Route& route = routes[k];
      by_expert[route.expert].push_back({t, k, route.weight});
    }
  }
  if (added.empty() && FewSlots(args))
    RunExpertsTogether(args, by_expert, normed.data(), to);
  else
    RunExpertsByTurns(args, by_expert, normed.data(), to, added);

  if (args.shared) {
    const Floats out = RunExpert(args, *args.shared, normed.data(), args.tokens, added);
    Floats gate(static_cast<size_t>(args.tokens), 1.0f);
    if (args.shared_gate) {
      Matmul({.x = normed.data(), .tokens = args.tokens, .pool = args.pool},
             {.w = args.shared_gate, .out = gate.data(), .out_stride = 1}, added);
      for (float& g : gate) g = Sigmoid(g);
    }
    for (int64_t t = 0; t < args.tokens; ++t)
      vec::Axpy(args.residual_scale * gate[t], out.data() + t * hidden, to + t * hidden, hidden);
  }
}

}  // namespace celer
