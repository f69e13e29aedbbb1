// A configuration is read exactly, or rejected. The reference is transformers 5 for
// config.json and llama.cpp for GGUF.
#include "models/config/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "io/gguf/gguf_test_bytes.h"
#include "models/config/config_test_util.h"
#include "models/cpu/rope.h"

namespace celer {
namespace {

using nlohmann::json;
using small_models::Accepted;
using small_models::Refusal;
using small_models::SmallConfig;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Scaling = RopeConfig::Scaling;

json ConfigJson(const std::string& model_type, const json& changes = json::object()) {
  json sizes = json::object();
  if (model_type == "mixtral") sizes = {{"num_local_experts", 4}, {"num_experts_per_tok", 2}};
  if (model_type.ends_with("_moe"))
    sizes = {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}};
  sizes.update(changes);
  return SmallConfig(model_type, sizes);
}

std::vector<int64_t> Windows(const DecoderConfig& config) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < config.layers; ++i) windows.push_back(config.Window(i));
  return windows;
}

TEST(HfConfig, MissingKeysTakeTheDefaultsOfTheClass) {
  struct Case {
    const char* type;
    int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, positions;
    double eps, theta;
  };
  const Case cases[] = {
      {"llama", 4096, 11008, 32, 32, 32, 128, 32000, 2048, 1e-6, 1e4},
      {"mistral", 4096, 14336, 32, 32, 8, 128, 32000, 131072, 1e-6, 1e4},
      {"mixtral", 4096, 14336, 32, 32, 8, 128, 32000, 131072, 1e-5, 1e6},
      {"qwen2", 4096, 22016, 32, 32, 32, 128, 151936, 32768, 1e-6, 1e4},
      {"qwen3", 4096, 22016, 32, 32, 32, 128, 151936, 32768, 1e-6, 1e4},
      {"qwen2_moe", 2048, 5632, 24, 16, 16, 128, 151936, 32768, 1e-6, 1e4},
      {"qwen3_moe", 2048, 6144, 24, 32, 4, 64, 151936, 32768, 1e-6, 1e4},
      {"opt", 768, 3072, 12, 12, 12, 64, 50272, 2048, 1e-5, 1e4},
      {"gpt2", 768, 3072, 12, 12, 12, 64, 50257, 1024, 1e-5, 1e4},
      {"gpt_neox", 6144, 24576, 44, 64, 64, 96, 50432, 2048, 1e-5, 1e4},
      {"gptj", 4096, 16384, 28, 16, 16, 256, 50400, 2048, 1e-5, 1e4},
      {"phi", 2048, 8192, 24, 32, 32, 64, 51200, 2048, 1e-5, 1e4},
      {"starcoder2", 3072, 12288, 30, 24, 2, 128, 49152, 4096, 1e-5, 1e4},
      {"stablelm", 2560, 6912, 32, 32, 32, 80, 50304, 4096, 1e-5, 1e4},
      {"cohere", 8192, 22528, 40, 64, 64, 128, 256000, 8192, 1e-5, 5e5},
      {"cohere2", 8192, 22528, 40, 64, 64, 128, 256000, 8192, 1e-5, 1e4},
      {"falcon", 4544, 18176, 32, 71, 1, 64, 65024, 2048, 1e-5, 1e4},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.type);
    const DecoderConfig config = Accepted({{"model_type", c.type}});
    EXPECT_EQ(config.hidden, c.hidden);
    EXPECT_EQ(config.intermediate, c.intermediate);
    EXPECT_EQ(config.layers, c.layers);
    EXPECT_EQ(config.heads, c.heads);
    EXPECT_EQ(config.kv_heads, c.kv_heads);
    EXPECT_EQ(config.head_dim, c.head_dim);
    EXPECT_EQ(config.vocab, c.vocab);
    EXPECT_EQ(config.max_positions, c.positions);
    EXPECT_FLOAT_EQ(config.norm_eps, static_cast<float>(c.eps));
    EXPECT_EQ(config.rope.theta, c.theta);
    EXPECT_THAT(config.warnings, IsEmpty());
  }
  EXPECT_EQ(Accepted({{"model_type", "mixtral"}}).moe.experts, 8);
  EXPECT_EQ(Accepted({{"model_type", "mixtral"}}).moe.experts_per_token, 2);
  EXPECT_EQ(Accepted({{"model_type", "qwen2_moe"}}).moe.experts, 60);
  EXPECT_EQ(Accepted({{"model_type", "qwen2_moe"}}).moe.shared_intermediate, 5632);
  EXPECT_EQ(Accepted({{"model_type", "qwen3_moe"}}).moe.experts_per_token, 8);
  // null is not the same as missing.
  EXPECT_EQ(Accepted({{"model_type", "mistral"}}).sliding_window, 4096);
  EXPECT_EQ(Accepted({{"model_type", "mistral"}, {"sliding_window", nullptr}}).sliding_window, 0);
  EXPECT_EQ(Accepted(ConfigJson("qwen2", {{"num_key_value_heads", nullptr}})).kv_heads, 4);
  EXPECT_EQ(Refusal(ConfigJson("qwen3", {{"head_dim", nullptr}})),
            "config.json: 'head_dim' is null, expected an integer");
}

