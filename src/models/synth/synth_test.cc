#include "models/synth/synth.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/source_dir.h"
#include "formats/decode.h"
#include "io/file/sha256.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"
#include "models/config/presets.h"
#include "models/load/gguf_keys.h"
#include "models/load/model.h"
#include "models/synth/synth_tokenizer.h"
#include "models/synth/synth_values.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

class Synth : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("synth_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  ThreadPool pool_{{.threads = 2}};
};

// The preset's traits at the smallest size; heads * head_dim differs from hidden.
LlmShape SmallShape(const std::string& preset, int64_t unit = 32) {
  LlmShape shape = FindModelPreset(preset).value();
  shape.layers = 2;
  shape.hidden = unit;
  shape.intermediate = 2 * unit;
  shape.vocab = 300;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = unit / 2;
  if (shape.experts > 0) shape.experts = 3, shape.experts_per_token = 2;
  if (shape.shared_intermediate > 0) shape.shared_intermediate = 3 * unit;
  return shape;
}

const char* const kOfEachFamily[] = {"llama-2-7b",   "llama-3.2-1b", "smollm2-135m",      "mistral-7b",
                                     "mixtral-8x7b", "qwen2.5-0.5b", "qwen1.5-moe-a2.7b", "qwen3-0.6b",
                                     "qwen3-8b",     "qwen3-30b-a3b"};

SynthModel Make(const LlmShape& shape, DType dtype, uint64_t seed = 7) {
  auto model = MakeSynthModel(shape, dtype, seed);
  EXPECT_TRUE(model) << model.error().message();
  return *model;
}

std::vector<float> Decoded(const TensorRecord& record) {
  std::vector<float> values(record.shape.elements().value());
  DecodeRow(record.dtype, record.bytes.data(), static_cast<int64_t>(values.size()), values.data());
  return values;
}

// config.json of every preset, at full size, read back: the shape is the preset's.
TEST_F(Synth, ConfigOfEveryPresetHasItsShape) {
  for (const std::string& name : ModelPresetNames()) {
    const auto json = FindPresetJson(name);
    const auto model = json ? MakeSynthModel(name, *json, DType::kF16, 0)
                            : MakeSynthModel(FindModelPreset(name).value(), DType::kF16, 0);
    ASSERT_TRUE(model) << model.error().message();
    const LlmShape shape = FindModelPreset(name).value(), back = ToLlmShape(model->config, name);
    EXPECT_EQ(back.layers, shape.layers);
    EXPECT_EQ(back.intermediate, shape.intermediate) << name;
    EXPECT_EQ(back.head_dim, shape.head_dim);
    EXPECT_EQ(back.qkv_bias, shape.qkv_bias) << name;
    EXPECT_EQ(back.qk_norm, shape.qk_norm) << name;
    EXPECT_EQ(back.shared_intermediate, shape.shared_intermediate) << name;
    const LlmParams expected = CountParams(shape), got = CountParams(back);
    EXPECT_EQ(got.total, expected.total) << name;
    EXPECT_EQ(got.active, expected.active) << name;
  }
}

// The loader takes every tensor of every family in both containers, and misses none.
TEST_F(Synth, EveryFamilyLoadsFromBothContainers) {
  for (const char* preset : kOfEachFamily) {
    const SynthModel model = Make(SmallShape(preset), DType::kF16);
    const fs::path gguf = folder_ / (std::string(preset) + ".gguf"), hf = folder_ / preset;
    const auto wrote = WriteSynthGguf(model, gguf, pool_);
    ASSERT_TRUE(wrote) << wrote.error().message();
    const auto wrote_hf = WriteSynthHf(model, hf, pool_);
    ASSERT_TRUE(wrote_hf) << wrote_hf.error().message();
    for (const fs::path& path : {gguf, hf}) {
      const auto decoder = Model::Load(path, {}, pool_);
      ASSERT_TRUE(decoder) << decoder.error().message();
      EXPECT_EQ(DifferenceOfModels(decoder->config(), model.config), std::nullopt) << path;
    }
  }
}

