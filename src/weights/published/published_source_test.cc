// Checkpoints that the packages themselves wrote (tests/golden/quantized; tools/make_golden_quantized.py made
// them): what is decoded from them is bit for bit what the writer's own code decodes, and damaged ones are
// refused in a sentence.
#include "weights/published/published_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/source_dir.h"
#include "io/file/sha256.h"
#include "io/safetensors/safetensors.h"
#include "weights/weight_store.h"

namespace celer::published {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGolden = fs::path(kSourceDir) / "tests/golden/quantized";

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 2});
  return pool;
}

json MustRead(const fs::path& path) {
  auto read = ReadJsonFile(path);
  if (!read) ADD_FAILURE() << read.error().message();
  return read ? *read : json::object();
}

// A golden checkpoint in memory, to be changed by a test.
class Edited final : public TensorSource {
 public:
  explicit Edited(const std::string& name)
      : path_(name), config(MustRead(kGolden / name / "config.json")["quantization_config"]) {
    auto model = SafetensorsModel::Open(kGolden / name);
    if (!model) {
      ADD_FAILURE() << model.error().message();
      return;
    }
    for (const TensorRecord& record : model->tensors())
      Set(record.name, record.dtype, record.shape, {record.bytes.begin(), record.bytes.end()});
  }

  void Set(const std::string& name, DType dtype, const Shape& shape, std::vector<std::byte> bytes) {
    storage_[name] = std::move(bytes);
    Drop(name);
    records_.push_back({name, dtype, shape, storage_[name]});
  }
  void Drop(const std::string& name) {
    std::erase_if(records_, [&](const TensorRecord& record) { return record.name == name; });
  }
  // One element of type T.
  template <class T>
  void Put(const std::string& name, size_t index, T value) {
    auto& bytes = storage_.at(name);
    ASSERT_LE((index + 1) * sizeof(T), bytes.size());
    std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
  }
  void Reshape(const std::string& name, const Shape& shape) {
    for (TensorRecord& record : records_)
      if (record.name == name) {
        auto& bytes = storage_.at(name);
        bytes.resize(*BytesFor(record.dtype, *shape.elements()));
        record.shape = shape;
        record.bytes = bytes;
      }
  }

  const TensorRecord* Find(std::string_view name) const override {
    for (const TensorRecord& record : records_)
      if (record.name == name) return &record;
    return nullptr;
  }
  const std::vector<TensorRecord>& tensors() const override { return records_; }
  void DropPages(const TensorRecord&) const override {}
  const std::string& path() const override { return path_; }

 private:
  std::string path_;
  std::map<std::string, std::vector<std::byte>> storage_;
  std::vector<TensorRecord> records_;

 public:
  json config;
};

Result<std::unique_ptr<PublishedSource>> Open(std::unique_ptr<Edited> edited, bool keep_fp8 = false) {
  const json config = edited->config;
  return PublishedSource::Open(std::move(edited), config, "config.json: 'quantization_config'", keep_fp8);
}

// What opening says after `edit`; "accepted" if nothing.
template <class Edit>
std::string Refusal(const std::string& name, const Edit& edit) {
  auto edited = std::make_unique<Edited>(name);
  edit(*edited);
  const auto opened = Open(std::move(edited));
  return opened ? "accepted" : opened.error().message();
}

std::string Digest(const std::vector<WeightView>& matrices) {
  Sha256 sum;
  std::vector<float> row;
  for (const WeightView& view : matrices)
    for (int64_t r = 0; r < view.rows; ++r) {
      row.resize(view.cols);
      DecodeWeightRow(view, r, row.data());
      for (float& value : row) value += 0.0f;  // -0 becomes +0
      sum.Update(std::as_bytes(std::span(row)));
    }
  return sum.Finish();
}

