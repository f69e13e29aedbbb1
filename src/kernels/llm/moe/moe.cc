#include "kernels/llm/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "device/aligned_vector.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

using Floats = AlignedVector<float>;

Floats MakeFloats(int64_t n) {
  return Floats(static_cast<size_t>(n));
}

// out[tokens, hidden] = down(act(gate(x)) * up(x))
Floats RunExpert(const MoeArgs& args, const ExpertWeights& expert, const float* x, int64_t tokens) {
  Floats up = MakeFloats(tokens * expert.up.rows), mid = MakeFloats(tokens * expert.gate.rows);
  GateUp({.x = x,
          .tokens = tokens,
          .gate = expert.gate,
          .up = expert.up,
          .activation = args.activation,
          .up_out = up.data(),
          .out = mid.data(),
          .pool = args.pool});
  Floats out = MakeFloats(tokens * expert.down.rows);
  Matmul({.x = mid.data(), .tokens = tokens, .pool = args.pool},
         {.w = expert.down, .out = out.data(), .out_stride = expert.down.rows});
  return out;
}

}  // namespace

std::vector<Route> RouteToken(std::span<const float> logits, int64_t count, bool normalize) {
  const float max = *std::max_element(logits.begin(), logits.end());
  float total = 0;
  for (const float logit : logits) total += std::exp(logit - max);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // NaN last: a sort needs a strict weak order.
  const auto key = [&](int32_t expert) {
    const float logit = logits[expert];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
  std::vector<Route> routes;
  float chosen = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t expert = order[i];
    routes.push_back({expert, std::exp(logits[expert] - max) / total});
    chosen += routes.back().weight;
  }
  if (normalize)
    for (Route& route : routes) route.weight /= chosen;
  return routes;
}

void Moe(const MoeArgs& args) {
  const int64_t hidden = args.router.cols;
  const int64_t top = args.experts_per_token;
  CELER_CHECK_EQ(args.router.rows, static_cast<int64_t>(args.experts.size()));
  CELER_CHECK_LE(top, args.router.rows);

  Floats normed = MakeFloats(args.tokens * hidden);
  RmsNorm({.x = args.x,
           .weight = args.norm,
           .eps = args.eps,
           .rows = args.tokens,
           .cols = hidden,
           .out = normed.data()});
  Floats logits = MakeFloats(args.tokens * args.router.rows);
  Matmul({.x = normed.data(), .tokens = args.tokens, .pool = args.pool},
         {.w = args.router, .out = logits.data(), .out_stride = args.router.rows});

  // Tokens grouped by expert, so that each expert's weights are read once; outputs are kept per (token, rank)
  // and added in rank order, so that a token's sum does not depend on the rest of the batch.
  struct Slot {
    int64_t token, rank;
    float weight;
  };
  std::vector<std::vector<Slot>> by_expert(args.experts.size());
  for (int64_t t = 0; t < args.tokens; ++t) {
    const std::span<const float> row(logits.data() + t * args.router.rows, args.experts.size());
    const std::vector<Route> routes = RouteToken(row, top, args.normalize_top);
    for (int64_t k = 0; k < top; ++k) {
      const Route& route = routes[k];
      by_expert[route.expert].push_back({t, k, route.weight});
    }
  }
  Floats contribution = MakeFloats(args.tokens * top * hidden);  // [tokens, rank, hidden], weighted
  for (size_t e = 0; e < by_expert.size(); ++e) {
    const std::vector<Slot>& slots = by_expert[e];
    if (slots.empty()) continue;
    Floats gathered = MakeFloats(static_cast<int64_t>(slots.size()) * hidden);
    for (size_t i = 0; i < slots.size(); ++i)
      std::copy_n(normed.data() + slots[i].token * hidden, hidden,
                  gathered.data() + static_cast<int64_t>(i) * hidden);
    const Floats out = RunExpert(args, args.experts[e], gathered.data(), static_cast<int64_t>(slots.size()));
    for (size_t i = 0; i < slots.size(); ++i)
      vec::Axpy(slots[i].weight, out.data() + static_cast<int64_t>(i) * hidden,
                contribution.data() + (slots[i].token * top + slots[i].rank) * hidden, hidden);
  }
  for (int64_t i = 0; i < args.tokens * top; ++i)
    vec::Axpy(1.0f, contribution.data() + i * hidden, args.x + i / top * hidden, hidden);

  if (args.shared) {
    const Floats out = RunExpert(args, *args.shared, normed.data(), args.tokens);
    Floats gate(static_cast<size_t>(args.tokens), 1.0f);
    if (args.shared_gate) {
      Matmul({.x = normed.data(), .tokens = args.tokens, .pool = args.pool},
             {.w = args.shared_gate, .out = gate.data(), .out_stride = 1});
      for (float& g : gate) g = 1.0f / (1.0f + std::exp(-g));
    }
    for (int64_t t = 0; t < args.tokens; ++t)
      vec::Axpy(gate[t], out.data() + t * hidden, args.x + t * hidden, hidden);
  }
}

}  // namespace celer
