#include "kernels/llm/delta_rule/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

struct Shape {
  int64_t key_heads, key_dim, value_heads, value_dim, tokens;
  bool tiled = false;
};
constexpr Shape kShapes[] = {{1, 1, 1, 1, 1},    {2, 8, 4, 8, 7},        {1, 33, 3, 47, 70},
                             {3, 16, 3, 33, 20}, {2, 128, 4, 128, 65},   {2, 5, 6, 12, 40, true},
                             {2, 7, 2, 65, 9},   {4, 64, 8, 32, 3, true}};
constexpr float kEps = 0.05f;

// The inputs of a sequence, which DeltaRule() overwrites in part.
struct Inputs {
  explicit Inputs(const Shape& s, uint32_t seed = 1)
      : qkv(testing::RandomFloats(s.tokens * (2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim),
                                  seed)),
        z(testing::RandomFloats(s.tokens * s.value_heads * s.value_dim, seed + 1, 3.0f)),
        a(testing::RandomFloats(s.tokens * s.value_heads, seed + 2, 4.0f)),
        b(testing::RandomFloats(s.tokens * s.value_heads, seed + 3, 4.0f)),
        rate(testing::RandomFloats(s.value_heads, 4, 2.0f)),
        dt_bias(testing::RandomFloats(s.value_heads, 5)),
        norm(testing::RandomFloats(s.value_dim, 6)) {
    for (float& r : rate) r = std::exp(r);
  }
  std::vector<float> qkv, z, a, b, rate, dt_bias, norm;
};

int64_t StateFloats(const Shape& s) {
  return DeltaStateFloats(s.key_dim, s.value_heads, s.value_dim);
}

// Sequences of these many tokens of `in`, in a batch; their states go on from `positions`.
std::vector<float> RunRule(const Shape& s, Inputs in, std::vector<float>* states,
                           const std::vector<int32_t>& counts, int32_t position, ThreadPool& pool) {
  std::vector<int32_t> tokens, positions, starts{0}, slots;
  for (const int32_t count : counts) {
    for (int32_t t = 0; t < count; ++t) positions.push_back(position + t);
    starts.push_back(static_cast<int32_t>(positions.size()));
    slots.push_back(static_cast<int32_t>(counts.size() - 1 - slots.size()));
  }
  tokens.resize(positions.size());
  std::vector<float> out(positions.size() * static_cast<size_t>(s.value_heads * s.value_dim), -7);
  DeltaRule({.batch = {.tokens = tokens,
                       .positions = positions,
                       .seq_start = starts,
                       .block_table = {},
                       .logit_rows = {}},
             .key_heads = s.key_heads,
             .key_dim = s.key_dim,
             .value_heads = s.value_heads,
             .value_dim = s.value_dim,
             .tiled_values = s.tiled,
             .qkv = in.qkv.data(),
             .z = in.z.data(),
             .a = in.a.data(),
             .b = in.b.data(),
             .rate = in.rate.data(),
             .dt_bias = in.dt_bias.data(),
             .norm = in.norm.data(),
             .eps = kEps,
             .states = {.data = states->data(), .stride = StateFloats(s), .slots = slots},
             .out = out.data(),
             .pool = &pool});
  return out;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

std::vector<double> UnitLength(const float* x, int64_t dim, double length) {
  double squares = 1e-6;
  for (int64_t i = 0; i < dim; ++i) squares += double{x[i]} * double{x[i]};
  std::vector<double> out;
  for (int64_t i = 0; i < dim; ++i) out.push_back(x[i] / std::sqrt(squares) * length);
  return out;
}

// One value head, by the formulas.
void HeadInDouble(const Shape& s, const Inputs& in, int64_t h, std::vector<double>* out) {
  const int64_t width = 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim, d = s.value_dim;
  const int64_t key_head = s.tiled ? h % s.key_heads : h / (s.value_heads / s.key_heads);
  std::vector<double> state(static_cast<size_t>(s.key_dim * d));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* row = in.qkv.data() + t * width;
    const auto q =
        UnitLength(row + key_head * s.key_dim, s.key_dim, 1 / std::sqrt(static_cast<double>(s.key_dim)));
    const auto k = UnitLength(row + (s.key_heads + key_head) * s.key_dim, s.key_dim, 1);
    const float* v = row + 2 * s.key_heads * s.key_dim + h * d;
    const int64_t gate = t * s.value_heads + h;
    const double soft = std::log1p(std::exp(double{in.a[gate]} + double{in.dt_bias[h]}));
    const double decay = std::exp(-double{in.rate[h]} * soft), beta = Sigmoid(in.b[gate]);
    double squares = 0;
    std::vector<double> y(static_cast<size_t>(d));
    for (int64_t c = 0; c < d; ++c) {
      double recalled = 0;
      for (int64_t i = 0; i < s.key_dim; ++i) recalled += state[i * d + c] * decay * k[i];
      for (int64_t i = 0; i < s.key_dim; ++i) {
        double& at = state[i * d + c];
        at = at * decay + k[i] * beta * (v[c] - recalled);
        y[c] += at * q[i];
      }
      squares += y[c] * y[c];
    }
    for (int64_t c = 0; c < d; ++c) {
      const double z = in.z[(t * s.value_heads + h) * d + c];
      (*out)[(t * s.value_heads + h) * d + c] =
          y[c] / std::sqrt(squares / static_cast<double>(d) + double{kEps}) * in.norm[c] * z * Sigmoid(z);
    }
  }
}

