// Families with norms behind branches, windows with a rope of their own and softcaps, key by key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/config/config_test_util.h"

namespace celer {
namespace {

using nlohmann::json;
using small_models::Accepted;
using small_models::Refusal;
using small_models::SmallConfig;
using testing::ElementsAre;
using testing::HasSubstr;

// Its hidden size is a square.
json SmallModel(const std::string& model_type, const json& changes = json::object()) {
  json sizes = {{"hidden_size", 36}};
  sizes.update(changes);
  return SmallConfig(model_type, sizes);
}

std::vector<bool> Windowed(const DecoderConfig& config) {
  std::vector<bool> out;
  for (int64_t i = 0; i < config.layers; ++i) out.push_back(config.Window(i) > 0);
  return out;
}

TEST(PostNormFamilies, Gemma2) {
  const DecoderConfig plain = Accepted({{"model_type", "gemma2"}});
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_EQ(plain.sliding_window, 4096);
  EXPECT_EQ(plain.attention_softcap, 50);
  EXPECT_EQ(plain.logit_softcap, 30);
  EXPECT_FLOAT_EQ(plain.attention_scale, 1.0f / 16);
  EXPECT_FLOAT_EQ(plain.embedding_scale, 48);
  EXPECT_EQ(plain.activation, Activation::kGeluTanh);
  EXPECT_TRUE(plain.tied_embeddings && plain.pre_norm && plain.post_norm && !plain.local_rope);
  EXPECT_THAT(Windowed(Accepted(SmallModel("gemma2"))), ElementsAre(true, false, true, false));
  // null is no cap, and no cap is 0.
  EXPECT_EQ(Accepted(SmallModel("gemma2", {{"attn_logit_softcapping", nullptr}})).attention_softcap, 0);
  EXPECT_THAT(Refusal(SmallModel("gemma2", {{"attn_logit_softcapping", 0}})),
              HasSubstr("expected a positive"));
  EXPECT_THAT(Refusal(SmallModel("gemma2", {{"final_logit_softcapping", 1e-30}})),
              HasSubstr("softcap on logits"));
  EXPECT_THAT(Refusal(SmallModel("gemma2", {{"query_pre_attn_scalar", 0}})),
              HasSubstr("query_pre_attn_scalar"));
  EXPECT_THAT(Refusal(SmallModel("gemma2", {{"sliding_window", nullptr}})), HasSubstr("sliding_window"));
  EXPECT_THAT(Refusal(SmallModel("llama", {{"attn_logit_softcapping", 50}})), HasSubstr("not implemented"));
}

TEST(PostNormFamilies, Gemma3HasTwoRopes) {
  const DecoderConfig plain = Accepted({{"model_type", "gemma3_text"}});
  EXPECT_EQ(plain.vocab, 262208);
  EXPECT_EQ(plain.rope.theta, 1e6);
  EXPECT_EQ(plain.local_rope->theta, 1e4);
  EXPECT_TRUE(plain.qk_norm);
  EXPECT_EQ(plain.Window(4), 4096);
  EXPECT_EQ(plain.Window(5), 0);

  // The older names: scaling is of layers with full attention.
  const DecoderConfig old =
      Accepted(SmallModel("gemma3_text", {{"rope_theta", 5e5},
                                          {"rope_local_base_freq", 7e3},
                                          {"sliding_window_pattern", 2},
                                          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}));
  EXPECT_EQ(old.rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(old.rope.factor, 8);
  EXPECT_EQ(old.rope.theta, 5e5);
  EXPECT_EQ(old.local_rope->scaling, RopeConfig::Scaling::kNone);
  EXPECT_EQ(old.local_rope->theta, 7e3);
  EXPECT_THAT(Windowed(old), ElementsAre(true, false, true, false));

  const DecoderConfig nested =
      Accepted({{"model_type", "gemma3"},
                {"text_config", SmallModel("gemma3_text", {{"final_logit_softcapping", 30}})}});
  EXPECT_EQ(nested.family, "gemma3");
  EXPECT_EQ(nested.logit_softcap, 0);  // transformers' class of the whole has none

  const auto ropes = [](const json& parameters) {
    return Refusal(SmallModel("gemma3_text", {{"rope_parameters", parameters}}));
  };
  EXPECT_THAT(ropes({{"rope_theta", 1e4}}), HasSubstr("'rope_theta' is not 'full_attention'"));
  EXPECT_THAT(ropes({{"sliding_attention", {{"rope_type", "dynamic"}, {"factor", 2}}}}),
              HasSubstr("depends on the length"));
  EXPECT_THAT(ropes({{"sliding_attention", {{"rope_theta", -1}}}}), HasSubstr("rope theta is -1"));
  EXPECT_THAT(ropes({{"full_attention", {{"rope_type", "yarn"}}}}), HasSubstr("'factor' is missing"));
  EXPECT_THAT(Refusal(SmallModel("gemma3_text", {{"sliding_window_pattern", 0}})),
              HasSubstr("'sliding_window_pattern' is 0"));
}

TEST(PostNormFamilies, Olmo) {
  const DecoderConfig second = Accepted({{"model_type", "olmo2"}});
  EXPECT_TRUE(!second.pre_norm && second.post_norm && second.qk_norm);
  EXPECT_EQ(second.qk_norm_span, QkNormSpan::kRow);
  EXPECT_EQ(second.sliding_window, 0);

  const DecoderConfig third = Accepted(SmallModel("olmo3", {{"rope_theta", 1e4}}));
  EXPECT_THAT(Windowed(third), ElementsAre(true, true, true, false));
  EXPECT_EQ(third.rope.theta, 1e4);
  EXPECT_EQ(third.local_rope->theta, 5e5);  // as transformers reads the older name

  const DecoderConfig mixture = Accepted({{"model_type", "olmoe"}});
  EXPECT_TRUE(mixture.pre_norm && !mixture.post_norm);
  EXPECT_EQ(mixture.moe.experts, 64);
  EXPECT_EQ(mixture.moe.intermediate, 2048);
  EXPECT_FALSE(mixture.moe.normalize_top);
  EXPECT_THAT(Refusal(SmallModel("olmoe", {{"head_dim", 9}, {"clip_qkv", 8.0}})),
              HasSubstr("'clip_qkv' is 8"));
}

TEST(PostNormFamilies, Exaone4RotatesWhereItHasAWindow) {
  const DecoderConfig hybrid = Accepted(SmallModel("exaone4"));
  EXPECT_THAT(Windowed(hybrid), ElementsAre(true, true, true, false));
  EXPECT_EQ(hybrid.rope_layer, Windowed(hybrid));
  const DecoderConfig full = Accepted(SmallModel("exaone4", {{"sliding_window", nullptr}}));
  EXPECT_THAT(Windowed(full), ElementsAre(false, false, false, false));
  EXPECT_TRUE(full.Rotates(3));
  EXPECT_THAT(Refusal(SmallModel("exaone4", {{"sliding_window_pattern", "LLLG"}})),
              HasSubstr("is not a number"));
}

TEST(PostNormFamilies, HunyuanScalesThetaByAlpha) {
  const DecoderConfig plain = Accepted(SmallModel("hunyuan_v1_dense"));
  EXPECT_TRUE(plain.qk_norm && plain.qk_norm_after_rope);
  const DecoderConfig scaled = Accepted(SmallModel(
      "hunyuan_v1_dense", {{"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}}}}));
  EXPECT_DOUBLE_EQ(scaled.rope.theta, 1e4 * std::pow(1000.0, 8.0 / 6));
  EXPECT_FALSE(scaled.rope.DependsOnLength());
  EXPECT_THAT(
      Refusal(SmallModel("hunyuan_v1_dense", {{"rope_scaling", {{"type", "dynamic"}, {"alpha", -2.0}}}})),
      HasSubstr("rope theta"));
}

TEST(PostNormFamilies, Glm4) {
  const DecoderConfig plain = Accepted({{"model_type", "glm4"}});
  EXPECT_EQ(plain.rope.dim, 64);
  EXPECT_EQ(plain.rope.layout, RopeLayout::kInterleaved);
  EXPECT_TRUE(plain.qkv_bias && !plain.o_bias && plain.pre_norm && plain.post_norm);
}

}  // namespace
}  // namespace celer
