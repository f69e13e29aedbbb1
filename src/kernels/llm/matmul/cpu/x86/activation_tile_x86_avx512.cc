#include "kernels/llm/matmul/cpu/x86/activation_tile_x86.h"
#include "kernels/llm/matmul/cpu/x86/tile_x86.h"

namespace celer::x86 {

void PrepareXTileAvx512(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  PrepareXTile(kind, rows, tokens, cols, out);
}

void NormAvx512(const float* x, const float* weight, float eps, int64_t cols, float* out) {
  NormRow(x, weight, eps, cols, out);
}

}  // namespace celer::x86
