#include "kernels/llm/mamba2/mamba2.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/llm/delta_rule/delta_scan.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

struct Mamba2Shape {
  int64_t groups, state_dim, heads, head_dim, tokens;
  int64_t norm_groups = 1;
  float step_min = 0, step_max = 0;
};
constexpr Mamba2Shape kMamba2Shapes[] = {
    {1, 1, 1, 1, 1},       {2, 8, 4, 8, 7, 2},        {1, 33, 3, 47, 70, 1, 0.3f, 1.5f},
    {3, 16, 3, 33, 20, 9}, {2, 128, 4, 64, 65, 2},    {2, 5, 6, 12, 40, 4, 0, 0.5f},
    {2, 7, 2, 65, 9, 10},  {4, 64, 8, 32, 3, 1, 0.1f}};
constexpr float kMamba2Eps = 0.05f;

int64_t RowWidth(const Mamba2Shape& s) {
  return s.heads * s.head_dim + 2 * s.groups * s.state_dim;
}

// The inputs of a sequence; Mamba2() overwrites dt.
struct Mamba2Inputs {
  explicit Mamba2Inputs(const Mamba2Shape& s)
      : xbc(testing::RandomFloats(s.tokens * RowWidth(s), 1)),
        z(testing::RandomFloats(s.tokens * s.heads * s.head_dim, 2, 3.0f)),
        dt(testing::RandomFloats(s.tokens * s.heads, 3, 4.0f)),
        rate(testing::RandomFloats(s.heads, 4, 2.0f)),
        dt_bias(testing::RandomFloats(s.heads, 5)),
        skip(testing::RandomFloats(s.heads, 6)),
        norm(testing::RandomFloats(s.heads * s.head_dim, 7)) {
    for (float& r : rate) r = std::exp(r);
    // One sum of state_dim products in the state has a size of about 1.
    for (int64_t t = 0; t < s.tokens; ++t)
      for (int64_t i = s.heads * s.head_dim; i < RowWidth(s); ++i)
        xbc[static_cast<size_t>(t * RowWidth(s) + i)] /= std::sqrt(static_cast<float>(s.state_dim));
  }
  std::vector<float> xbc, z, dt, rate, dt_bias, skip, norm;
};

int64_t MatrixFloats(const Mamba2Shape& s) {
  return DeltaStateFloats(s.state_dim, s.heads, s.head_dim);
}

// Sequences of these many tokens of `in`, in a batch; their states go on from `position`.
std::vector<float> RunMamba2(const Mamba2Shape& s, Mamba2Inputs in, std::vector<float>* states,
                             const std::vector<int32_t>& counts, int32_t position, ThreadPool& pool) {
  std::vector<int32_t> tokens, positions, starts{0}, slots;
  for (const int32_t count : counts) {
    for (int32_t t = 0; t < count; ++t) positions.push_back(position + t);
    starts.push_back(static_cast<int32_t>(positions.size()));
    slots.push_back(static_cast<int32_t>(counts.size() - 1 - slots.size()));
  }
  tokens.resize(positions.size());
  std::vector<float> decay(positions.size() * static_cast<size_t>(s.heads)),
      out(positions.size() * static_cast<size_t>(s.heads * s.head_dim), -7);
  Mamba2({.batch = {.tokens = tokens,
                    .positions = positions,
                    .seq_start = starts,
                    .block_table = {},
                    .logit_rows = {}},
          .groups = s.groups,
          .state_dim = s.state_dim,
          .heads = s.heads,
          .head_dim = s.head_dim,
          .xbc = in.xbc.data(),
          .z = in.z.data(),
          .dt = in.dt.data(),
          .decay = decay.data(),
          .rate = in.rate.data(),
          .dt_bias = in.dt_bias.data(),
          .skip = in.skip.data(),
          .step_min = s.step_min,
          .step_max = s.step_max,
          .norm = in.norm.data(),
          .norm_groups = s.norm_groups,
          .eps = kMamba2Eps,
          .states = {.data = states->data(), .stride = MatrixFloats(s), .slots = slots},
          .out = out.data(),
          .pool = &pool});
  return out;
}

// y * silu(z) of one head, by the formulas.
void Mamba2HeadInDouble(const Mamba2Shape& s, const Mamba2Inputs& in, int64_t h, std::vector<double>* out) {
  const int64_t values = s.heads * s.head_dim, group = h / (s.heads / s.groups);
  std::vector<double> state(static_cast<size_t>(s.state_dim * s.head_dim));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* const row = in.xbc.data() + t * RowWidth(s);
    const float *const b = row + values + group * s.state_dim, *const c = b + s.groups * s.state_dim;
    double step = std::log1p(std::exp(double{in.dt[t * s.heads + h]} + double{in.dt_bias[h]}));
    step = std::max(step, double{s.step_min});
    if (s.step_max > 0) step = std::min(step, double{s.step_max});
    const double decay = std::exp(-double{in.rate[h]} * step);
    for (int64_t p = 0; p < s.head_dim; ++p) {
      const double x = row[h * s.head_dim + p];
      double y = double{in.skip[h]} * x;
      for (int64_t n = 0; n < s.state_dim; ++n) {
        double& at = state[n * s.head_dim + p];
        at = at * decay + b[n] * step * x;
        y += at * c[n];
      }
      const int64_t at = t * values + h * s.head_dim + p;
      (*out)[at] = y * in.z[at] / (1 + std::exp(-double{in.z[at]}));
    }
  }
}