// Every quantized matrix against golden.json.
void ExpectGolden(const PublishedSource& source, const std::string& name, const MatmulKernels* prepare_for) {
  const json golden = MustRead(kGolden / name / "golden.json");
  ASSERT_EQ(source.matrices().size(), golden["sha256"].size());
  WeightStore store(source, WeightPlan::Make({}, source), Pool(), prepare_for);
  for (const auto& [tensor, digest] : golden["sha256"].items()) {
    SCOPED_TRACE(tensor);
    const CodedTensor* coded = source.Coded(tensor);
    ASSERT_NE(coded, nullptr);
    if (coded->format.kind != WeightKind::kFp8) {
      EXPECT_EQ(coded->format.Name(), golden["held"][tensor].get<std::string>());
    }
    std::vector<WeightView> views;
    if (coded->count > 1) {
      auto stack = store.Stack(tensor, coded->count, coded->rows, coded->cols);
      ASSERT_TRUE(stack) << stack.error().message();
      views = *stack;
    } else {
      auto view = store.Matrix(tensor, coded->rows, coded->cols);
      ASSERT_TRUE(view) << view.error().message();
      views = {*view};
    }
    if (views[0].kind == WeightKind::kStored && views[0].packed && !views[0].data)
      continue;  // floats, packed
    EXPECT_EQ(Digest(views), digest.get<std::string>());
  }
}

std::vector<std::string> AllCheckpoints() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kGolden))
    if (entry.is_directory()) out.push_back(entry.path().filename());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Published, DecodesToTheWritersBits) {
  EXPECT_GE(AllCheckpoints().size(), 25u);
  for (const std::string& name : AllCheckpoints()) {
    SCOPED_TRACE(name);
    const auto source = Open(std::make_unique<Edited>(name));
    EXPECT_TRUE(source) << source.error().message();
    if (!source) continue;
    ExpectGolden(**source, name, nullptr);          // as a device gets them
    ExpectGolden(**source, name, &ChosenMatmul());  // packed for this CPU
    EXPECT_THAT((*source)->Warnings(), IsEmpty());
  }
}

TEST(Published, PartsAreHiddenAndTheRestIsThere) {
  const auto source = Open(std::make_unique<Edited>("gptq"));
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_NE((*source)->Find("model.embed_tokens.weight"), nullptr);
  EXPECT_NE((*source)->Find("model.layers.0.mlp.up_proj.weight"), nullptr);
  EXPECT_EQ((*source)->Find("model.layers.0.mlp.up_proj.qweight"), nullptr);
  EXPECT_EQ((*source)->Find("model.layers.0.mlp.up_proj.g_idx"), nullptr);
  EXPECT_EQ((*source)->scheme(), "GPTQ, 4 bits, groups of 32, symmetric");
  EXPECT_THAT((*source)->Notes(), IsEmpty());
}

TEST(Published, WhatTakesMoreBitsSaysWhy) {
  const auto notes = [](const char* name) {
    const auto source = Open(std::make_unique<Edited>(name));
    return source && !(*source)->Notes().empty() ? (*source)->Notes()[0] : std::string("none");
  };
  EXPECT_THAT(notes("gptq-actorder"), HasSubstr("is held as f32, the same numbers, because act-order"));
  EXPECT_THAT(notes("awq"), HasSubstr("is held as int8-g32, the same numbers, because zero point"));
  EXPECT_THAT(notes("bnb-nf4"), HasSubstr("not evenly spaced"));
  EXPECT_THAT(notes("ct-nvfp4"), HasSubstr("int8 holds twice each"));
  EXPECT_EQ(notes("ct-mxfp4"), "none");
  EXPECT_THAT(notes("fp8-block"), HasSubstr("fp8 numbers"));
}

TEST(Published, MislabelledZerosAreFoundByValue) {
  for (const auto& [name, label] : {std::pair("gptq-v2", "gptq"), std::pair("gptq", "gptq_v2")}) {
    SCOPED_TRACE(name);
    auto edited = std::make_unique<Edited>(name);
    edited->config.erase("format");
    edited->config["checkpoint_format"] = label;
    const auto source = Open(std::move(edited));
    ASSERT_TRUE(source) << source.error().message();
    EXPECT_THAT((*source)->Warnings(), SizeIs(1));
    EXPECT_THAT((*source)->Warnings()[0], HasSubstr(std::string("says that it is '") + label + "'"));
    ExpectGolden(**source, name, nullptr);
  }
}

TEST(Published, PowersOfTwoKeepFp8InBf16) {
  auto edited = std::make_unique<Edited>("fp8-row");
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const int64_t rows = edited->Find(name)->shape[0];
  edited->Set(name + "_scale", DType::kFp8E8M0, {rows, 1},
              std::vector<std::byte>(static_cast<size_t>(rows), std::byte{120}));
  const auto source = Open(std::move(edited));
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_EQ((*source)->Coded(name)->format.Name(), "bf16");
}