// What GGUF has no words for: its readers take constants, or look at the first layer alone.
struct Unsaid {
  std::string_view model, what;
};
constexpr Unsaid kUnsaid[] = {
    {"llama_dynamic", "scaling of rope"},
    {"bamba", "8 tensors are not part of the architecture"},
    {"phi2", "12 tensors are not part of the architecture"},
    {"gpt_oss", "rounding of YaRN's ramp"},
    {"minicpm3", "scale of the embedding"},
    {"gemma2", "scale of the attention scores"},
    {"cohere2", "window of layer 1"},
    {"llama4", "growth of the queries"},
    {"gemma3", "scale of the attention scores"},
    {"qwen2_window", "window of layer 0"},
    {"smollm3", "window of layer 0"},
    {"qwen2_moe", "4 tensors are not part of the architecture"},
};

bool IsUnsaid(std::string_view model, std::string_view difference) {
  return std::any_of(std::begin(kUnsaid), std::end(kUnsaid), [&](const Unsaid& row) {
    return row.model == model && difference.find(row.what) != std::string_view::npos;
  });
}

// The tiny configurations of tests/golden with a vocabulary that holds the bytes.
TEST_F(Synth, EveryGoldenConfigurationLoadsFromBothContainers) {
  const fs::path golden = fs::path(kSourceDir) / "tests/golden/models";
  for (const auto& entry : fs::directory_iterator(golden)) {
    const std::string name = entry.path().filename();
    SCOPED_TRACE(name);
    std::ifstream file(entry.path() / "config.json");
    const auto config = ResizeConfig(name, nlohmann::ordered_json::parse(file), {.vocab = 300});
    ASSERT_TRUE(config) << config.error().message();
    const auto model = MakeSynthModel(name, *config, DType::kF16, 7);
    ASSERT_TRUE(model) << model.error().message();
    std::vector<fs::path> paths = {folder_ / name};
    const auto wrote_hf = WriteSynthHf(*model, paths[0], pool_);
    ASSERT_TRUE(wrote_hf) << wrote_hf.error().message();
    if (GgufFamily(*model->family)) {
      paths.push_back(folder_ / (name + ".gguf"));
      const auto wrote = WriteSynthGguf(*model, paths[1], pool_);
      ASSERT_TRUE(wrote) << wrote.error().message();
    }
    for (const fs::path& path : paths) {
      const auto loaded = Model::Load(path, {.pack = false}, pool_);
      const std::string difference = loaded ? DifferenceOfModels(loaded->config(), model->config).value_or("")
                                            : loaded.error().message();
      const bool gguf = path.extension() == ".gguf";
      EXPECT_TRUE(difference.empty() || (gguf && IsUnsaid(name, difference))) << path << ": " << difference;
    }
  }
}

// One seed, one model: what the containers store differs in names, stacking and the order of rotated rows
// only.
TEST_F(Synth, ContainersHoldTheSameValues) {
  for (const char* preset : {"llama-2-7b", "mixtral-8x7b", "qwen1.5-moe-a2.7b"}) {
    const SynthModel model = Make(SmallShape(preset), DType::kF32);
    ASSERT_TRUE(WriteSynthGguf(model, folder_ / "m.gguf", pool_));
    ASSERT_TRUE(WriteSynthHf(model, folder_ / "m", pool_));
    const auto gguf = GgufFile::Open(folder_ / "m.gguf");
    const auto hf = SafetensorsModel::Open(folder_ / "m");
    ASSERT_TRUE(gguf && hf);
    EXPECT_EQ(Decoded(*gguf->Find("blk.1.attn_v.weight")),
              Decoded(*hf->Find("model.layers.1.self_attn.v_proj.weight")));
    const std::vector<float> q = Decoded(*gguf->Find("blk.0.attn_q.weight"));
    const std::vector<float> q_hf = Decoded(*hf->Find("model.layers.0.self_attn.q_proj.weight"));
    const bool interleaved = GgufInterleaves(model.config);
    const auto cols = static_cast<size_t>(model.config.hidden),
               head = static_cast<size_t>(model.config.head_dim);
    for (size_t i = 0; i < head / 2; ++i)  // second head: pairs (i, i + head/2) are neighbours
      for (size_t half = 0; half < 2; ++half) {
        const size_t row = head + (interleaved ? 2 * i + half : half * head / 2 + i),
                     row_hf = head + half * head / 2 + i;
        ASSERT_EQ(q[row * cols + 5], q_hf[row_hf * cols + 5]) << preset << " " << i;
      }
    if (model.config.moe.experts == 0) continue;
    const std::vector<float> stack = Decoded(*gguf->Find("blk.1.ffn_down_exps.weight"));
    const std::string prefix = std::string("model.layers.1.") + model.family->experts.experts;
    const std::vector<float> last = Decoded(*hf->Find(prefix + "2" + model.family->experts.down));
    EXPECT_EQ(std::vector<float>(stack.end() - static_cast<ptrdiff_t>(last.size()), stack.end()), last);
  }
}

