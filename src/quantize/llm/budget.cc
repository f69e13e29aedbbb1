#include "quantize/llm/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace celer {
namespace {

// A step from one format of a matrix to a larger one.
struct Step {
  size_t tensor = 0;  // of `prices`
  size_t to = 0;      // of its formats
  double gain = 0;    // loss that goes, for each byte that comes
};

// The convex hull of (bytes, loss), from the smallest format on: each step gains less per byte than the one
// before.
std::vector<size_t> ConvexHull(const std::vector<FormatPrice>& prices) {
  std::vector<size_t> out;
  for (size_t i = 0; i < prices.size(); ++i) {
    const auto rate = [&](size_t a, size_t b) {
      return (prices[a].loss - prices[b].loss) / static_cast<double>(prices[b].bytes - prices[a].bytes);
    };
    if (!out.empty() && prices[i].loss >= prices[out.back()].loss) continue;
    if (!out.empty() && prices[i].bytes == prices[out.back()].bytes) out.pop_back();
    while (out.size() >= 2 && rate(out.back(), i) >= rate(out[out.size() - 2], out.back())) out.pop_back();
    out.push_back(i);
  }
  return out;
}

int64_t AllowedBytes(const Budget& budget, const QuantizePlan& plan) {
  if (budget.bytes > 0) return budget.bytes;
  int64_t vectors = 0, weights = 0;
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.shape.rank() < 2)
      vectors += tensor.bytes_after();
    else
      weights += tensor.rows() * tensor.cols();
  return vectors +
         static_cast<int64_t>(std::floor(budget.bits_per_weight / 8 * static_cast<double>(weights)));
}

std::string Figure(const Budget& budget, const QuantizePlan& plan) {
  if (budget.bytes > 0) return fmt::format("{} bytes", plan.bytes_after());
  return fmt::format("{:.3f} bits per weight", plan.bits_per_weight());
}

// The matrix that takes most of what no choice of formats changes; nullptr if none does.
const PlannedTensor* LargestFixed(std::span<const TensorPrices> formats, const QuantizePlan& plan) {
  std::vector<bool> free(plan.tensors.size());
  for (const TensorPrices& entry : formats) free[entry.tensor] = true;
  const PlannedTensor* out = nullptr;
  for (size_t i = 0; i < plan.tensors.size(); ++i)
    if (!free[i] && plan.tensors[i].shape.rank() >= 2 &&
        (!out || plan.tensors[i].bytes_after() > out->bytes_after()))
      out = &plan.tensors[i];
  return out;
}

}  // namespace

Result<std::vector<TensorPrices>> ListFormats(const QuantizePlan& plan, const Recipe& recipe,
                                              std::span<const Target> among) {
  std::vector<TensorPrices> out;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    if (tensor.place.part == Part::kVector || tensor.place.part == Part::kRouter) continue;
    if (std::any_of(recipe.rules.begin(), recipe.rules.end(),
                    [&](const Recipe::Rule& rule) { return MatchesPattern(rule.pattern, tensor.name); }))
      continue;
    const bool table = tensor.place.part == Part::kHead || tensor.place.part == Part::kEmbedding;
    TensorPrices entry{i, {}};
    for (const Target& target : among) {
      if (!target.Fits(tensor.cols())) continue;
      if (table && target.kind != Target::Kind::kStored) continue;  // a folder keeps them as they are
      PlannedTensor as = tensor;
      as.target = target;
      entry.prices.push_back({target, as.bytes_after(), 0});
    }
    if (entry.prices.empty()) {
      if (table || tensor.target.kind == Target::Kind::kKeep) continue;
      return Error::Invalid("'", tensor.name, "' has ", tensor.cols(),
                            " columns, which none of the formats to choose from divides; allow others with "
                            "--among, or keep it: --tensor '",
                            tensor.name, "=keep'");
    }
    std::stable_sort(entry.prices.begin(), entry.prices.end(),
                     [](const FormatPrice& a, const FormatPrice& b) { return a.bytes < b.bytes; });
    out.push_back(std::move(entry));
  }
  return out;
}

Status CheckBudget(std::span<const TensorPrices> formats, const Budget& budget, QuantizePlan plan) {
  for (const TensorPrices& entry : formats) plan.tensors[entry.tensor].target = entry.prices.front().target;
  if (plan.bytes_after() <= AllowedBytes(budget, plan)) return {};
  std::string remedy = "; ask for more, or allow smaller ones with --among";
  const PlannedTensor* fixed = LargestFixed(formats, plan);
  if (fixed && 4 * fixed->bytes_after() > plan.bytes_after()) {
    const char* smaller = BitsPerElement(fixed->dtype) > 16 ? "bf16" : "another format";
    remedy = fmt::format("; {} % of it is '{}', which stays {}: ask for more, or give it {} with --tensor",
                         100 * fixed->bytes_after() / plan.bytes_after(), fixed->name, Name(fixed->dtype),
                         smaller);
  }
  return Error::Invalid(budget.name, ": the smallest formats that there are for this model take ",
                        Figure(budget, plan), remedy);
}

Result<BudgetResult> ChooseFormats(std::span<const TensorPrices> prices, const Budget& budget,
                                   QuantizePlan* plan) {
  std::vector<size_t> chosen(prices.size());
  std::vector<Step> steps;
  for (size_t i = 0; i < prices.size(); ++i) {
    const std::vector<FormatPrice>& formats = prices[i].prices;
    const std::vector<size_t> worth = ConvexHull(formats);
    chosen[i] = worth.front();
    plan->tensors[prices[i].tensor].target = formats[worth.front()].target;
    for (size_t k = 1; k < worth.size(); ++k) {
      const FormatPrice &from = formats[worth[k - 1]], &to = formats[worth[k]];
      steps.push_back({i, worth[k], (from.loss - to.loss) / static_cast<double>(to.bytes - from.bytes)});
    }
  }
  CELER_RETURN_IF_ERROR(CheckBudget(prices, budget, *plan));
  const int64_t allowed = AllowedBytes(budget, *plan);
  int64_t bytes = plan->bytes_after();
  // Greedy: steps of one matrix come in their order, since each gains less than the one before. A step that
  // does not fit rules out those behind it, and smaller ones of other matrices may still fit.
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.gain > b.gain; });
  std::vector<bool> barred(prices.size());
  for (const Step& step : steps) {
    const std::vector<FormatPrice>& formats = prices[step.tensor].prices;
    const int64_t more = formats[step.to].bytes - formats[chosen[step.tensor]].bytes;
    if (barred[step.tensor] || bytes + more > allowed) {
      barred[step.tensor] = true;
      continue;
    }
    bytes += more;
    chosen[step.tensor] = step.to;
  }
  BudgetResult out;
  for (size_t i = 0; i < prices.size(); ++i) {
    PlannedTensor& tensor = plan->tensors[prices[i].tensor];
    const FormatPrice& price = prices[i].prices[chosen[i]];
    tensor.target = price.target;
    out.loss += price.loss;
    // The type that it has: rounding once more would change nothing.
    if (tensor.target.kind == Target::Kind::kStored && tensor.target.dtype == tensor.dtype)
      tensor.target = Target{};
    else
      ++out.changed;
  }
  return out;
}

}  // namespace celer
