// Several residual streams (AltUp): a layer works on one of them, the others are predicted before and corrected behind
// it. Streams are [streams, tokens, cols]; coefficients are small and differ from token to token.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"

namespace celer {

struct StreamsArgs {
  float* x = nullptr;  // [streams, tokens, cols]
  int64_t streams = 0, tokens = 0, cols = 0;
  ThreadPool* pool = nullptr;

  float* Row(int64_t stream, int64_t token) const { return x + (stream * tokens + token) * cols; }
};

// x[i] += the sum over j of coefficients[token, i, j] * x[j], of all streams at once.
void PredictStreams(const StreamsArgs& args, const float* coefficients);
// x[i] += (1 + coefficients[token, i]) * (made - x[active]), of all streams at once; made: [tokens, cols].
void CorrectStreams(const StreamsArgs& args, const float* coefficients, const float* made, int64_t active);
// Scales each row of `rows` [tokens, cols] to the root mean square of the same row of `like`.
void MatchMagnitudes(float* rows, const float* like, int64_t tokens, int64_t cols, ThreadPool& pool);

}  // namespace celer