TEST_F(Synth, LabelledInItsMetadata) {
  const SynthModel model = Make(SmallShape("qwen3-0.6b"), DType::kBf16, 99);
  ASSERT_TRUE(WriteSynthGguf(model, folder_ / "m.gguf", pool_));
  ASSERT_TRUE(WriteSynthHf(model, folder_ / "m", pool_));
  const auto gguf = GgufFile::Open(folder_ / "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message();
  EXPECT_EQ(gguf->GetString("general.description"), "synthetic: random weights");
  EXPECT_TRUE(gguf->Has("celer.synthetic"));
  EXPECT_EQ(gguf->GetInt("celer.synthetic.seed"), 99);
  const auto hf = SafetensorsFile::Open(folder_ / "m" / "model.safetensors");
  ASSERT_TRUE(hf) << hf.error().message();
  EXPECT_EQ(hf->metadata().at("celer.synthetic"), "true");
  EXPECT_EQ(hf->metadata().at("description"), "synthetic: random weights");
}

TEST_F(Synth, ValuesAreBellShapedAndRowsDiffer) {
  LlmShape shape = SmallShape("llama-2-7b");
  shape.hidden = 1024;
  shape.vocab = 3000;
  shape.layers = 1;
  for (const DType dtype : {DType::kF32, DType::kQ8_0, DType::kQ4_K}) {  // q4_k: through the pool of blocks
    ASSERT_TRUE(WriteSynthGguf(Make(
                                   [&] {
                                     auto s = shape;
                                     s.intermediate = 256;
                                     s.head_dim = 64;
                                     return s;
                                   }(),
                                   dtype),
                               folder_ / "m.gguf", pool_));
    const auto file = GgufFile::Open(folder_ / "m.gguf");
    ASSERT_TRUE(file) << file.error().message();
    const TensorRecord& table = *file->Find("token_embd.weight");
    const std::vector<float> values = Decoded(table);
    double sum = 0, squares = 0, largest = 0;
    for (const float v : values)
      sum += v, squares += static_cast<double>(v) * v, largest = std::max<double>(largest, std::fabs(v));
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n) + 2e-5) << Name(dtype);
    EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.0003) << Name(dtype);
    EXPECT_GT(largest, 0.06);
    EXPECT_LT(largest, 0.1);
    std::set<std::string> rows;
    const size_t row_bytes = table.bytes.size() / 3000;
    for (size_t r = 0; r < 3000; ++r)
      rows.insert(std::string(reinterpret_cast<const char*>(table.bytes.data()) + r * row_bytes, row_bytes));
    EXPECT_EQ(rows.size(), 3000u) << Name(dtype);
    for (const float v : Decoded(*file->Find("blk.0.attn_norm.weight"))) ASSERT_EQ(v, 1.0f);
  }
}

// The whole file, bit for bit: the same on every machine, with any number of threads.
TEST_F(Synth, SameSeedSameFileEverywhere) {
  struct Case {
    const char* preset;
    DType dtype;
    std::string sha256;  // empty: only the threads are compared, so that the K formats' search may get better
  };
  const Case cases[] = {
      {"llama-2-7b", DType::kF32, "bd063439e539eeb8475fc6b397d36782b1d1a494699fd1286693ffc1aca37036"},
      {"llama-2-7b", DType::kQ4_0, "f0a9f4490436f983e3036728cc489bef1ecc62dd7437e4301d35484682320491"},
      {"qwen3-30b-a3b", DType::kBf16, "4f847c9abd85efb7a5b67b189bf25eea0777332c1200f4d68d06e1058bc813b3"},
      {"qwen2.5-0.5b", DType::kQ6_K, ""},
  };
  for (Case c : cases) {
    const LlmShape shape = SmallShape(c.preset, c.dtype == DType::kQ6_K ? 1024 : 32);
    for (const int threads : {1, 3}) {
      ThreadPool pool({.threads = threads});
      ASSERT_TRUE(WriteSynthGguf(Make(shape, c.dtype), folder_ / "m.gguf", pool));
      const std::string hash = Sha256File(folder_ / "m.gguf").value();
      if (c.sha256.empty()) c.sha256 = hash;
      EXPECT_EQ(hash, c.sha256) << c.preset << " " << Name(c.dtype);
    }
    ASSERT_TRUE(WriteSynthGguf(Make(shape, c.dtype, 8), folder_ / "m.gguf", pool_));
    EXPECT_NE(Sha256File(folder_ / "m.gguf").value(), c.sha256);
  }
}

