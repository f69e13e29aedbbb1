// Every variant computes the same bytes as sums written out, at shapes that fill no register.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "kernels/network/integer/integer_conv.h"
#include "kernels/network/integer/integer_pool.h"

namespace celer {
namespace {

template <class T>
std::vector<T> RandomWhole(int64_t n, int low, int high, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<T>(std::uniform_int_distribution<int>(low, high)(random)));
  return out;
}

TEST(Requantize, FactorsAreRoundedOnce) {
  for (const double factor : {0.5, 0.25, 0.003, 0.4999999, 1.0, 7.3, 1e-6, 3e-9, 0.0}) {
    const auto m = MultiplierOf(factor);
    ASSERT_TRUE(m) << factor;
    for (const int32_t sum :
         {0, 1, -1, 2, -2, 255, 12345, -54321, 1 << 20, -(1 << 20), 2000000000, -2000000000}) {
      const double exact = factor * sum;
      if (std::abs(exact) > 1e6) continue;  // ends at a clamp
      EXPECT_NEAR(ScaleSum(sum, m->multiplier, m->left, m->right), std::floor(exact + 0.5), 1e-6)
          << factor << " " << sum;
    }
  }
  // Halves go up, on both sides of zero.
  const auto half = MultiplierOf(0.5);
  EXPECT_EQ(ScaleSum(3, half->multiplier, half->left, half->right), 2);
  EXPECT_EQ(ScaleSum(-3, half->multiplier, half->left, half->right), -1);
  // What saturates on the way is clamped in the end.
  const auto large = MultiplierOf(1000.0);
  EXPECT_EQ(ToByte(ScaleSum(INT32_MAX, large->multiplier, large->left, large->right), {3, 0, 255}), 255);
  EXPECT_EQ(ToByte(ScaleSum(INT32_MIN, large->multiplier, large->left, large->right), {3, 0, 255}), 0);
  EXPECT_FALSE(MultiplierOf(-1));
  EXPECT_FALSE(MultiplierOf(1e30));
  EXPECT_FALSE(MultiplierOf(NAN));
}

struct Case {
  ConvShape s;
  bool x_signed = false;
  int32_t x_zero = 0;
  ByteRange range = {};
};

int32_t Byte(uint8_t byte, bool is_signed) {
  return is_signed ? static_cast<int8_t>(byte) : byte;
}

// The sums as they are written in a book.
std::vector<int32_t> Sums(const Case& c, const std::vector<uint8_t>& x, const std::vector<int8_t>& w,
                          const std::vector<int32_t>& bias) {
  const ConvShape& s = c.s;
  const int64_t width = s.channels / s.groups, n = s.out_channels / s.groups;
  std::vector<int32_t> out;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t oy = 0; oy < s.out_h(); ++oy)
      for (int64_t ox = 0; ox < s.out_w(); ++ox)
        for (int64_t o = 0; o < s.out_channels; ++o) {
          int32_t sum = bias[o];
          for (int64_t i = 0; i < width; ++i)
            for (int64_t ky = 0; ky < s.kernel_h; ++ky)
              for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const int64_t y = oy * s.stride_h - s.pad_top + ky * s.dilation_h,
                              z = ox * s.stride_w - s.pad_left + kx * s.dilation_w;
                if (y < 0 || y >= s.in_h || z < 0 || z >= s.in_w) continue;
                const auto at =
                    static_cast<size_t>(((b * s.in_h + y) * s.in_w + z) * s.channels + o / n * width + i);
                sum += (Byte(x[at], c.x_signed) - c.x_zero) *
                       w[((o * width + i) * s.kernel_h + ky) * s.kernel_w + kx];
              }
          out.push_back(sum);
        }
  return out;
}

