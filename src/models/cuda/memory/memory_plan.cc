#include "models/cuda/memory/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/allocator.h"
#include "kernels/llm/kv_block.h"

namespace celer {

std::string CudaMemoryPlan::ToString() const {
  const auto size = [](int64_t bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); };
  const std::string with_states =
      states() > 0 ? fmt::format(", states {} ({} sequences)", size(states()), state_slots) : "";
  const std::string with_fed = fed > 0 ? ", weights of prompts " + size(fed) : "";
  const std::string with_lora = lora > 0 ? ", adapters " + size(lora) : "";
  // An empty GPU holds half a gigabyte of the driver's own.
  constexpr int64_t kNotable = int64_t{2} << 30;
  const std::string with_held = held > kNotable ? " (" + size(held) + " of the GPU are taken already)" : "";
  return fmt::format(
      "weights {}{}, KV {} ({} a token){}, workspace {}{}{}, staging {}, margin {}: {} of {} free{}",
      size(weights), rows > 0 ? " and as rows " + size(rows) : "", size(kv()),
      size(kv_block_bytes / kKvBlockTokens), with_states, size(workspace), with_fed, with_lora, size(staging),
      size(margin), size(total()), size(free), with_held);
}

std::string CudaMemoryPlan::Remedy(std::span<const std::pair<std::string, int64_t>> lighter_weights,
                                   int64_t narrow_kv_block_bytes) const {
  const auto tokens = [&](int64_t weight_bytes, int64_t block_bytes) {
    const int64_t bytes = room() + weights - weight_bytes;
    return bytes > 0 ? bytes / std::max<int64_t>(block_bytes, 1) * kKvBlockTokens : 0;
  };
  const int64_t wanted = kv_blocks * kKvBlockTokens, fits = tokens(weights, kv_block_bytes);
  if (fits > 0) {
    const bool narrow =
        narrow_kv_block_bytes < kv_block_bytes && tokens(weights, narrow_kv_block_bytes) >= wanted;
    return fmt::format("`context` {} fits for one sequence{}", fits,
                       narrow ? ", all of it with `kv` int8" : "");
  }
  for (const auto& [name, bytes] : lighter_weights) {
    const int64_t lighter_fits = tokens(bytes, kv_block_bytes);
    if (lighter_fits >= wanted) return fmt::format("`weights` {} fits", name);
    if (lighter_fits > 0) return fmt::format("`weights` {} `context` {} fits", name, lighter_fits);
  }
  return "no setting fits; use `device` cpu";
}

Result<bool> WantsRows(const CudaRowFacts& facts) {
  const bool codes = facts.activations != Activations::k16Bit, on = facts.copies == RowCopies::kOn;
  const std::string name = std::string("`activations` ") + CodeName(facts.activations);
  if (codes && (facts.deterministic || !facts.wgmma))
    return Error::Unsupported(name, " does not go with `deterministic` or `exact`");
  if (facts.activations == Activations::kFp8 && !facts.fp8)
    return Error::Unsupported(name, " needs compute capability 8.9; `activations` int8 runs here");
  if (!codes && (facts.copies == RowCopies::kOff || !facts.wgmma || facts.deterministic || !facts.keepable)) {
    if (on)
      return Error::Unsupported(
          "`row_copies` on needs a dense model with weights of 16 bits, and not `deterministic`");
    return false;
  }
  if (facts.no_cublaslt.empty()) return true;
  if (codes || on)
    return Error::Unsupported(codes ? name : "`row_copies` on", " needs cuBLASLt, which does not run here (",
                              facts.no_cublaslt, "); install it or leave `",
                              codes ? "activations" : "row_copies", "` out");
  return false;
}

}  // namespace celer
