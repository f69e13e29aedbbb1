// LoRA adapters against what PEFT computes with them, alone, in batches with others, and merged into the model.
// tests/lora/make_lora_golden.py made tests/golden/lora.
#include <gtest/gtest.h>
#include <sys/stat.h>

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
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_writer.h"
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
  ASSERT_EQ(::mkfifo((folder_ / "adapter_model.safetensors").c_str(), 0600), 0);  // that nobody writes
  ExpectRefused("not a regular file");
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

TEST_F(Broken, EveryKindOfFile) {
  // As long as the header says, as a header that says more, and as noise.
  const fs::path tensors = folder_ / "adapter_model.safetensors";
  const auto write = [&](const std::string& bytes) { std::ofstream(tensors, std::ios::binary) << bytes; };
  for (const char* const bytes : {"", "x", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", "GGUF", "PK\3\4"}) {
    write(bytes);
    ExpectRefused("adapter_model.safetensors");
  }
  const char kHuge[] =
      R"({"base_model.model.x.lora_A.weight":{"dtype":"F32","shape":[4611686018427387904,16],"data_offsets":[0,4]}})";
  uint64_t length = sizeof kHuge - 1;
  write(std::string(reinterpret_cast<const char*>(&length), 8) + kHuge + "1234");
  ExpectRefused("adapter_model.safetensors");
  for (const char* const text :
       {"", "[]", "null", "{", "3", R"({"peft_type": 3})", R"({"r": "x"})", R"({"r": 1e30})",
        R"({"use_dora": "yes"})", R"({"rank_pattern": [1]})", R"({"rank_pattern": {"q": 0}})"}) {
    SCOPED_TRACE(text);
    std::ofstream(folder_ / "adapter_config.json") << text;
    ExpectRefused("adapter_config.json");
  }
  std::ofstream(folder_ / "adapter_config.json") << std::string(100'000, '[');
  ExpectRefused("adapter_config.json");
}

TEST_F(Broken, NumbersThatAreNone) {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const char* const which : {"lora_A.weight", "lora_B.weight"}) {
      ChangeTensors([&](TensorRecord* record, std::vector<std::byte>* bytes) {
        if (record->name.ends_with(std::string("layers.0.self_attn.q_proj.") + which))
          std::memcpy(bytes->data() + bytes->size() - sizeof bad, &bad, sizeof bad);
      });
      ExpectRefused(std::string("q_proj.") + which);
    }
  // Finite, and too large for what the matrices are added to.
  ChangeTensors([](TensorRecord*, std::vector<std::byte>* bytes) {
    const float huge = 3e38f;
    for (size_t at = 0; at < bytes->size(); at += sizeof huge)
      std::memcpy(bytes->data() + at, &huge, sizeof huge);
  });
  const auto adapter = LoadLora("huge", folder_, kGolden / "models/llama3", DefaultThreadPool());
  if (adapter) return;
  EXPECT_NE(adapter.error().message().find("lora_"), std::string::npos) << adapter.error().message();
}

TEST_F(Broken, TypesThatHoldNoWeights) {
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kU8}) {
    ChangeTensors([&](TensorRecord* record, std::vector<std::byte>* bytes) {
      if (!record->name.ends_with("layers.0.self_attn.q_proj.lora_A.weight")) return;
      record->dtype = dtype;
      bytes->resize(static_cast<size_t>(*BytesFor(dtype, *record->shape.elements())));
    });
    ExpectRefused("q_proj.lora_A.weight");
  }
}

// PEFT writes the embedding of a model beside an adapter's matrices for it, and reads it in the place of the model's.
TEST_F(Broken, TheModelsOwnEmbeddingInTheFile) {
  const fs::path model = kGolden / "models/llama3", head = kAdapters / "head";
  const auto tensors = SafetensorsModel::Open(model);
  const auto adapter = SafetensorsFile::Open(head / "adapter_model.safetensors");
  ASSERT_TRUE(tensors && adapter);
  fs::copy_file(head / "adapter_config.json", folder_ / "adapter_config.json",
                fs::copy_options::overwrite_existing);
  const auto write = [&](bool changed, Shape shape) {
    std::vector<TensorRecord> records(adapter->tensors().begin(), adapter->tensors().end());
    std::vector<std::vector<std::byte>> bytes;
    bytes.reserve(2);
    for (const char* const name : {"model.embed_tokens", "lm_head"}) {
      TensorRecord record = *tensors->Find(std::string(name) + ".weight");
      bytes.emplace_back(record.bytes.begin(), record.bytes.end());
      if (changed) bytes.back()[41] ^= std::byte{0x40};  // the exponent of a bf16
      record.name = "base_model.model." + std::string(name) + ".base_layer.weight";
      if (shape.rank() > 0) {
        record.shape = shape;
        bytes.back().resize(static_cast<size_t>(2 * *shape.elements()));
      }
      record.bytes = bytes.back();
      records.push_back(record);
    }
    ASSERT_TRUE(WriteSafetensors(folder_ / "adapter_model.safetensors", records));
  };
  write(false, {});
  const Golden golden = ReadGolden("head");
  const auto runner = LoadRunner(golden.model);
  const auto logits = LogitsOf(*runner, {{golden.prompt, MixOf(folder_, golden.model)}});
  EXPECT_LT(WorstRelative(golden.logits, logits), LogitTolerance());
  write(true, {});
  ExpectRefused("row 0 of tensor");
  write(false, {32, 32});
  ExpectRefused("was resized");
}

