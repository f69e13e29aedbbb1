// Slots of states copied on a GPU.
#include "models/cuda/memory/states.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "base/device.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

RecurrentConfig Layers() {
  return {.layer = {true, false, true},
          .conv_kernel = 4,
          .key_heads = 2,
          .key_dim = 7,
          .value_heads = 4,
          .value_dim = 10};
}

TEST(CudaStates, CopiesWholeSlots) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto made = CudaStates::Make(0, Layers(), 5);
  ASSERT_TRUE(made) << made.error().message();
  CudaStates& states = **made;
  ASSERT_EQ(states.layers().size(), 3u);
  EXPECT_EQ(states.layers()[1], nullptr);
  const auto width = static_cast<size_t>(states.stride());
  const auto slot = [&](int64_t i) { return states.layers()[0] + i * states.stride(); };
  std::vector<float> values;
  for (int64_t i = 0; i < 5; ++i) {
    values.assign(width, static_cast<float>(i));
    ASSERT_EQ(cudaSuccess, cudaMemcpy(slot(i), values.data(), 4 * width, cudaMemcpyHostToDevice));
  }
  const BlockCopy copies[] = {{3, 0}, {0, 4}};
  ASSERT_TRUE(states.Copy(copies, nullptr));
  for (int64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(cudaSuccess, cudaMemcpy(values.data(), slot(i), 4 * width, cudaMemcpyDeviceToHost));
    EXPECT_EQ(values, std::vector<float>(width, static_cast<float>(i == 0 || i == 4 ? 3 : i))) << i;
  }
  EXPECT_FALSE(states.Copy(std::vector<BlockCopy>{{1, 5}}, nullptr));
  EXPECT_FALSE(CudaStates::Make(0, Layers(), 0));
}

TEST(CudaStates, KeysThatTheKernelsDoNotTakeAreRefused) {
  RecurrentConfig config = Layers();
  EXPECT_TRUE(CheckStatesRunOnGpu(config));
  config.key_dim = 257;
  const Status refused = CheckStatesRunOnGpu(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("256 at most"), std::string::npos);
}

TEST(CudaStates, TakeWhatTheHostsTakeApartFromPadding) {
  const RecurrentConfig config = Layers();
  EXPECT_GE(DeviceStateBytes(config), StateBytes(config) * 7 / 8);
  EXPECT_EQ(DeviceStateBytes({}), 0);
}

}  // namespace
}  // namespace celer