TEST(HfConfig, WindowsAreThoseOfTheClass) {
  const json window = {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 2}};
  EXPECT_THAT(Windows(Accepted(ConfigJson("qwen2", window))), ElementsAre(0, 0, 5, 5));
  EXPECT_THAT(Windows(Accepted(ConfigJson("qwen3", window))), ElementsAre(0, 0, 5, 5));
  EXPECT_THAT(Windows(Accepted(ConfigJson("qwen2_moe", window))), ElementsAre(5, 0, 0, 0));
  EXPECT_THAT(Windows(Accepted(ConfigJson("qwen3_moe", window))), ElementsAre(5, 5, 5, 5));
  // max_window_layers is 28 when it is missing.
  EXPECT_THAT(Windows(Accepted(ConfigJson("qwen2", {{"use_sliding_window", true}, {"sliding_window", 5}}))),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Windows(Accepted(ConfigJson("qwen2", {{"sliding_window", 5}, {"max_window_layers", 0}}))),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Refusal(ConfigJson("qwen2_moe", {{"use_sliding_window", true}, {"sliding_window", nullptr}})),
              HasSubstr("'sliding_window' is null"));
  EXPECT_THAT(Refusal(ConfigJson("mistral", {{"sliding_window", 0}})), HasSubstr("'sliding_window' is 0"));
}

TEST(HfConfig, LayerTypesAreHonoured) {
  const json types = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  const json window = {{"use_sliding_window", true}, {"sliding_window", 5}, {"layer_types", types}};
  for (const char* type : {"qwen2", "qwen3", "qwen2_moe"})
    EXPECT_THAT(Windows(Accepted(ConfigJson(type, window))), ElementsAre(5, 0, 5, 0)) << type;
  EXPECT_THAT(Windows(Accepted(ConfigJson("mistral", {{"sliding_window", 5}, {"layer_types", types}}))),
              ElementsAre(5, 0, 5, 0));
  EXPECT_THAT(Refusal(ConfigJson("mistral", {{"sliding_window", nullptr}, {"layer_types", types}})),
              HasSubstr("layer 0 has a sliding window"));
  // These windows are the same in all layers.
  EXPECT_THAT(Refusal(ConfigJson("qwen3_moe", window)),
              HasSubstr("'layer_types' says that layer 1 has full"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"layer_types", types}})),
              HasSubstr("layer 0 has a sliding window"));
  const json full(4, "full_attention");
  EXPECT_EQ(Refusal(ConfigJson("llama", {{"layer_types", full}})), "accepted");
  EXPECT_THAT(Refusal(ConfigJson("qwen2", {{"layer_types", types}})), HasSubstr("says that there is none"));
  EXPECT_THAT(Refusal(ConfigJson("qwen2", {{"layer_types", {"full_attention"}}})),
              HasSubstr("one for each layer"));
  EXPECT_THAT(Refusal(ConfigJson("qwen2", {{"layer_types", json(4, "linear_attention")}})),
              HasSubstr("'layer_types' names \"linear_attention\""));
}

