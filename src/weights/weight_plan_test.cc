#include "weights/weight_plan.h"

#include <gtest/gtest.h>

#include "formats/decode.h"
#include "weights/device_form.h"
#include "weights/weight_store.h"

namespace celer {
namespace {

constexpr int64_t kVocab = 40, kHidden = 256, kOdd = 96, kExperts = 3;

// A small mixture of experts, with one width that groups of 64 and 128 do not divide.
class ModelSource final : public TensorSource {
 public:
  explicit ModelSource(DType dtype) {
    Add("embedding", dtype, {kVocab, kHidden});
    Add("head", dtype, {kVocab, kHidden});
    Add("norm", DType::kF32, {kHidden});
    Add("q", dtype, {64, kHidden});
    Add("o", dtype, {kHidden, kOdd});
    Add("router", DType::kF32, {kExperts, kHidden});
    Add("shared_gate", DType::kF32, {1, kHidden});
    Add("experts", dtype, {kExperts, kOdd, kHidden});
  }
  void Add(const std::string& name, DType dtype, Shape shape) {
    const int64_t elements = *shape.elements();
    auto& bytes = storage_.emplace_back(static_cast<size_t>(*BytesFor(dtype, elements)));
    const std::vector<float> values(elements, 0.5f);
    EncodeRow(dtype, values.data(), elements, bytes.data());
    records_.push_back({name, dtype, shape, bytes});
  }
  const TensorRecord* Find(std::string_view name) const override {
    for (const TensorRecord& record : records_)
      if (record.name == name) return &record;
    return nullptr;
  }
  const std::vector<TensorRecord>& tensors() const override { return records_; }
  void DropPages(const TensorRecord&) const override {}
  const std::string& path() const override { return path_; }

  WeightPlan Plan(const char* weights) const {
    return WeightPlan::Make(*WeightOptions::Parse(weights), records_,
                            {{"embedding", WeightRole::kTable},
                             {"head", WeightRole::kVocabulary},
                             {"router", WeightRole::kRouter},
                             {"shared_gate", WeightRole::kRouter}});
  }

 private:
  std::string path_ = "model.bin";
  std::vector<std::vector<std::byte>> storage_;
  std::vector<TensorRecord> records_;
};

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 2});
  return pool;
}

std::string FormatOf(const WeightPlan& plan, std::string_view name) {
  const PlannedWeight* weight = plan.Find(name);
  return weight ? weight->format.Name() : "missing";
}

TEST(WeightOptions, Parse) {
  EXPECT_EQ(WeightOptions::Parse("int4")->group, 32);
  EXPECT_EQ(WeightOptions::Parse("int4-g128")->group, 128);
  EXPECT_EQ(WeightOptions::Parse("int8")->group, 0);
  for (const char* good :
       {"stored", "f32", "f16", "bf16", "int8", "int8-g64", "int4", "int4-g128", "fp8", "fp8-g128"})
    EXPECT_EQ(WeightOptions::Parse(good)->ToString(), good);
  EXPECT_EQ(WeightOptions::Parse("int4-g32")->ToString(), "int4");
  for (const char* bad : {"", "int", "int4-g", "int4-g0", "int8-g0", "int4-g31", "f32-g32", "stored-g32",
                          "int8-g32x", "int4-g-32"})
    EXPECT_FALSE(WeightOptions::Parse(bad)) << bad;
  EXPECT_EQ(WeightOptions::Parse("int5").error().message(),
            "`weights` 'int5' is not one of stored, f32, f16, bf16, int8, int8-gN, int4, int4-gN, fp8, "
            "fp8-gN");
}

