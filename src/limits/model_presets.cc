// Shapes of models like Llama from the config.json that each was published with. Checked in model_presets_test.cc against
// the parameter counts of the published checkpoints.
#include "limits/model_presets.h"

#include <array>

namespace celer {
namespace {

enum Traits : unsigned { kPlain = 0, kBias = 1, kQkNorm = 2, kTied = 4 };

struct Row {
  const char* name;
  int64_t layers, hidden, intermediate, vocab, heads, kv_heads, head_dim;
  unsigned traits = kPlain;
  int64_t experts = 0, experts_per_token = 0, shared_intermediate = 0;
};

// clang-format off
constexpr Row kModels[] = {
    // name                 layers hidden  inter   vocab  heads kv  dim
    // Qwen1.5. "-nogqa" is the same model with a KV head for every query head, to show what sharing saves.
    {"qwen1.5-0.5b",          24,   1024,   2816, 151936,  16,  16,  64, kBias},
    {"qwen1.5-1.8b",          24,   2048,   5504, 151936,  16,  16, 128, kBias},
    {"qwen1.5-4b",            40,   2560,   6912, 151936,  20,  20, 128, kBias},
    {"qwen1.5-7b",            32,   4096,  11008, 151936,  32,  32, 128, kBias},
    {"qwen1.5-14b",           40,   5120,  13696, 152064,  40,  40, 128, kBias},
    {"qwen1.5-32b",           64,   5120,  27392, 152064,  40,   8, 128, kBias},
    {"qwen1.5-32b-nogqa",     64,   5120,  27392, 152064,  40,  40, 128, kBias},
    {"qwen1.5-72b",           80,   8192,  24576, 152064,  64,  64, 128, kBias},
    {"qwen1.5-110b",          80,   8192,  49152, 152064,  64,   8, 128, kBias},
    {"qwen1.5-110b-nogqa",    80,   8192,  49152, 152064,  64,  64, 128, kBias},
    {"qwen1.5-moe-a2.7b",     24,   2048,   1408, 151936,  16,  16, 128, kBias, 60, 4, 5632},

    {"llama-2-7b",            32,   4096,  11008,  32000,  32,  32, 128},
    {"llama-2-13b",           40,   5120,  13824,  32000,  40,  40, 128},
    {"llama-2-70b",           80,   8192,  28672,  32000,  64,   8, 128},
    {"llama-3-8b",            32,   4096,  14336, 128256,  32,   8, 128},
    {"llama-3-70b",           80,   8192,  28672, 128256,  64,   8, 128},
    {"llama-3.1-8b",          32,   4096,  14336, 128256,  32,   8, 128},
    {"llama-3.1-70b",         80,   8192,  28672, 128256,  64,   8, 128},
    {"llama-3.1-405b",       126,  16384,  53248, 128256, 128,   8, 128},
    {"llama-3.2-1b",          16,   2048,   8192, 128256,  32,   8,  64, kTied},
    {"llama-3.2-3b",          28,   3072,   8192, 128256,  24,   8, 128, kTied},
    {"llama-3.3-70b",         80,   8192,  28672, 128256,  64,   8, 128},
    {"tinyllama-1.1b",        22,   2048,   5632,  32000,  32,   4,  64},

    {"smollm2-135m",          30,    576,   1536,  49152,   9,   3,  64, kTied},
    {"smollm2-360m",          32,    960,   2560,  49152,  15,   5,  64, kTied},
    {"smollm2-1.7b",          24,   2048,   8192,  49152,  32,  32,  64, kTied},

    {"qwen2.5-0.5b",          24,    896,   4864, 151936,  14,   2,  64, kBias | kTied},
    {"qwen2.5-1.5b",          28,   1536,   8960, 151936,  12,   2, 128, kBias | kTied},
    {"qwen2.5-3b",            36,   2048,  11008, 151936,  16,   2, 128, kBias | kTied},
    {"qwen2.5-7b",            28,   3584,  18944, 152064,  28,   4, 128, kBias},
    {"qwen2.5-14b",           48,   5120,  13824, 152064,  40,   8, 128, kBias},
    {"qwen2.5-32b",           64,   5120,  27648, 152064,  40,   8, 128, kBias},
    {"qwen2.5-72b",           80,   8192,  29568, 152064,  64,   8, 128, kBias},

    {"qwen3-0.6b",            28,   1024,   3072, 151936,  16,   8, 128, kQkNorm | kTied},
    {"qwen3-1.7b",            28,   2048,   6144, 151936,  16,   8, 128, kQkNorm | kTied},
    {"qwen3-4b",              36,   2560,   9728, 151936,  32,   8, 128, kQkNorm | kTied},
    {"qwen3-8b",              36,   4096,  12288, 151936,  32,   8, 128, kQkNorm},
    {"qwen3-14b",             40,   5120,  17408, 151936,  40,   8, 128, kQkNorm},
    {"qwen3-32b",             64,   5120,  25600, 151936,  64,   8, 128, kQkNorm},
    {"qwen3-30b-a3b",         48,   2048,    768, 151936,  32,   4, 128, kQkNorm, 128, 8},
    {"qwen3-235b-a22b",       94,   4096,   1536, 151936,  64,   4, 128, kQkNorm, 128, 8},

    {"mistral-7b",            32,   4096,  14336,  32000,  32,   8, 128},
    {"mixtral-8x7b",          32,   4096,  14336,  32000,  32,   8, 128, kPlain, 8, 2},
    {"mixtral-8x22b",         56,   6144,  16384,  32000,  48,   8, 128, kPlain, 8, 2},
    {"mistral-small-24b",     40,   5120,  32768, 131072,  32,   8, 128},
};
// clang-format on

LlmShape ToShape(const Row& row) {
  return {
      {row.layers, row.hidden, row.intermediate, row.vocab, row.heads, row.kv_heads, row.head_dim,
       (row.traits & kBias) != 0, (row.traits & kQkNorm) != 0, /*gated_mlp=*/true, (row.traits & kTied) != 0},
      {row.experts, row.experts_per_token, row.shared_intermediate},
      row.name};
}

}  // namespace

std::optional<LlmShape> FindPlainPreset(std::string_view name) {
  for (const Row& row : kModels)
    if (name == row.name) return ToShape(row);
  return std::nullopt;
}

std::vector<std::string> PlainPresetNames() {
  std::vector<std::string> names;
  for (const Row& row : kModels) names.emplace_back(row.name);
  return names;
}

}  // namespace celer