TEST(HfConfig, LayerNormFamilies) {
  const json gpt2 = {{"model_type", "gpt2"},
                     {"n_embd", 24},
                     {"n_head", 2},
                     {"n_layer", 3},
                     {"n_positions", 64},
                     {"n_inner", nullptr},
                     {"activation_function", "relu"},
                     {"layer_norm_epsilon", 1e-3}};
  const DecoderConfig config = Accepted(gpt2);
  EXPECT_EQ(config.hidden, 24);
  EXPECT_EQ(config.intermediate, 96);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.position_rows, 64);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-3f);
  EXPECT_EQ(config.activation, Activation::kRelu);
  EXPECT_TRUE(config.tied_embeddings && config.norm == NormKind::kLayer && !config.gated_mlp);
  EXPECT_FALSE(config.Rotates(0));
  EXPECT_EQ(Accepted({{"model_type", "opt"}}).position_rows, 2050);

  EXPECT_EQ(Accepted({{"model_type", "gpt_neox"}}).rope.dim, 24);
  EXPECT_EQ(Accepted({{"model_type", "gpt_neox"}, {"rotary_pct", 0.5}}).rope.dim, 48);
  EXPECT_EQ(Accepted({{"model_type", "phi"}}).rope.dim, 32);
  EXPECT_EQ(Accepted({{"model_type", "stablelm"}}).rope.dim, 20);
  EXPECT_EQ(Accepted({{"model_type", "gptj"}}).rope.dim, 64);
  EXPECT_THAT(Accepted({{"model_type", "cohere2"}, {"num_hidden_layers", 4}}).rope_layer,
              ElementsAre(true, true, true, false));
  EXPECT_TRUE(Accepted({{"model_type", "falcon"}, {"new_decoder_architecture", true}}).parallel_norms);

  const std::pair<json, const char*> refused[] = {
      {{{"model_type", "opt"}, {"layer_norm_elementwise_affine", false}}, "'layer_norm_elementwise_affine'"},
      {{{"model_type", "opt"}, {"word_embed_proj_dim", 0}}, "word_embed_proj_dim"},
      {{{"model_type", "gpt2"}, {"scale_attn_by_inverse_layer_idx", true}},
       "'scale_attn_by_inverse_layer_idx'"},
      {{{"model_type", "gpt2"}, {"n_embd", 0}}, "'hidden_size' is 0"},
      {{{"model_type", "gptj"}, {"rotary_dim", nullptr}}, "'rotary_dim' is null"},
      {{{"model_type", "gptj"}, {"rotary_dim", 7}}, "7 rotated dimensions"},
      {{{"model_type", "falcon"}, {"alibi", 1}}, "alibi"},
      {{{"model_type", "falcon"}, {"num_ln_in_parallel_attn", 2}}, "'num_ln_in_parallel_attn' is 2"},
      {{{"model_type", "falcon"}, {"new_decoder_architecture", true}, {"num_kv_heads", 5}}, "5 kv heads"},
      {{{"model_type", "cohere2"}, {"sliding_window_pattern", 0}}, "'sliding_window_pattern' is 0"},
  };
  for (const auto& [fields, words] : refused) EXPECT_THAT(Refusal(fields), HasSubstr(words)) << fields;
}

TEST(HfConfig, ScalarsOfGraniteAndMiniCpm) {
  const DecoderConfig granite = Accepted(ConfigJson("granite", {{"embedding_multiplier", 12},
                                                                {"residual_multiplier", 0.22},
                                                                {"attention_multiplier", 0.015625},
                                                                {"logits_scaling", 8}}));
  EXPECT_EQ(granite.embedding_scale, 12);
  EXPECT_EQ(granite.residual_scale, 0.22f);
  EXPECT_EQ(granite.attention_scale, 0.015625f);
  EXPECT_EQ(granite.logit_scale, 0.125f);
  EXPECT_EQ(Accepted(ConfigJson("granite")).attention_scale, 1);  // and not 1 / sqrt(head_dim)
  EXPECT_THAT(Refusal(ConfigJson("granite", {{"logits_scaling", 0}})),
              HasSubstr("scale of the logits is inf"));
  EXPECT_THAT(Refusal(ConfigJson("granite", {{"attention_multiplier", 0}})), HasSubstr("is 0"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"logits_scaling", 8}})), HasSubstr("is not implemented"));
  const DecoderConfig minicpm =
      Accepted(ConfigJson("minicpm", {{"scale_emb", 12}, {"scale_depth", 1.4}, {"dim_model_base", 8}}));
  EXPECT_EQ(minicpm.embedding_scale, 12);
  EXPECT_FLOAT_EQ(minicpm.residual_scale, 0.7f);
  EXPECT_EQ(minicpm.logit_scale, 0.25f);
}

