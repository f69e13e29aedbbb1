#include "quantize/llm/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "formats/decode.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"
#include "models/cpu/cpu_decoder.h"
#include "quantize/llm/awq.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/gptq.h"
#include "quantize/llm/test_util.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::LoadAll;
using testing::Quantize;
using testing::RecipeOf;
using testing::RelativeError;
using testing::ValuesOf;

TEST(Target, ParsesWhatItPrints) {
  for (const char* name :
       {"q4_k", "f16", "int4-g64-asym", "int8-sym", "int8-g128-asym", "w8a8", "fp8", "keep"}) {
    const auto target = Target::Parse(name);
    ASSERT_TRUE(target) << name;
    EXPECT_EQ(target->Name(), name);
  }
  for (const char* name : {"q9", "int4-g48", "int5", "int4-", "i32", ""})
    EXPECT_FALSE(Target::Parse(name)) << name;
}

TEST(Recipe, LastRuleCountsAndBlocksFit) {
  const Recipe recipe = RecipeOf("q4_k_m", {"*attn_v*=q8_0", "blk.1.attn_v.weight=q6_k"});
  const auto target = [&](const char* name, int64_t cols) {
    return recipe.For(name, PlaceOf(name, {512, cols}, 2, true), cols).Name();
  };
  EXPECT_EQ(target("blk.0.attn_v.weight", 512), "q8_0");
  EXPECT_EQ(target("blk.1.attn_v.weight", 512), "q6_k");
  EXPECT_EQ(target("blk.0.attn_q.weight", 512), "q4_k");
  EXPECT_EQ(target("blk.0.attn_q.weight", 576), "q5_0");     // no whole blocks of 256
  EXPECT_EQ(target("blk.0.attn_q.weight", 48), "f16");       // nor of 32
  EXPECT_EQ(target("token_embd.weight", 512), "q6_k");       // the head too
  EXPECT_EQ(target("blk.0.attn_norm.weight", 512), "q4_k");  // a matrix by its shape
  EXPECT_EQ(recipe.For("n", PlaceOf("blk.0.attn_norm.weight", {64}, 2, true), 64).Name(), "keep");
  EXPECT_EQ(recipe.For("n", PlaceOf("blk.0.ffn_gate_inp.weight", {8, 64}, 2, true), 64).Name(), "keep");
}

TEST(IntTensor, RoundsWithinHalfAStepAndPacks) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  for (const char* name : {"int4-g32", "int4-g32-sym", "int8-g64-asym", "int8-sym"}) {
    const Target target = Target::Parse(name).value();
    std::vector<float> w(16 * 128), decoded(128);
    for (float& value : w) value = normal(random);
    ThreadPool pool({.threads = 1});
    const IntTensor ints = RoundToNearest(w.data(), 16, 128, target, nullptr, 0, pool);
    for (int64_t r = 0; r < 16; ++r) {
      ints.DecodeRow(r, decoded.data());
      for (int64_t c = 0; c < 128; ++c) {
        const IntGrid grid = ints.grid(r, c / ints.group());
        // Half a step, and at the ends of the grid another half and what rounding the scale cuts off.
        const float slack = 1.0f + static_cast<float>(ints.levels()) / 128;
        EXPECT_NEAR(decoded[c], w[r * 128 + c], slack * grid.scale) << name;
        // A product with the zero is exact in 11 bits.
        const float product = grid.scale * static_cast<float>(grid.zero % 16);
        int exponent = 0;
        const float scaled = std::frexp(product, &exponent) * 2048;
        EXPECT_EQ(scaled, std::nearbyint(scaled));
      }
    }
    const auto zeros = ints.PackedZeros();
    EXPECT_EQ(zeros.size(), static_cast<size_t>(16 * target.bits / 32 * ints.groups()));
    const int mask = ints.levels();
    EXPECT_EQ(zeros[0] >> target.bits & mask, ints.grid(1, 0).zero);
  }
}

