// LoRA adapters against what PEFT computes with them, alone, in batches with others, and merged into the model.
// tests/lora/make_lora_golden.py made tests/golden/lora.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "../golden/golden.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "formats/decode.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"
#include "models/lora/lora.h"
#include "quantize/llm/merge_lora.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::WorstRelative;

const fs::path kAdapters = kGolden / "lora";
constexpr double kTolerance = 1e-4;  // over the greatest logit

struct Golden {
  std::string name;
  fs::path model;
  std::vector<int32_t> prompt;
  std::vector<float> logits;  // [prompt, vocab]
};

std::vector<float> FloatsOf(const fs::path& file, const char* tensor) {
  const auto opened = SafetensorsFile::Open(file);
  if (!opened || !opened->Find(tensor)) {
    ADD_FAILURE() << file << " has no tensor " << tensor;
    return {};
  }
  const auto bytes = opened->Find(tensor)->bytes;
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Golden ReadGolden(const std::string& name) {
  const auto json = ReadJsonFile(kAdapters / name / "golden.json");
  EXPECT_TRUE(json) << name;
  return {name, kGolden / json->at("model").get<std::string>(), json->at("prompt"),
          FloatsOf(kAdapters / name / "golden.safetensors", "prompt_logits")};
}

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kAdapters))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::unique_ptr<Runner> LoadRunner(const fs::path& model, const char* weights = "stored") {
  auto runner = MakeRunner({.model = model.string(),
                            .weights = *WeightOptions::Parse(weights),
                            .kv = KvType::kF32,
                            .context = 64,
                            .sequences = 8});
  EXPECT_TRUE(runner) << runner.error().message();
  return runner ? std::move(*runner) : nullptr;
}

std::shared_ptr<const LoraAdapter> LoadAdapter(const fs::path& path, const fs::path& model) {
  auto adapter = LoadLora(path.filename(), path, model, DefaultThreadPool());
  EXPECT_TRUE(adapter) << adapter.error().message();
  return adapter ? *adapter : nullptr;
}

std::shared_ptr<const LoraMix> MixOf(const fs::path& path, const fs::path& model, float scale = 1) {
  auto mix = LoraMix::Make({{.adapter = LoadAdapter(path, model), .scale = scale}});
  EXPECT_TRUE(mix) << mix.error().message();
  return mix ? *mix : nullptr;
}

// A text of a test's batch, in blocks and with a state of its own.
struct Text {
  std::vector<int32_t> tokens;
  std::shared_ptr<const LoraMix> lora;
};

std::vector<Slice> SlicesOf(const std::vector<Text>& texts, std::vector<std::vector<int32_t>>* tables,
                            size_t begin, size_t end) {
  std::vector<Slice> slices;
  tables->clear();
  for (size_t i = 0; i < texts.size(); ++i)
    tables->push_back({static_cast<int32_t>(3 * i + 2), static_cast<int32_t>(3 * i + 1)});
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t last = std::min(end, texts[i].tokens.size());
    slices.push_back({.sequence = static_cast<int64_t>(i),
                      .tokens = std::span(texts[i].tokens).subspan(begin, last - begin),
                      .position = static_cast<int64_t>(begin),
                      .state = static_cast<int32_t>(i),
                      .block_table = (*tables)[i],
                      .rows = Slice::Rows::kAll,
                      .lora = texts[i].lora});
  }
  return slices;
}

// The logits of all texts, one after the other; `begin` and `end` are the tokens of each.
std::vector<float> LogitsOf(Runner& runner, const std::vector<Text>& texts, size_t begin = 0,
                            size_t end = 64) {
  std::vector<std::vector<int32_t>> tables;
  const auto logits = RunLogits(runner, SlicesOf(texts, &tables, begin, end));
  EXPECT_TRUE(logits) << logits.error().message();
  return logits ? *logits : std::vector<float>();
}

double LogitTolerance() {
  return Exact() ? kTolerance : 0.1;
}

TEST(Lora, LogitsArePefts) {
  const std::vector<std::string> names = AllNames();
  ASSERT_GE(names.size(), 20u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(name);
    const auto runner = LoadRunner(golden.model);
    const auto mix = MixOf(kAdapters / name, golden.model);
    ASSERT_TRUE(runner && mix);
    const Status fits = runner->CheckLora(*mix);
    ASSERT_TRUE(fits) << fits.error().message();
    const auto with = LogitsOf(*runner, {{golden.prompt, mix}}),
               without = LogitsOf(*runner, {{golden.prompt, nullptr}});
    ASSERT_EQ(with.size(), golden.logits.size());
    EXPECT_LT(WorstRelative(golden.logits, with), LogitTolerance());
    EXPECT_GT(WorstRelative(without, with), 0.01);  // else the comparison shows nothing
  }
}

