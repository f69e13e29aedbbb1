// Kernels in a process with two GPUs: what was asked of the first must be asked of the second, too.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/device.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/cuda/per_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

// A product on the current device. Its kernel needs far more shared memory than it gets without asking.
void ExpectProduct() {
  constexpr int kRows = 100, kCols = 300, kTokens = 3;
  const auto w = RandomFloats(int64_t{kRows} * kCols, 1), x = RandomFloats(int64_t{kTokens} * kCols, 2);
  DeviceMatrix m;
  m.format = Format::kF32;
  m.rows = kRows;
  m.cols = kCols;
  m.row_bytes = PaddedRowBytes(m.format, kCols);
  m.padded = static_cast<int>(m.row_bytes / 4);
  std::vector<std::byte> laid_out(static_cast<size_t>(m.data_bytes()));
  for (int row = 0; row < kRows; ++row)
    for (int col = 0; col < kCols; ++col)
      std::memcpy(laid_out.data() + m.Offset(row, col * 4), &w[static_cast<size_t>(row * kCols + col)], 4);
  const OnDevice<std::byte> data(laid_out);
  const OnDevice<float> on_x(x), out(int64_t{kTokens} * kRows);
  m.data = data.get();
  MatvecArgs args;
  args.a = m;
  args.x = on_x.get();
  args.x_stride = kCols;
  args.tokens = kTokens;
  args.out = out.get();
  args.out_stride = kRows;
  ASSERT_EQ(cudaSuccess, LaunchMatvec(args, nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  const auto got = out.Read();
  for (int t = 0; t < kTokens; ++t)
    for (int row = 0; row < kRows; ++row) {
      double sum = 0, most = 0;
      for (int col = 0; col < kCols; ++col) {
        const double product = double{w[static_cast<size_t>(row * kCols + col)]} *
                               double{x[static_cast<size_t>(t * kCols + col)]};
        sum += product, most += std::abs(product);
      }
      const float value = got[static_cast<size_t>(t * kRows + row)];
      ASSERT_TRUE(std::isfinite(value));
      ASSERT_NEAR(sum, value, most / 65536) << "token " << t << ", row " << row;  // 16 bits of x
    }
}

TEST(CudaPerDevice, MultiprocessorsAreThoseOfTheCurrentDevice) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (int device = 0; device < CudaDeviceCount(); ++device) {
    ASSERT_EQ(cudaSuccess, cudaSetDevice(device));
    cudaDeviceProp properties = {};
    ASSERT_EQ(cudaSuccess, cudaGetDeviceProperties(&properties, device));
    EXPECT_EQ(properties.multiProcessorCount, Multiprocessors());
  }
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
}

TEST(CudaPerDevice, AProductRunsOnASecondDevice) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
  ExpectProduct();
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "one CUDA device only";
  ASSERT_EQ(cudaSuccess, cudaSetDevice(1));
  ExpectProduct();
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
}

}  // namespace
}  // namespace celer::cuda