// The adapter of GGUF's form, with changes.
class BrokenGguf : public ::testing::Test {
 protected:
  struct Tensor {
    std::string name;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  struct Parts {
    std::string type = "adapter", kind = "lora", architecture = "llama";
    float alpha = 8;
    std::vector<Tensor> tensors;
  };
  void SetUp() override {
    const auto file = GgufFile::Open(kAdapters / "plain.gguf");
    ASSERT_TRUE(file);
    for (const TensorRecord& record : file->tensors())
      parts_.tensors.push_back({record.name, record.shape, {record.bytes.begin(), record.bytes.end()}});
  }
  void TearDown() override { fs::remove(path_); }

  std::string Refusal(const Parts& parts) {
    GgufWriter writer;
    writer.SetString("general.type", parts.type);
    writer.SetString("general.architecture", parts.architecture);
    writer.SetString("adapter.type", parts.kind);
    writer.SetFloat32("adapter.lora.alpha", parts.alpha);
    for (const Tensor& tensor : parts.tensors) writer.AddTensor({tensor.name, DType::kF32, tensor.shape});
    size_t next = 0;
    const Status written = writer.Write(
        path_, [&](const TensorSpec&, const TensorSink& sink) { return sink(parts.tensors[next++].bytes); });
    EXPECT_TRUE(written) << written.error().message();
    return Refusal();
  }
  std::string Refusal() {
    const auto adapter = LoadLora("broken", path_, kGolden / "models/llama3", DefaultThreadPool());
    return adapter ? "" : adapter.error().message();
  }

  Parts parts_;
  fs::path path_ = fs::path(::testing::TempDir()) / "broken.gguf";
};

TEST_F(BrokenGguf, WhatTheFileSays) {
  EXPECT_EQ(Refusal(parts_), "");
  Parts changed = parts_;
  changed.type = "model";
  EXPECT_NE(Refusal(changed).find("general.type is 'model'"), std::string::npos);
  changed = parts_;
  changed.kind = "control_vector";
  EXPECT_NE(Refusal(changed).find("'control_vector'"), std::string::npos);
  changed = parts_;
  changed.architecture = "qwen2";
  EXPECT_NE(Refusal(changed).find("architecture 'qwen2'"), std::string::npos);
  for (const float alpha : {NAN, INFINITY, 1e30f}) {
    changed = parts_;
    changed.alpha = alpha;
    EXPECT_NE(Refusal(changed).find("adapter.lora.alpha"), std::string::npos);
  }
}

TEST_F(BrokenGguf, Tensors) {
  const auto with = [&](const std::function<void(Tensor*)>& change) {
    Parts changed = parts_;
    for (Tensor& tensor : changed.tensors)
      if (tensor.name == "blk.1.ffn_up.weight.lora_b") change(&tensor);
    return Refusal(changed);
  };
  const char* const name = "blk.1.ffn_up.weight.lora_b";
  EXPECT_NE(with([](Tensor* t) { t->shape = {t->shape[1], t->shape[0]}; }).find(name), std::string::npos);
  EXPECT_NE(with([](Tensor* t) { t->shape = {*t->shape.elements()}; }).find(name), std::string::npos);
  EXPECT_NE(with([](Tensor* t) {
              const float nan = NAN;
              std::memcpy(t->bytes.data() + 8, &nan, sizeof nan);
            }).find(name),
            std::string::npos);
  EXPECT_NE(with([](Tensor* t) {
              t->shape = {t->shape[0], 10000};
              t->bytes.assign(static_cast<size_t>(t->shape[0] * 10000) * sizeof(float), std::byte{0});
            }).find("a rank of 1 to 4096"),
            std::string::npos);
  EXPECT_NE(with([](Tensor* t) { t->name = "blk.1.ffn_wide.weight.lora_b"; }).find("lora_"),
            std::string::npos);
  EXPECT_NE(with([](Tensor* t) { t->name = "blk.9.ffn_up.weight.lora_b"; }).find("lora_"), std::string::npos);
  EXPECT_NE(with([](Tensor* t) { t->name = "blk.1.ffn_norm.weight"; }).find("blk.1.ffn_norm.weight"),
            std::string::npos);
}

TEST_F(BrokenGguf, CutAnywhere) {
  ASSERT_EQ(Refusal(parts_), "");
  const auto size = fs::file_size(path_);
  for (uint64_t left = size - 1; left > 64; left -= left / 16) {
    fs::resize_file(path_, left);
    EXPECT_NE(Refusal().find("broken.gguf"), std::string::npos) << left << " bytes: " << Refusal();
  }
  fs::resize_file(path_, 0);
  EXPECT_NE(Refusal().find("broken.gguf"), std::string::npos);
}

}  // namespace
}  // namespace celer
