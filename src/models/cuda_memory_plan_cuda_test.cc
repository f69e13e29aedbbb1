#include <gtest/gtest.h>

#include "models/cuda_decoder.h"

namespace celer {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

CudaMemoryPlan Plan(int64_t weights, int64_t tokens, int64_t free) {
  CudaMemoryPlan plan;
  plan.weights = weights;
  plan.kv_per_token = 1 << 20;
  plan.kv = tokens * plan.kv_per_token;
  plan.workspace = kGiB;
  plan.staging = kGiB / 16;
  plan.free = free;
  return plan;
}

TEST(CudaMemoryPlan, AddsUpAndNamesEverything) {
  const CudaMemoryPlan plan = Plan(10 * kGiB, 4096, 80 * kGiB);
  EXPECT_EQ(plan.total(), 10 * kGiB + 4096 * plan.kv_per_token + kGiB + kGiB / 16);
  for (const char* word : {"weights", "KV", "workspace", "staging", "free"})
    EXPECT_NE(plan.ToString().find(word), std::string::npos) << plan.ToString();
}

TEST(CudaMemoryPlan, TheNearestSettingThatFits) {
  const std::vector<std::pair<std::string, int64_t>> lighter = {{"int8", 10 * kGiB}, {"int4", 5 * kGiB}};
  // 20 GiB of weights leave room for some of the keys, or for all of them in half the space.
  EXPECT_EQ(Plan(20 * kGiB, 4096, 23 * kGiB).Remedy(lighter, 1 << 19),
            "--context 1984 fits for one sequence");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 23 * kGiB).Remedy(lighter, 1 << 19),
            "--context 1984 fits for one sequence, all of it with --kv int8");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 20 * kGiB).Remedy(lighter, 1 << 19), "--weights int8 fits");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 12 * kGiB).Remedy(lighter, 1 << 19), "--weights int8 --context 960 fits");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 10 * kGiB).Remedy(lighter, 1 << 19), "--weights int4 fits");
  EXPECT_EQ(Plan(20 * kGiB, 2048, 2 * kGiB).Remedy(lighter, 1 << 19), "no setting fits; use --device cpu");
}

}  // namespace
}  // namespace celer
