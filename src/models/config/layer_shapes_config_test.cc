// Configurations with layers of several shapes and what comes with them: Gemma 4, Gemma 3n, Llama 4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/config/family.h"

namespace celer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json ShapedJson(const char* model_type, const json& changes = json::object()) {
  json out = {{"model_type", model_type},
              {"vocab_size", 40},
              {"hidden_size", 24},
              {"intermediate_size", 20},
              {"num_hidden_layers", 4},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 6},
              {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
              {"hidden_size_per_layer_input", 8},
              {"vocab_size_per_layer_input", 40},
              {"num_kv_shared_layers", 2},
              {"rms_norm_eps", 1e-6}};
  out.update(changes);
  return out;
}

std::string ShapedRefusal(const char* model_type, const json& changes) {
  const auto config = ConfigFromHf(ShapedJson(model_type, changes), "config.json");
  return config ? "none" : config.error().message();
}

TEST(LayerShapes, OfGemma4) {
  const auto config = ConfigFromHf(ShapedJson("gemma4_text", {{"global_head_dim", 12},
                                                              {"attention_k_eq_v", true},
                                                              {"num_global_key_value_heads", 1},
                                                              {"use_double_wide_mlp", true}}),
                                   "config.json");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->HeadDim(0), 6);
  EXPECT_EQ(config->HeadDim(1), 12);
  EXPECT_EQ(config->KvHeads(0), 2);
  EXPECT_EQ(config->KvHeads(3), 1);
  EXPECT_FALSE(config->ValuesAreKeys(0));
  EXPECT_TRUE(config->ValuesAreKeys(1));
  EXPECT_EQ(config->KvFrom(1), 1);
  EXPECT_EQ(config->KvFrom(2), 0);
  EXPECT_EQ(config->KvFrom(3), 1);
  EXPECT_EQ(config->Intermediate(1), 20);
  EXPECT_EQ(config->Intermediate(2), 40);
  EXPECT_EQ(config->MaxKvWidth(), 12);
  EXPECT_EQ(config->rope.dim, 12);
  EXPECT_EQ(config->rope.turning_pairs, 1);  // a quarter of six
  EXPECT_EQ(config->local_rope->dim, 6);
  EXPECT_THAT(CheckRunsOnGpu(*config, 128).error().message(), HasSubstr("layers of several shapes"));
}

TEST(LayerShapes, ByLayer) {
  const auto config = ConfigFromHf(
      ShapedJson("gemma4_text", {{"per_layer_config", {{"1", {{"head_dim", 8}}}, {"3", {{"head_dim", 8}}}}}}),
      "config.json");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->HeadDim(3), 8);
  EXPECT_EQ(config->HeadDim(2), 6);
}

TEST(LayerShapes, WhatDoesNotFitIsRefused) {
  const auto gemma4 = [](const json& changes) { return ShapedRefusal("gemma4_text", changes); };
  EXPECT_THAT(gemma4({{"num_kv_shared_layers", 4}}), HasSubstr("4 of 4 layers share"));
  EXPECT_THAT(gemma4({{"num_kv_shared_layers", 3}}), HasSubstr("layer 1 shares keys and values"));
  EXPECT_THAT(gemma4({{"num_kv_shared_layers", -1}}), HasSubstr("num_kv_shared_layers"));
  EXPECT_THAT(gemma4({{"global_head_dim", 5000}}), HasSubstr("head size of layer 1 is 5000"));
  EXPECT_THAT(gemma4({{"global_head_dim", 9}}), HasSubstr("expected an even number"));
  EXPECT_THAT(gemma4({{"global_head_dim", 4}}), HasSubstr("at least one must turn"));
  EXPECT_THAT(gemma4({{"attention_k_eq_v", true}, {"num_global_key_value_heads", 3}}),
              HasSubstr("cannot share the 3 kv heads of layer 1"));
  EXPECT_THAT(gemma4({{"per_layer_config", {{"1", {{"head_dim", 8}}}}}}), HasSubstr("layer 3"));
  EXPECT_THAT(gemma4({{"per_layer_config", {{"1", {{"sliding_window", 8}}}}}}),
              HasSubstr("'sliding_window'"));
  EXPECT_THAT(gemma4({{"per_layer_config", json::array({1})}}), HasSubstr("per_layer_config"));
  EXPECT_THAT(gemma4({{"use_bidirectional_attention", "all"}}), HasSubstr("left to right"));
  EXPECT_THAT(gemma4({{"enable_moe_block", true}}), HasSubstr("num_experts"));
  EXPECT_THAT(gemma4({{"hidden_size_per_layer_input", 1 << 20}}), HasSubstr("embeddings of all layers"));
  EXPECT_THAT(gemma4({{"final_logit_softcapping", -1}}), HasSubstr("softcap on logits is -1"));
}

TEST(LayerShapes, Gemma3n) {
  const auto gemma3n = [](const json& changes) { return ShapedRefusal("gemma3n_text", changes); };
  EXPECT_EQ(gemma3n(json::object()), "none");
  EXPECT_THAT(gemma3n({{"intermediate_size", {1, 2}}}), HasSubstr("2 numbers for 4 layers"));
  EXPECT_THAT(gemma3n({{"intermediate_size", {1, 2, 3, 0}}}), HasSubstr("intermediate size of layer 3 is 0"));
  EXPECT_THAT(gemma3n({{"activation_sparsity_pattern", {0.5, 0.5}}}), HasSubstr("each of 4 layers"));
  EXPECT_THAT(gemma3n({{"activation_sparsity_pattern", {0.5, 0.5, 1.0, 0.0}}}),
              HasSubstr("sparsity of a gate is 1"));
  EXPECT_THAT(gemma3n({{"activation_sparsity_pattern", 0.5}}), HasSubstr("activation_sparsity_pattern"));
  EXPECT_THAT(gemma3n({{"altup_active_idx", 4}}), HasSubstr("active residual stream is 4"));
  EXPECT_THAT(gemma3n({{"altup_num_inputs", 65}}), HasSubstr("number of residual streams is 65"));
}

TEST(Llama4, WhatDoesNotFitIsRefused) {
  const auto llama4 = [](const json& changes) {
    json config = {{"layer_types", nullptr},
                   {"hidden_size_per_layer_input", nullptr},
                   {"vocab_size_per_layer_input", nullptr},
                   {"num_kv_shared_layers", nullptr}};
    config.update(changes);
    return ShapedRefusal("llama4_text", config);
  };
  EXPECT_EQ(llama4(json::object()), "none");
  EXPECT_THAT(llama4({{"no_rope_layers", {1, 0}}}), HasSubstr("2 numbers for 4 layers"));
  EXPECT_THAT(llama4({{"layer_types", json(4, "sliding_attention")}}), HasSubstr("\"sliding_attention\""));
  EXPECT_THAT(llama4({{"attention_chunk_size", 0}}), HasSubstr("attention_chunk_size"));
  EXPECT_THAT(llama4({{"attention_chunk_size", nullptr}}), HasSubstr("attention_chunk_size"));
  EXPECT_THAT(llama4({{"num_experts_per_tok", 17}}), HasSubstr("experts per token is 17"));
  EXPECT_THAT(llama4({{"interleave_moe_layer_step", 0}}), HasSubstr("interleave_moe_layer_step"));
  EXPECT_THAT(llama4({{"floor_scale", 0}}), HasSubstr("floor_scale"));
}

}  // namespace
}  // namespace celer
