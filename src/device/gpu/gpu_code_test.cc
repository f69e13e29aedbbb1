#include "device/gpu/gpu_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuCode, ArchitecturesAreReadAsPeopleWriteThem) {
  EXPECT_EQ(*internal::ParseGpuArch("86"), 86);
  EXPECT_EQ(*internal::ParseGpuArch("8.6"), 86);
  EXPECT_EQ(*internal::ParseGpuArch("12.0"), 120);
  for (const char* const wrong : {"", "sm_86", "85", "8600", "-1", "8.6a"}) {
    const auto parsed = internal::ParseGpuArch(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_THAT(parsed.error().message(), HasSubstr("CELER_CUDA_ARCH")) << wrong;
  }
}

TEST(GpuCode, SharedMemoryOfABlock) {
  for (const auto& [capability, kb] : {std::pair{75, 64},
                                       {80, 163},
                                       {86, 99},
                                       {87, 163},
                                       {89, 99},
                                       {90, 227},
                                       {100, 227},
                                       {103, 227},
                                       {120, 99},
                                       {121, 99}})
    EXPECT_EQ(SharedBytesOf(capability), kb * 1024) << capability;
}

TEST(GpuCode, WhatRunsWhere) {
  EXPECT_TRUE(CheckGpuCode(0, "NVIDIA H200", {}));
  EXPECT_TRUE(CheckGpuCode(0, "NVIDIA A100", {80, 80, 80, SharedBytesOf(80)}));
  EXPECT_TRUE(CheckGpuCode(0, "NVIDIA GeForce RTX 4090", {89, 89, 80, SharedBytesOf(89)}));
  EXPECT_TRUE(CheckGpuCode(0, "NVIDIA GeForce RTX 5090", {120, 120, 120, SharedBytesOf(120)}));
  EXPECT_TRUE(CheckGpuCode(0, "an H200 as an RTX 3090", {90, 86, 80, SharedBytesOf(86)}));
  const auto message = [](const std::string& name, const GpuCode& code) {
    const Status checked = CheckGpuCode(2, name, code);
    return checked ? "runs" : checked.error().message();
  };
  const std::string old = message("Tesla T4", {75, 75, 0, SharedBytesOf(75)});
  EXPECT_THAT(old, HasSubstr("cuda:2: Tesla T4 has compute capability 7.5"));
  EXPECT_THAT(old, HasSubstr("cpu"));
  EXPECT_THAT(message("NVIDIA A100", {80, 80, 0, SharedBytesOf(80)}), HasSubstr("-DCELER_CUDA_ARCHS=80"));
  EXPECT_THAT(message("NVIDIA H200", {90, 86, 90, SharedBytesOf(86)}), HasSubstr("CELER_CUDA_ARCH"));
}

TEST(GpuCode, WhatOtherProcessesTook) {
  GpuCode code;
  code.taken = "another process has it to itself";
  const Status taken = CheckGpuCode(1, "NVIDIA H200", code);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().message(), "cuda:1: NVIDIA H200: another process has it to itself");
}

TEST(GpuCode, WhyThereIsNoGpu) {
  using internal::DriverAnswer;
  using Kind = DriverAnswer::Kind;
  const auto message = [](int device, const DriverAnswer& answer) {
    const Status checked = internal::CheckAnswer(device, answer);
    return checked ? "there is" : checked.error().message();
  };
  EXPECT_EQ(message(1, {.count = 2}), "there is");
  EXPECT_THAT(message(2, {.count = 2}), HasSubstr("cuda:2: there are 2 CUDA devices, counted from 0"));
  EXPECT_THAT(message(-1, {.count = 1}), HasSubstr("there is 1 CUDA device"));
  EXPECT_THAT(message(1, {.count = 1, .visible = "3"}), HasSubstr("CUDA_VISIBLE_DEVICES is '3'"));
  EXPECT_THAT(message(0, {.kind = Kind::kNoGpu, .visible = "-1"}), HasSubstr("CUDA_VISIBLE_DEVICES is '-1'"));
  EXPECT_THAT(message(0, {.kind = Kind::kNoGpu}), HasSubstr("no CUDA device;"));
  EXPECT_THAT(message(0, {.kind = Kind::kNoDriver}),
              HasSubstr("there is no CUDA device, as there is no NVIDIA driver"));
  const std::string old = message(0, {.kind = Kind::kOldDriver, .driver = 12040, .built_with = 13000});
  EXPECT_THAT(old, HasSubstr("CUDA 12.4 at most"));
  EXPECT_THAT(old, HasSubstr("built with 13.0"));
  EXPECT_THAT(old, HasSubstr("update the driver"));
  EXPECT_THAT(message(0, {.kind = Kind::kFailed, .error = "system not yet initialized"}),
              HasSubstr("system not yet initialized"));
}

TEST(GpuCode, TheSentenceNamesPathAndReason) {
  const auto says = [](const GpuCode& code) { return internal::DescribeGpuCode(0, "GPU", code); };
  EXPECT_THAT(says({}), HasSubstr("wgmma"));
  EXPECT_THAT(says({}), HasSubstr("227 KB"));
  EXPECT_THAT(says({100, 100, 90, 227 * 1024}), HasSubstr("PTX"));
  const std::string forced = says({90, 86, 80, 99 * 1024});
  EXPECT_THAT(forced, HasSubstr("stands for 8.6"));
  EXPECT_THAT(forced, HasSubstr("generic"));
  EXPECT_THAT(forced, HasSubstr("99 KB"));
  EXPECT_THAT(forced, Not(HasSubstr("wgmma")));
}

}  // namespace
}  // namespace celer
