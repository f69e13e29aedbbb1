#include "limits/roofline.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(Roofline, TheSlowerOfTheTwoBinds) {
  const Roof roof = {.bytes_per_s = 1e12, .flops_per_s = 100e12, .dtype = "bf16", .source = "data sheet"};
  EXPECT_EQ(RidgeIntensity(roof), 100);
  const RooflineLimit low = LimitOf({.read_bytes = 1e9, .write_bytes = 1e9, .flops = 1e9}, roof);
  EXPECT_DOUBLE_EQ(low.seconds(), 2e-3);
  EXPECT_TRUE(low.memory_bound());
  EXPECT_EQ(BoundBy(low, roof), "memory, 1000 GB/s data sheet");
  EXPECT_DOUBLE_EQ(RatioToLimit(low, 4e-3), 0.5);
  const RooflineLimit high = LimitOf({.read_bytes = 1e6, .flops = 1e12}, roof);
  EXPECT_DOUBLE_EQ(high.seconds(), 1e-2);
  EXPECT_EQ(BoundBy(high, roof), "bf16 arithmetic, 100.0 TFLOP/s data sheet");
  EXPECT_EQ(AttainableFlops(10, roof), 10e12);
  EXPECT_EQ(AttainableFlops(1000, roof), 100e12);
}

TEST(Roofline, EachTypeAtItsOwnPeak) {
  Machine machine{
      .name = "m", .source = "flags", .read_bytes_per_s = 1e10, .flops = {{"f32", 1e11}, {"int8", 1e12}}};
  OperatorWork work{.name = "step", .bytes = 1e9, .flops = {{"int8", 5e10}}};
  EXPECT_DOUBLE_EQ(LimitOf(work, machine).seconds(), 0.1);
  EXPECT_TRUE(LimitOf(work, machine).memory_bound());
  EXPECT_EQ(MainArithmetic(work, machine), "int8");
  work += {.name = "attention", .bytes = 1e9, .flops = {{"f32", 1e10}, {"bf16", 2e10}}};
  EXPECT_EQ(work.name, "step");
  EXPECT_DOUBLE_EQ(LimitOf(work, machine).memory_s, 0.2);
  EXPECT_DOUBLE_EQ(LimitOf(work, machine).compute_s, 0.05 + 0.1 + 0.2);  // bf16 is widened to f32
  EXPECT_FALSE(LimitOf(work, machine).memory_bound());
  EXPECT_EQ(MainArithmetic(work, machine), "f32");
  EXPECT_EQ(MainArithmetic({.name = "sampling"}, machine), "");

  const OperatorWork attention{.name = "attention", .flops = {{"auto", 1e11}}};
  EXPECT_DOUBLE_EQ(LimitOf(attention, machine).compute_s, 1);
  machine.flops["bf16"] = 4e11;
  machine.flops["f16"] = 2e11;
  EXPECT_DOUBLE_EQ(LimitOf(attention, machine).compute_s, 1e11 / *PeakFlops(machine, LlmSetup{}));
  EXPECT_EQ(MainArithmetic(attention, machine), "bf16");
  const OperatorWork twice = Sum({attention, attention});
  EXPECT_DOUBLE_EQ(twice.flops.at("auto"), 2e11);
}

TEST(Roofline, AMissingPeakNamesTheKnownOnes) {
  const auto roof = RoofOf(*FindMachinePreset("t4"), "fp8");
  ASSERT_FALSE(roof);
  EXPECT_EQ(roof.error().message(), "machine 't4' has no arithmetic peak for 'fp8'; known: f16, f32, int8");
  EXPECT_EQ(RoofOf(*FindMachinePreset("t4"), "int8")->flops_per_s, 130e12);
}

}  // namespace
}  // namespace celer