TEST(IntTensor, ImportanceMovesTheGrid) {
  std::vector<float> x(32, 0.0f), importance(32, 1.0f);
  for (int i = 0; i < 32; ++i) x[i] = 0.1f * static_cast<float>(i - 16);
  x[0] = -20;  // an outlier that does not matter
  importance[0] = 1e-9f;
  const Target target = Target::Parse("int4-g32").value();
  EXPECT_LT(FitIntGrid(x.data(), 32, target, importance.data(), kGridCandidates).scale,
            FitIntGrid(x.data(), 32, target, nullptr, 0).scale);
}

TEST(InverseCholesky, InvertsAndRefuses) {
  ThreadPool pool({.threads = 2});
  for (const int64_t n : {1, 5, 64, 65, 200}) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(3 * n * n)), h(static_cast<size_t>(n * n)), u(h.size());
    for (float& value : x) value = normal(random);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = i == j ? 0.1 : 0;
        for (int64_t t = 0; t < 3 * n; ++t)
          sum += x[t * n + i] * x[t * n + j] / (3.0 * static_cast<double>(n));
        h[i * n + j] = static_cast<float>(sum);
      }
    ASSERT_TRUE(InverseCholesky(h.data(), n, u.data(), pool)) << n;
    // U H U^T = 1, and U is upper triangular.
    std::vector<double> uh(h.size());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t a = 0; a < n; ++a)
        for (int64_t b = 0; b < n; ++b) uh[i * n + b] += static_cast<double>(u[i * n + a]) * h[a * n + b];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) EXPECT_EQ(u[i * n + j], 0);
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t b = 0; b < n; ++b) sum += uh[i * n + b] * u[j * n + b];
        ASSERT_NEAR(sum, i == j ? 1 : 0, 2e-3) << n << ": " << i << ", " << j;
      }
    }
    h[0] = -1;
    EXPECT_FALSE(InverseCholesky(h.data(), n, u.data(), pool));
  }
}

// Inputs that correlate, as a model's do.
InputStatistics Correlated(int64_t cols, int64_t tokens, std::vector<float>* x, ThreadPool& pool) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  x->resize(tokens * cols);
  for (int64_t t = 0; t < tokens; ++t) {
    float shared[4];
    for (float& value : shared) value = normal(random);
    for (int64_t c = 0; c < cols; ++c)
      (*x)[t * cols + c] = (c % 16 == 3 ? 6.0f : 1.0f) * (shared[c % 4] + 0.3f * normal(random));
  }
  InputStatistics stats;
  stats.Add(x->data(), tokens, cols, pool);
  return stats;
}

// Sum of squares of (W - Q) x, of matrices with `cols` columns.
double OutputError(const std::vector<float>& w, const std::vector<float>& q, int64_t cols,
                   const std::vector<float>& x) {
  const int64_t rows = static_cast<int64_t>(w.size()) / cols, tokens = static_cast<int64_t>(x.size()) / cols;
  double error = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const auto at = static_cast<size_t>(r * cols + c);
        sum += static_cast<double>(w[at] - q[at]) * x[t * cols + c];
      }
      error += sum * sum;
    }
  }
  return error;
}

TEST(Gptq, HalvesTheErrorOfTheProduct) {
  ThreadPool pool({.threads = 2});
  constexpr int64_t kCols = 192, kRows = 20;  // not a multiple of 16 rows or 128 columns
  std::vector<float> x;
  const InputStatistics stats = Correlated(kCols, 1000, &x, pool);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kCols);
  for (float& value : w) value = normal(random);
  const Target target = Target::Parse("int4-g64").value();
  std::vector<float> rounded(w.size());
  RoundToNearest(w.data(), kRows, kCols, target, nullptr, 0, pool).Decode(rounded.data(), pool);
  const double before = OutputError(w, rounded, kCols, x);
  for (const bool act_order : {false, true}) {
    const auto solver = GptqSolver::Make(stats, {.act_order = act_order}, "w", pool);
    ASSERT_TRUE(solver);
    solver->Quantize(w.data(), kRows, target, pool).Decode(rounded.data(), pool);
    EXPECT_LT(OutputError(w, rounded, kCols, x), 0.5 * before);
  }
}

