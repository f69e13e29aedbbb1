// Configurations with Mamba-2 layers, and with layers of one branch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/config/family.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json SmallMamba(const std::string& model_type, const json& changes = json::object()) {
  json config = {{"model_type", model_type}, {"hidden_size", 32},        {"intermediate_size", 48},
                 {"num_hidden_layers", 3},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 64}};
  if (model_type == "nemotron_h")
    config.update({{"hybrid_override_pattern", "M*-M"},
                   {"mamba_num_heads", 4},
                   {"mamba_head_dim", 6},
                   {"ssm_state_size", 8},
                   {"n_groups", 2}});
  else
    config.update({{"mamba_n_heads", 4}, {"mamba_d_state", 8}});
  if (model_type == "granitemoehybrid") config["layer_types"] = {"mamba", "attention", "mamba"};
  if (model_type == "bamba") config["attn_layer_indices"] = {1};
  config.update(changes);
  return config;
}

DecoderConfig ReadMambaConfig(const json& config) {
  auto read = ConfigFromHf(config, "config.json");
  EXPECT_TRUE(read) << read.error().message();
  return read ? *read : DecoderConfig();
}

std::string MambaRefusal(const std::string& model_type, const json& changes) {
  const auto read = ConfigFromHf(SmallMamba(model_type, changes), "config.json");
  return read ? "accepted" : read.error().message();
}

TEST(Mamba2Config, Granite) {
  const DecoderConfig config = ReadMambaConfig(
      SmallMamba("granitemoehybrid", {{"mamba_n_groups", 2}, {"time_step_limit", {0.1, 2.0}}}));
  EXPECT_THAT(config.recurrent.layer, ElementsAre(true, false, true));
  EXPECT_EQ(config.recurrent.kind, RecurrentKind::kMamba2);
  EXPECT_EQ(config.recurrent.value_dim, 16);  // expand * hidden / heads
  EXPECT_EQ(ConvChannels(config.recurrent), 64 + 2 * 2 * 8);
  EXPECT_EQ(config.recurrent.norm_groups, 1);
  EXPECT_FLOAT_EQ(config.recurrent.step_min, 0.1f);
  EXPECT_FLOAT_EQ(config.recurrent.step_max, 2);
  EXPECT_TRUE(config.recurrent.conv_bias);
  EXPECT_FALSE(config.Rotates(1));
  EXPECT_EQ(config.moe.experts, 8);
  EXPECT_EQ(config.moe.shared_intermediate, 1024);
  const DecoderConfig dense = ReadMambaConfig(SmallMamba(
      "granitemoehybrid",
      {{"num_local_experts", 0}, {"shared_intermediate_size", 20}, {"position_embedding_type", "rope"}}));
  EXPECT_EQ(dense.intermediate, 20);
  EXPECT_TRUE(dense.Rotates(1));
}

TEST(Mamba2Config, BambaRotatesHalfOfAHead) {
  const DecoderConfig config = ReadMambaConfig(SmallMamba("bamba"));
  EXPECT_THAT(config.recurrent.layer, ElementsAre(true, false, true));
  EXPECT_EQ(config.rope.dim, 4);
  EXPECT_EQ(config.recurrent.step_max, 0);
  const json infinite = {0.0, {{"__float__", "Infinity"}}};
  EXPECT_EQ(ReadMambaConfig(SmallMamba("bamba", {{"time_step_limit", infinite}})).recurrent.step_max, 0);
}

TEST(Mamba2Config, NemotronHHasOnePartToALayer) {
  const DecoderConfig config = ReadMambaConfig(SmallMamba("nemotron_h"));
  EXPECT_EQ(config.layers, 4);  // whatever else the file says
  EXPECT_THAT(config.mixer_layer, ElementsAre(true, true, false, true));
  EXPECT_THAT(config.ffn_layer, ElementsAre(false, false, true, false));
  EXPECT_THAT(config.recurrent.layer, ElementsAre(true, false, false, true));
  EXPECT_FALSE(config.HasAttention(2));
  EXPECT_EQ(config.activation, Activation::kRelu2);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_EQ(config.recurrent.norm_groups, 2);
  EXPECT_EQ(config.moe.experts, 0);  // no layer has any
  const DecoderConfig sparse = ReadMambaConfig(SmallMamba(
      "nemotron_h", {{"layers_block_type", {"mamba", "moe", "attention"}}, {"n_routed_experts", 6}}));
  EXPECT_THAT(sparse.moe.sparse_layer, ElementsAre(false, true, false));
  EXPECT_EQ(sparse.moe.score, RouterScore::kSigmoid);
}

