#include "models/kv_budget.h"

#include <algorithm>
#include <limits>

#include "base/safe_math.h"
#include "device/allocator.h"
#include "kernels/llm/kv_block.h"

namespace celer {
namespace {

std::string Size(int64_t bytes) {
  return FormatBytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0)));
}

}  // namespace

Result<int64_t> BlocksWithin(const KvBudget& budget, int64_t room, double default_share,
                             int64_t block_bytes) {
  const int64_t least = KvBlocksFor(budget.context);
  if (budget.bytes > room)
    return Error::OutOfMemory("keys and values are to take ", Size(budget.bytes), ", but only ", Size(room),
                              " are free for them; lower `kv_memory`");
  const double share = budget.share > 0 ? budget.share : default_share;
  const auto bytes = budget.bytes > 0
                         ? budget.bytes
                         : static_cast<int64_t>(static_cast<double>(std::max<int64_t>(room, 0)) * share);
  int64_t blocks = bytes / std::max<int64_t>(block_bytes, 1);
  // The default share takes no more than the expected sequences need, and all that is free if one sequence
  // needs it.
  const bool by_default = budget.bytes == 0 && budget.share == 0;
  if (by_default && budget.sequences > 0) {
    const auto wanted = CheckedMul(budget.sequences, least);
    const int64_t fit = std::max<int64_t>(room, 0) / std::max<int64_t>(block_bytes, 1);
    blocks = wanted ? std::min(*wanted, fit) : blocks;
  }
  blocks = std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max());
  if (blocks < least) {
    const int64_t fits = blocks * kKvBlockTokens;
    return Error::OutOfMemory(
        "a context of ", budget.context, " tokens needs ", Size(least * block_bytes),
        " for its keys and values, and there are ", Size(by_default ? room : bytes), ": ",
        fits > 0 ? "room for a context of " + std::to_string(fits) : std::string("room for none"),
        by_default ? "; lower `context`" : "; lower `context` or raise `kv_memory`");
  }
  return blocks;
}

Result<KvPlan> PlanWithin(KvBudget budget, int64_t room, double default_share, int64_t block_bytes,
                          int64_t state_bytes) {
  KvPlan plan;
  if (state_bytes > 0) {
    // One that runs and one beside it at least; as many snapshots as sequences, where a quarter of the memory is enough.
    constexpr int64_t kLeast = 2, kSequences = 16, kShare = 4;
    const double share = budget.share > 0 ? budget.share : default_share;
    const auto bytes = budget.bytes > 0
                           ? budget.bytes
                           : static_cast<int64_t>(static_cast<double>(std::max<int64_t>(room, 0)) * share);
    const int64_t wanted = 2 * (budget.sequences > 0 ? budget.sequences : kSequences);
    plan.states = std::clamp(bytes / kShare / state_bytes, kLeast, std::max(wanted, kLeast));
    const int64_t taken = plan.states * state_bytes;
    if (taken >= bytes)
      return Error::OutOfMemory("the states of ", plan.states, " sequences take ", Size(taken),
                                ", and there are ", Size(bytes),
                                " for them, keys and values; raise `kv_memory`");
    room -= taken;
    if (budget.bytes > 0) budget.bytes -= taken;
  }
  CELER_ASSIGN(plan.blocks, BlocksWithin(budget, room, default_share, block_bytes));
  return plan;
}

}  // namespace celer
