// What the runners of all devices make of the options.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "celer/options.h"
#include "kernels/llm/batch.h"
#include "models/config/decoder_config.h"
#include "models/kv_budget.h"

namespace celer {

Result<int64_t> ContextFor(const EngineOptions& options, const DecoderConfig& config);
KvBudget BudgetFor(const EngineOptions& options, int64_t context);
KvFormat FormatOf(KvType type);
// For `kv_host_memory` bytes, and no less than `at_least`.
int64_t HostBlocks(const EngineOptions& options, const DecoderConfig& config, int64_t at_least);

}  // namespace celer
