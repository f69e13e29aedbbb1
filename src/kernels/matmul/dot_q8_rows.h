// From run-time numbers of rows and tokens to an instruction set's unrolled Dot<Format, rows, tokens>.
// Instantiated only with types of an unnamed namespace, so each file keeps its own copy, built with its own
// flags.
#pragma once

#include "kernels/matmul/activation_q8.h"

namespace celer {

template <class Isa, class Format, int kRows>
inline void DotTokens(const uint8_t* w, int64_t row_bytes, const Q8Block4* x, int tokens, int64_t blocks,
                      float* out) {
  switch (tokens) {
    case 1:
      return Isa::template Dot<Format, kRows, 1>(w, row_bytes, x, blocks, out);
    case 2:
      return Isa::template Dot<Format, kRows, 2>(w, row_bytes, x, blocks, out);
    case 3:
      return Isa::template Dot<Format, kRows, 3>(w, row_bytes, x, blocks, out);
    default:
      return Isa::template Dot<Format, kRows, 4>(w, row_bytes, x, blocks, out);
  }
}

template <class Isa, class Format>
inline void DotRows(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens,
                    int64_t blocks, float* out) {
  if (rows == kQ8MaxRows) return DotTokens<Isa, Format, kQ8MaxRows>(w, row_bytes, x, tokens, blocks, out);
  for (int r = 0; r < rows; ++r)
    DotTokens<Isa, Format, 1>(w + r * row_bytes, row_bytes, x, tokens, blocks, out + r);
}

}  // namespace celer