void Check(const Case& c, const IntegerKernels& kernels, ThreadPool& pool) {
  const ConvShape& s = c.s;
  SCOPED_TRACE(std::string(kernels.name) + " channels " + std::to_string(s.channels) + " to " +
               std::to_string(s.out_channels) + " groups " + std::to_string(s.groups) + " kernel " +
               std::to_string(s.kernel_h) + "x" + std::to_string(s.kernel_w) + " stride " +
               std::to_string(s.stride_h) + " size " + std::to_string(s.in_h) + "x" + std::to_string(s.in_w) +
               (c.x_signed ? " signed" : ""));
  const int64_t k = s.channels / s.groups * s.kernel_h * s.kernel_w;
  const auto x = RandomWhole<uint8_t>(s.batch * s.in_h * s.in_w * s.channels, 0, 255, 1);
  const auto w = RandomWhole<int8_t>(s.out_channels * k, -128, 127, 2);
  const auto bias = RandomWhole<int32_t>(s.out_channels, -5000, 5000, 3);
  std::vector<Multiplier> factors;
  for (int64_t o = 0; o < s.out_channels; ++o)
    factors.push_back(
        *MultiplierOf(o % 7 == 3 ? 1.7 : 0.02 / std::sqrt(static_cast<double>(k)) * (1 + o % 5)));
  const IntegerConvPlan plan = PlanIntegerConv(s, c.x_signed, kernels);
  AlignedVector<int32_t> words(static_cast<size_t>(PackedIntegerWords(plan)) + 1, 77);
  PackIntegerConv(plan, {.weights = w.data(), .bias = bias.data(), .x_zero = c.x_zero, .factors = factors},
                  words.data());
  EXPECT_EQ(words.back(), 77);
  const PackedIntegerConv packed = UnpackIntegerConv(plan, words.data(), c.x_zero, true);
  const std::vector<int32_t> sums = Sums(c, x, w, bias);
  AlignedVector<std::byte> workspace(static_cast<size_t>(IntegerConvWorkspaceBytes(plan, pool.size())) + 1,
                                     std::byte{77});
  std::vector<uint8_t> out(sums.size() + 1, 77);
  IntegerConv(
      plan, packed,
      {.x = x.data(), .range = c.range, .out = out.data(), .workspace = workspace.data(), .pool = &pool});
  EXPECT_EQ(out.back(), 77) << "wrote behind its output";
  EXPECT_EQ(workspace.back(), std::byte{77}) << "wrote behind its workspace";
  for (size_t i = 0; i < sums.size(); ++i) {
    const Multiplier& m = factors[i % factors.size()];
    ASSERT_EQ(out[i], ToByte(ScaleSum(sums[i], m.multiplier, m.left, m.right), c.range)) << "at " << i;
  }
  if (plan.depthwise()) return;
  PackIntegerConv(plan, {.weights = w.data(), .bias = bias.data(), .x_zero = c.x_zero, .factors = {}},
                  words.data());
  const PackedIntegerConv plain = UnpackIntegerConv(plan, words.data(), c.x_zero, false);
  std::vector<int32_t> raw(sums.size() + 1, 77);
  IntegerConv(plan, plain, {.x = x.data(), .sums = raw.data(), .workspace = workspace.data(), .pool = &pool});
  EXPECT_EQ(raw.back(), 77);
  raw.pop_back();
  EXPECT_EQ(raw, sums);
  if (plan.shape.groups != 1) return;
  // Each sum is in one block, and is there when that is finished.
  const int64_t columns = plan.shape.out_channels;
  std::vector<int32_t> finished(sums.size(), 0);
  const std::function<void(const IntegerConvArgs::Block&)> finish = [&](const IntegerConvArgs::Block& block) {
    for (int64_t r = block.row; r < block.row + block.rows; ++r)
      for (int64_t n = block.column; n < block.column + block.columns; ++n) {
        const auto at = static_cast<size_t>(r * columns + n);
        finished[at] += raw[at] == sums[at] ? 1 : 100;
      }
  };
  std::fill(raw.begin(), raw.end(), 77);
  IntegerConv(
      plan, plain,
      {.x = x.data(), .sums = raw.data(), .finish = &finish, .workspace = workspace.data(), .pool = &pool});
  EXPECT_EQ(finished, std::vector<int32_t>(sums.size(), 1));
}

