#include "models/cuda/memory/memory_plan.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

CudaMemoryPlan Plan(int64_t weights, int64_t tokens, int64_t free) {
  CudaMemoryPlan plan;
  plan.weights = weights;
  plan.kv_block_bytes = 16 << 20;
  plan.kv_blocks = tokens / 16;
  plan.workspace = kGiB;
  plan.staging = kGiB / 16;
  plan.free = free;
  return plan;
}

TEST(CudaMemoryPlan, AddsUpAndNamesEverything) {
  const CudaMemoryPlan plan = Plan(10 * kGiB, 4096, 80 * kGiB);
  EXPECT_EQ(plan.kv(), 4 * kGiB);
  EXPECT_EQ(plan.total(), 10 * kGiB + 4 * kGiB + kGiB + kGiB / 16 + plan.margin);
  EXPECT_EQ(plan.room(), 80 * kGiB - (plan.total() - plan.kv()));
  for (const char* word : {"weights", "KV", "workspace", "staging", "margin", "free"})
    EXPECT_NE(plan.ToString().find(word), std::string::npos) << plan.ToString();
}

TEST(CudaMemoryPlan, TheNearestSettingThatFits) {
  const std::vector<std::pair<std::string, int64_t>> lighter = {{"int8", 10 * kGiB}, {"int4", 5 * kGiB}};
  // 20 GiB of weights leave room for some of the keys, or for all of them in half the space.
  EXPECT_EQ(Plan(20 * kGiB, 4096, 23 * kGiB).Remedy(lighter, 8 << 20),
            "`context` 1984 fits for one sequence");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 23 * kGiB).Remedy(lighter, 8 << 20),
            "`context` 1984 fits for one sequence, all of it with `kv` int8");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 20 * kGiB).Remedy(lighter, 8 << 20), "`weights` int8 fits");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 12 * kGiB).Remedy(lighter, 8 << 20), "`weights` int8 `context` 960 fits");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 10 * kGiB).Remedy(lighter, 8 << 20), "`weights` int4 fits");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 2 * kGiB).Remedy(lighter, 8 << 20), "no setting fits; use `device` cpu");
}

CudaRowFacts Rows(RowCopies copies, Activations activations = Activations::k16Bit) {
  return {.copies = copies, .activations = activations, .wgmma = true, .keepable = true};
}

TEST(WantsRows, WhereTheModelAndTheGpuAllowThem) {
  EXPECT_TRUE(*WantsRows(Rows(RowCopies::kAuto)));
  EXPECT_TRUE(*WantsRows(Rows(RowCopies::kOn)));
  EXPECT_FALSE(*WantsRows(Rows(RowCopies::kOff)));
  EXPECT_TRUE(*WantsRows(Rows(RowCopies::kOff, Activations::kFp8)));  // rows of another kind
  for (bool CudaRowFacts::*needed : {&CudaRowFacts::wgmma, &CudaRowFacts::keepable}) {
    CudaRowFacts facts = Rows(RowCopies::kAuto);
    facts.*needed = false;
    EXPECT_FALSE(*WantsRows(facts));
    facts.copies = RowCopies::kOn;
    EXPECT_FALSE(WantsRows(facts));
  }
  CudaRowFacts deterministic = Rows(RowCopies::kAuto);
  deterministic.deterministic = true;
  EXPECT_FALSE(*WantsRows(deterministic));
  deterministic.activations = Activations::kFp8;
  EXPECT_FALSE(WantsRows(deterministic));
}

// Without the library `auto` goes on without rows, so that the plan does not count them; what was asked for
// is refused in one sentence that says why and what to do.
TEST(WantsRows, WithoutCublasLt) {
  const auto without = [](CudaRowFacts facts) {
    facts.no_cublaslt = "libcublasLt.so.13: cannot open";
    return WantsRows(facts);
  };
  EXPECT_FALSE(*without(Rows(RowCopies::kAuto)));
  EXPECT_FALSE(*without(Rows(RowCopies::kOff)));
  const auto on = without(Rows(RowCopies::kOn));
  ASSERT_FALSE(on);
  EXPECT_EQ(on.error().message(),
            "`row_copies` on needs cuBLASLt, which does not run here (libcublasLt.so.13: cannot open); "
            "install it or leave `row_copies` out");
  for (const RowCopies copies : {RowCopies::kAuto, RowCopies::kOn, RowCopies::kOff}) {
    const auto int8 = without(Rows(copies, Activations::kInt8));
    ASSERT_FALSE(int8);
    EXPECT_EQ(int8.error().message(),
              "`activations` int8 needs cuBLASLt, which does not run here (libcublasLt.so.13: cannot open); "
              "install it or leave `activations` out");
    const auto fp8 = without(Rows(copies, Activations::kFp8));
    ASSERT_FALSE(fp8);
    EXPECT_EQ(fp8.error().message(),
              "`activations` fp8 needs cuBLASLt, which does not run here (libcublasLt.so.13: cannot open); "
              "install it or leave `activations` out");
  }
}

TEST(WantsRows, Fp8NeedsAGpuThatHasIt) {
  CudaRowFacts facts = Rows(RowCopies::kAuto, Activations::kFp8);
  facts.fp8 = false;
  const auto refused = WantsRows(facts);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("8.9"), std::string::npos);
  facts.activations = Activations::kInt8;
  EXPECT_TRUE(*WantsRows(facts));
}

}  // namespace
}  // namespace celer