TEST(DeltaRule, MatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const Shape& s : kShapes) {
    const Inputs in(s);
    std::vector<float> states(static_cast<size_t>(StateFloats(s)), NAN);  // a sequence that begins reads none
    const auto out = RunRule(s, in, &states, {static_cast<int32_t>(s.tokens)}, 0, pool);
    std::vector<double> expected(out.size());
    for (int64_t h = 0; h < s.value_heads; ++h) HeadInDouble(s, in, h, &expected);
    // Every step is a contraction: what one sum of key_dim products of numbers up to 1 is off by is added once for each
    // token. The norm divides by at least sqrt(kEps), and silu(z) * norm is at most 3.
    const double tolerance =
        testing::SumTolerance(s.key_dim, 1) * static_cast<double>(s.tokens) * 3 / std::sqrt(kEps);
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = tolerance})) << s.key_dim << " " << s.value_dim;
  }
}

// Every variant of the scan against one in double.
TEST(DeltaRule, EveryScanMatchesDouble) {
  for (const auto& variant : DeltaScanVariants()) {
    if (!variant.RunsHere()) continue;
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {8, 32}, {33, 7}, {128, 32}}) {
      const int64_t tokens = 11;
      const float unit = 1 / std::sqrt(static_cast<float>(rows));
      const auto q = testing::RandomFloats(tokens * rows, 1, unit),
                 k = testing::RandomFloats(tokens * rows, 2, unit);
      std::vector<float> v = testing::RandomFloats(tokens * rows, 3);
      v.resize(static_cast<size_t>(tokens * rows + columns));
      const std::vector<float> decay(tokens, 0.9f), beta(tokens, 0.5f);
      std::vector<float> state(static_cast<size_t>(rows * kDeltaColumns)),
          out(static_cast<size_t>(tokens * columns));
      variant.run({.state = state.data(),
                   .q = q.data(),
                   .k = k.data(),
                   .v = v.data(),
                   .stride = rows,
                   .decay = decay.data(),
                   .beta = beta.data(),
                   .gate_stride = 1,
                   .tokens = tokens,
                   .key_dim = rows,
                   .columns = columns,
                   .out = out.data(),
                   .out_stride = columns});
      std::vector<double> expected(out.size());
      for (int64_t c = 0; c < columns; ++c) {
        std::vector<double> s(static_cast<size_t>(rows));
        for (int64_t t = 0; t < tokens; ++t) {
          double recalled = 0;
          for (int64_t i = 0; i < rows; ++i) recalled += (s[i] *= double{decay[t]}) * double{k[t * rows + i]};
          for (int64_t i = 0; i < rows; ++i) {
            s[i] += k[t * rows + i] * double{beta[t]} * (v[t * rows + c] - recalled);
            expected[t * columns + c] += s[i] * q[t * rows + i];
          }
        }
      }
      EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = testing::SumTolerance(rows, 1) * tokens}))
          << variant.name << " " << rows << "x" << columns;
    }
  }
}

TEST(DeltaRule, ATokenDependsOnItsSequenceAlone) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  const Shape s{2, 24, 4, 40, 37};
  const Inputs in(s);
  const auto size = static_cast<size_t>(StateFloats(s)),
             width = in.qkv.size() / static_cast<size_t>(s.tokens),
             values = static_cast<size_t>(s.value_heads * s.value_dim),
             heads = static_cast<size_t>(s.value_heads);
  std::vector<float> state(size);
  const auto whole = RunRule(s, in, &state, {37}, 0, one);
  const std::vector<float> final_state = state;

  std::vector<float> pieces;
  for (const size_t count : {1, 5, 16, 1, 1, 13}) {
    const size_t at = pieces.size() / values;
    const auto part = [&](const std::vector<float>& x, size_t columns) {
      return std::vector(x.begin() + static_cast<int64_t>(at * columns),
                         x.begin() + static_cast<int64_t>((at + count) * columns));
    };
    Inputs cut = in;
    cut.qkv = part(in.qkv, width), cut.z = part(in.z, values), cut.a = part(in.a, heads),
    cut.b = part(in.b, heads);
    const auto out = RunRule(s, cut, &state, {static_cast<int32_t>(count)}, static_cast<int32_t>(at), three);
    pieces.insert(pieces.end(), out.begin(), out.end());
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(state, final_state);

  // Two sequences with the same tokens, beside each other.
  Inputs twice = in;
  for (auto* x : {&twice.qkv, &twice.z, &twice.a, &twice.b}) {
    const std::vector<float> again = *x;
    x->insert(x->end(), again.begin(), again.end());
  }
  std::vector<float> states(2 * size);
  const auto both = RunRule(s, twice, &states, {37, 37}, 0, three);
  EXPECT_EQ(std::vector(both.begin(), both.begin() + std::ssize(whole)), whole);
  EXPECT_EQ(std::vector(both.begin() + std::ssize(whole), both.end()), whole);
}

}  // namespace
}  // namespace celer