TEST(Lora, CutPromptsHaveTheSameBits) {
  for (const std::string& name : AllNames()) {
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(name);
    const auto runner = LoadRunner(golden.model);
    const Text text = {golden.prompt, MixOf(kAdapters / name, golden.model)};
    const auto whole = LogitsOf(*runner, {text});
    std::vector<float> cut;
    const size_t edges[] = {0, 1, 8, 9, 20, golden.prompt.size()};
    for (size_t i = 0; i + 1 < std::size(edges); ++i) {
      const auto piece = LogitsOf(*runner, {text}, edges[i], edges[i + 1]);
      cut.insert(cut.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(whole, cut);
  }
}

// Eight texts with five adapters and none, in one step.
TEST(Lora, BatchesOfSeveralAdaptersHaveTheBitsOfEachAlone) {
  const Golden golden = ReadGolden("plain");
  const auto runner = LoadRunner(golden.model);
  const auto plain = LoadAdapter(kAdapters / "plain", golden.model),
             patterns = LoadAdapter(kAdapters / "patterns", golden.model),
             head = LoadAdapter(kAdapters / "head", golden.model),
             gguf = LoadAdapter(kAdapters / "plain.gguf", golden.model);
  const std::vector<std::vector<LoraUse>> uses = {
      {{plain}}, {}, {{patterns}}, {{head}}, {{gguf}}, {{plain, 0.5f}}, {{plain}, {head, -2}}, {{plain}}};
  std::vector<Text> texts;
  for (size_t i = 0; i < uses.size(); ++i) {
    std::vector<int32_t> tokens = golden.prompt;
    std::rotate(tokens.begin(), tokens.begin() + static_cast<int64_t>(i), tokens.end());
    tokens.resize(tokens.size() - i);
    const auto mix = LoraMix::Make(uses[i]);
    ASSERT_TRUE(mix);
    texts.push_back({tokens, *mix});
  }
  const auto all = LogitsOf(*runner, texts);
  std::vector<float> alone;
  for (const Text& text : texts) {
    const auto one = LogitsOf(*runner, {text});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_EQ(all, alone);
}

TEST(Lora, ScalesLieOnTheLineThroughModelAndAdapter) {
  // What a saved embedding replaces, and DoRA's norms, are scaled as differences too.
  for (const char* const name : {"head", "saved", "bias"}) {
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(name);
    const auto runner = LoadRunner(golden.model);
    const auto adapter = LoadAdapter(kAdapters / name, golden.model);
    const auto one = LoraMix::Make({{adapter}}), halves = LoraMix::Make({{adapter, 0.5f}, {adapter, 0.5f}});
    const auto full = LogitsOf(*runner, {{golden.prompt, *one}}),
               sum = LogitsOf(*runner, {{golden.prompt, *halves}});
    EXPECT_LT(WorstRelative(full, sum), LogitTolerance());
    const auto none = LoraMix::Make({{adapter, 0.0f}});
    EXPECT_TRUE(none && *none == nullptr);
    EXPECT_FALSE(LoraMix::Make({{adapter, NAN}}));
  }
}

TEST(Lora, RunsOnGgufAndOnQuantizedWeights) {
  const Golden golden = ReadGolden("plain");
  const fs::path gguf = kGolden / "gguf/llama3-bf16.gguf";
  for (const fs::path& adapter : {kAdapters / "plain", kAdapters / "plain.gguf"})
    for (const fs::path& model : {gguf, golden.model}) {
      SCOPED_TRACE(adapter.string() + " on " + model.string());
      const auto runner = LoadRunner(model);
      const auto logits = LogitsOf(*runner, {{golden.prompt, MixOf(adapter, model)}});
      EXPECT_LT(WorstRelative(golden.logits, logits), LogitTolerance());
    }
  const fs::path q8 = kGolden / "gguf/llama3-q8_0.gguf";
  const auto runner = LoadRunner(q8);
  const auto without = LogitsOf(*runner, {{golden.prompt, nullptr}}),
             with = LogitsOf(*runner, {{golden.prompt, MixOf(kAdapters / "plain", q8)}});
  EXPECT_LT(WorstRelative(golden.logits, with), 0.2);  // what Q8_0 loses in a tiny model
  EXPECT_GT(WorstRelative(golden.logits, without), 0.5);
}

// A copy of a model with its weights in f32: sums in bf16 would keep eight bits.
void CopyInF32(const fs::path& model, const fs::path& to) {
  fs::create_directories(to);
  fs::copy_file(model / "config.json", to / "config.json", fs::copy_options::overwrite_existing);
  const auto source = SafetensorsModel::Open(model);
  ASSERT_TRUE(source);
  std::vector<TensorRecord> records(source->tensors().begin(), source->tensors().end());
  std::vector<std::vector<float>> values(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    values[i].resize(static_cast<size_t>(*records[i].shape.elements()));
    DecodeRow(records[i].dtype, records[i].bytes.data(), std::ssize(values[i]), values[i].data());
    records[i].dtype = DType::kF32;
    records[i].bytes = std::as_bytes(std::span(values[i]));
  }
  ASSERT_TRUE(WriteSafetensors(to / "model.safetensors", records));
}

TEST(Lora, MergedModelsAreTheAdaptedOnes) {
  for (const std::string& name : AllNames()) {
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(name);
    const fs::path out = fs::path(::testing::TempDir()) / ("merged_" + name),
                   model = fs::path(::testing::TempDir()) / ("f32_" + name);
    for (const fs::path& folder : {out, model}) fs::remove_all(folder);
    CopyInF32(golden.model, model);
    const Status merged = MergeLora(model, *MixOf(kAdapters / name, model), out);
    ASSERT_TRUE(merged) << merged.error().message();
    const auto logits = LogitsOf(*LoadRunner(out), {{golden.prompt, nullptr}});
    ASSERT_EQ(logits.size(), golden.logits.size());
    EXPECT_LT(WorstRelative(golden.logits, logits), LogitTolerance());
    for (const fs::path& folder : {out, model}) fs::remove_all(folder);
  }
}

TEST(Lora, MergeRefusesWhatItCannotWrite) {
  const fs::path gguf = kGolden / "gguf/llama3-bf16.gguf";
  const fs::path out = fs::path(::testing::TempDir()) / "not_merged";
  const Status merged = MergeLora(gguf, *MixOf(kAdapters / "plain", gguf), out);
  ASSERT_FALSE(merged);
  EXPECT_NE(merged.error().message().find("Hugging Face folder"), std::string::npos);
  EXPECT_FALSE(fs::exists(out));
}

// ---- What is refused, and how ----

class Broken : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / "broken_adapter";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const char* const file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy_file(kAdapters / "plain" / file, folder_ / file);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Change(const std::function<void(nlohmann::json*)>& change) {
    const auto json = ReadJsonFile(kAdapters / "plain/adapter_config.json");
    nlohmann::json changed = *json;
    change(&changed);
    std::ofstream(folder_ / "adapter_config.json") << changed;
  }
  void Set(const char* key, const nlohmann::json& value) {
    Change([&](nlohmann::json* json) { (*json)[key] = value; });
  }

  // The adapter's tensors again, as changed.
  void ChangeTensors(const std::function<void(TensorRecord*, std::vector<std::byte>*)>& change) {
    const auto file = SafetensorsFile::Open(kAdapters / "plain/adapter_model.safetensors");
    std::vector<TensorRecord> records(file->tensors().begin(), file->tensors().end());
    std::vector<std::vector<std::byte>> bytes;
    for (TensorRecord& record : records) {
      bytes.emplace_back(record.bytes.begin(), record.bytes.end());
      change(&record, &bytes.back());
    }
    for (size_t i = 0; i < records.size(); ++i) records[i].bytes = bytes[i];
    ASSERT_TRUE(WriteSafetensors(folder_ / "adapter_model.safetensors", records));
  }

  void ExpectRefused(const std::string& part, const char* model = "models/llama3") {
    const auto adapter = LoadLora("broken", folder_, kGolden / model, DefaultThreadPool());
    ASSERT_FALSE(adapter) << "expected: " << part;
    EXPECT_NE(adapter.error().message().find(part), std::string::npos) << adapter.error().message();
  }

  fs::path folder_;
};

TEST_F(Broken, FieldsThatChangeTheMeaning) {
  const std::pair<const char*, nlohmann::json> fields[] = {{"use_qalora", true},
                                                           {"arrow_config", {{"top_k", 2}}},
                                                           {"layer_replication", {{0, 2}, {1, 2}}},
                                                           {"alora_invocation_tokens", {1, 2}},
                                                           {"trainable_token_indices", {5}},
                                                           {"use_bdlora", {{"nblocks", 2}}},
                                                           {"something_new", 3},
                                                           {"init_lora_weights", "pissa"},
                                                           {"init_lora_weights", "olora"},
                                                           {"peft_type", "IA3"},
                                                           {"use_dora", true},
                                                           {"rank_pattern", {{"q_proj", 3}}},
                                                           {"rank_pattern", {{"(q_proj", 4}}},
                                                           {"alpha_pattern", {{"q_proj", "x"}}},
                                                           {"lora_alpha", "x"},
                                                           {"lora_alpha", 1e300},
                                                           {"r", 0},
                                                           {"r", -4},
                                                           {"r", 10000},
                                                           {"r", 3}};
  for (const auto& [key, value] : fields) {
    SCOPED_TRACE(std::string(key) + " = " + value.dump());
    Set(key, value);
    const auto adapter = LoadLora("broken", folder_, kGolden / "models/llama3", DefaultThreadPool());
    ASSERT_FALSE(adapter);
    EXPECT_NE(adapter.error().message().find(folder_.string()), std::string::npos)
        << adapter.error().message();
  }
  // And those that say nothing new.
  Set("something_new", nullptr);
  EXPECT_TRUE(LoadLora("same", folder_, kGolden / "models/llama3", DefaultThreadPool()));
  Set("layers_to_transform", {0, 1});
  EXPECT_TRUE(LoadLora("same", folder_, kGolden / "models/llama3", DefaultThreadPool()));
}

// A pattern that would keep a backtracking matcher busy for years.
TEST_F(Broken, PatternsAreMatchedInTime) {
  Set("rank_pattern", {{"(([a-z_.0-9]+)+)+x", 4}});
  EXPECT_TRUE(LoadLora("same", folder_, kGolden / "models/llama3", DefaultThreadPool()));
}

TEST_F(Broken, AnotherModelsAdapter) {
  ExpectRefused("down_proj", "models/qwen2.5");
  ExpectRefused("down_proj", "models/gpt2");
  const auto adapter =
      LoadLora("x", kAdapters / "plain.gguf", kGolden / "models/qwen2.5", DefaultThreadPool());
  ASSERT_FALSE(adapter);
  EXPECT_NE(adapter.error().message().find("architecture 'llama'"), std::string::npos);
  const auto runner = LoadRunner(kGolden / "models/qwen2.5");
  const Status fits = runner->CheckLora(*MixOf(kAdapters / "plain", kGolden / "models/llama3"));
  ASSERT_FALSE(fits);
  EXPECT_NE(fits.error().message().find("another model"), std::string::npos);
}

TEST_F(Broken, CutFiles) {
  const auto size = fs::file_size(folder_ / "adapter_model.safetensors");
  for (const uint64_t left : {uint64_t{0}, uint64_t{7}, uint64_t{100}, size / 2, size - 1}) {
    fs::resize_file(folder_ / "adapter_model.safetensors", left);
    ExpectRefused("adapter_model.safetensors");
  }
  fs::remove(folder_ / "adapter_model.safetensors");
  std::ofstream(folder_ / "adapter_model.bin") << "x";
  ExpectRefused("pickle");
  fs::remove(folder_ / "adapter_config.json");
  ExpectRefused("adapter_config.json");
}

TEST_F(Broken, Tensors) {
  ChangeTensors([](TensorRecord* record, std::vector<std::byte>* bytes) {
    if (!record->name.ends_with("layers.1.mlp.up_proj.lora_B.weight")) return;
    const float nan = NAN;
    std::memcpy(bytes->data() + 4, &nan, sizeof nan);
  });
  ExpectRefused("layers.1.mlp.up_proj.lora_B.weight");
  ChangeTensors([](TensorRecord* record, std::vector<std::byte>*) {
    if (record->name.ends_with("layers.1.mlp.up_proj.lora_B.weight"))
      record->shape = {record->shape[1], record->shape[0]};
  });
  ExpectRefused("layers.1.mlp.up_proj.lora_B.weight");
  const std::pair<const char*, const char*> names[] = {{"up_proj.lora_B.weight", "up_proj.lora_C.weight"},
                                                       {"up_proj.lora_B.weight", "wide_proj.lora_B.weight"},
                                                       {"mlp.up_proj", "mlp.wide_proj"},
                                                       {"layers.1.", "layers.7."}};
  for (const auto& [from, to] : names) {
    SCOPED_TRACE(to);
    ChangeTensors([&](TensorRecord* record, std::vector<std::byte>*) {
      if (const size_t at = record->name.find(from); at != std::string::npos)
        record->name.replace(at, std::strlen(from), to);
    });
    ExpectRefused("module '");
  }
}

TEST_F(Broken, HugeRanks) {
  Set("r", 4096);
  ChangeTensors([](TensorRecord* record, std::vector<std::byte>* bytes) {
    const bool a = record->name.find("lora_A") != std::string::npos;
    const int64_t other = record->shape[a ? 1 : 0];
    record->shape = a ? Shape{10000, other} : Shape{other, 10000};
    bytes->assign(static_cast<size_t>(10000 * other) * sizeof(float), std::byte{0});
  });
  ExpectRefused("rank 4096");
}

}  // namespace
}  // namespace celer