// In each of them beside the encoder that knows the same inputs, but not how they correlate.
TEST(Gptq, HalvesTheErrorOfTheProductInGgufBlocks) {
  ThreadPool pool({.threads = 2});
  constexpr int64_t kCols = 256, kRows = 20;
  std::vector<float> x;
  const InputStatistics stats = Correlated(kCols, 1000, &x, pool);
  const std::vector<float> importance = stats.MeanSquares();
  const auto solver = GptqSolver::Make(stats, {}, "w", pool);
  ASSERT_TRUE(solver);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kCols), rounded(w.size());
  for (float& value : w) value = normal(random);
  std::fill_n(w.begin() + 5 * kCols, kCols, 0.0f);  // a row of zeros
  for (const DType dtype : {DType::kQ2_K, DType::kQ3_K, DType::kQ4_0, DType::kQ4_1, DType::kQ4_K,
                            DType::kQ5_0, DType::kQ5_1, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0}) {
    FakeQuantize(w.data(), kRows, kCols, Target::Stored(dtype), importance.data(), 0, rounded.data(), pool);
    const double before = OutputError(w, rounded, kCols, x);
    const std::vector<std::byte> blocks = solver->QuantizeBlocks(w.data(), kRows, dtype, pool);
    ASSERT_EQ(static_cast<int64_t>(blocks.size()), kRows * *BytesFor(dtype, kCols));
    DecodeRow(dtype, blocks.data(), kRows * kCols, rounded.data());
    EXPECT_LT(OutputError(w, rounded, kCols, x), 0.5 * before) << Name(dtype);
  }
}

TEST_F(Quantize, CalibrationRunsTheModelAsTheDecoderDoes) {
  for (const char* preset : {"llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b"}) {
    const Model model = Load(Gguf(DType::kF32, preset));
    const CalibrationText text = Text(2);
    auto calibration = Calibration::Make(model, text.tokens, text.window, pool_);
    ASSERT_TRUE(calibration) << calibration.error().message();
    for (int64_t i = 0; i < 2; ++i) ASSERT_TRUE(calibration->Advance(LayerFloats::Of(model, i, pool_), i));

    const DecoderConfig& c = model.config();
    std::vector<float> expected;
    CpuDecoder decoder(model, pool_);
    decoder.set_watch([&](int64_t layer, std::span<const float> x) {
      if (layer == c.layers - 1) expected.insert(expected.end(), x.begin(), x.end());
    });
    for (int64_t w = 0; w < 2; ++w) {
      const int64_t blocks = KvBlocksFor(text.window);
      std::vector<float> memory(
          static_cast<size_t>(2 * c.layers * blocks * kKvBlockTokens * c.kv_heads * c.head_dim));
      std::vector<KvLayerView> kv;
      const size_t part = memory.size() / static_cast<size_t>(2 * c.layers);
      for (int64_t i = 0; i < c.layers; ++i)
        kv.push_back(
            {.k = reinterpret_cast<std::byte*>(memory.data() + 2 * static_cast<size_t>(i) * part),
             .v = reinterpret_cast<std::byte*>(memory.data() + (2 * static_cast<size_t>(i) + 1) * part),
             .dtype = DType::kF32,
             .blocks = blocks,
             .kv_heads = c.kv_heads,
             .head_dim = c.head_dim});
      std::vector<int32_t> positions, table;
      for (int32_t i = 0; i < text.window; ++i) positions.push_back(i);
      for (int32_t i = 0; i < blocks; ++i) table.push_back(i);
      const std::vector<int32_t> start = {0, static_cast<int32_t>(text.window)};
      RaggedBatch batch;
      batch.tokens = std::span(text.tokens).subspan(w * text.window, text.window);
      batch.positions = positions;
      batch.seq_start = start;
      batch.block_table = table;
      batch.max_blocks = blocks;
      decoder.Forward(batch, kv, nullptr);
    }
    ASSERT_EQ(expected.size(), calibration->states().size());
    const std::vector<float> states(calibration->states().begin(), calibration->states().end());
    EXPECT_LT(RelativeError(expected, states), 1e-2) << preset;  // the decoder's kernels may round
  }
}