TEST(HfConfig, PartOfAHeadRotates) {
  EXPECT_EQ(Accepted(ConfigJson("glm")).rope.dim, 4);  // half of it unless the file says another share
  EXPECT_EQ(Accepted(ConfigJson("glm")).rope.layout, RopeLayout::kInterleaved);
  EXPECT_EQ(Accepted(ConfigJson("phi3", {{"partial_rotary_factor", 0.75}})).rope.dim, 6);
  EXPECT_THAT(Refusal(ConfigJson("phi3", {{"partial_rotary_factor", 2}})), HasSubstr("expected 0 to 1"));
  EXPECT_THAT(Refusal(ConfigJson("phi3", {{"partial_rotary_factor", 0.1}})),
              HasSubstr("rotated dimensions is 0"));
  EXPECT_THAT(Refusal(ConfigJson("phi3", {{"partial_rotary_factor", 0.4}})), HasSubstr("an even number"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"partial_rotary_factor", 0.5}})), HasSubstr("whole heads"));
}

TEST(HfConfig, LayersWithoutRope) {
  const auto rotates = [](const DecoderConfig& config) { return config.rope_layer; };
  EXPECT_THAT(rotates(Accepted(ConfigJson("smollm3"))), ElementsAre(true, true, true, false));
  EXPECT_THAT(rotates(Accepted(ConfigJson("smollm3", {{"no_rope_layer_interval", 2}}))),
              ElementsAre(true, false, true, false));
  EXPECT_THAT(rotates(Accepted(ConfigJson("smollm3", {{"no_rope_layers", {0, 1, 1, 0, 1}}}))),
              ElementsAre(false, true, true, false));
  EXPECT_THAT(Refusal(ConfigJson("smollm3", {{"no_rope_layers", {0, 1}}})), HasSubstr("for 4 layers"));
  EXPECT_THAT(Windows(Accepted(ConfigJson("smollm3", {{"use_sliding_window", true}, {"sliding_window", 5}}))),
              ElementsAre(0, 0, 0, 5));
}

TEST(HfConfig, NestedTextModels) {
  const json text = ConfigJson("mistral", {{"sliding_window", nullptr}, {"tie_word_embeddings", true}});
  json outer = {{"model_type", "mistral3"}, {"text_config", text}, {"tie_word_embeddings", false}};
  const DecoderConfig config = Accepted(outer);
  EXPECT_EQ(config.family, "mistral");
  EXPECT_FALSE(config.tied_embeddings);  // what stands outside counts
  EXPECT_THAT(config.warnings, IsEmpty());
  outer.erase("tie_word_embeddings");
  EXPECT_TRUE(Accepted(outer).tied_embeddings);
  outer["text_config"]["model_type"] = "ministral3";
  EXPECT_EQ(Accepted(outer).query_scale.beta, 0.1);
  EXPECT_EQ(Accepted(outer).query_scale.positions, 16384);
  outer["text_config"]["model_type"] = "mamba";
  EXPECT_THAT(Refusal(outer), HasSubstr("'text_config': architecture 'mamba' is not supported"));
  EXPECT_THAT(Refusal({{"model_type", "mistral3"}}), HasSubstr("architecture 'mistral3' is not supported"));
  outer["model_type"] = "paligemma";
  EXPECT_THAT(Refusal(outer), HasSubstr("architecture 'paligemma' is not supported"));
}

TEST(HfConfig, BiasesEitherWay) {
  EXPECT_TRUE(Accepted(ConfigJson("llama", {{"attention_bias", true}})).o_bias);
  EXPECT_TRUE(Accepted(ConfigJson("llama", {{"attention_bias", true}})).qkv_bias);
  EXPECT_TRUE(Accepted(ConfigJson("llama", {{"mlp_bias", true}})).mlp_bias);
  EXPECT_FALSE(Accepted(ConfigJson("llama")).qkv_bias);
  EXPECT_TRUE(Accepted(ConfigJson("qwen3", {{"attention_bias", true}})).o_bias);
  EXPECT_TRUE(Accepted(ConfigJson("qwen2_moe")).qkv_bias);
  EXPECT_FALSE(Accepted(ConfigJson("qwen2_moe", {{"qkv_bias", false}})).qkv_bias);
  EXPECT_FALSE(Accepted(ConfigJson("qwen2")).o_bias);
}

