// Flash attention: cuts a ragged batch into tiles and splits for an instruction set's AttentionTileFn, and
// combines the splits.
#pragma once

#include "kernels/llm/attention/attention.h"
#include "kernels/llm/attention/cpu/attention_tile.h"

namespace celer {

void FlashAttention(const AttentionArgs& args, AttentionTileFn attend);

}  // namespace celer