TEST_F(Quantize, GgufInEveryTypeDecodesNearTheOriginal) {
  const fs::path model = Gguf();
  const auto before = GgufFile::Open(model);
  ASSERT_TRUE(before);
  const std::pair<const char*, double> kErrors[] = {{"f32", 0},    {"f16", 1e-3},  {"bf16", 4e-3},
                                                    {"q8_0", .01}, {"q5_1", .05},  {"q5_0", .06},
                                                    {"q4_1", .09}, {"q4_0", 0.12}, {"q4_k_m", 0.06}};
  for (const auto& [weights, most] : kErrors) {
    const auto plan = MakePlan(before->tensors(), 2, true, RecipeOf(weights), "model");
    ASSERT_TRUE(plan) << plan.error().message();
    const fs::path out = folder_ / (std::string(weights) + ".gguf");
    const Status status = WriteQuantizedGguf(model, *plan, out, {}, pool_);
    ASSERT_TRUE(status) << status.error().message();
    const auto after = GgufFile::Open(out);
    ASSERT_TRUE(after) << after.error().message();
    EXPECT_EQ(after->GetString("general.architecture"), before->GetString("general.architecture"));
    EXPECT_EQ(after->GetStringArray("tokenizer.ggml.tokens"),
              before->GetStringArray("tokenizer.ggml.tokens"));
    ASSERT_EQ(after->tensors().size(), before->tensors().size());
    for (const TensorRecord& tensor : before->tensors()) {
      const TensorRecord* other = after->Find(tensor.name);
      ASSERT_TRUE(other);
      if (tensor.shape.rank() < 2) {
        EXPECT_EQ(other->dtype, DType::kF32);
      }
      EXPECT_LE(RelativeError(ValuesOf(tensor), ValuesOf(*other)), most) << weights << " " << tensor.name;
    }
    EXPECT_TRUE(Model::Load(out, {}, pool_));
    EXPECT_EQ(plan->bytes_after() < plan->bytes_before(), std::string(weights) != "f32");
  }
}

TEST_F(Quantize, ImportanceIsCollectedWrittenAndRead) {
  const Model model = Load(Gguf());
  const auto collected = CollectImportance(model, Text(), pool_, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_EQ(collected->entries().size(), 14u);
  for (const char* name : {"imatrix.gguf", "imatrix.dat"}) {
    ASSERT_TRUE(collected->Write(folder_ / name));
    const auto read = ImportanceMatrix::Read(folder_ / name);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->chunks, 4);
    for (const char* tensor : {"blk.0.attn_q.weight", "model.layers.1.mlp.down_proj.weight"}) {
      const int64_t cols = std::string_view(tensor).find("down") == std::string_view::npos ? 64 : 128;
      const auto a = collected->For(tensor, 0, 1, cols), b = read->For(tensor, 0, 1, cols);
      ASSERT_TRUE(a && b);
      ASSERT_EQ(a->size(), static_cast<size_t>(cols));
      for (size_t i = 0; i < a->size(); ++i) EXPECT_NEAR((*a)[i], (*b)[i], 1e-5f * (*a)[i]) << name;
    }
    EXPECT_FALSE(read->For("blk.0.attn_q.weight", 0, 1, 32));  // of another model
  }
  EXPECT_FALSE(ImportanceMatrix::Read(folder_.Write("bad.dat", "nonsense that is no matrix")));
  EXPECT_FALSE(ImportanceMatrix::Read(folder_.Write("empty.dat", "")));
}

