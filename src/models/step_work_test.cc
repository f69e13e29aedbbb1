// Counted on weights as they would be loaded, and held against the formulas of celer/limits.h.
#include "models/step_work.h"

#include <gtest/gtest.h>

#include "limits/roofline.h"
#include "models/op_profile.h"

namespace celer {
namespace {

constexpr int64_t kLayers = 3, kHidden = 64, kIntermediate = 160, kHeads = 8, kKvHeads = 2, kHeadDim = 16,
                  kVocab = 320;

WeightView Matrix(int64_t rows, int64_t cols, DType dtype) {
  static const std::byte unread{};
  return {.dtype = dtype, .rows = rows, .cols = cols, .data = &unread, .row_bytes = *BytesFor(dtype, cols)};
}

DecoderConfig StepConfig() {
  DecoderConfig c;
  c.layers = kLayers;
  c.hidden = kHidden;
  c.intermediate = kIntermediate;
  c.heads = kHeads;
  c.kv_heads = kKvHeads;
  c.head_dim = kHeadDim;
  c.vocab = kVocab;
  c.windowed_layer.assign(kLayers, true);
  return c;
}

ExpertWeights Mlp(int64_t intermediate, DType dtype) {
  return {.gate = Matrix(intermediate, kHidden, dtype),
          .up = Matrix(intermediate, kHidden, dtype),
          .down = Matrix(kHidden, intermediate, dtype)};
}

DecoderWeights Weights(DType dtype) {
  DecoderWeights w;
  w.embedding = w.head = Matrix(kVocab, kHidden, dtype);
  LayerWeights layer;
  layer.q = Matrix(kHeads * kHeadDim, kHidden, dtype);
  layer.k = layer.v = Matrix(kKvHeads * kHeadDim, kHidden, dtype);
  layer.o = Matrix(kHidden, kHeads * kHeadDim, dtype);
  layer.dense = Mlp(kIntermediate, dtype);
  w.layers.assign(kLayers, layer);
  return w;
}

constexpr int64_t kKvBytes = 2 * 2 * kLayers * kKvHeads * kHeadDim;  // f16

const OperatorWork& Find(const std::vector<OperatorWork>& work, const std::string& name) {
  for (const OperatorWork& op : work)
    if (op.name == name) return op;
  ADD_FAILURE() << "no operator " << name;
  return work.front();
}

TEST(StepWork, AgreesWithTheFormulas) {
  // One peak for every type, so that the arithmetic of both is comparable.
  const Machine machine{.name = "m",
                        .source = "flags",
                        .read_bytes_per_s = 1e9,
                        .flops = {{"f32", 1e11}, {"bf16", 1e11}, {"int8", 1e11}}};
  const struct {
    DType dtype;
    double bits;
  } formats[] = {{DType::kBf16, 16}, {DType::kQ8_0, 8.5}, {DType::kF32, 32}};
  for (const auto& [dtype, bits] : formats) {
    const DecoderConfig config = StepConfig();
    const DecoderWeights weights = Weights(dtype);
    const LlmShape shape = ToLlmShape(config, "test");
    const double embedding_row = static_cast<double>(weights.embedding.row_bytes);
    for (const int64_t batch : {1, 5}) {
      const LlmSetup setup{.weight_bits = bits, .kv_bits = 16, .batch = batch, .compute = "f32"};
      for (const int64_t position : {0, 7, 1000}) {
        const auto step =
            Sum(CountStep(config, MatricesOf(weights), kKvBytes, {.sequences = batch, .position = position}));
        const RooflineLimit counted = LimitOf(step, machine);
        const PhaseLimit formula = DecodeLimit(shape, machine, setup, position + 1);
        EXPECT_NEAR(counted.memory_s - double(batch) * embedding_row / 1e9, formula.read_s(), 1e-15);
        EXPECT_NEAR(counted.compute_s, formula.compute_s, 1e-15);
      }
      const auto prefill =
          Sum(CountStep(config, MatricesOf(weights), kKvBytes, {.sequences = batch, .tokens = 33}));
      const RooflineLimit counted = LimitOf(prefill, machine);
      const PhaseLimit formula = PrefillLimit(shape, machine, setup, 33, HeadRows::kExact, KvReads::kOnce);
      EXPECT_NEAR(counted.memory_s - 33 * double(batch) * embedding_row / 1e9, formula.read_s(), 1e-15);
      EXPECT_NEAR(counted.compute_s, formula.compute_s, 1e-15);
    }
  }
}

TEST(StepWork, NamesTheArithmetic) {
  const auto step = CountStep(StepConfig(), MatricesOf(Weights(DType::kQ4_0)), kKvBytes, {});
  EXPECT_EQ(Find(step, "qkv").flops.begin()->first, "int8");
  EXPECT_EQ(Find(step, "attention").flops.begin()->first, "auto");
  EXPECT_EQ(Find(CountStep(StepConfig(), MatricesOf(Weights(DType::kQ4_0)), 2 * kKvBytes, {}), "attention")
                .flops.begin()
                ->first,
            "f32");
  EXPECT_STREQ(ComputeType(Matrix(8, 32, DType::kBf16)), "bf16");
  EXPECT_STREQ(ComputeType(Matrix(8, 32, DType::kF32)), "f32");
  EXPECT_STREQ(ComputeType({.kind = WeightView::Kind::kInt4}), "int8");
  std::vector<std::string> names;
  for (const OperatorWork& op : step) names.push_back(op.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embed", "qkv", "attention", "output", "gate_up", "down",
                                             "logits", "sampling"}));
}

