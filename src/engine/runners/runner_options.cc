#include "engine/runners/runner_options.h"

#include <algorithm>
#include <limits>

#include "engine/kv/kv_cache.h"

namespace celer {
namespace {

constexpr int64_t kDefaultContext = 4096;

}  // namespace

Result<int64_t> ContextFor(const EngineOptions& options, const DecoderConfig& config) {
  if (options.context < 0 || options.context > config.max_positions)
    return Error::Invalid("`context` ", options.context, ": the model has ", config.max_positions,
                          " positions; give 1 to ", config.max_positions, ", or 0 for at most ",
                          kDefaultContext);
  return options.context > 0 ? options.context : std::min(config.max_positions, kDefaultContext);
}

KvBudget BudgetFor(const EngineOptions& options, int64_t context) {
  return {.bytes = options.kv_memory.bytes,
          .share = options.kv_memory.share,
          .context = context,
          .sequences = options.sequences};
}

KvFormat FormatOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return DType::kF32;
    case KvType::kF16:
      return DType::kF16;
    case KvType::kBf16:
      return DType::kBf16;
    case KvType::kInt8:
      return DType::kI8;
    case KvType::kFp8:
      return DType::kFp8E4M3;
    case KvType::kInt8Channel:
      return {DType::kI8, true};
    case KvType::kInt4:
      return DType::kQ4_1;
  }
  return DType::kF16;
}

int64_t HostBlocks(const EngineOptions& options, const DecoderConfig& config, int64_t at_least) {
  const int64_t blocks =
      std::max(at_least, options.kv_host_memory / KvBlockBytes(config, FormatOf(options.kv)));
  return std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max());  // tables number them in 32 bits
}

}  // namespace celer
