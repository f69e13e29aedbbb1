// The logits and the choice at the end of a decode step in one kernel: ties, what is not finite, odd
// vocabularies, and steps that follow each other without the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/device.h"
#include "formats/decode.h"
#include "kernels/llm/decode_step/decode_step_cuda.h"
#include "kernels/llm/sample/sample_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"
#include "models/cuda/decoder_test_util.h"
#include "weights/device_weights.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

// The first of the largest; none if one is not a number or infinite.
int Largest(const float* logits, int64_t vocab) {
  int best = 0;
  for (int i = 0; i < vocab; ++i) {
    if (std::isnan(logits[i])) return kNoToken;
    if (logits[i] > logits[best]) best = i;
  }
  return std::isfinite(logits[best]) ? best : kNoToken;
}

// One layer whose head can be chosen row by row.
class OneLayer {
 public:
  static constexpr int kHidden = 256, kInter = 384, kHeads = 4, kKvHeads = 2, kDim = 64, kContext = 64;

  // `row(r)`: which of the head's `kinds` random rows stands at r; -1: one of NaN.
  template <class Row>
  OneLayer(const char* format, int vocab, int kinds, const Row& row, int tokens)
      : vocab_(vocab),
        tokens_(tokens),
        ids_(std::vector<int32_t>{3, 1, 4, 2}),
        positions_(std::vector<int32_t>{0, 5, 17, 2}),
        sequence_(std::vector<int32_t>{0, 1, 2, 3}),
        logits_(int64_t{tokens} * vocab),
        cosines_(std::vector<float>(kContext * kDim / 2, 1)),
        sines_(std::vector<float>(kContext * kDim / 2, 0)),
        k_(int64_t{4} * kContext * kKvHeads * kDim * 2, 0),
        v_(int64_t{4} * kContext * kKvHeads * kDim * 2, 0),
        x_(int64_t{4} * kHidden) {
    auto store = DeviceWeights::Create(0, *WeightOptions::Parse(format));
    CELER_CHECK(store);
    store_.emplace(std::move(*store));
    const std::vector<float> kind = RandomFloats(int64_t{kinds} * kHidden, 7, 0.2f);
    std::vector<float> head(static_cast<size_t>(vocab) * kHidden, std::numeric_limits<float>::quiet_NaN());
    for (int r = 0; r < vocab; ++r)
      if (row(r) >= 0)
        std::copy_n(kind.begin() + row(r) * kHidden, kHidden, head.begin() + int64_t{r} * kHidden);
    step_.qkv.epilogue = Epilogue::kQkv;
    step_.qkv.a = Matrix(kHeads * kDim, kHidden, 1);
    step_.qkv.b = Matrix(kKvHeads * kDim, kHidden, 2);
    step_.qkv.c = Matrix(kKvHeads * kDim, kHidden, 3);
    step_.o.a = Matrix(kHidden, kHeads * kDim, 4);
    step_.gate_up.epilogue = Epilogue::kGateUp;
    step_.gate_up.a = Matrix(kInter, kHidden, 5);
    step_.gate_up.b = Matrix(kInter, kHidden, 6);
    step_.down.a = Matrix(kHidden, kInter, 8);
    args_.embedding = Matrix(vocab, kHidden, 9, WeightStore::Role::kVocabulary);
    args_.head.a = Upload(head, vocab, kHidden, WeightStore::Role::kVocabulary);
    const std::vector<float> norm = RandomFloats(kHidden, 11, 1.0f);
    const auto vector = store_->UploadVector(norm.data(), kHidden);
    CELER_CHECK(vector);
    CELER_CHECK(store_->Finish());
    step_.qkv.norm = step_.gate_up.norm = args_.head.norm = *vector;
    step_.qkv.kv = {k_.get(), v_.get(), DType::kF16, kKvHeads, kDim, kDim};
    step_.qkv.rope_dim = kDim;
    step_.qkv.rope_cos = cosines_.get(), step_.qkv.rope_sin = sines_.get();
    args_.layers = {&step_, 1};
    std::vector<int32_t> table;
    for (int i = 0; i < 4 * kContext / kKvBlockTokens; ++i) table.push_back(i);
    table_.emplace(table);
    args_.batch = {ids_.get(),    positions_.get(),          sequence_.get(),
                   table_->get(), kContext / kKvBlockTokens, tokens};
    args_.heads = kHeads;
    args_.scale = 0.125f;
    args_.head.out = logits_.get();
    args_.head.out_stride = vocab;
    args_.x = x_.get();
    EXPECT_EQ(cudaSuccess, cudaHostAlloc(reinterpret_cast<void**>(&host_), sizeof(int32_t) * kHostSlots * 4,
                                         cudaHostAllocMapped));
    memory_.emplace(static_cast<int64_t>(DecodeStepBytes(args_)));
    EXPECT_GE(DecodeStepTokens(args_), tokens);
    EXPECT_TRUE(DecodeStepHasHead(args_));
    EXPECT_EQ(cudaSuccess, PrepareDecodeStep(args_, memory_->get()));
  }
  ~OneLayer() { cudaFreeHost(host_); }