TEST(WeightPlan, TheRule) {
  const ModelSource source(DType::kBf16);
  const WeightPlan int4 = source.Plan("int4-g128");
  EXPECT_EQ(FormatOf(int4, "q"), "int4-g128");
  EXPECT_EQ(FormatOf(int4, "head"), "int8-g128");
  EXPECT_EQ(FormatOf(int4, "embedding"), "int8-g128");
  EXPECT_EQ(FormatOf(int4, "o"), "int8") << "96 columns";
  EXPECT_EQ(FormatOf(int4, "experts"), "int4-g128");
  EXPECT_EQ(FormatOf(int4, "norm"), "f32");
  EXPECT_EQ(FormatOf(int4, "router"), "f32");
  EXPECT_EQ(FormatOf(int4, "shared_gate"), "f32");
  const WeightPlan int8 = source.Plan("int8");
  for (const char* name : {"q", "o", "head", "embedding", "experts"}) EXPECT_EQ(FormatOf(int8, name), "int8");
  const WeightPlan fp8 = source.Plan("fp8-g128");
  for (const char* name : {"q", "head", "embedding", "experts"}) EXPECT_EQ(FormatOf(fp8, name), "fp8-g128");
  EXPECT_EQ(FormatOf(fp8, "o"), "fp8") << "96 columns";
  EXPECT_EQ(FormatOf(fp8, "router"), "f32");
  // What is fp8 in the file is not rounded once more.
  const WeightFormatSpec blocks{.kind = WeightKind::kFp8, .group = 128};
  EXPECT_EQ(PlanFormat(*WeightOptions::Parse("fp8"), blocks, 256, WeightRole::kProjection), blocks);
  EXPECT_EQ(PlanFormat(*WeightOptions::Parse("fp8-g64"), blocks, 256, WeightRole::kProjection).group, 64);
  const WeightPlan stored = source.Plan("stored");
  for (const char* name : {"q", "o", "head", "embedding", "experts"})
    EXPECT_EQ(FormatOf(stored, name), "bf16");
  EXPECT_EQ(FormatOf(source.Plan("bf16"), "router"), "f32") << "it keeps the values of the file";
  EXPECT_EQ(FormatOf(stored.With(*WeightOptions::Parse("int4-g128")), "head"), "int8-g128");
}

// What both devices make of every matrix, by the code that they run while loading.
TEST(WeightPlan, BothDevicesObeyIt) {
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kF16, DType::kQ8_0})
    for (const char* weights : {"stored", "f32", "f16", "bf16", "int8", "int8-g32", "int8-g128", "int4",
                                "int4-g64", "int4-g128", "fp8", "fp8-g128"}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " as " + weights);
      const ModelSource source(dtype);
      const WeightPlan plan = source.Plan(weights);
      WeightStore cpu(source, plan, Pool()), file(source, plan, Pool(), nullptr);
      for (const PlannedWeight& weight : plan.weights()) {
        if (weight.role == WeightRole::kVector) continue;
        SCOPED_TRACE(weight.name);
        const auto matrix = [&](WeightStore& store) {
          return weight.count == 1 ? *store.Matrix(weight.name, weight.rows, weight.cols)
                                   : (*store.Stack(weight.name, weight.count, weight.rows, weight.cols))[1];
        };
        const WeightView on_cpu = matrix(cpu), host = matrix(file);
        EXPECT_EQ(host.data != nullptr && !host.packed && host.format() == weight.stored, true);
        EXPECT_EQ(on_cpu.format(), weight.format);
        const cuda::DeviceMatrix on_gpu = cuda::DeviceForm(plan, host, WeightRole::kProjection);
        // Q8_0 is int8 in groups of 32, and is called that on a GPU.
        const bool q8 = weight.format == WeightFormatSpec::Stored(DType::kQ8_0);
        EXPECT_EQ(cuda::FormatName(on_gpu), q8 ? "int8-g32" : weight.format.Name());
        EXPECT_EQ(cuda::FormatName(on_gpu), q8 ? "int8-g32" : on_cpu.FormatName());
      }
    }
}

