// Prompts by warpgroup products, and by cuBLASLt with weights that are kept as rows, against the same prompts
// as on a GPU that has no warpgroup products, where weights are unpacked for cuBLASLt.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/device.h"
#include "device/gpu/gpu_code.h"
#include "kernels/shared/test_util.h"
#include "models/cuda/decoder_test_util.h"

namespace celer {
namespace {

constexpr int kVocab = 1000, kBlocks = 32;

// Logits of the last token of each of two sequences that come in one batch.
enum class Products { kWgmma, kUnpacked, kRows, kFp8, kInt8 };
CudaDecoderOptions OptionsOf(const char* weights, Products products) {
  CudaDecoderOptions options;
  options.weights = *WeightOptions::Parse(weights);
  options.context = kBlocks * 16;
  options.max_tokens = 1024;
  options.wgmma = products != Products::kUnpacked;
  if (products == Products::kRows) options.row_copies = RowCopies::kOn;
  if (products == Products::kFp8) options.activations = Activations::kFp8;
  if (products == Products::kInt8) options.activations = Activations::kInt8;
  return options;
}

DecoderWithKv MakeDecoder(const char* weights, Products products, int64_t sequences) {
  return MakeRandomDecoder(FromLlmShape({{.layers = 3,
                                          .hidden = 1024,
                                          .intermediate = 2816,
                                          .vocab = kVocab,
                                          .heads = 16,
                                          .kv_heads = 4,
                                          .head_dim = 64},
                                         {},
                                         "test"}),
                           OptionsOf(weights, products), sequences * kBlocks);
}

// A sequence's tokens of one batch, after `past` earlier ones.
struct Slice {
  int sequence, past, count;
};
// Logits of the last token of each.
std::vector<float> LogitsOf(const DecoderWithKv& decoder, const std::vector<Slice>& slices) {
  std::vector<int32_t> table, tokens, positions, starts = {0}, rows;
  for (const Slice& s : slices) {
    for (int i = 0; i < s.count; ++i) {
      tokens.push_back(((s.past + i) * 37 + s.sequence * 100) % kVocab);
      positions.push_back(s.past + i);
    }
    starts.push_back(static_cast<int32_t>(tokens.size()));
    rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    for (int b = 0; b < kBlocks; ++b) table.push_back(s.sequence * kBlocks + b);
  }
  const auto run = decoder->Forward({.tokens = tokens,
                                     .positions = positions,
                                     .seq_start = starts,
                                     .block_table = table,
                                     .max_blocks = kBlocks,
                                     .logit_rows = rows});
  EXPECT_TRUE(run) << run.error().message();
  auto logits = decoder->Logits();
  if (!logits) {
    ADD_FAILURE() << logits.error().message();
    return {};
  }
  return std::vector<float>(logits->begin(), logits->end());
}

std::vector<float> PromptLogits(const char* weights, Products products, int first, int second) {
  const auto decoder = MakeDecoder(weights, products, 2);
  if (!decoder) return {};
  return LogitsOf(decoder, {{0, 0, first}, {1, 0, second}});
}

// Both have bf16 weights and activations, rounded in other places: six times a layer, by 2^-8 at most.
constexpr double kBf16Error = 6.0 / 256;  // sqrt(2 * 3 * 6) times
void ExpectClose(const std::vector<float>& got, const std::vector<float>& wanted, double most = kBf16Error) {
  ASSERT_GE(got.size(), size_t{2} * kVocab);
  ASSERT_EQ(wanted.size(), got.size());
  for (size_t row = 0; row < got.size(); row += kVocab)
    EXPECT_LT(
        testing::RelativeError(std::span(got).subspan(row, kVocab), std::span(wanted).subspan(row, kVocab)),
        most)
        << row;
}

TEST(CudaPromptProducts, AgreeWithUnpackedWeights) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* weights :
       {"bf16", "int8", "int8-g32", "int4-g32", "int4-g64", "int4-g128", "fp8", "fp8-g128"})
    for (const auto& [first, second] : {std::pair(9, 5), {100, 31}, {300, 1}, {256, 512}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << first << " and " << second << " tokens");
      ExpectClose(PromptLogits(weights, Products::kWgmma, first, second),
                  PromptLogits(weights, Products::kUnpacked, first, second));
    }
}