TEST(CheckRunsOnGpu, OneSentenceForWhatIsMissingThere) {
  EXPECT_TRUE(CheckRunsOnGpu(Accepted(ConfigJson("qwen2")), 128));
  DecoderConfig config = Accepted(ConfigJson("llama", {{"mlp_bias", true}}));
  EXPECT_TRUE(CheckRunsOnGpu(config, 128));
  config.residual_scale = 0.5f;
  EXPECT_TRUE(CheckRunsOnGpu(config, 128));
  for (const float scale : {0.0f, -1.0f, 1e-5f}) {
    config.residual_scale = scale;
    EXPECT_THAT(
        CheckRunsOnGpu(config, 128).error().message(),
        HasSubstr("a scale on its residual branches, which does not run on the GPU; use `device` cpu"));
  }
}

TEST(HfConfig, RopeScalingNeedsItsFields) {
  const auto refusal = [](const json& rope) {
    return Refusal(ConfigJson("llama", {{"rope_scaling", rope}}));
  };
  EXPECT_EQ(refusal({{"type", "linear"}}), "config.json: 'rope_scaling': 'factor' is missing");
  EXPECT_EQ(refusal({{"rope_type", "yarn"}}), "config.json: 'rope_scaling': 'factor' is missing");
  EXPECT_EQ(refusal({{"rope_type", "dynamic"}}), "config.json: 'rope_scaling': 'factor' is missing");
  EXPECT_EQ(refusal({{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 4}}),
            "config.json: 'rope_scaling': 'low_freq_factor' is missing");
  EXPECT_EQ(refusal({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}),
            "config.json: 'rope_scaling': 'high_freq_factor' is missing");
  EXPECT_EQ(refusal({{"rope_type", "longrope"}, {"long_factor", json(4, 2.0)}}),
            "config.json: 'rope_scaling': 'short_factor' is missing");
  EXPECT_EQ(
      refusal({{"rope_type", "longrope"}, {"long_factor", json(3, 2.0)}, {"short_factor", json(4, 1.0)}}),
      "config.json: 3 long rope factors, expected 4");
  EXPECT_THAT(refusal({{"rope_type", "su"}}), HasSubstr("rope scaling 'su' is not supported"));
  EXPECT_THAT(refusal({{"full_attention", {{"rope_type", "default"}}}}),
              HasSubstr("parameters of some layers"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"partial_rotary_factor", 0.5}})),
              HasSubstr("rotate whole heads"));
}

TEST(HfConfig, YarnInFull) {
  const auto rope = [](const json& more, const json& top = json::object()) {
    json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
    yarn.update(more);
    json changes = {{"rope_scaling", yarn}};
    changes.update(top);
    return Accepted(ConfigJson("qwen2", changes)).rope;
  };
  EXPECT_NEAR(rope(json::object()).attention_factor, 1.138629, 1e-6);
  EXPECT_NEAR(rope({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}).attention_factor, 1.064822, 1e-6);
  EXPECT_NEAR(rope({{"mscale", 1.0}}).attention_factor, 1.138629, 1e-6);  // both or none
  EXPECT_EQ(rope({{"attention_factor", 0.8}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}}).attention_factor,
            0.8);
  EXPECT_FALSE(rope({{"truncate", false}}).truncate);
  EXPECT_TRUE(rope(json::object()).truncate);
  EXPECT_EQ(rope({{"beta_fast", 8}, {"beta_slow", 2}}).beta_fast, 8);
  EXPECT_EQ(rope(json::object(), {{"original_max_position_embeddings", 16}}).original_positions, 16);
  EXPECT_EQ(rope({{"factor", nullptr}}).factor, 4);  // 128 / 32
}

