#include "base/device.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(Device, ParsesAndPrints) {
  EXPECT_EQ(*Device::Parse("cpu"), Device::Cpu());
  EXPECT_EQ(*Device::Parse("cuda"), Device::Cuda(0));
  EXPECT_EQ(*Device::Parse("cuda:12"), Device::Cuda(12));
  EXPECT_EQ(Device::Cpu().ToString(), "cpu");
  EXPECT_EQ(Device::Cuda(3).ToString(), "cuda:3");
  EXPECT_TRUE(Device::Cpu().is_cpu());
  EXPECT_FALSE(Device::Cuda().is_cpu());
  EXPECT_FALSE(Device::Cuda(0) == Device::Cuda(1));
}

TEST(Device, RejectsTheRestWithOneSentence) {
  for (const char* const bad :
       {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "cuda: 1", "cuda:99999999999"}) {
    const auto device = Device::Parse(bad);
    ASSERT_FALSE(device) << bad;
    EXPECT_EQ(device.error().code(), Error::Code::kInvalid);
    EXPECT_EQ(device.error().message(), std::string("device '") + bad + "' is not one of cpu, cuda, cuda:N");
  }
}

TEST(Device, CountIsNeverNegative) {
  EXPECT_GE(CudaDeviceCount(), 0);
}

}  // namespace
}  // namespace celer
