// The micro-kernel of head_product.h that an instruction set implements. Plain C types only: files with an ISA suffix
// include this.
#pragma once

#include <stdint.h>

namespace celer {

enum class HeadWeights : uint8_t { kF32, kF16, kBf16 };

// out[t, r] = w[r, :] . x[t, :], all of one head.
struct HeadTile {
  HeadWeights kind = HeadWeights::kF32;
  const uint8_t* w = nullptr;  // [rows, cols]
  int64_t row_bytes = 0;
  int64_t rows = 0, cols = 0;
  const float* x = nullptr;  // [tokens, x_stride]
  int64_t x_stride = 0, tokens = 0;
  float* out = nullptr;  // [tokens, out_stride]
  int64_t out_stride = 0;
};

using HeadTileFn = void (*)(const HeadTile&);

namespace reference {
void HeadTileRows(const HeadTile& tile);  // in double
}
namespace portable {
void HeadTileRows(const HeadTile& tile);
}
namespace x86 {
void HeadTileRowsAvx2(const HeadTile& tile);
void HeadTileRowsAvx512(const HeadTile& tile);
}  // namespace x86

}  // namespace celer
