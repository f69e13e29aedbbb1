#include "kernels/llm/streams/streams.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

constexpr int64_t kGrain = 4;  // tokens: a few microseconds

}  // namespace

void PredictStreams(const StreamsArgs& args, const float* coefficients) {
  const int64_t n = args.streams;
  args.pool->ParallelFor(args.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> before(n * args.cols);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < n; ++i) std::copy_n(args.Row(i, t), args.cols, before.data() + i * args.cols);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
          vec::Axpy(coefficients[(t * n + i) * n + j], before.data() + j * args.cols, args.Row(i, t),
                    args.cols);
    }
  });
}

void CorrectStreams(const StreamsArgs& args, const float* coefficients, const float* made, int64_t active) {
  args.pool->ParallelFor(args.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> change(args.cols);
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(made + t * args.cols, args.cols, change.data());
      vec::Axpy(-1.0f, args.Row(active, t), change.data(), args.cols);
      for (int64_t i = 0; i < args.streams; ++i)
        vec::Axpy(1.0f + coefficients[t * args.streams + i], change.data(), args.Row(i, t), args.cols);
    }
  });
}

void MatchMagnitudes(float* rows, const float* like, int64_t tokens, int64_t cols, ThreadPool& pool) {
  constexpr float kLeast = 1e-5f;  // mean square that a row is taken to have
  pool.ParallelFor(tokens, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const row = rows + t * cols;
      const float inverse = std::min(InverseRms(row, cols, 0), 1 / std::sqrt(kLeast));
      const float wanted = InverseRms(like + t * cols, cols, 0);
      vec::Scale(std::isinf(wanted) ? 0.0f : inverse / wanted, row, cols);
    }
  });
}

}  // namespace celer