TEST(HfConfig, DynamicAndLongRope) {
  const DecoderConfig dynamic =
      Accepted(ConfigJson("llama", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}));
  EXPECT_EQ(dynamic.rope.scaling, Scaling::kDynamic);
  EXPECT_EQ(dynamic.rope.original_positions, 128);
  EXPECT_EQ(dynamic.max_positions, 256);
  EXPECT_TRUE(CheckRunsOnGpu(dynamic, 128));
  EXPECT_THAT(CheckRunsOnGpu(dynamic, 129).error().message(), HasSubstr("use `context` 128 or `device` cpu"));
  const DecoderConfig longrope =
      Accepted(ConfigJson("llama", {{"rope_parameters",
                                     {{"rope_type", "longrope"},
                                      {"short_factor", json(4, 1.0)},
                                      {"long_factor", json(4, 2.0)},
                                      {"original_max_position_embeddings", 16}}}}));
  EXPECT_EQ(longrope.rope.scaling, Scaling::kLongRope);
  EXPECT_NEAR(longrope.rope.attention_factor, std::sqrt(1 + std::log(8.0) / std::log(16.0)), 1e-12);
  EXPECT_EQ(longrope.max_positions, 128);
}

TEST(HfConfig, OldNameOfRopeWinsOverTheNewOne) {
  const json both = {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                     {"rope_parameters", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5}}},
                     {"rope_theta", 700}};
  const RopeConfig rope = Accepted(ConfigJson("llama", both)).rope;
  EXPECT_EQ(rope.factor, 2);
  EXPECT_EQ(rope.theta, 700);
}

TEST(HfConfig, UnknownKeysAreNamed) {
  const DecoderConfig config =
      Accepted(ConfigJson("llama", {{"next_years_scale", 2.5}, {"use_cache", true}, {"nothing", nullptr}}));
  EXPECT_THAT(config.warnings,
              ElementsAre(HasSubstr("'next_years_scale' is 2.5, a key that is not known here")));
  EXPECT_THAT(Accepted(ConfigJson("qwen2", {{"mlp_bias", true}})).warnings,
              ElementsAre(HasSubstr("'mlp_bias' is true, which models of the type 'qwen2' do not use")));
  EXPECT_THAT(Accepted(ConfigJson("llama", {{"auto_map", {{"AutoModel", "x.py"}}}})).warnings,
              ElementsAre(HasSubstr("code of the model's own")));
  EXPECT_THAT(
      Accepted(ConfigJson("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta_fast", 2}}}}))
          .warnings,
      ElementsAre(HasSubstr("'beta_fast' is 2, which the rope type 'linear' does not use")));
  // What published files of these families have says nothing.
  EXPECT_THAT(
      Accepted(ConfigJson("llama",
                          {{"pretraining_tp", 1}, {"rope_interleaved", false}, {"is_llama_config", true}}))
          .warnings,
      IsEmpty());
  EXPECT_THAT(
      Accepted(ConfigJson("qwen2",
                          {{"use_mrope", false}, {"use_sliding_window", false}, {"sliding_window", 4096}}))
          .warnings,
      IsEmpty());
  EXPECT_THAT(
      Accepted(ConfigJson("qwen3_moe", {{"max_window_layers", 48}, {"use_sliding_window", false}})).warnings,
      IsEmpty());
}

TEST(HfConfig, KeysThatChangeTheResultAreRefused) {
  EXPECT_EQ(Refusal(ConfigJson("llama", {{"final_logit_softcapping", 30.0}})),
            "config.json: 'final_logit_softcapping' is 30.0, which is not implemented for models of the type "
            "'llama'");
  EXPECT_THAT(Refusal(ConfigJson("qwen2", {{"is_causal", false}})), HasSubstr("'is_causal' is false"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"per_layer_config", {{"0", {{"head_dim", 4}}}}}})),
              HasSubstr("'per_layer_config'"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"sliding_window", 4}})), HasSubstr("'sliding_window' is 4"));
  for (const json& neutral : {json{{"final_logit_softcapping", nullptr}}, json{{"is_causal", true}},
                              json{{"logit_scale", 1.0}}, json{{"pruned_heads", json::object()}}})
    EXPECT_EQ(Refusal(ConfigJson("llama", neutral)), "accepted") << neutral;
}

