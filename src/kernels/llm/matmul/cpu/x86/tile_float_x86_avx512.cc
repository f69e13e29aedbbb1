#include "kernels/llm/matmul/cpu/x86/tile_float_x86.h"
#include "kernels/llm/matmul/cpu/x86/tile_x86.h"

namespace celer::x86 {

void TileF32Avx512(const TileJob& job) {
  FloatTile<Single>(job);
}
void TileF16Avx512(const TileJob& job) {
  FloatTile<Half>(job);
}
void TileBf16Avx512(const TileJob& job) {
  FloatTile<Brain>(job);
}

}  // namespace celer::x86
