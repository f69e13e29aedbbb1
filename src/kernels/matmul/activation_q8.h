// Activations as int8 in blocks of 32, four tokens side by side: what the integer dot products of matmul
// read. Plain declarations only, because files built for newer instruction sets include it.
#pragma once

#include <stdint.h>

namespace celer {

constexpr int kQ8Block = 32;
constexpr int kQ8Tokens = 4;

// x[t][i] ~ scale[t] * q[t][i]. A token that is not there has scale 0.
struct Q8Block4 {
  float scale[kQ8Tokens];
  float sum[kQ8Tokens];  // scale * sum(q): what a weight block's minimum is multiplied with
  int8_t q[kQ8Tokens][kQ8Block];
};

// Quantizes `tokens` (1 to 4) rows of `cols` floats, a multiple of 32, into cols / 32 blocks. Each token by
// itself: the largest magnitude of its 32 values becomes 127.
void QuantizeActivations(const float* x, int64_t tokens, int64_t cols, Q8Block4* out);

// out[t * kMaxRows + r] = dot of weight row r with token t, for a few rows of one format.
constexpr int kQ8MaxRows = 4;
using DotQ8Fn = void (*)(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens,
                         int64_t blocks, float* out);

}  // namespace celer