TEST(HfConfig, QuantizationIsNamed) {
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}};
  EXPECT_EQ(Refusal(ConfigJson("llama", {{"quantization_config", gptq}})), "accepted");
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"quantization_config", {{"quant_method", "hqq"}, {"bits", 4}}}})),
              HasSubstr("'quantization_config': weights quantized with 'hqq' are not read"));
  EXPECT_THAT(
      Refusal(ConfigJson("llama", {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 5}}}})),
      HasSubstr("'bits' is 5"));
  EXPECT_THAT(Refusal(ConfigJson("llama", {{"quantization_config", 3}})), HasSubstr("'quantization_config'"));
  EXPECT_EQ(Refusal(ConfigJson("llama", {{"quantization_config", nullptr}})), "accepted");
}

// ---- GGUF ----

struct Gguf {
  std::string arch = "llama";
  std::vector<std::string> metadata;

  Gguf& Add(const std::string& key, GgufType type, const std::string& value) {
    metadata.push_back(RawKey(arch + "." + key, type) + value);
    return *this;
  }
  Gguf& Int(const std::string& key, uint32_t value) { return Add(key, GgufType::kUint32, Raw(value)); }
  Gguf& Float(const std::string& key, float value) { return Add(key, GgufType::kFloat32, Raw(value)); }
  Gguf& String(const std::string& key, const std::string& value) {
    return Add(key, GgufType::kString, RawString(value));
  }
  Gguf& Ints(const std::string& key, const std::vector<uint32_t>& values) {
    std::string raw = Raw(static_cast<uint32_t>(GgufType::kUint32)) + Raw<uint64_t>(values.size());
    for (const uint32_t value : values) raw += Raw(value);
    return Add(key, GgufType::kArray, raw);
  }

  Result<DecoderConfig> Accepted() const {
    GgufBytes bytes;
    bytes.metadata = {RawKey("general.architecture", GgufType::kString) + RawString(arch)};
    bytes.metadata.insert(bytes.metadata.end(), metadata.begin(), metadata.end());
    bytes.tensors = {RawTensor("token_embd.weight", {32, 2}, 0, 0)};
    bytes.data_bytes = 256;
    const std::string made = bytes.Make();
    CELER_ASSIGN(const GgufFile file, GgufFile::FromBytes(std::as_bytes(std::span(made)), "m.gguf"));
    return ConfigFromGguf(file, "m.gguf");
  }
  std::string Refusal() const {
    const auto read = Accepted();
    return read ? "accepted" : read.error().message();
  }
};

Gguf SmallGguf() {
  Gguf gguf;
  gguf.Int("block_count", 3)
      .Int("context_length", 128)
      .Int("embedding_length", 32)
      .Int("feed_forward_length", 48);
  gguf.Int("attention.head_count", 4).Float("attention.layer_norm_rms_epsilon", 1e-5f);
  return gguf;
}

TEST(GgufConfig, ValuesOfTheWrongKindAreErrors) {
  EXPECT_EQ(SmallGguf().Refusal(), "accepted");
  EXPECT_EQ(SmallGguf().String("rope.freq_base", "1e6").Refusal(),
            "m.gguf: metadata key 'llama.rope.freq_base' is 1e6 (str), expected a number");
  EXPECT_THAT(SmallGguf().Ints("rope.freq_base", {1, 2}).Refusal(),
              HasSubstr("'llama.rope.freq_base' is [1, 2] (u32[2])"));
  EXPECT_THAT(SmallGguf().Float("attention.key_length", 8.5f).Refusal(), HasSubstr("expected an integer"));
  EXPECT_THAT(SmallGguf().Int("rope.scaling.type", 2).Refusal(), HasSubstr("expected a string"));
  Gguf bare;
  bare.Int("block_count", 3)
      .Int("context_length", 128)
      .Int("embedding_length", 32)
      .Int("feed_forward_length", 48);
  bare.Int("attention.head_count", 4);
  EXPECT_EQ(bare.Refusal(), "m.gguf: metadata key 'llama.attention.layer_norm_rms_epsilon' is missing");
}

TEST(GgufConfig, NumbersPerLayer) {
  const auto same = SmallGguf().Ints("attention.head_count_kv", {2, 2, 2}).Accepted();
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_EQ(same->kv_heads, 2);
  EXPECT_EQ(
      SmallGguf().Ints("attention.head_count_kv", {2, 4, 2}).Refusal(),
      "m.gguf: metadata key 'llama.attention.head_count_kv' is 2 in some layers and 4 in others; only models "
      "with the same in all layers are supported");
  EXPECT_THAT(SmallGguf().Ints("attention.head_count_kv", {2, 2}).Refusal(),
              HasSubstr("one for each of 3 layers"));
}