TEST(StepWork, AWindowBoundsWhatIsRead) {
  DecoderConfig config = StepConfig();
  config.sliding_window = 10;
  const DecoderWeights weights = Weights(DType::kBf16);
  const auto bytes = [&](int64_t tokens, int64_t position) {
    return Find(CountStep(config, MatricesOf(weights), kKvBytes, {.tokens = tokens, .position = position}),
                "attention")
        .bytes;
  };
  EXPECT_EQ(bytes(1, 4), 5 * kKvBytes);
  EXPECT_EQ(bytes(1, 9), 10 * kKvBytes);
  EXPECT_EQ(bytes(1, 500), 10 * kKvBytes);
  EXPECT_EQ(bytes(3, 500), 12 * kKvBytes);  // the first of them still sees 491
}

TEST(StepWork, ExpertsAreReadAsFarAsTheyAreNeeded) {
  DecoderConfig config = StepConfig();
  config.moe.experts = 4;
  config.moe.experts_per_token = 1;
  config.moe.intermediate = 96;
  config.moe.sparse_layer.assign(kLayers, true);
  DecoderWeights weights = Weights(DType::kQ8_0);
  for (LayerWeights& layer : weights.layers) {
    layer.dense = {};
    layer.router = Matrix(4, kHidden, DType::kF32);
    layer.experts.assign(4, Mlp(96, DType::kQ8_0));
  }
  const double router = 4 * kHidden * 4, expert = 3 * 96 * kHidden * 8.5 / 8;
  const auto moe = [&](int64_t sequences) {
    return Find(CountStep(config, MatricesOf(weights), kKvBytes, {.sequences = sequences}), "moe");
  };
  EXPECT_DOUBLE_EQ(moe(1).bytes, kLayers * (router + expert));
  EXPECT_DOUBLE_EQ(moe(2).bytes, kLayers * (router + 1.75 * expert));  // 4 (1 - (3/4)^2)
  EXPECT_DOUBLE_EQ(moe(2).flops.at("int8"), 2 * moe(1).flops.at("int8"));
  EXPECT_DOUBLE_EQ(moe(1).flops.at("int8"), kLayers * 2.0 * 3 * 96 * kHidden);
  EXPECT_DOUBLE_EQ(moe(1).flops.at("f32"), kLayers * 2.0 * 4 * kHidden);
}

TEST(OpClock, OneOperatorEndsWhereTheNextBegins) {
  OpProfile profile;
  {
    OpClock clock(&profile);
    clock.Begin(Op::kQkv);
    clock.Begin(Op::kAttention);
    clock.Begin(Op::kQkv);
    clock.End();
    clock.End();
  }
  EXPECT_EQ(profile.ops[static_cast<size_t>(Op::kQkv)].calls, 2);
  EXPECT_EQ(profile.ops[static_cast<size_t>(Op::kAttention)].calls, 1);
  EXPECT_GE(profile.ops[static_cast<size_t>(Op::kQkv)].seconds, 0);
  OpClock off(nullptr);
  off.Begin(Op::kQkv);
  off.End();
}

}  // namespace
}  // namespace celer
