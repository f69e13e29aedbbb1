// KV types that no tile reads (fp8, four bits, int8 by channel): the rows that a batch sees are dequantized
// to f32 first, and attention runs over those. It saves memory and takes time.
#pragma once

#include "kernels/llm/attention/attention.h"

namespace celer {

bool NeedsExpansion(const KvLayerView& kv);
void ExpandedAttention(const AttentionArgs& args, AttentionFn run);

}  // namespace celer