TEST_F(Quantize, ImportanceLowersTheWeightedError) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(512), importance(512), decoded(512);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(random);
    importance[i] = std::exp(2 * normal(random));
  }
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ2_K,
                            DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const auto error = [&](const float* weights) {
      std::vector<std::byte> row(static_cast<size_t>(*BytesFor(dtype, 512)));
      EncodeRow(dtype, x.data(), 512, row.data(), weights);
      DecodeRow(dtype, row.data(), 512, decoded.data());
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += importance[i] * (x[i] - decoded[i]) * (x[i] - decoded[i]);
      return sum;
    };
    EXPECT_LT(error(importance.data()), error(nullptr)) << Name(dtype);
  }
}

TEST_F(Quantize, FolderHoldsWhatCompressedTensorsDecodes) {
  const fs::path model = Folder();
  const auto before = SafetensorsModel::Open(model);
  ASSERT_TRUE(before);
  const auto plan = MakePlan(before->tensors(), 2, true,
                             RecipeOf("int4-g32", {"*down_proj*=int8-g64-sym", "*o_proj*=keep"}), "model");
  ASSERT_TRUE(plan) << plan.error().message();
  const fs::path out = folder_ / "out";
  const Status status = WriteQuantizedHf(model, *plan, out, {}, pool_);
  ASSERT_TRUE(status) << status.error().message();
  const auto after = SafetensorsModel::Open(out);
  ASSERT_TRUE(after) << after.error().message();
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_FALSE(after->Find(name));
  const TensorRecord *packed = after->Find(name + "_packed"), *scale = after->Find(name + "_scale"),
                     *zero = after->Find(name + "_zero_point"), *original = before->Find(name);
  ASSERT_TRUE(packed && scale && zero && after->Find(name + "_shape"));
  EXPECT_EQ(packed->shape, (Shape{64, 8}));
  EXPECT_EQ(zero->shape, (Shape{8, 2}));
  const std::vector<float> values = ValuesOf(*original), scales = ValuesOf(*scale);
  const auto word = [](const TensorRecord* t, int64_t at) {
    uint32_t out_word;
    std::memcpy(&out_word, t->bytes.data() + at * 4, 4);
    return out_word;
  };
  std::vector<float> decoded(values.size());
  for (int64_t r = 0; r < 64; ++r)
    for (int64_t c = 0; c < 64; ++c) {
      const int q = static_cast<int>(word(packed, r * 8 + c / 8) >> (c % 8 * 4) & 15);
      const int z = static_cast<int>(word(zero, r / 8 * 2 + c / 32) >> (r % 8 * 4) & 15);
      decoded[r * 64 + c] = static_cast<float>(q - z) * scales[r * 2 + c / 32];
    }
  EXPECT_LT(RelativeError(values, decoded), 0.12);
  EXPECT_FALSE(after->Find("model.layers.0.mlp.down_proj.weight_zero_point"));  // symmetric
  EXPECT_TRUE(after->Find("model.layers.0.self_attn.o_proj.weight"));           // kept
  std::ifstream config(out / "config.json");
  const std::string text((std::istreambuf_iterator<char>(config)), {});
  EXPECT_NE(text.find("pack-quantized"), std::string::npos);
  EXPECT_NE(text.find("model.layers.0.self_attn.o_proj"), std::string::npos);
}