// As a device that multiplies with fp8 gets it: the file's own codes and scales.
TEST(Published, Fp8StaysFp8WhereItIsAskedFor) {
  for (const char* name : {"fp8-row", "fp8-block", "ct-fp8-dynamic", "ct-fp8-block"}) {
    SCOPED_TRACE(name);
    const auto source = Open(std::make_unique<Edited>(name), true);
    ASSERT_TRUE(source) << source.error().message();
    EXPECT_THAT((*source)->Notes(), IsEmpty());
    ExpectGolden(**source, name, nullptr);
    const bool blocks = std::string_view(name).ends_with("block");
    for (const auto& matrix : (*source)->matrices())  // 128 columns are one block
      EXPECT_EQ(matrix->format.Name(), blocks && matrix->cols > 128 ? "fp8-g128" : "fp8") << matrix->name;
  }
  // Other files do not change.
  const auto other = Open(std::make_unique<Edited>("bnb-nf4"), true);
  ASSERT_TRUE(other) << other.error().message();
  ExpectGolden(**other, "bnb-nf4", nullptr);
}

TEST(Published, Fp8ThatCudaCannotHoldBecomesFloats) {
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const auto opened = [&](const auto& edit) {
    auto edited = std::make_unique<Edited>("fp8-block");
    edit(*edited);
    const auto source = Open(std::move(edited), true);
    if (!source) return source.error().message();
    const CodedTensor* coded = (*source)->Coded(name);
    return coded->format.Name() + ": " + coded->note;
  };
  EXPECT_EQ(opened([](Edited&) {}), "fp8-g128: ");
  EXPECT_EQ(opened([&](Edited& e) { e.Put<uint16_t>(name + "_scale_inv", 1, 0x4380); }),  // 256 in bf16
            "f32: one of its scales is beyond 128");
  // Blocks of 128 x 24: eleven in a row of 256, the last one with 16 columns.
  EXPECT_EQ(opened([&](Edited& e) {
              for (const TensorRecord& record : std::vector(e.tensors()))
                if (record.name.ends_with("_scale_inv")) {
                  const TensorRecord& of = *e.Find(record.name.substr(0, record.name.size() - 10));
                  const int64_t lines = (of.shape[0] + 127) / 128, each = (of.shape[1] + 23) / 24;
                  std::vector<std::byte> ones(lines * each * 2);
                  for (size_t i = 0; i < ones.size(); i += 2)
                    ones[i] = std::byte{0x9a}, ones[i + 1] = std::byte{0x3f};
                  e.Set(record.name, DType::kBf16, {lines, each}, ones);
                }
              e.config["weight_block_size"] = {128, 24};
            }),
            "f32: its groups are no multiple of 32 columns");
}

TEST(Published, OlderActOrderOfCompressedTensors) {
  auto edited = std::make_unique<Edited>("ct-w4a16");
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const auto plain = Open(std::make_unique<Edited>("ct-w4a16"));
  ASSERT_TRUE(plain);
  const int64_t cols = (*plain)->Coded(name)->cols;
  std::vector<int32_t> groups(cols);
  for (int64_t k = 0; k < cols; ++k) groups[k] = static_cast<int32_t>(k % (cols / 32));
  const auto bytes = std::as_bytes(std::span(groups));
  edited->Set(name + "_g_idx", DType::kI32, {cols}, {bytes.begin(), bytes.end()});
  const auto source = Open(std::move(edited));
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_EQ((*source)->Coded(name)->format.Name(), "f32");
  // Row 0 by hand: integers of the plain reading, scales by the column's group.
  const auto* matrix = dynamic_cast<const Matrix*>((*plain)->Coded(name));
  std::vector<int16_t> q(cols), zeros(cols / 32);
  std::vector<float> scales(zeros.size()), row(cols);
  matrix->Integers(0, q.data());
  matrix->Groups(0, scales.data(), zeros.data());
  (*source)->Coded(name)->Row(0, reinterpret_cast<std::byte*>(row.data()), nullptr);
  for (size_t k = 0; k < row.size(); ++k)
    EXPECT_EQ(row[k], static_cast<float>(q[k]) * scales[groups[k]]) << k;
}

