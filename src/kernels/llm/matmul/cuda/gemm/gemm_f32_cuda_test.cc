#include "kernels/llm/matmul/cuda/gemm/gemm_f32_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::AllNear;
using celer::testing::RandomFloats;
using celer::testing::SumTolerance;
using testing::OnDevice;

struct Case {
  int64_t m, n, k, batch = 1;
  int64_t offset = 0;  // floats in front of every matrix, so that nothing is aligned
  int64_t spare = 0;   // floats between rows
};

void ExpectMatchesDouble(GemmF32& gemm, const Case& c, bool a_transposed, bool b_transposed, bool add) {
  SCOPED_TRACE(::testing::Message() << c.m << " x " << c.n << " x " << c.k << " batch " << c.batch << " a "
                                    << a_transposed << " b " << b_transposed << " add " << add);
  const int64_t a_rows = a_transposed ? c.k : c.m, a_stride = (a_transposed ? c.m : c.k) + c.spare,
                b_rows = b_transposed ? c.n : c.k, b_stride = (b_transposed ? c.k : c.n) + c.spare,
                out_stride = c.n + c.spare;
  const int64_t a_batch = a_rows * a_stride, b_batch = b_rows * b_stride, out_batch = c.m * out_stride;
  const auto a = RandomFloats(c.offset + c.batch * a_batch, 1),
             b = RandomFloats(c.offset + c.batch * b_batch, 2),
             before = RandomFloats(c.offset + c.batch * out_batch, 3);
  const OnDevice<float> da(a), db(b), dout(before);
  const float alpha = -0.75f;
  const Status status = gemm.Run({.m = c.m,
                                  .n = c.n,
                                  .k = c.k,
                                  .a = {da.get() + c.offset, a_stride, a_transposed, a_batch},
                                  .b = {db.get() + c.offset, b_stride, b_transposed, b_batch},
                                  .out = dout.get() + c.offset,
                                  .out_stride = out_stride,
                                  .out_batch_stride = out_batch,
                                  .alpha = alpha,
                                  .add = add,
                                  .batch = c.batch},
                                 nullptr);
  ASSERT_TRUE(status) << status.error().message();
  std::vector<double> expected(before.begin(), before.end()), allowed(before.size());
  for (int64_t i = 0; i < c.batch; ++i)
    for (int64_t r = 0; r < c.m; ++r)
      for (int64_t col = 0; col < c.n; ++col) {
        double sum = 0, magnitudes = 0;
        for (int64_t t = 0; t < c.k; ++t) {
          const double x = a[static_cast<size_t>(c.offset + i * a_batch +
                                                 (a_transposed ? t * a_stride + r : r * a_stride + t))],
                       y = b[static_cast<size_t>(c.offset + i * b_batch +
                                                 (b_transposed ? col * b_stride + t : t * b_stride + col))];
          sum += x * y;
          magnitudes += std::abs(x * y);
        }
        const auto at = static_cast<size_t>(c.offset + i * out_batch + r * out_stride + col);
        expected[at] = alpha * sum + (add ? before[at] : 0);
        allowed[at] = SumTolerance(c.k, magnitudes + 1);
      }
  EXPECT_TRUE(AllNear(dout.Read(), expected, [&](size_t i) { return allowed[i]; }));
}

TEST(CudaGemmF32, MatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto gemm = GemmF32::Create(0);
  ASSERT_TRUE(gemm) << gemm.error().message();
  const Case cases[] = {{1, 1, 1},     {64, 64, 64},        {37, 65, 129, 1, 1, 3},
                        {200, 3, 77},  {5, 130, 64, 3, 2},  {96, 40, 16, 9, 0, 5},
                        {33, 33, 500}, {129, 64, 64, 1, 64}};
  for (const Case& c : cases)
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const bool add : {false, true}) ExpectMatchesDouble(*gemm, c, a_transposed, b_transposed, add);
}

}  // namespace
}  // namespace celer::cuda