TEST(Mamba2Config, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"mamba_n_heads", 5}}), HasSubstr("'mamba_n_heads'"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"mamba_d_head", 7}}), HasSubstr("4 heads of 7"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"mamba_n_groups", 3}}),
              HasSubstr("cannot share 3 key heads"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"mamba_d_conv", 17}}), HasSubstr("is 17, expected 1 to 16"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"layer_types", {"mamba", "mlp", "attention"}}}),
              HasSubstr("must name 3 layers"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"layer_types", {"mamba", "swa", "attention"}}}),
              HasSubstr("names a layer \"swa\""));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"layer_types", {"attention"}}}),
              HasSubstr("must name 3 layers"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"hidden_act", "gelu"}}), HasSubstr("is not silu"));
  EXPECT_THAT(MambaRefusal("granitemoehybrid", {{"position_embedding_type", 3}}),
              HasSubstr("position_embedding_type"));
  EXPECT_THAT(MambaRefusal("bamba", {{"attn_layer_indices", json::array()}}),
              HasSubstr("at least one with attention"));
  EXPECT_THAT(MambaRefusal("bamba", {{"time_step_limit", {0.0, "inf"}}}),
              HasSubstr("'time_step_limit' holds"));
  EXPECT_THAT(MambaRefusal("bamba", {{"time_step_limit", {0.0, 0.0}}}), HasSubstr("leaves no time steps"));
  EXPECT_THAT(MambaRefusal("bamba", {{"time_step_limit", 1}}), HasSubstr("expected two numbers"));
  EXPECT_THAT(MambaRefusal("bamba", {{"time_step_limit", {-1.0, 1.0}}}), HasSubstr("not negative"));
  EXPECT_THAT(MambaRefusal("nemotron_h", {{"hybrid_override_pattern", "MX*"}}),
              HasSubstr("names a layer \"X\""));
  EXPECT_THAT(MambaRefusal("nemotron_h", {{"hybrid_override_pattern", ""}}), HasSubstr("expected 1 to 4096"));
  EXPECT_THAT(MambaRefusal("nemotron_h", {{"hybrid_override_pattern", "M-"}}),
              HasSubstr("at least one with attention"));
  EXPECT_THAT(MambaRefusal("nemotron_h", {{"mamba_hidden_act", "relu"}}), HasSubstr("is not silu"));
  EXPECT_THAT(MambaRefusal("nemotron_h", {{"moe_latent_size", 8}}), HasSubstr("'moe_latent_size' is 8"));
  EXPECT_THAT(MambaRefusal("nemotron_h", {{"layers_block_type", {1, 2}}}), HasSubstr("names a layer \"1\""));
}

TEST(Mamba2Config, KeysOfPublishedFilesGiveNoWarning) {
  const json granite = {{"mamba_chunk_size", 256},
                        {"mamba_conv_bias", true},
                        {"mamba_d_conv", 4},
                        {"mamba_d_head", 16},
                        {"mamba_expand", 2},
                        {"mamba_proj_bias", false},
                        {"normalization_function", "rmsnorm"},
                        {"init_method", "mup"},
                        {"position_embedding_type", "nope"},
                        {"router_aux_loss_coef", 0.0},
                        {"output_router_logits", false}};
  EXPECT_THAT(ReadMambaConfig(SmallMamba("granitemoehybrid", granite)).warnings, IsEmpty());
  const json nemotron = {{"chunk_size", 128},         {"expand", 2},
                         {"hidden_dropout", 0.0},     {"layer_norm_epsilon", 1e-5},
                         {"mamba_proj_bias", false},  {"num_logits_to_keep", 1},
                         {"residual_in_fp32", false}, {"rescale_prenorm_residual", true},
                         {"time_step_floor", 1e-4},   {"time_step_limit", {0.0, {{"__float__", "Infinity"}}}},
                         {"time_step_max", 0.1},      {"time_step_min", 0.001},
                         {"use_bias", false},         {"use_conv_bias", true},
                         {"use_mamba_kernels", true}};
  EXPECT_THAT(ReadMambaConfig(SmallMamba("nemotron_h", nemotron)).warnings, IsEmpty());
}

TEST(Mamba2Config, TheGpuRefusesThemInWords) {
  EXPECT_THAT(CheckRunsOnGpu(ReadMambaConfig(SmallMamba("bamba")), 128).error().message(),
              HasSubstr("Mamba-2 layers"));
}

}  // namespace
}  // namespace celer
