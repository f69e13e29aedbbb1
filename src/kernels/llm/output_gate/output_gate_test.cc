#include "kernels/llm/output_gate/output_gate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

TEST(OutputGate, MatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {40, 64}, {5, 33}}) {
    const auto x = testing::RandomFloats(heads * dim, 1),
               gate = testing::RandomFloats(2 * heads * dim, 2, 20.0f);
    std::vector<float> out = x;
    OutputGate({.x = out.data(),
                .gate = gate.data() + dim,
                .stride = 2 * dim,
                .heads = heads,
                .head_dim = dim,
                .pool = &pool});
    std::vector<double> expected;
    for (int64_t i = 0; i < heads * dim; ++i)
      expected.push_back(x[i] / (1 + std::exp(-double{gate[i / dim * 2 * dim + dim + i % dim]})));
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = 1e-12, .relative = 1e-6}))
        << heads << "x" << dim;
  }
}

}  // namespace
}  // namespace celer
