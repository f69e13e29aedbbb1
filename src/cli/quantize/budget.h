// celer quantize --target-bpw and --memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/quantize/calibration_text.h"
#include "quantize/llm/budget.h"

namespace celer::cli {

// Of the two flags, at most one of which may be given (0, ""); none if neither is.
Result<std::optional<Budget>> ParseBudget(double target_bpw, const std::string& memory);

// What each matrix can become; an error if even the smallest of it does not fit the budget. `among`: names of
// formats; none: all of the container.
Result<std::vector<TensorPrices>> FormatsWithin(const Budget& budget, bool gguf, const Recipe& recipe,
                                                const std::vector<std::string>& among,
                                                const QuantizePlan& plan);

// Measures, chooses, and says what came out.
Status FitToBudget(const Model& model, const Budget& budget, std::vector<TensorPrices> formats,
                   TextChoice text, QuantizePlan* plan);

// What each matrix becomes, as a recipe.
Status WriteRecipe(const QuantizePlan& plan, const std::string& path);

}  // namespace celer::cli
