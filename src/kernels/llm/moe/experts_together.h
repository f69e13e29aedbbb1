// The chosen experts of a few tokens, all of them in two fork-joins: gate and up of every expert, then down. One after the
// other, as for many tokens, 8 experts of 128 would be 16 products of a megabyte, each as long as its fork and join.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/llm/moe/moe.h"

namespace celer {

// A token that was routed to an expert, its rank among the token's experts, and the weight of what it gives.
struct MoeSlot {
  int64_t token = 0, rank = 0;
  float weight = 0;
};

// Whether the batch is small enough: activations of all slots are kept.
bool FewSlots(const MoeArgs& args);

// Adds to to[tokens, hidden] what the experts make of normed[tokens, hidden]; `by_expert`: the slots of each.
void RunExpertsTogether(const MoeArgs& args, std::span<const std::vector<MoeSlot>> by_expert,
                        const float* normed, float* to);

}  // namespace celer