TEST_F(Quantize, MethodsLowerTheErrorBehindTheLastLayer) {
  const fs::path path = Folder();
  const Model model = Load(path);
  const CalibrationText text = Text(8);
  auto exact = Calibration::Make(model, text.tokens, text.window, pool_);
  for (int64_t i = 0; i < 2; ++i) ASSERT_TRUE(exact->Advance(LayerFloats::Of(model, i, pool_), i));
  const std::vector<float> wanted(exact->states().begin(), exact->states().end());
  const auto source = SafetensorsModel::Open(path);
  const auto plan = MakePlan(source->tensors(), 2, true, RecipeOf("int4-g64"), "model");
  ASSERT_TRUE(plan);

  const auto error_of = [&](const WriteOptions& options, const char* name) {
    const fs::path out = folder_ / name;
    const Status status = WriteQuantizedHf(path, *plan, out, options, pool_);
    EXPECT_TRUE(status) << status.error().message();
    const Model quantized = Load(out);
    auto run = Calibration::Make(quantized, text.tokens, text.window, pool_);
    for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(run->Advance(LayerFloats::Of(quantized, i, pool_), i));
    return RelativeError(wanted, {run->states().begin(), run->states().end()});
  };
  const double plain = error_of({.dequantized = true}, "rtn");
  EXPECT_GT(plain, 0);
  for (const Method method : {Method::kGptq, Method::kAwq, Method::kAwqGptq}) {
    const auto parts =
        MakeParts(model, false, *plan, method, text, pool_, folder_ / (std::string(Name(method)) + ".work"));
    ASSERT_TRUE(parts) << parts.error().message();
    EXPECT_EQ(LoadAll(parts, *plan).ints.size(), 14u);
    const double error = error_of({.parts = &*parts, .dequantized = true}, Name(method));
    // Random weights have few directions to gain in; awq must only do no harm.
    EXPECT_LT(error, method == Method::kAwq ? 1.05 * plain : 0.9 * plain) << Name(method);
  }
}

TEST_F(Quantize, RefusesInOneSentenceAndLeavesNothing) {
  const fs::path model = Gguf();
  const auto file = GgufFile::Open(model);
  EXPECT_FALSE(MakePlan(file->tensors(), 2, true, RecipeOf("int4-g128"), "m"));  // 64 columns
  EXPECT_FALSE(MakePlan(file->tensors(), 2, true, RecipeOf("q4_0", {"nothing*=q8_0"}), "m"));
  EXPECT_FALSE(Recipe::Read(folder_.Write("r.json", R"({"weight": "q4_0"})")));
  EXPECT_FALSE(Recipe::Read(folder_.Write("r.json", R"({"tensors": {"*": "q99"}})")));
  const auto recipe =
      Recipe::Read(folder_.Write("r.json", R"({"weights": "q4_0", "tensors": {"*ffn*": "q5_0"}})"));
  ASSERT_TRUE(recipe);
  EXPECT_EQ(recipe->rules.size(), 1u);

  // A NaN among the weights.
  std::string bytes;
  {
    std::ifstream in(model, std::ios::binary);
    bytes.assign((std::istreambuf_iterator<char>(in)), {});
  }
  const TensorRecord* tensor = file->Find("blk.1.ffn_down.weight");
  const float nan = std::nanf("");
  const auto first = reinterpret_cast<const char*>(file->tensors()[0].bytes.data());
  const size_t header = bytes.find(std::string(first, 64));
  ASSERT_NE(header, std::string::npos);
  const size_t at = header + static_cast<size_t>(reinterpret_cast<const char*>(tensor->bytes.data()) - first);
  std::memcpy(bytes.data() + at + 400, &nan, 4);
  const fs::path broken = folder_.Write("broken.gguf", bytes);
  const auto broken_file = GgufFile::Open(broken);
  const auto plan = MakePlan(broken_file->tensors(), 2, true, RecipeOf("q4_0"), "m");
  const Status status = WriteQuantizedGguf(broken, *plan, folder_ / "out.gguf", {}, pool_);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("blk.1.ffn_down.weight"), std::string::npos);
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().filename().string().find("out.gguf"), std::string::npos);
}

}  // namespace
}  // namespace celer