// ---- Damaged and unknown ----

const std::string kUp = "model.layers.0.mlp.up_proj";

TEST(PublishedHostile, Methods) {
  const auto with = [](const char* name, const json& change) {
    return Refusal(name, [&](Edited& e) { e.config.update(change); });
  };
  EXPECT_THAT(with("gptq", {{"quant_method", "torchao"}}),
              AllOf(HasSubstr("'quantization_config': weights quantized with 'torchao' are not read"),
                    HasSubstr("gptq, awq, compressed-tensors")));
  for (const char* method : {"hqq", "aqlm", "modelopt", "quanto", ""})
    EXPECT_THAT(with("gptq", {{"quant_method", method}}), HasSubstr("are not read")) << method;
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.config.erase("quant_method"); }),
              HasSubstr("names no 'quant_method'"));
  EXPECT_THAT(with("gptq", {{"quant_method", 4}}), HasSubstr("'quant_method'"));
  EXPECT_THAT(with("gptq", {{"checkpoint_format", "marlin"}}), HasSubstr("format 'marlin' is not supported"));
  EXPECT_THAT(with("gptq", {{"bits", 5}}), HasSubstr("'bits' is 5"));
  EXPECT_THAT(with("gptq", {{"dynamic", {{"+:.*", {{"bits", 8}}}}}}), HasSubstr("'dynamic'"));
  EXPECT_THAT(with("awq", {{"version", "gemv_fast"}}), HasSubstr("packing 'gemv_fast' is not supported"));
  EXPECT_THAT(with("awq", {{"bits", 3}}), HasSubstr("AWQ is read with 4"));
  EXPECT_THAT(with("bnb-nf4", {{"bnb_4bit_quant_storage", "bfloat16"}}),
              HasSubstr("'bfloat16'; uint8 is read"));
  EXPECT_THAT(with("fp8-block", {{"fmt", "e5m2"}}), HasSubstr("'fmt' is 'e5m2'"));
  EXPECT_THAT(with("fp8-block", {{"weight_block_size", {128}}}), HasSubstr("is not two numbers"));
  EXPECT_THAT(with("ct-w4a16", {{"config_groups", json::object()}}), HasSubstr("of no width"));
  EXPECT_THAT(with("ct-w4a16", {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}),
              HasSubstr("sparse weights"));
  EXPECT_THAT(
      with("ct-w4a16", {{"config_groups", {{"g", {{"weights", {{"num_bits", 16}, {"type", "float"}}}}}}}}),
      HasSubstr("'float' with 16 bits are not supported"));
  // A config of another method over these tensors.
  EXPECT_THAT(with("gptq", {{"quant_method", "fp8"}}), HasSubstr("the tensors hold no such weights"));
}

