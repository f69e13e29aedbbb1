// Mixed precision under a size budget: a format for each matrix, so that the file fits a number of bytes and
// the model's answers change as little as possible.
//
//   1. ListFormats: what each matrix can become, and CheckBudget: whether the smallest of it is small enough.
//   2. MeasureSensitivity: one matrix at a time is quantized, and a text runs on through the rest of the model
//      as it is. The loss is the KL divergence of the predictions from the float model's. It is measured
//      with one format for each matrix; other formats are extrapolated by their squared error, weighted by the
//      inputs of the columns, because the divergence grows with the square of the error.
//   3. ChooseFormats: greedy, from the smallest format of every matrix upwards, always the step that gains the
//      most per byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/thread_pool.h"
#include "models/load/model.h"
#include "quantize/llm/quantize.h"
#include "quantize/llm/target.h"

namespace celer {

struct FormatPrice {
  Target target;
  int64_t bytes = 0;
  double loss = 0;  // nats per token
};
struct TensorPrices {
  size_t tensor = 0;                // of the plan
  std::vector<FormatPrice> prices;  // by growing bytes
};

// Of all matrices of `plan` that are to be quantized and that no rule of the recipe speaks about, without
// losses. `among`: formats to choose from; those that a matrix' columns do not fit are left out.
Result<std::vector<TensorPrices>> ListFormats(const QuantizePlan& plan, const Recipe& recipe,
                                              std::span<const Target> among);

// The same with losses. `progress` counts layers.
Result<std::vector<TensorPrices>> MeasureSensitivity(const Model& model, const QuantizePlan& plan,
                                                     std::vector<TensorPrices> formats,
                                                     const CalibrationText& text, ThreadPool& pool,
                                                     const QuantizeProgress& progress);

// What the whole file may take.
struct Budget {
  int64_t bytes = 0;           // of all tensors; 0: see below
  double bits_per_weight = 0;  // of all matrices
  std::string name = {};       // "--target-bpw 4.25", for errors
};

struct BudgetResult {
  double loss = 0;  // the sum over all matrices
  int64_t changed = 0;
};

// An error if the smallest formats are too large already: known before anything is measured.
Status CheckBudget(std::span<const TensorPrices> formats, const Budget& budget, QuantizePlan plan);

// Sets the plan's targets.
Result<BudgetResult> ChooseFormats(std::span<const TensorPrices> prices, const Budget& budget,
                                   QuantizePlan* plan);

}  // namespace celer
