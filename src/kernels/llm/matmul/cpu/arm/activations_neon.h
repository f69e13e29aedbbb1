// Activations for the NEON tile kernels: in pairs for matrix instructions, one by one for dot products.
#pragma once

#include <cstdint>

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer {

// Bytes of a unit of 8 tokens.
int64_t XPairBytes(XKind kind, int64_t cols);
// kBlocks, kNibbles, kNibblesMin: XPairBlock[cols / 32][pairs], kSupers: XPairSuper[cols / 256][pairs],
// kFloat: float[8][cols to 4], kBf16: bf16[cols / 4][pairs][2][4], where pairs = XPairs(tokens). A token that
// is not there is zeros.
void PrepareXPair(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out);

// The same for kBlocks and kNibbles, XTokenBlock[cols / 32][XTokens(tokens)], kSupers, XTokenSuper[cols /
// 256][XTokens(tokens)], and kNibblesMin, the same of XTokenNibbleSuper. Floats and bf16 are those of pairs.
int64_t XTokenBytes(XKind kind, int64_t cols);
void PrepareXToken(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out);

}  // namespace celer
