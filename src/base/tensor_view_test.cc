#include "base/tensor_view.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(TensorView, ContiguousIsRowMajor) {
  float data[24] = {};
  const TensorView view = TensorView::Contiguous(data, DType::kF32, Device::Cpu(), {2, 3, 4});
  EXPECT_EQ(view.stride[0], 12);
  EXPECT_EQ(view.stride[1], 4);
  EXPECT_EQ(view.stride[2], 1);
  EXPECT_EQ(view.as<float>(), data);
  EXPECT_EQ(view.dtype, DType::kF32);
  EXPECT_EQ(view.shape, (Shape{2, 3, 4}));
}

TEST(TensorView, ScalarAndEmpty) {
  float data = 0;
  EXPECT_EQ(TensorView::Contiguous(&data, DType::kF32, Device::Cpu(), {}).shape.rank(), 0);
  const TensorView empty = TensorView::Contiguous(nullptr, DType::kF16, Device::Cuda(1), {5, 0, 3});
  EXPECT_EQ(empty.stride[1], 3);
  EXPECT_EQ(empty.stride[0], 0);
  EXPECT_EQ(empty.device, Device::Cuda(1));
}

TEST(TensorViewDeathTest, AnImpossibleExtentIsCaught) {
  EXPECT_DEATH(
      TensorView::Contiguous(nullptr, DType::kF32, Device::Cpu(), {2, int64_t{1} << 32, int64_t{1} << 31}),
      "elements");
}

}  // namespace
}  // namespace celer