std::vector<Case> Cases() {
  const ByteRange all = {3, 0, 255}, some = {-5, -100, 90}, relu = {128, 128, 255};
  std::vector<Case> out;
  const auto add = [&](const ConvShape& s) {
    out.push_back({s, false, 128, relu});
    out.push_back({s, false, 0, all});
    out.push_back({s, true, -7, some});
  };
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{24}, int64_t{33}})
    for (const int64_t k : {int64_t{1}, int64_t{16}, int64_t{50}, int64_t{64}})
      add(ProductShape(n + 2, k, n));
  add({.batch = 2,
       .channels = 3,
       .in_h = 13,
       .in_w = 11,
       .out_channels = 17,
       .kernel_h = 3,
       .kernel_w = 3,
       .stride_h = 2,
       .stride_w = 2,
       .pad_top = 1,
       .pad_left = 1,
       .pad_bottom = 1,
       .pad_right = 1});
  add({.channels = 20,
       .in_h = 6,
       .in_w = 9,
       .out_channels = 16,
       .kernel_h = 3,
       .kernel_w = 5,
       .dilation_h = 2,
       .dilation_w = 2,
       .pad_top = 2,
       .pad_left = 3,
       .pad_bottom = 1,
       .pad_right = 2});
  add({.channels = 32, .in_h = 9, .in_w = 7, .out_channels = 24, .stride_h = 2, .stride_w = 2});
  add({.channels = 24,
       .in_h = 8,
       .in_w = 5,
       .out_channels = 36,
       .groups = 4,
       .kernel_h = 3,
       .kernel_w = 3,
       .pad_top = 1,
       .pad_left = 1,
       .pad_bottom = 1,
       .pad_right = 1});
  add({.channels = 32, .in_h = 5, .in_w = 5, .out_channels = 10, .groups = 2});
  for (const int64_t channels : {int64_t{5}, int64_t{16}, int64_t{40}})
    for (const int64_t kernel : {int64_t{3}, int64_t{5}, int64_t{4}})
      for (const int64_t stride : {int64_t{1}, int64_t{2}})
        add({.batch = 2,
             .channels = channels,
             .in_h = 9,
             .in_w = 12,
             .out_channels = channels,
             .groups = channels,
             .kernel_h = kernel,
             .kernel_w = kernel,
             .stride_h = stride,
             .stride_w = stride,
             .dilation_h = kernel == 4 ? 2 : 1,
             .dilation_w = kernel == 4 ? 2 : 1,
             .pad_top = 2,
             .pad_left = 1,
             .pad_bottom = 2,
             .pad_right = 2});
  return out;
}

TEST(IntegerConv, AllVariantsGiveTheSameBytes) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  for (const IntegerVariant& variant : IntegerVariants()) {
    if (!variant.RunsHere()) continue;
    for (const Case& c : Cases()) {
      Check(c, *variant.run, one);
      Check(c, *variant.run, three);
    }
    // Large enough that threads share it, and rows are cut into blocks.
    Check({{.channels = 48,
            .in_h = 40,
            .in_w = 37,
            .out_channels = 56,
            .kernel_h = 3,
            .kernel_w = 3,
            .pad_top = 1,
            .pad_left = 1,
            .pad_bottom = 1,
            .pad_right = 1},
           false,
           100,
           {0, 0, 255}},
          *variant.run, three);
    Check({{.channels = 64, .in_h = 50, .in_w = 51, .out_channels = 72}, false, 9, {0, 0, 255}}, *variant.run,
          three);
  }
}

TEST(IntegerConv, SumsThatDoNotFitAreSeen) {
  const std::vector<int8_t> w(40000, 127);
  EXPECT_FALSE(SumsFit(ProductShape(1, 40000, 1), {.weights = w.data(), .factors = {}}));
  EXPECT_TRUE(SumsFit(ProductShape(1, 20000, 2), {.weights = w.data(), .factors = {}}));
}

