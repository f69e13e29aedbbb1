#include "weights/weight_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "formats/decode.h"
#include "io/safetensors/safetensors.h"
#include "kernels/llm/matmul/matmul.h"

namespace celer {
namespace {

// A file in memory with the tensors a test wants.
class FakeSource final : public TensorSource {
 public:
  void Add(const std::string& name, DType dtype, Shape shape, float value = 0.5f) {
    const int64_t elements = *shape.elements();
    auto& bytes = storage_.emplace_back(static_cast<size_t>(*BytesFor(dtype, elements)));
    const std::vector<float> values(elements, value);
    if (CanEncode(dtype)) EncodeRow(dtype, values.data(), elements, bytes.data());
    records_.push_back({name, dtype, shape, bytes});
  }
  const TensorRecord* Find(std::string_view name) const override {
    for (const TensorRecord& record : records_)
      if (record.name == name) return &record;
    return nullptr;
  }
  const std::vector<TensorRecord>& tensors() const override { return records_; }
  void DropPages(const TensorRecord&) const override { ++dropped; }
  const std::string& path() const override { return path_; }

  mutable int dropped = 0;

 private:
  std::string path_ = "model.bin";
  std::vector<std::vector<std::byte>> storage_;
  std::vector<TensorRecord> records_;
};

WeightPlan Plan(const char* text, const FakeSource& source, const WeightPlan::Roles& roles = {}) {
  return WeightPlan::Make(*WeightOptions::Parse(text), source.tensors(), roles);
}

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 2});
  return pool;
}

TEST(WeightStore, AsStoredIsTheMappingItself) {
  FakeSource source;
  source.Add("w", DType::kQ8_0, {4, 64});
  WeightStore store(source, Plan("stored", source, {{"w", WeightRole::kTable}}), Pool());
  auto view = store.Matrix("w", 4, 64);
  ASSERT_TRUE(view) << view.error().message();
  EXPECT_EQ(view->data, source.Find("w")->bytes.data());
  EXPECT_EQ(store.owned_bytes(), 0);
  EXPECT_EQ(source.dropped, 0);
}

TEST(WeightStore, ConvertsAndDropsThePages) {
  FakeSource source;
  source.Add("w", DType::kBf16, {5, 64});
  for (const char* format : {"f32", "f16", "int8", "int8-g32", "int4-g32", "int4-g64"}) {
    SCOPED_TRACE(format);
    source.dropped = 0;
    WeightStore store(source, Plan(format, source, {{"w", WeightRole::kTable}}), Pool());
    auto view = store.Matrix("w", 5, 64);
    ASSERT_TRUE(view) << view.error().message();
    EXPECT_EQ(source.dropped, 1);
    EXPECT_EQ(store.owned_bytes(), view->bytes());
    std::vector<float> row(64);
    DecodeWeightRow(*view, 4, row.data());
    for (const float v : row) EXPECT_NEAR(v, 0.5f, 0.02f);
  }
}

TEST(WeightStore, ProjectionsExistInPackedFormAlone) {
  if (!ChosenMatmul().packed_bytes) GTEST_SKIP() << "the matmul variant of this machine packs nothing";
  FakeSource source;
  source.Add("w", DType::kBf16, {5, 64});
  for (const char* format : {"f32", "f16", "int8", "int4-g32"}) {
    SCOPED_TRACE(format);
    WeightStore store(source, Plan(format, source), Pool());
    auto view = store.Matrix("w", 5, 64);
    ASSERT_TRUE(view) << view.error().message();
    ASSERT_NE(view->packed, nullptr);
    EXPECT_EQ(view->data, nullptr);
    EXPECT_EQ(store.owned_bytes(), (ChosenMatmul().packed_bytes(*view) + 63) / 64 * 64);
  }
  WeightStore stored(source, {}, Pool());
  auto view = stored.Matrix("w", 5, 64);
  ASSERT_TRUE(view) << view.error().message();
  EXPECT_EQ(view->data, source.Find("w")->bytes.data()) << "rows can still be looked up in the file";
  ASSERT_NE(view->packed, nullptr);
}

TEST(WeightStore, Int4KeepsTheVocabularyAtInt8) {
  FakeSource source;
  source.Add("embedding", DType::kF32, {8, 64});
  WeightStore store(source, Plan("int4", source, {{"embedding", WeightRole::kVocabulary}}), Pool());
  auto view = store.Matrix("embedding", 8, 64);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->FormatName(), "int8-g32");
}

TEST(WeightStore, RowsThatNoGroupDividesFallBackToOneScalePerRow) {
  FakeSource source;
  source.Add("w", DType::kF32, {3, 50});
  WeightStore store(source, Plan("int4", source), Pool());
  auto view = store.Matrix("w", 3, 50);
  ASSERT_TRUE(view) << view.error().message();
  EXPECT_EQ(view->FormatName(), "int8");
}

