// GPTQ on a GPU against the CPU's, step by step.
#include "quantize/llm/layer/cuda_gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "device/cuda_allocator.h"
#include "formats/bfloat16.h"
#include "kernels/calibration/gptq/gptq_cuda.h"
#include "kernels/calibration/gptq/inverse_cholesky_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using cuda::testing::OnDevice;
using testing::RandomFloats;

// Inputs whose columns correlate and differ in size, as real ones do.
std::vector<float> Inputs(int64_t tokens, int64_t cols) {
  const auto noise = RandomFloats(tokens * cols, 5), shared = RandomFloats(tokens * 4, 6),
             mix = RandomFloats(4 * cols, 7);
  std::vector<float> out(noise.size());
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < cols; ++c) {
      float value = 0.5f * noise[t * cols + c];
      for (int64_t i = 0; i < 4; ++i) value += shared[t * 4 + i] * mix[i * cols + c];
      out[t * cols + c] = value * (1.0f + static_cast<float>(c * 7 % 5));
    }
  return out;
}

// What the product misses on the text: trace(D H D^T), D = what the codes stand for - w.
double MissOf(const IntTensor& ints, const std::vector<float>& w, const AlignedVector<float>& h,
              ThreadPool& pool) {
  const int64_t n = ints.cols();
  std::vector<float> d(w.size());
  ints.Decode(d.data(), pool);
  for (size_t i = 0; i < d.size(); ++i) d[i] -= w[i];
  double sum = 0;
  for (int64_t r = 0; r < ints.rows(); ++r)
    for (int64_t i = 0; i < n; ++i) {
      double product = 0;
      for (int64_t j = 0; j < n; ++j) product += double{h[i * n + j]} * d[r * n + j];
      sum += product * d[r * n + i];
    }
  return sum;
}

TEST(CudaGptq, GridsAreThoseOfTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const char* name : {"int4-g32", "int4-g128-sym", "int8-g64", "int8", "int8-asym"}) {
    const Target target = Target::Parse(name).value();
    constexpr int64_t kRows = 37, kCols = 384;
    auto w = RandomFloats(kRows * kCols, 1, 0.2f);
    std::fill_n(w.begin() + kCols, kCols, 0.0f);  // a row of zeros
    auto importance = RandomFloats(kCols, 2);
    for (float& value : importance) value = value * value + 0.01f;
    IntTensor expected(target, kRows, kCols);
    const OnDevice<float> dw(w), dimportance(importance);
    const int64_t groups = kRows * expected.groups();
    const OnDevice<uint16_t> scales(groups);
    const OnDevice<uint8_t> zeros(groups);
    cuda::GptqMatrix m{
        .w = dw.get(),
        .rows = kRows,
        .cols = kCols,
        .grid = {.bits = target.bits, .group = expected.group(), .symmetric = target.symmetric},
        .scales = scales.get(),
        .zeros = zeros.get()};
    ASSERT_EQ(cudaSuccess, cuda::LaunchFitGrids(m, dimportance.get(), kGridCandidates, nullptr));
    const auto got_scales = scales.Read();
    const auto got_zeros = zeros.Read();
    int64_t differ = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      expected.FitRow(r, w.data() + r * kCols, importance.data(), kGridCandidates);
      for (int64_t g = 0; g < expected.groups(); ++g) {
        const IntGrid grid = expected.grid(r, g);
        const auto at = static_cast<size_t>(r * expected.groups() + g);
        differ += Bf16ToFloat(got_scales[at]) != grid.scale || got_zeros[at] != grid.zero;
      }
    }
    // Two candidates may be equally good up to rounding.
    EXPECT_LE(differ, groups / 100) << name << " of " << groups;
  }
}

