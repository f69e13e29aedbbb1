#include "models/cuda/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer {
namespace {

using ::testing::HasSubstr;

// An H200 with a dense model that every kernel runs.
CudaFacts H200(int64_t tokens, bool decode) {
  return {.tokens = tokens,
          .decode = decode,
          .longest = decode ? 1 : tokens,
          .most_keys = 100,
          .logit_rows = decode ? tokens : 1,
          .step_tokens = 4,
          .step_keys = 1024,
          .batch_tokens = 16,
          .batch_keys = 2048,
          .wgmma = true,
          .flash = true};
}

std::string Forward(const CudaFacts& facts) {
  const auto row = internal::ChooseRow(ForwardStrategies(), facts, {});
  return row ? ForwardStrategies().rows[*row].name : row.error().message();
}

TEST(CudaStrategy, ADecodeStepByItsSequences) {
  for (const auto& [tokens, name] : {std::pair{1, "decode_step"},
                                     {4, "decode_step"},
                                     {5, "decode_batch"},
                                     {8, "decode_batch"},
                                     {9, "decode_batch"},
                                     {16, "decode_batch"},
                                     {17, "joined"},
                                     {64, "joined"}})
    EXPECT_EQ(Forward(H200(tokens, true)), name) << tokens;
}

// What its layers lack of Llama's form no other strategy knows.
TEST(CudaStrategy, LayersThatAreNotLlamas) {
  for (const int64_t tokens : {1, 4, 8, 9, 17, 64, 65, 2048})
    for (const bool decode : {false, true})
      for (const bool deterministic : {false, true})
        EXPECT_EQ(Forward({.tokens = tokens,
                           .decode = decode,
                           .logit_rows = 1,
                           .deterministic = deterministic,
                           .flash = true,
                           .general = true}),
                  "general")
            << tokens;
  EXPECT_NE(Forward({.tokens = 1, .decode = true, .logit_rows = 1}), "general");
}

// Adapters change every product, which the fused steps do not let out; without them nothing changes.
TEST(CudaStrategy, BatchesWithAdapters) {
  for (const int64_t tokens : {1, 4, 8, 17, 64, 65, 2048})
    for (const bool decode : {false, true}) {
      CudaFacts facts = H200(tokens, decode);
      facts.gemm = facts.rows = true;
      EXPECT_NE(Forward(facts), "general") << tokens;
      facts.adapted = true;
      EXPECT_EQ(Forward(facts), "general") << tokens;
    }
}

// Of a model with very many layers the batch kernel takes eight.
TEST(CudaStrategy, ADecodeStepWithoutRoomForSixteen) {
  for (const auto& [tokens, name] : {std::pair{4, "decode_step"}, {8, "decode_batch"}, {9, "joined"}}) {
    CudaFacts facts = H200(tokens, true);
    facts.batch_tokens = 8;
    EXPECT_EQ(Forward(facts), name) << tokens;
  }
}

TEST(CudaStrategy, APromptByItsTokens) {
  for (const auto& [tokens, name] : {std::pair{1, "decode_batch"},
                                     {8, "decode_batch"},
                                     {16, "decode_batch"},
                                     {17, "joined"},
                                     {64, "joined"},
                                     {65, "wgmma"},
                                     {2048, "wgmma"}})
    EXPECT_EQ(Forward(H200(tokens, false)), name) << tokens;
}

// With weights in its order, cuBLASLt takes all but the smallest batches.
TEST(CudaStrategy, RowsOfWeights) {
  const auto with_rows = [](int64_t tokens, bool decode) {
    CudaFacts facts = H200(tokens, decode);
    facts.gemm = facts.rows = true;
    return facts;
  };
  for (const auto& [tokens, name] :
       {std::pair{4, "decode_step"}, {16, "decode_batch"}, {24, "joined"}, {25, "rows"}, {512, "rows"}})
    EXPECT_EQ(Forward(with_rows(tokens, true)), name) << tokens;
  EXPECT_EQ(Forward(with_rows(2048, false)), "rows");
  CudaFacts deterministic = with_rows(2048, false);
  deterministic.deterministic = true;
  EXPECT_EQ(Forward(deterministic), "wgmma");
}

TEST(CudaStrategy, Codes) {
  for (const auto& [tokens, name] : {std::pair{8, "decode_batch"}, {9, "codes"}, {512, "codes"}}) {
    CudaFacts facts = H200(tokens, true);
    facts.codes = true;
    EXPECT_EQ(Forward(facts), name) << tokens;
  }
}

TEST(CudaStrategy, LongSequencesLeaveTheFusedStep) {
  CudaFacts facts = H200(2, true);
  facts.most_keys = 1025;
  EXPECT_EQ(Forward(facts), "matvec");
  facts = H200(6, true);
  facts.most_keys = 2049;
  EXPECT_EQ(Forward(facts), "joined");
}

// The kernel for one to four takes three of a wide model; the other one takes the fourth.
TEST(CudaStrategy, TheBatchKernelTakesWhatTheStepCannot) {
  CudaFacts facts = H200(4, true);
  facts.step_tokens = 3;
  EXPECT_EQ(Forward(facts), "decode_batch");
  facts.batch_tokens = 0;
  EXPECT_EQ(Forward(facts), "matvec");
}

// Drafts that are verified are several tokens of a sequence.
TEST(CudaStrategy, TheBatchKernelTakesAFewTokensOfASequence) {
  CudaFacts facts = H200(5, false);
  facts.most_keys = 2048;
  EXPECT_EQ(Forward(facts), "decode_batch");
  facts.most_keys = 2049;
  EXPECT_EQ(Forward(facts), "joined");
  facts.tokens = 4;
  EXPECT_EQ(Forward(facts), "matvec");
}

TEST(CudaStrategy, AProfiledStepHasOperators) {
  CudaFacts facts = H200(1, true);
  facts.profiled = true;
  EXPECT_EQ(Forward(facts), "matvec");
  facts = H200(8, true);
  facts.profiled = true;
  EXPECT_EQ(Forward(facts), "joined");
}

TEST(CudaStrategy, WithoutWarpgroupProducts) {
  CudaFacts facts = H200(17, false);
  facts.wgmma = false, facts.gemm = true;
  EXPECT_EQ(Forward(facts), "gemm");
  facts.tokens = 8, facts.batch_tokens = 0;
  EXPECT_EQ(Forward(facts), "matvec");
  facts.tokens = 2048, facts.gemm = false;  // exact
  EXPECT_EQ(Forward(facts), "matvec");
}

TEST(CudaStrategy, HeadByRowsAndAttentionByTokensOfASequence) {
  CudaFacts facts = H200(512, false);
  EXPECT_EQ(*ChooseHead(facts), HeadStrategy::kMatvec);
  facts.logit_rows = 5;
  EXPECT_EQ(*ChooseHead(facts), HeadStrategy::kWgmma);
  EXPECT_EQ(*ChooseAttention(facts), AttentionStrategy::kFlash);
  facts.tokens = 8;
  EXPECT_EQ(*ChooseAttention(facts), AttentionStrategy::kSplit);
  facts.tokens = 64, facts.longest = 1;
  EXPECT_EQ(*ChooseAttention(facts), AttentionStrategy::kSplit);
  facts.longest = 2, facts.flash = false;
  EXPECT_EQ(*ChooseAttention(facts), AttentionStrategy::kSplit);
}

TEST(CudaStrategy, ExpertsByTokens) {
  CudaFacts facts = H200(8, true);
  facts.moe_step = facts.moe_grouped = facts.shared_grouped = true;
  EXPECT_EQ(*ChooseMoe(facts), MoeStrategy::kStep);
  EXPECT_EQ(*ChooseSharedExpert(facts), SharedExpertStrategy::kDense);
  facts.deterministic = true;  // the same products for all
  EXPECT_EQ(*ChooseMoe(facts), MoeStrategy::kGrouped);
  EXPECT_EQ(*ChooseSharedExpert(facts), SharedExpertStrategy::kGrouped);
  facts.deterministic = false;
  facts.tokens = 9;
  EXPECT_EQ(*ChooseMoe(facts), MoeStrategy::kGrouped);
  EXPECT_EQ(*ChooseSharedExpert(facts), SharedExpertStrategy::kGrouped);
  facts.moe_grouped = facts.shared_grouped = false;  // f32, or exact
  EXPECT_EQ(*ChooseMoe(facts), MoeStrategy::kJobs);
  EXPECT_EQ(*ChooseSharedExpert(facts), SharedExpertStrategy::kDense);
  facts.tokens = 1, facts.moe_step = false;
  EXPECT_EQ(*ChooseMoe(facts), MoeStrategy::kJobs);
}

TEST(CudaStrategy, ARowOfEveryTableFits) {
  for (const CudaStrategyTable* table : {&ForwardStrategies(), &HeadStrategies(), &AttentionStrategies(),
                                         &MoeStrategies(), &SharedExpertStrategies()}) {
    for (const bool general : {false, true})
      EXPECT_TRUE(internal::ChooseRow(*table, {.general = general}, {})) << table->name;
    for (const CudaStrategy& row : table->rows)  // as CELER_FORCE parses it
      EXPECT_EQ(std::string(row.name).find_first_of(":, "), std::string::npos) << row.name;
  }
}

TEST(CudaStrategy, AForcedRowIsTakenOrRefused) {
  const internal::ForceList matvec = {{"cuda_forward", "matvec"}}, joined = {{"cuda_forward", "joined"}},
                            batch = {{"cuda_forward", "decode_batch"}};
  EXPECT_EQ(*internal::ChooseRow(ForwardStrategies(), H200(2048, false), matvec),
            size_t(ForwardStrategy::kMatvec));
  EXPECT_EQ(*internal::ChooseRow(ForwardStrategies(), H200(6, true), joined),
            size_t(ForwardStrategy::kJoined));
  EXPECT_EQ(*internal::ChooseRow(AttentionStrategies(), H200(2048, false), matvec),
            size_t(AttentionStrategy::kFlash))
      << "another table";
  const auto refused = internal::ChooseRow(ForwardStrategies(), H200(65, false), joined);
  ASSERT_FALSE(refused);
  for (const char* word : {"CELER_FORCE", "cuda_forward:joined", "65 tokens", "5 to 64 tokens"})
    EXPECT_THAT(refused.error().message(), HasSubstr(word));
  // A strategy of decode steps says nothing about prompts.
  EXPECT_EQ(*internal::ChooseRow(ForwardStrategies(), H200(65, false), batch),
            size_t(ForwardStrategy::kWgmma));
  EXPECT_FALSE(internal::ChooseRow(ForwardStrategies(), H200(2, true), batch));
  EXPECT_EQ(*internal::ChooseRow(ForwardStrategies(), H200(17, true), batch),
            size_t(ForwardStrategy::kJoined));
  // And one of many tokens nothing about a few.
  const internal::ForceList gemm = {{"cuda_forward", "gemm"}};
  EXPECT_EQ(*internal::ChooseRow(ForwardStrategies(), H200(1, true), gemm),
            size_t(ForwardStrategy::kDecodeStep));
  EXPECT_FALSE(internal::ChooseRow(ForwardStrategies(), H200(9, false), gemm)) << "there is no cuBLASLt";
}

TEST(CudaStrategy, IsDescribedWithItsConditions) {
  const auto all = internal::DescribeCudaStrategies({{"cuda_moe", "jobs"}});
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].name, "cuda_forward");
  ASSERT_EQ(all[0].variants.size(), kForwardStrategies);
  for (const OperatorInfo& table : all)
    for (const VariantInfo& row : table.variants) {
      EXPECT_FALSE(row.when.empty()) << row.name;
      EXPECT_EQ(row.chosen, row.runs_here && table.name == "cuda_moe" && row.name == "jobs");
    }
}

}  // namespace
}  // namespace celer