TEST_F(Synth, ShardsAndIndex) {
  const SynthModel model = Make(SmallShape("llama-2-7b"), DType::kF16);
  ASSERT_TRUE(WriteSynthHf(model, folder_ / "one", pool_));
  ASSERT_TRUE(WriteSynthHf(model, folder_ / "many", pool_, {}, 30'000));
  EXPECT_FALSE(fs::exists(folder_ / "many" / "model.safetensors"));
  const auto one = SafetensorsModel::Open(folder_ / "one"), many = SafetensorsModel::Open(folder_ / "many");
  ASSERT_TRUE(one) << one.error().message();
  ASSERT_TRUE(many) << many.error().message();
  EXPECT_GT(many->files().size(), 2u);
  EXPECT_EQ(one->tensors().size(), many->tensors().size());
  for (const TensorRecord& tensor : one->tensors()) {
    ASSERT_TRUE(many->Find(tensor.name)) << tensor.name;
    EXPECT_EQ(Decoded(tensor), Decoded(*many->Find(tensor.name))) << tensor.name;
  }
}

TEST_F(Synth, RefusesWhatCannotBe) {
  const auto message = [](const auto& result) {
    return result ? std::string("accepted") : result.error().message();
  };
  EXPECT_EQ(message(MakeSynthModel(FindModelPreset("smollm2-135m").value(), DType::kQ4_K, 0)),
            "smollm2-135m: 'token_embd.weight' has rows of 576 elements, and q4_k needs a multiple of 256; "
            "take q4_0, "
            "q5_0 or q8_0");
  LlmShape odd = SmallShape("llama-2-7b");
  odd.hidden = 33;
  EXPECT_NE(message(MakeSynthModel(odd, DType::kQ8_0, 0)).find("rows of 33 elements"), std::string::npos);
  EXPECT_TRUE(MakeSynthModel(odd, DType::kF16, 0));
  LlmShape tiny = SmallShape("llama-2-7b");
  tiny.vocab = 256;
  EXPECT_NE(message(MakeSynthModel(tiny, DType::kF16, 0)).find("vocabulary of 256"), std::string::npos);
  tiny.vocab = 0;
  EXPECT_FALSE(MakeSynthModel(tiny, DType::kF16, 0));
  const SynthModel blocks = Make(SmallShape("llama-2-7b"), DType::kQ4_0);
  EXPECT_NE(message(WriteSynthHf(blocks, folder_ / "x", pool_)).find("GGUF files only"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "x"));
}

TEST_F(Synth, StoppedWorkLeavesNothing) {
  const SynthModel model = Make(SmallShape("llama-2-7b"), DType::kF16);
  const auto stop = [](int64_t, int64_t) -> Status { return Error::Cancelled("enough"); };
  const auto status = WriteSynthGguf(model, folder_ / "m.gguf", pool_, stop);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Error::Code::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_FALSE(WriteSynthHf(model, folder_ / "hf", pool_, stop));
  EXPECT_FALSE(fs::exists(folder_ / "hf" / "config.json"));
}

TEST(SynthTokenizer, BytesFillersEnd) {
  const std::vector<std::string> tokens = SynthVocabulary(300);
  ASSERT_EQ(tokens.size(), 300u);
  EXPECT_EQ(tokens['A'], "A");
  EXPECT_EQ(tokens[' '], "\u0120");  // as GPT-2 writes a space
  EXPECT_EQ(tokens[0], "\u0100");
  EXPECT_EQ(tokens[0xad], "\u0143");  // the last of the bytes that do not print
  EXPECT_EQ(tokens[0xff], "\u00ff");
  EXPECT_EQ(tokens[256], "<t256>");
  EXPECT_EQ(tokens[299], "<|endoftext|>");
  EXPECT_EQ(std::set<std::string>(tokens.begin(), tokens.end()).size(), 300u);
  const nlohmann::json tokenizer = SynthTokenizerJson(300);
  EXPECT_EQ(tokenizer["model"]["vocab"].size(), 300u);
  EXPECT_EQ(tokenizer["model"]["vocab"]["<t257>"], 257);
  EXPECT_EQ(tokenizer["added_tokens"][0]["id"], 299);
}

}  // namespace
}  // namespace celer
