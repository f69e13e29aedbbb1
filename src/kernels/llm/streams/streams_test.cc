#include "kernels/llm/streams/streams.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::AllNear;
using testing::RandomFloats;

struct Case {
  int64_t streams, tokens, cols;
};
constexpr Case kCases[] = {{1, 1, 1}, {4, 9, 33}, {3, 2, 64}, {2, 17, 7}};

TEST(Streams, PredictionMatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const auto& [n, tokens, cols] : kCases) {
    const auto x = RandomFloats(n * tokens * cols, 1), c = RandomFloats(tokens * n * n, 2);
    auto out = x;
    PredictStreams({.x = out.data(), .streams = n, .tokens = tokens, .cols = cols, .pool = &pool}, c.data());
    std::vector<double> expected(x.begin(), x.end());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t d = 0; d < cols; ++d)
            expected[(i * tokens + t) * cols + d] +=
                double{c[(t * n + i) * n + j]} * x[(j * tokens + t) * cols + d];
    EXPECT_TRUE(AllNear(out, expected, {.absolute = 1e-5, .relative = 1e-6}));
  }
}

TEST(Streams, CorrectionMatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const auto& [n, tokens, cols] : kCases) {
    const int64_t active = n - 1;
    const auto x = RandomFloats(n * tokens * cols, 1), c = RandomFloats(tokens * n, 2),
               made = RandomFloats(tokens * cols, 3);
    auto out = x;
    CorrectStreams({.x = out.data(), .streams = n, .tokens = tokens, .cols = cols, .pool = &pool}, c.data(),
                   made.data(), active);
    std::vector<double> expected(x.begin(), x.end());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t d = 0; d < cols; ++d)
          expected[(i * tokens + t) * cols + d] +=
              (1 + double{c[t * n + i]}) * (double{made[t * cols + d]} - x[(active * tokens + t) * cols + d]);
    EXPECT_TRUE(AllNear(out, expected, {.absolute = 1e-5, .relative = 1e-6}));
  }
}

TEST(Streams, MagnitudesOfRows) {
  ThreadPool pool({.threads = 3});
  const int64_t tokens = 5, cols = 21;
  auto rows = RandomFloats(tokens * cols, 1), like = RandomFloats(tokens * cols, 2, 9.0f);
  std::fill_n(like.begin(), cols, 0.0f);              // a row of zeros asks for zeros
  std::fill_n(rows.begin() + cols, cols, 0.0f);       // and stays one
  std::fill_n(rows.begin() + 2 * cols, cols, 1e-4f);  // too small to be scaled in full
  std::vector<double> expected;
  for (int64_t t = 0; t < tokens; ++t) {
    double own = 0, wanted = 0;
    for (int64_t d = 0; d < cols; ++d) {
      own += double{rows[t * cols + d]} * rows[t * cols + d] / cols;
      wanted += double{like[t * cols + d]} * like[t * cols + d] / cols;
    }
    for (int64_t d = 0; d < cols; ++d)
      expected.push_back(rows[t * cols + d] * std::sqrt(wanted / std::max(own, 1e-5)));
  }
  MatchMagnitudes(rows.data(), like.data(), tokens, cols, pool);
  EXPECT_TRUE(AllNear(rows, expected, {.absolute = 1e-6, .relative = 1e-5}));
}

}  // namespace
}  // namespace celer