TEST(CudaPromptProducts, RowsAgreeWithUnpackedWeights) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* weights : {"bf16", "f16"})
    for (const auto& [first, second] : {std::pair(9, 5), {20, 5}, {100, 31}, {300, 1}, {256, 512}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << first << " and " << second << " tokens");
      ExpectClose(PromptLogits(weights, Products::kRows, first, second),
                  PromptLogits(weights, Products::kUnpacked, first, second));
    }
}

// A code has four bits: a product of two is off by about 4 % of its size, and so is a sum of many, since
// their errors are independent. Twelve products, one after the other, give sqrt(12) times that or a little
// more: 0.16 at most was seen.
TEST(CudaPromptProducts, Fp8IsNear) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  if (CodeOnGpu(0).stands_for < 89) GTEST_SKIP() << "no products of fp8 before compute capability 8.9";
  for (const char* weights : {"bf16", "int8", "int4-g64", "fp8", "fp8-g128"})
    for (const auto& [first, second] : {std::pair(9, 5), {100, 31}, {256, 512}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << first << " and " << second << " tokens");
      const std::vector<float> got = PromptLogits(weights, Products::kFp8, first, second);
      ExpectClose(got, PromptLogits(weights, Products::kUnpacked, first, second), 0.2);
      EXPECT_EQ(got, PromptLogits(weights, Products::kFp8, first, second)) << "the same bits again";
    }
}

// Of values without outliers a code's error is about 1 % of their size, as much for weights: twelve
// products in a row give sqrt(24) times that, and the bound is twice as much.
TEST(CudaPromptProducts, Int8IsNear) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* weights : {"bf16", "int8", "int4-g64"})
    for (const auto& [first, second] : {std::pair(9, 5), {100, 31}, {256, 512}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << first << " and " << second << " tokens");
      const std::vector<float> got = PromptLogits(weights, Products::kInt8, first, second);
      ExpectClose(got, PromptLogits(weights, Products::kUnpacked, first, second), 0.1);
      EXPECT_EQ(got, PromptLogits(weights, Products::kInt8, first, second)) << "the same bits again";
    }
}

// Sequences that decode beside a long prompt, which comes in pieces: their attention is not that of prompts.
TEST(CudaPromptProducts, SingleTokensBesideAPrompt) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const Products products : {Products::kWgmma, Products::kUnpacked, Products::kRows})
    for (const int piece : {5, 70, 150, 300}) {
      SCOPED_TRACE(::testing::Message()
                   << "products " << static_cast<int>(products) << ", pieces of " << piece);
      const auto together = MakeDecoder("bf16", products, 4), apart = MakeDecoder("bf16", products, 4);
      if (!together || !apart) return;
      const std::vector<Slice> past = {{0, 0, 400}, {1, 0, 33}, {2, 0, 1}};
      LogitsOf(together, past);
      LogitsOf(apart, past);
      std::vector<Slice> singles = {{0, 400, 1}, {1, 33, 1}, {2, 1, 1}};
      for (int at = 0; at + piece <= 450; at += piece) {
        std::vector<Slice> all = singles;
        all.push_back({3, at, piece});
        const std::vector<float> got = LogitsOf(together, all);
        std::vector<float> wanted = LogitsOf(apart, singles);
        const std::vector<float> prompt = LogitsOf(apart, {{3, at, piece}});
        wanted.insert(wanted.end(), prompt.begin(), prompt.end());
        ExpectClose(got, wanted);
        for (Slice& s : singles) ++s.past;
      }
    }
}

}  // namespace
}  // namespace celer