  // Checks what the step chose against its logits.
  void Step(bool choose) {
    const std::vector<int32_t> before = positions_.Read(), ids_before = ids_.Read();
    args_.choice = {};
    if (choose) args_.choice = {ids_.get(), positions_.get(), host_, 4};
    ASSERT_EQ(cudaSuccess, LaunchDecodeStep(args_, memory_->get(), nullptr));
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    const std::vector<float> logits = logits_.Read();
    const std::vector<int32_t> ids = ids_.Read(), after = positions_.Read();
    for (int t = 0; t < 4; ++t) {
      const auto i = static_cast<size_t>(t);
      const bool chosen = choose && t < tokens_;
      EXPECT_EQ(after[i], before[i] + chosen);
      const int largest = chosen ? Largest(logits.data() + int64_t{t} * vocab_, vocab_) : ids_before[i];
      EXPECT_EQ(ids[i], std::max(largest, 0)) << "the next step's input must be in the vocabulary";
      if (chosen) {
        EXPECT_EQ(host_[before[i] % kHostSlots * 4 + t], largest);
      }
    }
  }
  std::vector<float> Logits() const { return logits_.Read(); }
  int32_t LastToken(int t) const {
    return host_[(positions_.Read()[static_cast<size_t>(t)] - 1) % kHostSlots * 4 + t];
  }
  // One step with the head as a kernel of its own: what is left to it where the formats do not go together.
  void StepAndHead() {
    const MatvecArgs head = args_.head;
    args_.head.a.format = Format::kF32;
    args_.choice = {};
    ASSERT_FALSE(DecodeStepHasHead(args_));
    ASSERT_EQ(cudaSuccess, PrepareDecodeStep(args_, memory_->get()));
    ASSERT_EQ(cudaSuccess, LaunchDecodeStep(args_, memory_->get(), nullptr));
    args_.head = head;
    args_.head.x = x_.get();
    args_.head.x_stride = kHidden;
    args_.head.tokens = tokens_;
    ASSERT_EQ(cudaSuccess, LaunchMatvec(args_.head, nullptr));
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  }

 private:
  DeviceMatrix Upload(const std::vector<float>& values, int rows, int cols, WeightStore::Role role) {
    std::vector<std::byte> bytes(values.size() * 2);
    for (int64_t r = 0; r < rows; ++r)
      EncodeRow(DType::kBf16, values.data() + r * cols, cols, bytes.data() + r * cols * 2);
    const MatrixSource source{
        {.dtype = DType::kBf16, .rows = rows, .cols = cols, .data = bytes.data(), .row_bytes = cols * 2},
        role,
        {}};
    auto made = store_->Upload({&source, 1});
    CELER_CHECK(made);
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    return (*made)[0];
  }
  DeviceMatrix Matrix(int rows, int cols, uint32_t seed,
                      WeightStore::Role role = WeightStore::Role::kProjection) {
    return Upload(RandomFloats(int64_t{rows} * cols, seed, 0.2f), rows, cols, role);
  }

  int vocab_, tokens_;
  std::optional<DeviceWeights> store_;
  OnDevice<int32_t> ids_, positions_, sequence_;
  std::optional<OnDevice<int32_t>> table_;
  OnDevice<float> logits_, cosines_, sines_;
  OnDevice<std::byte> k_, v_;
  OnDevice<float> x_;
  DecodeStepLayer step_;
  DecodeStepArgs args_;
  std::optional<OnDevice<std::byte>> memory_;
  int32_t* host_ = nullptr;
};

TEST(DecodeChoice, TakesTheFirstOfTheLargest) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* format : {"bf16", "int8", "int4-g128"})
    for (const int vocab : {1003, 31, 9001})
      for (int tokens = 1; tokens <= 4; ++tokens) {
        SCOPED_TRACE(::testing::Message() << format << ", " << vocab << ", " << tokens);
        OneLayer model(
            format, vocab, 5, [](int r) { return r % 5; }, tokens);
        for (const bool choose : {true, true, false, true, false, false, true}) model.Step(choose);
        // Equal rows of a tile have equal logits: the choice had ties.
        const std::vector<float> logits = model.Logits();
        EXPECT_EQ(logits[2], logits[7]);
      }
}

TEST(DecodeChoice, LogitsAreThoseOfTheHeadAlone) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* format : {"bf16", "int8", "int4-g128"})
    for (const int vocab : {1003, 9001}) {
      SCOPED_TRACE(::testing::Message() << format << ", " << vocab);
      OneLayer model(
          format, vocab, vocab, [](int r) { return r; }, 3);
      model.Step(false);
      const std::vector<float> inside = model.Logits();
      model.StepAndHead();
      EXPECT_EQ(inside, model.Logits());
    }
}

