// `celer limits`: what was asked, and the answer as tables that text and HTML both print, and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "celer/limits.h"
#include "limits/speculation.h"
#include "limits/split.h"
#include "report/table.h"

namespace celer::cli {

struct LimitsRequest {
  LlmShape shape;
  Machine machine;  // already in `units`, and of all devices together
  Units units = Units::kSi;
  std::vector<LlmSetup> setups;            // at least one; all with the same batch
  std::vector<int64_t> prompts, contexts;  // at least one each, ascending
  int64_t devices = 1, stages = 1;
  DraftAcceptance draft = {};  // depth 0: no speculation
  // Layers, or experts, that the machine has no memory for are on a CPU.
  struct Split {
    Machine gpu, host;
    std::optional<int64_t> gpu_layers = {};
    int64_t cpu_experts = 0;
  };
  std::optional<Split> split = {};

  int64_t batch() const { return setups.front().batch; }
};

// Name and value, for the head of the answer: "machine", "rtx4090: ...".
Facts LimitsFacts(const LimitsRequest& request);
std::vector<Table> LimitsTables(const LimitsRequest& request);

// `brief`: what decides, in a dozen lines: the facts and the decode table.
std::string LimitsText(const LimitsRequest& request, bool brief = false);

// The contract is in docs/limits.md.
nlohmann::ordered_json LimitsJson(const LimitsRequest& request);

// The same model with every query head its own KV head, or, when that is what it has, with 8 KV heads;
// nullopt if neither is possible.
std::optional<LlmShape> OtherGrouping(const LlmShape& shape);

// Whether `context` tokens for each sequence of the batch fit beside the weights.
bool Fits(const LimitsRequest& request, const LlmShape& shape, const LlmSetup& setup, int64_t context);

}  // namespace celer::cli