void GatedNormInDouble(const Mamba2Shape& s, const Mamba2Inputs& in, std::vector<double>* out) {
  const int64_t values = s.heads * s.head_dim, part = values / s.norm_groups;
  for (int64_t from = 0; from < s.tokens * values; from += part) {
    double squares = 0;
    for (int64_t i = 0; i < part; ++i) squares += (*out)[from + i] * (*out)[from + i];
    const double length = std::sqrt(squares / static_cast<double>(part) + double{kMamba2Eps});
    for (int64_t i = 0; i < part; ++i) (*out)[from + i] *= in.norm[(from + i) % values] / length;
  }
}

TEST(Mamba2, MatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const Mamba2Shape& s : kMamba2Shapes) {
    const Mamba2Inputs in(s);
    std::vector<float> states(static_cast<size_t>(MatrixFloats(s)),
                              NAN);  // a sequence that begins reads none
    const auto out = RunMamba2(s, in, &states, {static_cast<int32_t>(s.tokens)}, 0, pool);
    std::vector<double> expected(out.size());
    for (int64_t h = 0; h < s.heads; ++h) Mamba2HeadInDouble(s, in, h, &expected);
    GatedNormInDouble(s, in, &expected);
    // A state adds up numbers of at most step / sqrt(state_dim), with a step of at most softplus(5), and what a token's
    // rounding leaves in it is not made larger. A sum of state_dim products with numbers up to 1 / sqrt(state_dim) is at
    // most the state's bound, times silu(z), at most 3. The norm divides by at least sqrt(kMamba2Eps).
    const double bound = 5.01 * static_cast<double>(s.tokens) * 3;
    const double tolerance =
        testing::SumTolerance(s.state_dim + s.tokens + 8, bound) / std::sqrt(double{kMamba2Eps}) * 2;
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = tolerance})) << s.state_dim << " " << s.head_dim;
  }
}

// Every variant of the scan against one in double.
TEST(Mamba2, EveryScanMatchesDouble) {
  for (const auto& variant : Mamba2ScanVariants()) {
    if (!variant.RunsHere()) continue;
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {8, 32}, {33, 7}, {128, 32}}) {
      const int64_t tokens = 11, stride = 2 * rows + columns;
      const float unit = 1 / std::sqrt(static_cast<float>(rows));
      const auto in = testing::RandomFloats(tokens * stride, 1, unit);
      const std::vector<float> decay(tokens, 0.9f), step(tokens, 0.5f);
      std::vector<float> state(static_cast<size_t>(rows * kDeltaColumns)),
          out(static_cast<size_t>(tokens * columns));
      variant.run({.state = state.data(),
                   .x = in.data(),
                   .b = in.data() + columns,
                   .c = in.data() + columns + rows,
                   .stride = stride,
                   .decay = decay.data(),
                   .step = step.data(),
                   .step_stride = 1,
                   .skip = 0.75f,
                   .tokens = tokens,
                   .state_dim = rows,
                   .columns = columns,
                   .out = out.data(),
                   .out_stride = columns});
      std::vector<double> expected(out.size());
      for (int64_t c = 0; c < columns; ++c) {
        std::vector<double> s(static_cast<size_t>(rows));
        for (int64_t t = 0; t < tokens; ++t) {
          const float* const row = in.data() + t * stride;
          double& y = expected[t * columns + c] = 0.75 * row[c];
          for (int64_t n = 0; n < rows; ++n) {
            s[n] = s[n] * double{decay[t]} + double{row[columns + n]} * 0.5 * row[c];
            y += s[n] * row[columns + rows + n];
          }
        }
      }
      EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = testing::SumTolerance(rows, 1) * tokens}))
          << variant.name << " " << rows << "x" << columns;
    }
  }
}

TEST(Mamba2, ATokenDependsOnItsSequenceAlone) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  const Mamba2Shape s{2, 24, 4, 40, 37, 2, 0.01f};
  const Mamba2Inputs in(s);
  const auto size = static_cast<size_t>(MatrixFloats(s)), values = static_cast<size_t>(s.heads * s.head_dim);
  std::vector<float> state(size);
  const auto whole = RunMamba2(s, in, &state, {37}, 0, one);
  const std::vector<float> final_state = state;

  std::vector<float> pieces;
  for (const size_t count : {1, 5, 16, 1, 1, 13}) {
    const size_t at = pieces.size() / values;
    const auto part = [&](const std::vector<float>& x) {
      const size_t columns = x.size() / static_cast<size_t>(s.tokens);
      return std::vector(x.begin() + static_cast<int64_t>(at * columns),
                         x.begin() + static_cast<int64_t>((at + count) * columns));
    };
    Mamba2Inputs cut = in;
    cut.xbc = part(in.xbc), cut.z = part(in.z), cut.dt = part(in.dt);
    const auto out =
        RunMamba2(s, cut, &state, {static_cast<int32_t>(count)}, static_cast<int32_t>(at), three);
    pieces.insert(pieces.end(), out.begin(), out.end());
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(state, final_state);

  // Two sequences with the same tokens, beside each other.
  Mamba2Inputs twice = in;
  for (auto* x : {&twice.xbc, &twice.z, &twice.dt}) {
    const std::vector<float> again = *x;
    x->insert(x->end(), again.begin(), again.end());
  }
  std::vector<float> states(2 * size);
  const auto both = RunMamba2(s, twice, &states, {37, 37}, 0, three);
  EXPECT_EQ(std::vector(both.begin(), both.begin() + std::ssize(whole)), whole);
  EXPECT_EQ(std::vector(both.begin() + std::ssize(whole), both.end()), whole);
}

}  // namespace
}  // namespace celer
