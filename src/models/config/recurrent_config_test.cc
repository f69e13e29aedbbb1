// Configurations with recurrent layers: Qwen3-Next and Qwen3.5.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/config/config_test_util.h"

namespace celer {
namespace {

using nlohmann::json;
using small_models::Refusal;
using small_models::SmallConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Small(const std::string& model_type, const json& changes = json::object()) {
  json sizes = {{"head_dim", 16}, {"num_experts", 4}, {"num_experts_per_tok", 2}};
  sizes.update(changes);
  return SmallConfig(model_type, sizes);
}

TEST(RecurrentConfig, MissingKeysTakeTheDefaultsOfTheClass) {
  const auto config = ConfigFromHf(Small("qwen3_next"), "config.json");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_THAT(config->recurrent.layer, ElementsAre(true, true, true, false));
  EXPECT_EQ(config->recurrent.conv_kernel, 4);
  EXPECT_EQ(config->recurrent.key_heads, 16);
  EXPECT_EQ(config->recurrent.value_heads, 32);
  EXPECT_EQ(config->recurrent.key_dim, 128);
  EXPECT_EQ(config->recurrent.value_dim, 128);
  EXPECT_EQ(config->rope.dim, 4);  // a quarter of a head
  EXPECT_TRUE(config->output_gate);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->moe.shared_intermediate, 512);
  EXPECT_FALSE(config->recurrent.tiled_values);
}

TEST(RecurrentConfig, LayersByTypeOrByInterval) {
  const auto by_type = ConfigFromHf(
      Small("qwen3_5_text",
            {{"layer_types", {"full_attention", "linear_attention", "linear_attention", "full_attention"}}}),
      "config.json");
  ASSERT_TRUE(by_type) << by_type.error().message();
  EXPECT_THAT(by_type->recurrent.layer, ElementsAre(false, true, true, false));
  const auto by_interval =
      ConfigFromHf(Small("qwen3_5_moe_text", {{"full_attention_interval", 2}}), "config.json");
  ASSERT_TRUE(by_interval) << by_interval.error().message();
  EXPECT_THAT(by_interval->recurrent.layer, ElementsAre(true, false, true, false));
  const auto none = ConfigFromHf(Small("qwen3_next", {{"full_attention_interval", 1}}), "config.json");
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_TRUE(none->recurrent.layer.empty());
}

TEST(RecurrentConfig, NumbersThatDoNotFitAreRefused) {
  const auto refused = [](const json& changes) { return Refusal(Small("qwen3_5_text", changes)); };
  EXPECT_THAT(refused({{"linear_num_value_heads", 5}, {"linear_num_key_heads", 2}}),
              HasSubstr("cannot share 2 key heads"));
  EXPECT_THAT(refused({{"linear_conv_kernel_dim", 17}}), HasSubstr("is 17, expected 1 to 16"));
  EXPECT_THAT(refused({{"linear_key_head_dim", 0}}), HasSubstr("linear_key_head_dim"));
  EXPECT_THAT(refused({{"linear_value_head_dim", 5000}}), HasSubstr("is 5000, expected 1 to 4096"));
  EXPECT_THAT(refused({{"linear_num_key_heads", 1 << 20}}), HasSubstr("expected 1 to 65536"));
  EXPECT_THAT(refused({{"layer_types", json(4, "linear_attention")}}),
              HasSubstr("at least one with attention"));
  EXPECT_THAT(refused({{"layer_types", json(4, "sliding_attention")}}), HasSubstr("\"sliding_attention\""));
  EXPECT_THAT(refused({{"layer_types", json(3, "full_attention")}}), HasSubstr("not a list of 4 names"));
  EXPECT_THAT(refused({{"hidden_act", "gelu"}}), HasSubstr("'hidden_act' is not silu"));
  EXPECT_THAT(refused({{"attn_output_gate", false}}), HasSubstr("'attn_output_gate' is false"));
  EXPECT_THAT(refused({{"full_attention_interval", 0}}), HasSubstr("full_attention_interval"));
}

TEST(RecurrentConfig, TheGpuRunsThem) {
  const auto config = ConfigFromHf(Small("qwen3_5_text"), "config.json");
  ASSERT_TRUE(config);
  EXPECT_TRUE(CheckRunsOnGpu(*config, 128));
}

}  // namespace
}  // namespace celer