TEST(PublishedHostile, MissingTensors) {
  const auto without = [](const char* name, const std::string& tensor) {
    return Refusal(name, [&](Edited& e) {
      ASSERT_NE(e.Find(tensor), nullptr) << tensor;
      e.Drop(tensor);
    });
  };
  EXPECT_EQ(without("gptq", kUp + ".scales"),
            "gptq: tensor 'model.layers.0.mlp.up_proj.scales' is missing beside "
            "'model.layers.0.mlp.up_proj.qweight'; the model is not whole: fetch or write it again");
  EXPECT_THAT(without("gptq", kUp + ".qzeros"), HasSubstr("'model.layers.0.mlp.up_proj.qzeros' is missing"));
  EXPECT_THAT(without("gptq-actorder", kUp + ".g_idx"), HasSubstr("'desc_act' is true and there is no"));
  EXPECT_THAT(without("awq", kUp + ".scales"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("awq", kUp + ".qzeros"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("ct-w4a16", kUp + ".weight_scale"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("ct-w4a16", kUp + ".weight_shape"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("ct-w4a16-asym", kUp + ".weight_zero_point"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("ct-nvfp4", kUp + ".weight_global_scale"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("fp8-block", kUp + ".weight_scale_inv"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("mxfp4-gpt-oss", "model.layers.0.mlp.experts.gate_up_proj_scales"),
              HasSubstr("is missing beside"));
  EXPECT_THAT(without("bnb-nf4", kUp + ".weight.absmax"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("bnb-nf4", kUp + ".weight.quant_state.bitsandbytes__nf4"),
              HasSubstr("has packed values and no"));
  EXPECT_THAT(without("bnb-nf4-double", kUp + ".weight.nested_quant_map"), HasSubstr("is missing beside"));
  EXPECT_THAT(without("bnb-int8", kUp + ".SCB"), HasSubstr("is missing beside"));
}

TEST(PublishedHostile, WrongGroupsAndShapes) {
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.config["group_size"] = 64; }),
              AllOf(HasSubstr(".scales' has shape"), HasSubstr("'group_size' is 64 and there are")));
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.config["group_size"] = 0; }), HasSubstr("'group_size' is 0"));
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.config["group_size"] = -7; }), HasSubstr("'group_size'"));
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.config["bits"] = 8; }), HasSubstr("has shape"));
  EXPECT_THAT(Refusal("gptq",
                      [](Edited& e) {
                        e.Reshape(kUp + ".qzeros", {1, 1});
                      }),
              HasSubstr("has shape [1, 1]"));
  EXPECT_THAT(Refusal("gptq",
                      [](Edited& e) {
                        e.Reshape(kUp + ".qweight", {0, 96});
                      }),
              HasSubstr("dimensions that are not 0"));
  EXPECT_THAT(Refusal("gptq",
                      [](Edited& e) {
                        e.Reshape(kUp + ".qweight", {8, 3});
                      }),
              HasSubstr("does not hold whole integers of 4 bits"));
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.Reshape(kUp + ".qweight", {768}); }),
              HasSubstr("2 dimensions"));
  EXPECT_THAT(Refusal("awq", [](Edited& e) { e.config["group_size"] = 16; }),
              HasSubstr("'group_size' is 16"));
  EXPECT_THAT(Refusal("ct-w4a16",
                      [](Edited& e) { e.config["config_groups"]["group_0"]["weights"]["group_size"] = 128; }),
              HasSubstr(".weight_scale' has shape"));
  EXPECT_THAT(Refusal("ct-w4a16", [](Edited& e) { e.Put<int64_t>(kUp + ".weight_shape", 1, -64); }),
              HasSubstr("does not hold the"));
  EXPECT_THAT(Refusal("ct-w4a16", [](Edited& e) { e.Put<int64_t>(kUp + ".weight_shape", 1, 1000); }),
              HasSubstr("of no width"));
  EXPECT_THAT(Refusal("ct-w4a16-asym",
                      [](Edited& e) {
                        e.Reshape(kUp + ".weight_zero_point", {2, 2});
                      }),
              HasSubstr(".weight_zero_point' has shape [2, 2]"));
  EXPECT_THAT(Refusal("ct-w8a8",
                      [](Edited& e) {
                        e.Reshape(kUp + ".weight_scale", {5, 1});
                      }),
              HasSubstr(".weight_scale' has shape [5, 1]"));
  EXPECT_THAT(Refusal("ct-mxfp4",
                      [](Edited& e) {
                        e.Reshape(kUp + ".weight_scale", {96, 1});
                      }),
              HasSubstr("a scale to 32 of"));
  EXPECT_THAT(Refusal("fp8-block",
                      [](Edited& e) {
                        e.config["weight_block_size"] = {64, 64};
                      }),
              HasSubstr("blocks of 64 x 64"));
  EXPECT_THAT(Refusal("mxfp4-gpt-oss",
                      [](Edited& e) {
                        e.Reshape("model.layers.0.mlp.experts.gate_up_proj_blocks", {2, 24, 3, 8});
                      }),
              HasSubstr("expected 16 bytes"));
  EXPECT_THAT(Refusal("bnb-nf4",
                      [](Edited& e) {
                        e.Reshape(kUp + ".weight", {100, 1});
                      }),
              HasSubstr("bytes for"));
  EXPECT_THAT(Refusal("bnb-nf4", [](Edited& e) { e.Reshape(kUp + ".weight.absmax", {3}); }),
              HasSubstr("in blocks of 64"));
  EXPECT_THAT(Refusal("bnb-nf4",
                      [](Edited& e) {
                        const std::string text = R"({"blocksize": 64, "shape": [-1, 5]})";
                        const auto bytes = std::as_bytes(std::span(text));
                        e.Set(kUp + ".weight.quant_state.bitsandbytes__nf4", DType::kU8,
                              {static_cast<int64_t>(text.size())}, {bytes.begin(), bytes.end()});
                      }),
              HasSubstr("'shape' is not that of a matrix"));
  EXPECT_THAT(Refusal("bnb-int8", [](Edited& e) { e.Reshape(kUp + ".SCB", {1}); }),
              HasSubstr("one factor to a row"));
}

