#include "kernels/network/dense_attention/dense_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/aligned_vector.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

struct Case {
  int64_t batch, heads, q_tokens, tokens, width, v_width;
  bool mask;
};

// Tensors as a projection leaves them: [batch, tokens, heads, width].
std::vector<float> Attend(const Case& c, const std::vector<float>& q, const std::vector<float>& k,
                          const std::vector<float>& v, const std::vector<float>& mask, float scale,
                          int threads) {
  ThreadPool pool({.threads = threads});
  DenseAttentionArgs args{.shape = {c.batch, c.heads, c.q_tokens, c.tokens, c.width, c.v_width}};
  args.q = {q.data(), c.q_tokens * c.heads * c.width, c.width, c.heads * c.width, 1};
  args.k = {k.data(), c.tokens * c.heads * c.width, c.width, 1, c.heads * c.width};
  args.v = {v.data(), c.tokens * c.heads * c.v_width, c.v_width, c.heads * c.v_width, 1};
  if (c.mask) args.mask = {mask.data(), c.tokens, 0, 0, 1};
  args.scale = scale;
  std::vector<float> out(c.batch * c.q_tokens * c.heads * c.v_width);
  args.out = out.data();
  args.out_outer_stride = c.q_tokens * c.heads * c.v_width;
  args.out_inner_stride = c.v_width;
  args.out_row_stride = c.heads * c.v_width;
  AlignedVector<float> workspace(static_cast<size_t>(DenseAttentionWorkspaceFloats(args.shape, threads)));
  args.workspace = workspace.data();
  args.pool = &pool;
  DenseAttention(args);
  return out;
}

TEST(DenseAttention, MatchesDouble) {
  for (const Case& c : {Case{1, 3, 197, 197, 64, 64, false}, Case{2, 4, 33, 70, 32, 24, true},
                        Case{1, 1, 1, 1, 5, 3, false}, Case{2, 2, 7, 1100, 8, 9, true}}) {
    const auto q = RandomFloats(c.batch * c.q_tokens * c.heads * c.width, 1),
               k = RandomFloats(c.batch * c.tokens * c.heads * c.width, 2),
               v = RandomFloats(c.batch * c.tokens * c.heads * c.v_width, 3);
    auto mask = RandomFloats(c.batch * c.tokens, 4, 3.0f);
    if (c.tokens > 1) mask[1] = -INFINITY;
    const float scale = 0.37f;
    const auto out = Attend(c, q, k, v, mask, scale, 1);
    EXPECT_EQ(Attend(c, q, k, v, mask, scale, 3), out) << "threads change nothing";
    std::vector<double> expected;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t i = 0; i < c.q_tokens; ++i)
        for (int64_t h = 0; h < c.heads; ++h) {
          std::vector<double> p;
          for (int64_t j = 0; j < c.tokens; ++j) {
            double score = 0;
            for (int64_t d = 0; d < c.width; ++d)
              score += static_cast<double>(q[((b * c.q_tokens + i) * c.heads + h) * c.width + d]) *
                       k[((b * c.tokens + j) * c.heads + h) * c.width + d];
            p.push_back(score * scale + (c.mask ? mask[b * c.tokens + j] : 0.0f));
          }
          const double most = *std::max_element(p.begin(), p.end());
          double sum = 0;
          for (double& x : p) sum += x = std::exp(x - most);
          for (int64_t d = 0; d < c.v_width; ++d) {
            double value = 0;
            for (int64_t j = 0; j < c.tokens; ++j)
              value += p[j] / sum * v[((b * c.tokens + j) * c.heads + h) * c.v_width + d];
            expected.push_back(value);
          }
        }
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = 2e-5})) << c.tokens;
  }
}

}  // namespace
}  // namespace celer