TEST(CudaGptq, FactorIsThatOfTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto gemm = cuda::GemmF32::Create(0);
  ASSERT_TRUE(gemm) << gemm.error().message();
  ThreadPool pool({.threads = 2});
  Allocator& memory = **CudaAllocator(0);
  for (const int64_t n : {1, 63, 64, 65, 200, 577}) {
    const auto x = Inputs(2 * n + 50, n);
    InputStatistics statistics;
    statistics.Add(x.data(), 2 * n + 50, n, pool);
    const AlignedVector<float> made = statistics.Hessian();
    std::vector<float> h(made.begin(), made.end());
    for (int64_t i = 0; i < n; ++i) h[i * n + i] += 0.05f;
    std::vector<float> expected(h.size());
    ASSERT_TRUE(InverseCholesky(h.data(), n, expected.data(), pool));
    const OnDevice<float> a(h), u(n * n);
    const auto done = cuda::InverseCholesky(*gemm, a.get(), n, u.get(), memory, nullptr);
    ASSERT_TRUE(done) << done.error().message();
    ASSERT_TRUE(*done) << n;
    const auto got = u.Read();
    EXPECT_LT(testing::RelativeError(got, expected), 1e-4) << n;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < r; ++c) ASSERT_EQ(got[r * n + c], 0.0f) << r << " " << c;

    h[n / 2 * n + n / 2] = -1;  // no such matrix has a factor
    const OnDevice<float> bad(h);
    const auto refused = cuda::InverseCholesky(*gemm, bad.get(), n, u.get(), memory, nullptr);
    ASSERT_TRUE(refused) << refused.error().message();
    EXPECT_FALSE(*refused) << n;
  }
}

TEST(CudaGptq, CodesAreThoseOfTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto gemm = cuda::GemmF32::Create(0);
  ASSERT_TRUE(gemm) << gemm.error().message();
  ThreadPool pool({.threads = 2});
  Allocator& memory = **CudaAllocator(0);
  CudaGptq solver(*gemm, memory);
  struct Case {
    const char* target;
    int64_t rows, cols;
    bool act_order;
    double other_codes = 0.02;  // of all, at most: the more columns, the more there are that fall otherwise
  };
  for (const Case& c : {Case{"int4-g32", 50, 96, true},
                        {"int4-g64", 33, 320, true},
                        {"int4-g128-sym", 17, 256, false},
                        {"int8", 20, 136, true},
                        {"int8-g32-asym", 1, 32, false},
                        {"int4-g128", 40, 1024, true, 0.3}}) {
    SCOPED_TRACE(::testing::Message() << c.target << " " << c.rows << " x " << c.cols);
    const Target target = Target::Parse(c.target).value();
    const int64_t tokens = 3 * c.cols;
    const auto x = Inputs(tokens, c.cols);
    const auto w = RandomFloats(c.rows * c.cols, 9, 0.1f);
    InputStatistics statistics;
    statistics.Add(x.data(), tokens, c.cols, pool);
    const GptqOptions options{.act_order = c.act_order};
    const auto cpu = GptqSolver::Make(statistics, options, "w", pool);
    ASSERT_TRUE(cpu) << cpu.error().message();
    const IntTensor expected = cpu->Quantize(w.data(), c.rows, target, pool);

    CudaGram gram;
    gram.cols = c.cols;
    ASSERT_TRUE(gram.sums.Upload(memory, statistics.gram()));
    const auto squares = MeanSquaresOf(gram, tokens);
    ASSERT_TRUE(squares);
    EXPECT_EQ(*squares, statistics.MeanSquares());
    ASSERT_TRUE(solver.Prepare(gram, tokens, options, "w"));
    CudaLayer::Matrix m;
    m.rows = c.rows, m.cols = c.cols;
    ASSERT_TRUE(m.values.Upload(memory, w));
    const auto got = solver.Quantize(&m, target);
    ASSERT_TRUE(got) << got.error().message();
    int64_t differ = 0;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t col = 0; col < c.cols; ++col) differ += got->at(r, col) != expected.at(r, col);
    // What lies between two codes may fall to either side, and the rest of its row with it: which of the two
    // is as good as the other.
    EXPECT_LE(static_cast<double>(differ), c.other_codes * static_cast<double>(c.rows * c.cols));
    const AlignedVector<float> h = statistics.Hessian();
    const double miss = MissOf(*got, w, h, pool), expected_miss = MissOf(expected, w, h, pool);
    EXPECT_NEAR(miss, expected_miss, 0.02 * expected_miss);
    const IntTensor nearest = RoundToNearest(w.data(), c.rows, c.cols, target,
                                             statistics.MeanSquares().data(), kGridCandidates, pool);
    EXPECT_LT(miss, 0.8 * MissOf(nearest, w, h, pool));
    // What the GPU goes on with is what the codes stand for.
    std::vector<float> values(w.size()), decoded(w.size());
    ASSERT_TRUE(m.values.Download(values));
    got->Decode(decoded.data(), pool);
    EXPECT_EQ(values, decoded);
  }
}

}  // namespace
}  // namespace celer