TEST(DecodeChoice, ThereIsNoTokenWhereOneIsNotANumber) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  OneLayer some(
      "bf16", 1000, 1000, [](int r) { return r % 3 == 1 ? r : -1; }, 2);
  some.Step(true);
  EXPECT_TRUE(std::isnan(some.Logits()[0]));
  EXPECT_FALSE(std::isnan(some.Logits()[1]));
  EXPECT_EQ(some.LastToken(0), kNoToken);
  some.Step(true);  // goes on from a token of the vocabulary
  OneLayer last(
      "bf16", 1003, 1003, [](int r) { return r == 1002 ? -1 : r; }, 4);
  last.Step(true);
  EXPECT_EQ(last.LastToken(3), kNoToken);
  OneLayer none(
      "bf16", 1000, 1, [](int) { return -1; }, 3);
  none.Step(true);
}

}  // namespace
}  // namespace celer::cuda

namespace celer {
namespace {

struct Generated {
  std::vector<float> logits;
  std::vector<std::vector<int32_t>> tokens;  // that went into each step
};

// Steps of sequences that begin at different positions; a prompt of another one in between, and a step that
// samples. `given`: the tokens of all steps, or those that the steps choose.
Generated Generate(const char* weights, size_t count, bool tied,
                   const std::vector<std::vector<int32_t>>& given) {
  constexpr int64_t kBlocks = 16, kVocab = 1001;
  DecoderConfig config = FromLlmShape({{.layers = 3,
                                        .hidden = 512,
                                        .intermediate = 1408,
                                        .vocab = kVocab,
                                        .heads = 8,
                                        .kv_heads = 4,
                                        .head_dim = 64},
                                       {},
                                       "test"});
  config.tied_embeddings = tied;
  CudaDecoderOptions options;
  options.weights = *WeightOptions::Parse(weights);
  options.context = kBlocks * 16;
  options.max_tokens = 64;
  const auto decoder = MakeRandomDecoder(config, options, kBlocks * 5);
  if (!decoder) return {};
  EXPECT_TRUE(decoder->decodes_in_one_kernel());
  std::vector<int32_t> table(static_cast<size_t>(kBlocks) * 5);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const auto prompt = [&](size_t sequence, int length) {
    std::vector<int32_t> tokens, positions;
    for (int i = 0; i < length; ++i) tokens.push_back(i * 7 % 1001), positions.push_back(i);
    const std::vector<int32_t> starts = {0, length};
    const auto status =
        decoder->Forward({.tokens = tokens,
                          .positions = positions,
                          .seq_start = starts,
                          .block_table = std::span(table).subspan(sequence * kBlocks, kBlocks),
                          .max_blocks = kBlocks,
                          .logit_rows = {}});
    EXPECT_TRUE(status) << status.error().message();
  };
  std::vector<int32_t> positions, tokens;
  for (size_t i = 0; i < count; ++i) {
    prompt(i, static_cast<int>(3 + 11 * i));
    positions.push_back(static_cast<int32_t>(3 + 11 * i));
    tokens.push_back(static_cast<int32_t>(5 + i));
  }
  Generated out;
  for (size_t step = 0; step < 12; ++step) {
    const bool alone = step != 0 && step != 5 && given.empty();
    if (step == 5) prompt(4, 20);
    if (!given.empty()) tokens = given[step];
    out.tokens.push_back(tokens);
    const auto choose = step == 8 ? CudaDecoder::Choose::kSampled : CudaDecoder::Choose::kMostLikely;
    if (step == 8) {
      const std::vector<cuda::SampleRow> rows(count);  // the largest
      EXPECT_TRUE(decoder->SetSampling(rows));
    }
    std::vector<int32_t> starts(count + 1);
    std::iota(starts.begin(), starts.end(), 0);
    const auto queued = decoder->Decode({.tokens = alone ? std::span<const int32_t>() : tokens,
                                         .positions = positions,
                                         .seq_start = starts,
                                         .block_table = std::span(table).first(count * kBlocks),
                                         .max_blocks = kBlocks,
                                         .logit_rows = {}},
                                        choose);
    EXPECT_TRUE(queued) << queued.error().message();
    auto logits = decoder->Logits();
    if (!logits) {
      ADD_FAILURE() << logits.error().message();
      return {};
    }
    EXPECT_EQ(logits->size(), count * kVocab);
    out.logits.insert(out.logits.end(), logits->begin(), logits->end());
    EXPECT_TRUE(decoder->ChosenTokens(positions, tokens));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(tokens[i], cuda::Largest(logits->data() + i * kVocab, kVocab)) << "step " << step;
      ++positions[i];
    }
  }
  return out;
}

TEST(DecodeChoice, IsTheNextStepsInput) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* weights : {"bf16", "int8", "int4-g128"})
    for (size_t count = 1; count <= 4; ++count) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << count);
      const Generated alone = Generate(weights, count, count % 2 == 0, {});
      const Generated told = Generate(weights, count, count % 2 == 0, alone.tokens);
      EXPECT_EQ(alone.logits, told.logits);
    }
}

}  // namespace
}  // namespace celer
