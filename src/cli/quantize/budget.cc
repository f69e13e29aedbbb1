#include "cli/quantize/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/log.h"
#include "cli/shared/command.h"
#include "device/thread_pool.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

// Few tokens are enough: all of the vocabulary is compared at each.
constexpr int64_t kWindows = 2, kWindow = 256;

}  // namespace

Result<std::optional<Budget>> ParseBudget(double target_bpw, const std::string& memory) {
  if (target_bpw > 0 && !memory.empty())
    return Error::Invalid("--target-bpw and --memory are two names for one budget; give one of them");
  if (target_bpw > 0)
    return std::optional(Budget{
        .bytes = 0, .bits_per_weight = target_bpw, .name = fmt::format("--target-bpw {}", target_bpw)});
  if (memory.empty()) return std::optional<Budget>();
  CELER_ASSIGN(const double bytes, ParseBytes(memory, Units::kBinary, "--memory"));
  if (!(bytes >= 1) || bytes > 0x1p62)
    return Error::Invalid("--memory ", memory, ": expected a number of bytes, such as 6GiB");
  return std::optional(Budget{.bytes = static_cast<int64_t>(bytes),
                              .bits_per_weight = 0,
                              .name = fmt::format("--memory {}", memory)});
}

Result<std::vector<TensorPrices>> FormatsWithin(const Budget& budget, bool gguf, const Recipe& recipe,
                                                const std::vector<std::string>& among,
                                                const QuantizePlan& plan) {
  std::vector<Target> targets;
  for (const std::string& name : among) {
    CELER_ASSIGN(const Target target, Target::Parse(name));
    if (target.kind == Target::Kind::kKeep) return Error::Invalid("--among ", name, ": is no format");
    if (gguf && target.kind != Target::Kind::kStored)
      return Error::Invalid("--among ", name, ": a GGUF file holds no such weights; take q4_k or its like");
    if (!gguf && target.kind == Target::Kind::kStored && IsBlockQuantized(target.dtype))
      return Error::Invalid("--among ", name, ": only a GGUF file holds such blocks; take int4 or int8");
    targets.push_back(target);
  }
  if (targets.empty()) targets = BudgetTargets(gguf);
  CELER_ASSIGN(std::vector<TensorPrices> formats, ListFormats(plan, recipe, targets));
  CELER_RETURN_IF_ERROR(CheckBudget(formats, budget, plan));
  return formats;
}

Status FitToBudget(const Model& model, const Budget& budget, std::vector<TensorPrices> formats,
                   TextChoice choice, QuantizePlan* plan) {
  choice.samples = std::min(choice.samples, kWindows);
  choice.window = std::min(choice.window, kWindow);
  CELER_ASSIGN(const CalibrationText text, ReadCalibration(choice, model.path()));
  CELER_ASSIGN(const std::vector<TensorPrices> prices,
               MeasureSensitivity(model, *plan, std::move(formats), text, DefaultThreadPool(),
                                  Progress("measuring", true)));
  CELER_ASSIGN(const BudgetResult result, ChooseFormats(prices, budget, plan));
  std::map<std::string, int64_t> counts;
  for (const TensorPrices& entry : prices) {
    const Target& target = plan->tensors[entry.tensor].target;
    ++counts[target.kind == Target::Kind::kKeep ? "as it is" : target.Name()];
    std::string losses;
    for (const FormatPrice& price : entry.prices)
      losses += fmt::format(" {} {:.2e}", price.target.Name(), price.loss);
    log::Info("{}: {}; expected divergence with{}", plan->tensors[entry.tensor].name, target.Name(), losses);
  }
  std::string names;
  for (const auto& [name, count] : counts)
    names += fmt::format("{}{} x {}", names.empty() ? "" : ", ", count, name);
  Say("{}: {:.3f} bits per weight, {}; {}; expected divergence {:.4f} nats per token\n", budget.name,
      plan->bits_per_weight(), FormatBytes(static_cast<double>(plan->bytes_after())), names, result.loss);
  return {};
}

Status WriteRecipe(const QuantizePlan& plan, const std::string& path) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.place.part != Part::kVector) tensors[tensor.name] = tensor.target.Name();
  return WriteFile(path, JsonText(nlohmann::ordered_json{{"tensors", tensors}}, 2) + "\n");
}

}  // namespace celer::cli