TEST(DeviceForm, BlocksOfAFile) {
  const std::pair<DType, const char*> forms[] = {{DType::kF32, "f32"},
                                                 {DType::kF16, "f16"},
                                                 {DType::kBf16, "bf16"},
                                                 {DType::kQ8_0, "int8-g32"},
                                                 {DType::kQ6_K, "int8-g16"},
                                                 {DType::kQ5_K, "f16"},
                                                 {DType::kQ5_1, "f16"},
                                                 {DType::kQ5_0, "int8-g32"},
                                                 {DType::kQ4_K, "int4-g32 with f32 scales"},
                                                 {DType::kQ4_1, "int4-g32"},
                                                 {DType::kQ4_0, "int4-g32"},
                                                 {DType::kIq4Nl, "int8-g32"},
                                                 {DType::kIq4Xs, "int8-g32"},
                                                 {DType::kMxfp4, "mxfp4"},
                                                 {DType::kNvfp4, "int8-g16"},
                                                 {DType::kIq3S, "int8-g32"},
                                                 {DType::kIq3Xxs, "int8-g32"},
                                                 {DType::kIq2S, "int8-g16"},
                                                 {DType::kIq2Xs, "int8-g16"},
                                                 {DType::kIq2Xxs, "int8-g32"},
                                                 {DType::kIq1M, "int8-g16"},
                                                 {DType::kIq1S, "int8-g32"},
                                                 {DType::kTq1_0, "int8-g32"},
                                                 {DType::kQ3_K, "int8-g16"},
                                                 {DType::kQ2_K, "int4-g16 with f32 scales"}};
  for (const auto& [dtype, name] : forms)
    EXPECT_EQ(cuda::FormatName(cuda::DeviceForm(WeightFormatSpec::Stored(dtype), 8, 512)), name)
        << Name(dtype);
}

// Weights without a file, as a benchmark makes them: by the rule and the role alone.
TEST(WeightPlan, WithoutTensorsTheRoleDecides) {
  const WeightPlan rule = *WeightOptions::Parse("int4-g128");
  const WeightView view{.dtype = DType::kBf16, .rows = 8, .cols = 256};
  EXPECT_EQ(cuda::FormatName(cuda::DeviceForm(rule, view, WeightRole::kProjection)), "int4-g128");
  EXPECT_EQ(cuda::FormatName(cuda::DeviceForm(rule, view, WeightRole::kVocabulary)), "int8-g128");
}

TEST(WeightPlan, TheScalesOfAFileBelongToTheirMatrix) {
  ModelSource source(DType::kF32);
  std::vector<TensorRecord> records(source.tensors());
  records.push_back({"w", DType::kI8, {4, 128}, {}});
  records.push_back({"w.scales", DType::kF32, {4, 2}, {}});
  const WeightPlan plan = WeightPlan::Make({}, records);
  EXPECT_EQ(plan.Find("w.scales"), nullptr);
  EXPECT_EQ(FormatOf(plan, "w"), "int8-g64");
}

TEST(WeightPlan, ColumnsAreDividedWhereBlocksAndGroupsEnd) {
  const ModelSource source(DType::kQ8_0);
  const WeightPlan plan = source.Plan("int4-g128");
  const PlannedWeight& q = *plan.Find("q");
  EXPECT_EQ(q.ColumnStep(), 128);
  const auto half = q.SliceColumns(128, 128);
  ASSERT_TRUE(half) << half.error().message();
  EXPECT_EQ(half->cols, 128);
  EXPECT_EQ(half->format, q.format);
  EXPECT_EQ(2 * half->bytes(), q.bytes());
  const auto bad = q.SliceColumns(0, 64);
  ASSERT_FALSE(bad);
  EXPECT_EQ(
      bad.error().message(),
      "tensor 'q': columns 0 to 64 of 256 cannot be a part of its own: q8_0 in the file and int4-g128 in "
      "memory can be cut at multiples of 128");
  EXPECT_EQ(plan.Find("o")->ColumnStep(), 32) << "q8_0 blocks, one scale to a row";
  EXPECT_EQ(q.SliceRows(3, 5)->rows, 5);
}

TEST(WeightPlan, ToString) {
  const ModelSource source(DType::kBf16);
  const std::string text = source.Plan("int4-g128").ToString();
  EXPECT_NE(text.find("weights int4-g128: 8 tensors"), std::string::npos) << text;
  EXPECT_NE(text.find("vocabulary  bf16  -> int8-g128  1 x"), std::string::npos) << text;
  EXPECT_NE(text.find("96 columns are no multiple of 128"), std::string::npos) << text;
  EXPECT_NE(text.find("router      f32   as it is  2 x"), std::string::npos) << text;
}

}  // namespace
}  // namespace celer
