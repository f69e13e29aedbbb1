// The integer dot products per instruction set (DotQ8Fn in activation_q8.h).
#pragma once

#include "kernels/matmul/activation_q8.h"

namespace celer::arm {
void DotQ8_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out);
void DotQ4_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out);
void DotQ4_1(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out);
}  // namespace celer::arm

namespace celer::x86 {
void DotQ8_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out);
void DotQ4_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out);
void DotQ4_1(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out);
}  // namespace celer::x86