TEST(PublishedHostile, Values) {
  EXPECT_EQ(
      Refusal("gptq-actorder", [](Edited& e) { e.Put<int32_t>(kUp + ".g_idx", 5, 99); }),
      "gptq-actorder: tensor 'model.layers.0.mlp.up_proj.g_idx': column 5 is in group 99, and there are 2 "
      "groups; the file is damaged: fetch or write it again");
  EXPECT_THAT(Refusal("gptq", [](Edited& e) { e.Put<int32_t>(kUp + ".g_idx", 0, -1); }),
              HasSubstr("in group -1"));
  constexpr uint16_t kNanF16 = 0x7e00, kInfF16 = 0x7c00, kNanBf16 = 0x7fc0;
  EXPECT_THAT(Refusal("gptq", [&](Edited& e) { e.Put(kUp + ".scales", 3, kNanF16); }),
              HasSubstr("the scale of row 3, group 0 in 'model.layers.0.mlp.up_proj.scales' is nan"));
  EXPECT_THAT(Refusal("gptq-actorder", [&](Edited& e) { e.Put(kUp + ".scales", 0, kInfF16); }),
              HasSubstr("is inf, which is not a finite number"));
  EXPECT_THAT(Refusal("awq", [&](Edited& e) { e.Put(kUp + ".scales", 0, kNanF16); }), HasSubstr("is nan"));
  EXPECT_THAT(Refusal("ct-w4a16", [&](Edited& e) { e.Put(kUp + ".weight_scale", 0, kNanBf16); }),
              HasSubstr("is nan"));
  EXPECT_THAT(Refusal("ct-mxfp4", [](Edited& e) { e.Put<uint8_t>(kUp + ".weight_scale", 0, 255); }),
              HasSubstr("is nan"));
  EXPECT_THAT(Refusal("ct-nvfp4", [](Edited& e) { e.Put(kUp + ".weight_global_scale", 0, 0.0f); }),
              HasSubstr("not a finite number"));
  EXPECT_THAT(
      Refusal(
          "fp8-block",
          [](Edited& e) {
            e.Set(kUp + ".weight_scale_inv", DType::kF32, {2, 1}, std::vector<std::byte>(8, std::byte{0xff}));
          }),
      HasSubstr("is nan"));
  EXPECT_THAT(
      Refusal("bnb-nf4",
              [](Edited& e) { e.Put(kUp + ".weight.absmax", 0, std::numeric_limits<float>::infinity()); }),
      HasSubstr("is inf"));
  EXPECT_THAT(
      Refusal("bnb-int8", [](Edited& e) { e.Put(kUp + ".SCB", 0, std::numeric_limits<float>::quiet_NaN()); }),
      HasSubstr("is nan"));
  EXPECT_THAT(
      Refusal("gptq", [](Edited& e) { e.Set(kUp + ".weight", DType::kF16, {1}, std::vector<std::byte>(2)); }),
      HasSubstr("both quantized and not"));
}

// A value, not a scale: found when the matrix is taken.
TEST(PublishedHostile, NanAmongFp8Values) {
  auto edited = std::make_unique<Edited>("fp8-row");
  edited->Put<uint8_t>(kUp + ".weight", 7, 0x7f);
  const auto source = Open(std::move(edited));
  ASSERT_TRUE(source) << source.error().message();
  const CodedTensor* coded = (*source)->Coded(kUp + ".weight");
  WeightStore store(**source, WeightPlan::Make({}, **source), Pool());
  const auto view = store.Matrix(coded->name, coded->rows, coded->cols);
  ASSERT_FALSE(view);
  EXPECT_THAT(view.error().message(), HasSubstr("nan"));
}

}  // namespace
}  // namespace celer::published
