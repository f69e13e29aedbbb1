#include "models/config/presets.h"

#include <gmock/gmock.h>

#include <set>

namespace celer {
namespace {

TEST(ConfigPresets, HaveTheSwitchesOfTheirFamily) {
  const DecoderConfig gemma = FindConfigPreset("gemma-3-12b").value();
  EXPECT_EQ(gemma.family, "gemma3");
  EXPECT_TRUE(gemma.post_norm);
  EXPECT_EQ(gemma.Window(0), 1024);
  EXPECT_EQ(gemma.Window(5), 0);
  const DecoderConfig oss = FindConfigPreset("gpt-oss-20b").value();
  EXPECT_TRUE(oss.attention_sinks);
  EXPECT_TRUE(oss.moe.expert_bias);
  const DecoderConfig qwen = FindConfigPreset("qwen3.5-35b-a3b").value();
  EXPECT_TRUE(qwen.IsRecurrent(0));
  EXPECT_FALSE(qwen.IsRecurrent(3));
  EXPECT_TRUE(qwen.output_gate);
  const DecoderConfig deepseek = FindConfigPreset("deepseek-v2-lite").value();
  EXPECT_EQ(deepseek.latent.kv_rank, 512);
  EXPECT_FALSE(deepseek.IsSparse(0));
  EXPECT_TRUE(deepseek.IsSparse(1));
  EXPECT_EQ(deepseek.moe.shared_intermediate, 2 * 1408);
}

TEST(ConfigPresets, AnyOtherIsALlama) {
  EXPECT_EQ(FindConfigPreset("llama-3.1-8b").value().family, "llama");
  EXPECT_EQ(FindConfigPreset("gpt-oss-20").error().message(),
            "unknown model 'gpt-oss-20'; did you mean 'gpt-oss-20b'?");
  EXPECT_EQ(FindModelPreset("qwen1.5-7").error().message(),
            "unknown model 'qwen1.5-7'; did you mean 'qwen1.5-7b'?");
  EXPECT_EQ(FindModelPreset("something-else-entirely").error().message(),
            "unknown model 'something-else-entirely'; see celer limits --list");
}

TEST(ConfigPresets, AreValidNamedOnceAndReadWhole) {
  std::set<std::string> seen;
  for (const std::string& name : ModelPresetNames()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(seen.insert(name).second);
    for (const char c : name) EXPECT_FALSE(c >= 'A' && c <= 'Z');
    const auto config = FindConfigPreset(name);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_THAT(config->warnings, testing::IsEmpty());
    const auto shape = FindModelPreset(name);
    ASSERT_TRUE(shape) << shape.error().message();
    EXPECT_EQ(shape->name, name);
    EXPECT_TRUE(Validate(*shape));
  }
  EXPECT_GE(seen.size(), 110u);
}

// Parameters in the published checkpoints, which the configuration alone must give; `more` are those that no sum counts:
// tables of positions, and biases and weights of norms outside of layers.
TEST(ConfigPresets, GiveThePublishedParameterCount) {
  const struct {
    const char* name;
    int64_t count, more;
  } published[] = {
      {"phi-3-mini", 3821079552, 0},
      {"phi-4", 14659507200, 0},
      {"phi-4-mini", 3836021760, 0},
      {"smollm3-3b", 3075098624, 0},
      {"gemma-2b", 2506172416, 0},
      {"gemma-7b", 8537680896, 0},
      {"gemma-2-2b", 2614341888, 0},
      {"gemma-2-9b", 9241705984, 0},
      {"gemma-2-27b", 27227128320, 0},
      {"gemma-3-1b", 999885952, 0},
      // With images there are 416866032 more in the tower, and 1152 * hidden + 1152 in the projection.
      {"gemma-3-4b", 4300079472 - 416866032 - 1152 * 2560 - 1152, 0},
      {"gemma-3-12b", 12187325040 - 416866032 - 1152 * 3840 - 1152, 0},
      {"gemma-3-27b", 27432406640 - 416866032 - 1152 * 5376 - 1152, 0},
      {"gpt-oss-20b", 20914757184, 0},
      {"gpt-oss-120b", 116829156672, 0},
      {"deepseek-v2-lite", 15706484224, 0},
      {"gpt2", 124439808, 1024 * 768 + 768},
      {"gpt2-xl", 1557611200, 1024 * 1600 + 1600},
      {"pythia-1b", 1011781632, 2048},
      {"starcoder2-3b", 3030371328, 3072},
      {"command-r7b", 8028033024, 0},
  };
  for (const auto& [name, count, more] : published) {
    const auto shape = FindModelPreset(name);
    ASSERT_TRUE(shape) << shape.error().message();
    const LlmParams p = CountParams(*shape);
    EXPECT_EQ(p.total + p.norms + more, count) << name;
  }
}

TEST(ConfigPresets, ActiveParametersOfExperts) {
  const auto active = [](const char* name) {
    return static_cast<double>(CountParams(FindModelPreset(name).value()).active) / 1e9;
  };
  const auto total = [](const char* name) {
    return static_cast<double>(CountParams(FindModelPreset(name).value()).total) / 1e9;
  };
  EXPECT_NEAR(active("gpt-oss-20b"), 3.6, 0.1);
  EXPECT_NEAR(active("gpt-oss-120b"), 5.1, 0.1);
  EXPECT_NEAR(active("minimax-m2"), 10, 0.5);
  EXPECT_NEAR(active("deepseek-v3"), 37, 0.6);
  EXPECT_NEAR(total("deepseek-v3"), 671, 0.1);
  EXPECT_NEAR(total("deepseek-v2"), 235.7, 0.2);
  EXPECT_NEAR(active("deepseek-v2"), 21, 0.6);
  EXPECT_NEAR(total("kimi-k2"), 1026.4, 0.5);
  EXPECT_NEAR(active("qwen3-next-80b-a3b"), 3.5, 0.3);
  EXPECT_NEAR(total("qwen3-next-80b-a3b"), 79.7, 0.1);
  EXPECT_NEAR(total("qwen3.5-35b-a3b"), 34.7, 0.3);
  EXPECT_NEAR(total("qwen3.5-27b"), 26.9, 0.2);
  EXPECT_NEAR(total("glm-4.5-air"), 106.9, 0.2);
  EXPECT_NEAR(total("glm-4.5"), 352.8, 0.5);
  EXPECT_NEAR(total("minimax-m2"), 228.7, 0.1);
  EXPECT_NEAR(total("ernie-4.5-21b-a3b"), 21.8, 0.1);
  EXPECT_NEAR(total("ernie-4.5-300b-a47b"), 299.5, 1);
  EXPECT_NEAR(total("hunyuan-a13b"), 80.4, 0.1);
  EXPECT_NEAR(total("olmoe-1b-7b"), 6.92, 0.01);
}

// By hand, from config.json.
TEST(ConfigPresets, KindsOfLayers) {
  const LlmShape deepseek = FindModelPreset("deepseek-v2-lite").value();
  ASSERT_EQ(deepseek.kinds.size(), 2u);
  const LayerKind &dense = deepseek.kinds[0], &sparse = deepseek.kinds[1];
  EXPECT_EQ(dense.count, 1);
  EXPECT_EQ(sparse.count, 26);
  EXPECT_EQ(sparse.kv, 576);
  EXPECT_EQ(sparse.pair_macs, 16 * (576 + 512));
  EXPECT_EQ(sparse.prompt_pair_macs, 16 * (128 + 64 + 128));
  EXPECT_EQ(dense.qkv, 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256);
  EXPECT_EQ(dense.up, 2 * 2048 * 10944);
  EXPECT_EQ(sparse.up, 2 * 2048 * 2816 + 2048 * 64);
  EXPECT_EQ(sparse.expert_up + sparse.expert_down, 3 * 2048 * 1408);
  EXPECT_EQ(KvParamsPerToken(deepseek), 27 * 576);

  const LlmShape qwen = FindModelPreset("qwen3.5-35b-a3b").value();
  ASSERT_EQ(qwen.kinds.size(), 2u);
  const LayerKind &recurrent = qwen.kinds[0], &attention = qwen.kinds[1];
  EXPECT_EQ(recurrent.count, 30);
  EXPECT_EQ(recurrent.kv, 0);
  EXPECT_EQ(recurrent.state, 32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128));
  EXPECT_EQ(recurrent.qkv, 2048 * (2 * 2048 + 2 * 4096 + 2 * 32) + 4 * 8192);
  EXPECT_EQ(attention.qkv, 2048 * (2 * 16 * 256 + 2 * 2 * 256));
  EXPECT_EQ(KvParamsPerToken(qwen), 10 * 2 * 2 * 256);
  EXPECT_EQ(StateParams(qwen), 30 * recurrent.state);

  const LlmShape gemma = FindModelPreset("gemma-3-12b").value();
  ASSERT_EQ(gemma.kinds.size(), 2u);
  EXPECT_EQ(gemma.kinds[0].window, 1024);
  EXPECT_EQ(gemma.kinds[0].count, 40);
  EXPECT_EQ(gemma.kinds[1].count, 8);

  const LlmShape starcoder = FindModelPreset("starcoder2-3b").value();
  ASSERT_EQ(starcoder.kinds.size(), 1u);
  EXPECT_EQ(starcoder.kinds[0].up, 3072 * 12288 + 12288);
}

}  // namespace
}  // namespace celer
