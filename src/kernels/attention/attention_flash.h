// Cuts a ragged batch into tiles and pieces for an instruction set's AttentionTileFn, and combines the
// pieces.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_tile.h"

namespace celer {

void FlashAttention(const AttentionArgs& args, AttentionTileFn attend);

}  // namespace celer
