#include "quantize/llm/budget.h"

#include <gtest/gtest.h>

#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"
#include "quantize/llm/test_util.h"

namespace celer {
namespace {

using testing::Quantize;
using testing::RecipeOf;

TEST_F(Quantize, BudgetIsKeptAndSpentWhereItCounts) {
  const auto path = Gguf();
  const Model model = Load(path);
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file);
  const Recipe recipe = RecipeOf("q4_0", {"blk.0.attn_v.weight=f16"});
  const auto base = MakePlan(file->tensors(), 2, true, recipe, "model");
  ASSERT_TRUE(base) << base.error().message();
  const auto formats = ListFormats(*base, recipe, BudgetTargets(true));
  ASSERT_TRUE(formats) << formats.error().message();
  const auto prices = MeasureSensitivity(model, *base, *formats, this->Text(2), pool_, {});
  ASSERT_TRUE(prices) << prices.error().message();
  EXPECT_EQ(prices->size(), 14u);  // seven of each layer and the head, less the one with a rule
  for (const TensorPrices& entry : *prices) {
    const PlannedTensor& tensor = base->tensors[entry.tensor];
    EXPECT_NE(tensor.name, "blk.0.attn_v.weight");
    for (const FormatPrice& price : entry.prices) EXPECT_TRUE(price.target.Fits(tensor.cols()));
    EXPECT_GT(entry.prices.front().loss, 0) << tensor.name;
    EXPECT_LT(entry.prices.back().loss, 0.05 * entry.prices.front().loss) << tensor.name;  // 8 bits, 4 bits
  }
  double last = 1e9;
  for (const double bits : {5.0, 5.5, 7.0, 9.0}) {
    QuantizePlan plan = *base;
    const auto result = ChooseFormats(*prices, {.bytes = 0, .bits_per_weight = bits, .name = "b"}, &plan);
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_LE(plan.bits_per_weight(), bits);
    if (bits < 8) {
      EXPECT_GT(plan.bits_per_weight(), bits - 0.35);
    }
    EXPECT_LT(result->loss, last);
    last = result->loss;
    EXPECT_EQ(plan.Find("blk.0.attn_v.weight")->target, base->Find("blk.0.attn_v.weight")->target);
  }
  QuantizePlan plan = *base;
  const int64_t bytes = base->bytes_after() * 5 / 4;
  ASSERT_TRUE(ChooseFormats(*prices, {.bytes = bytes, .bits_per_weight = 0, .name = "b"}, &plan));
  EXPECT_LE(plan.bytes_after(), bytes);
  const auto refused =
      ChooseFormats(*prices, {.bytes = 1000, .bits_per_weight = 0, .name = "--memory 1kB"}, &plan);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("--memory 1kB"), std::string::npos);
}

// Known before anything is measured, with what is in the way.
TEST_F(Quantize, BudgetThatCannotBeMetIsRefusedWithTheFigure) {
  const auto source = SafetensorsModel::Open(Folder());
  const Recipe recipe = RecipeOf("int4-g32");
  const auto plan = MakePlan(source->tensors(), 2, true, recipe, "model");
  ASSERT_TRUE(plan) << plan.error().message();
  const auto formats = ListFormats(*plan, recipe, BudgetTargets(false));
  ASSERT_TRUE(formats) << formats.error().message();
  // The head stays f32 in a folder.
  const auto refused =
      CheckBudget(*formats, {.bytes = 0, .bits_per_weight = 5, .name = "--target-bpw 5"}, *plan);
  ASSERT_FALSE(refused);
  for (const char* part :
       {"--target-bpw 5: ", " bits per weight", "'model.embed_tokens.weight', which stays f32"})
    EXPECT_NE(refused.error().message().find(part), std::string::npos) << refused.error().message();
  EXPECT_TRUE(CheckBudget(*formats, {.bytes = 0, .bits_per_weight = 31, .name = "b"}, *plan));
}

// Made-up prices, for which the best choice can be told.
TEST(ChooseFormats, TakesTheStepsThatGainMost) {
  QuantizePlan plan;
  for (const char* name : {"a", "b"})
    plan.tensors.push_back({name, DType::kF32, {32, 32}, {.part = Part::kQ, .layer = 0, .layers = 1}, {}});
  const Target small = Target::Stored(DType::kQ4_0), middle = Target::Stored(DType::kQ5_0),
               large = Target::Stored(DType::kQ8_0);
  const auto bytes = [&](const Target& target) {
    PlannedTensor tensor = plan.tensors[0];
    tensor.target = target;
    return tensor.bytes_after();
  };
  const auto prices = [&](double s, double m, double l) {
    return std::vector<FormatPrice>{
        {small, bytes(small), s}, {middle, bytes(middle), m}, {large, bytes(large), l}};
  };
  const std::vector<TensorPrices> all = {{0, prices(1, 0.5, 0.1)}, {1, prices(100, 99, 1)}};
  // b's middle step gains little: it jumps.
  const int64_t budget = bytes(small) + bytes(large);
  ASSERT_TRUE(ChooseFormats(all, {.bytes = budget, .bits_per_weight = 0, .name = "b"}, &plan));
  EXPECT_EQ(plan.tensors[0].target, small);
  EXPECT_EQ(plan.tensors[1].target, large);
  // What is left is spent on a.
  ASSERT_TRUE(ChooseFormats(all, {.bytes = budget + 150, .bits_per_weight = 0, .name = "b"}, &plan));
  EXPECT_EQ(plan.tensors[0].target, middle);
}

TEST_F(Quantize, BudgetOfAFolderLeavesTheHead) {
  const auto path = Folder();
  const Model model = Load(path);
  const auto source = SafetensorsModel::Open(path);
  const Recipe recipe = RecipeOf("int4-g32");
  auto plan = MakePlan(source->tensors(), 2, true, recipe, "model");
  ASSERT_TRUE(plan);
  const auto formats = ListFormats(*plan, recipe, BudgetTargets(false));
  ASSERT_TRUE(formats) << formats.error().message();
  const auto prices = MeasureSensitivity(model, *plan, *formats, this->Text(1), pool_, {});
  ASSERT_TRUE(prices) << prices.error().message();
  EXPECT_EQ(prices->size(), 14u);
  ASSERT_TRUE(ChooseFormats(*prices, {.bytes = 0, .bits_per_weight = 12, .name = "b"}, &*plan));
  EXPECT_EQ(plan->Find("model.embed_tokens.weight")->target.kind, Target::Kind::kKeep);
}

}  // namespace
}  // namespace celer