TEST(GgufConfig, RopeScaling) {
  auto yarn = SmallGguf()
                  .String("rope.scaling.type", "yarn")
                  .Float("rope.scaling.factor", 4)
                  .Int("rope.scaling.original_context_length", 32)
                  .Float("rope.scaling.yarn_beta_fast", 8)
                  .Float("rope.scaling.yarn_beta_slow", 2)
                  .Float("rope.scaling.attn_factor", 0.5f)
                  .Accepted();
  ASSERT_TRUE(yarn) << yarn.error().message();
  EXPECT_EQ(yarn->rope.beta_fast, 8);
  EXPECT_EQ(yarn->rope.beta_slow, 2);
  EXPECT_NEAR(yarn->rope.attention_factor, 0.5 * 1.138629, 1e-6);  // multiplies what YaRN derives
  EXPECT_THAT(yarn->warnings, IsEmpty());
  auto deepseek = SmallGguf()
                      .String("rope.scaling.type", "yarn")
                      .Float("rope.scaling.factor", 4)
                      .Float("rope.scaling.yarn_log_multiplier", 0.5f)
                      .Accepted();
  ASSERT_TRUE(deepseek) << deepseek.error().message();
  EXPECT_NEAR(deepseek->rope.attention_factor, 1.064822, 1e-6);
  // A factor without a type means linear.
  auto linear = SmallGguf().Float("rope.scaling.factor", 2).Accepted();
  ASSERT_TRUE(linear) << linear.error().message();
  EXPECT_EQ(linear->rope.scaling, Scaling::kLinear);
  EXPECT_EQ(linear->rope.factor, 2);
  EXPECT_EQ(SmallGguf().String("rope.scaling.type", "yarn").Refusal(),
            "m.gguf: metadata key 'llama.rope.scaling.factor' is missing");
  EXPECT_THAT(SmallGguf().String("rope.scaling.type", "longrope").Refusal(),
              HasSubstr("tensor 'rope_factors_short.weight' is missing"));
  EXPECT_THAT(SmallGguf().String("rope.scaling.type", "ntk").Refusal(),
              HasSubstr("rope scaling 'ntk' is not supported"));
  EXPECT_THAT(SmallGguf().Float("rope.scaling.yarn_ext_factor", 0.3f).Refusal(),
              HasSubstr("is not implemented"));
}

TEST(GgufConfig, BiasesOfQwen2AreNotOptional) {
  Gguf gguf;
  gguf.arch = "qwen2";
  gguf.Int("block_count", 3)
      .Int("context_length", 128)
      .Int("embedding_length", 32)
      .Int("feed_forward_length", 48)
      .Int("attention.head_count", 4)
      .Float("attention.layer_norm_rms_epsilon", 1e-5f);
  const auto config = gguf.Accepted();
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(SmallGguf().Accepted()->qkv_bias);
}

TEST(GgufConfig, KeysThatAreNotKnown) {
  auto odd = SmallGguf().Float("next_years_scale", 2.5f).Int("vocab_size", 2).Accepted();
  ASSERT_TRUE(odd) << odd.error().message();
  EXPECT_THAT(
      odd->warnings,
      ElementsAre(HasSubstr("metadata key 'llama.next_years_scale' is 2.5, a key that is not known")));
  EXPECT_EQ(SmallGguf().Float("final_logit_softcapping", 30).Refusal(),
            "m.gguf: metadata key 'llama.final_logit_softcapping' is 30, which is not implemented for the "
            "architecture 'llama'");
  EXPECT_EQ(SmallGguf().Float("logit_scale", 1).Refusal(), "accepted");
  EXPECT_EQ(SmallGguf().Add("attention.causal", GgufType::kBool, Raw<uint8_t>(1)).Refusal(), "accepted");
  EXPECT_THAT(SmallGguf().Add("attention.causal", GgufType::kBool, Raw<uint8_t>(0)).Refusal(),
              HasSubstr("attention.causal"));
}

}  // namespace
}  // namespace celer