TEST(IntegerAdd, AllVariantsGiveTheSameBytes) {
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{31}, int64_t{200}})
    for (const auto& [fa, fb] : {std::pair{0.7, 0.3}, {1.0, 1.0}, {0.001, 1.4}, {13.0, 2.0}}) {
      const auto a = RandomWhole<uint8_t>(n, 0, 255, 5), b = RandomWhole<uint8_t>(n, 0, 255, 6);
      auto add = AddOf(fa, 128, fb, -3, {7, 2, 250});
      ASSERT_TRUE(add);
      add->a = a.data(), add->b = b.data(), add->b_signed = true, add->n = n;
      for (const IntegerVariant& variant : IntegerVariants()) {
        if (!variant.RunsHere()) continue;
        std::vector<uint8_t> out(static_cast<size_t>(n) + 1, 77), expected(static_cast<size_t>(n) + 1, 77);
        add->out = expected.data();
        kIntegerPortable.add(*add);
        add->out = out.data();
        variant.run->add(*add);
        EXPECT_EQ(out, expected) << variant.name << " " << n << " " << fa;
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          const double exact = 7 + (a[at] - 128) * fa + (static_cast<int8_t>(b[at]) + 3) * fb;
          EXPECT_NEAR(out[at], std::clamp(exact, 2.0, 250.0), 0.54);
        }
      }
    }
  EXPECT_FALSE(AddOf(-1, 0, 1, 0, {}));
  EXPECT_FALSE(AddOf(1e9, 0, 1, 0, {}));
}

TEST(IntegerPool, LargestMeanTableAndProduct) {
  ThreadPool pool({.threads = 2});
  const auto x = RandomWhole<uint8_t>(2 * 7 * 9 * 70, 0, 255, 8);
  for (const bool is_signed : {false, true}) {
    std::vector<uint8_t> most(2 * 4 * 5 * 70), mean(2 * 70);
    MaxPoolBytes({.x = x.data(),
                  .x_signed = is_signed,
                  .batch = 2,
                  .in_h = 7,
                  .in_w = 9,
                  .channels = 70,
                  .kernel_h = 3,
                  .kernel_w = 3,
                  .stride_h = 2,
                  .stride_w = 2,
                  .pad_top = 1,
                  .pad_left = 1,
                  .out_h = 4,
                  .out_w = 5,
                  .out = most.data(),
                  .pool = &pool});
    const auto factor = *MultiplierOf(0.9 / 63);
    AveragePoolBytes({.x = x.data(),
                      .x_signed = is_signed,
                      .batch = 2,
                      .in_h = 7,
                      .in_w = 9,
                      .channels = 70,
                      .kernel_h = 7,
                      .kernel_w = 9,
                      .out = mean.data(),
                      .pool = &pool},
                     {.x_zero = 11, .factor = factor, .range = {100, 0, 255}});
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t c = 0; c < 70; ++c) {
        const auto at = [&](int64_t y, int64_t z) {
          return Byte(x[((b * 7 + y) * 9 + z) * 70 + c], is_signed);
        };
        int32_t sum = 0;
        for (int64_t y = 0; y < 7; ++y)
          for (int64_t z = 0; z < 9; ++z) sum += at(y, z) - 11;
        EXPECT_EQ(mean[b * 70 + c],
                  ToByte(ScaleSum(sum, factor.multiplier, factor.left, factor.right), {100, 0, 255}));
        int32_t largest = -1000;
        for (int64_t y = 3; y < 6; ++y)
          for (int64_t z = 7; z < 9; ++z) largest = std::max(largest, at(y, z));
        EXPECT_EQ(Byte(most[((b * 4 + 2) * 5 + 4) * 70 + c], is_signed), largest);
      }
  }
  std::vector<uint8_t> table(256), looked(x.size());
  for (size_t i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(i * 7 + 3);
  LookUpBytes(x.data(), table.data(), looked.data(), static_cast<int64_t>(x.size()), pool);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(looked[i], static_cast<uint8_t>(x[i] * 7 + 3));
  std::vector<uint8_t> product(70);
  const auto factor = *MultiplierOf(0.004);
  MultiplyBytes({.a = x.data(),
                 .b = x.data() + 100,
                 .b_step = 0,
                 .a_zero = 128,
                 .b_zero = 3,
                 .factor = factor,
                 .range = {50, 0, 255},
                 .out = product.data(),
                 .n = 70});
  for (size_t i = 0; i < 70; ++i)
    EXPECT_EQ(product[i],
              ToByte(ScaleSum((x[i] - 128) * (x[100] - 3), factor.multiplier, factor.left, factor.right),
                     {50, 0, 255}));
}

}  // namespace
}  // namespace celer