TEST(WeightStore, BadTensorsGiveOneSentence) {
  FakeSource source;
  source.Add("w", DType::kF32, {4, 8});
  source.Add("index", DType::kI64, {4, 8});
  source.Add("blocks", DType::kQ8_0, {4, 16});
  source.Add("lonely", DType::kI8, {4, 8});
  WeightStore store(source, {}, Pool());
  const auto message = [](const auto& result) {
    return result ? std::string("accepted") : result.error().message();
  };
  EXPECT_EQ(message(store.Matrix("gone", 4, 8)), "model.bin: tensor 'gone' is missing among 4 tensors");
  EXPECT_EQ(message(store.Matrix("w", 4, 9)), "model.bin: tensor 'w' has shape [4, 8], expected [4, 9]");
  EXPECT_NE(message(store.Matrix("index", 4, 8)).find("i64"), std::string::npos);
  EXPECT_NE(message(store.Matrix("blocks", 4, 16)).find("whole"), std::string::npos);
  EXPECT_NE(message(store.Matrix("lonely", 4, 8)).find(".scales"), std::string::npos);
  EXPECT_NE(message(store.Vector("w", 5)).find("[5]"), std::string::npos);
}

// A transposed or flattened matrix has as many elements as the right one.
TEST(WeightStore, ShapesAreComparedByDimension) {
  FakeSource source;
  source.Add("transposed", DType::kF32, {8, 4});
  source.Add("flat", DType::kF32, {32});
  source.Add("stack", DType::kF32, {2, 8, 4});
  source.Add("square", DType::kF32, {4, 4});
  source.Add("row", DType::kF32, {8});
  source.Add("column", DType::kF32, {8, 1});
  WeightStore store(source, {}, Pool());
  const auto message = [](const auto& result) {
    return result ? std::string("accepted") : result.error().message();
  };
  EXPECT_EQ(message(store.Matrix("transposed", 4, 8)),
            "model.bin: tensor 'transposed' has shape [8, 4], expected [4, 8]");
  EXPECT_EQ(message(store.Matrix("flat", 4, 8)), "model.bin: tensor 'flat' has shape [32], expected [4, 8]");
  EXPECT_EQ(message(store.Stack("stack", 2, 4, 8)),
            "model.bin: tensor 'stack' has shape [2, 8, 4], expected [2, 4, 8]");
  EXPECT_EQ(message(store.Vector("square", 16)),
            "model.bin: tensor 'square' has shape [4, 4], expected [16]");
  // Dimensions of 1 change nothing about where an element lies.
  EXPECT_EQ(message(store.Matrix("row", 1, 8)), "accepted");
  EXPECT_EQ(message(store.Vector("column", 8)), "accepted");
}

TEST(WeightStore, TensorsThatNobodyAskedForAreAnError) {
  FakeSource source;
  source.Add("w", DType::kF32, {4, 8});
  source.Add("model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {4});
  WeightStore store(source, {}, Pool());
  ASSERT_TRUE(store.Matrix("w", 4, 8));
  source.Add("v.bias", DType::kF32, {4}, 0.0f);  // adds nothing
  EXPECT_TRUE(store.CheckNoUnusedTensors("llama"));
  source.Add("w.bias", DType::kF32, {4});
  const Status status = store.CheckNoUnusedTensors("llama");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("'w.bias'"), std::string::npos);
}

// Resident memory at its peak, in bytes, since the last reset.
int64_t PeakResident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return -1;
}
bool ResetPeak() {
  return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush);
}

// The promise: final weights + the largest tensor + 200 MB, with everything mapped counted.
TEST(WeightStore, ConversionNeverHoldsTheLargeFormBesideTheSmall) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("celer_peak_" + std::to_string(getpid()) + ".safetensors");
  constexpr int64_t kTensors = 12, kRows = 4096, kCols = 8192;  // 64 MiB each as bf16, 768 MiB in all
  std::vector<TensorSpec> specs;
  for (int64_t i = 0; i < kTensors; ++i)
    specs.push_back({"w" + std::to_string(i), DType::kBf16, {kRows, kCols}});
  std::vector<std::byte> row(kCols * 2);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i % 3 ? 0x3c : 0x11);
  const Status written =
      WriteSafetensors(path, specs, {}, [&](const TensorSpec&, const TensorSink& sink) -> Status {
        for (int64_t r = 0; r < kRows; ++r) CELER_RETURN_IF_ERROR(sink(row));
        return {};
      });
  ASSERT_TRUE(written) << written.error().message();
  {
    auto model = SafetensorsModel::Open(path);
    ASSERT_TRUE(model) << model.error().message();
    FileTensorSource source(std::move(*model), path.string());
    WeightStore store(source, WeightPlan::Make(*WeightOptions::Parse("int4"), source.tensors()), Pool());
    if (!ResetPeak()) {
      std::filesystem::remove(path);
      GTEST_SKIP() << "this system does not let a process reset its memory peak";
    }
    const int64_t before = PeakResident();
    for (const TensorSpec& spec : specs) {
      auto view = store.Matrix(spec.name, kRows, kCols);
      ASSERT_TRUE(view) << view.error().message();
    }
    const int64_t used = PeakResident() - before;
    const int64_t largest = kRows * kCols * 2;
    EXPECT_LE(used, store.owned_bytes() + largest + (int64_t{200} << 20));
    EXPECT_LT(used, kTensors * largest) << "the test is too small to show anything";
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace celer
