#include "limits/peer_speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/source_dir.h"
#include "limits/model_presets.h"

namespace celer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kH200 = "cuda:0 (NVIDIA H200)";

std::string OneRow(const std::string& row) {
  return R"({"source": "s", "gpu": "g", "engines": {"vllm": "vLLM 1"}, "rows": [)" + row + "]}";
}

TEST(PeerSpeeds, TheFileIsCompiledInAndRight) {
  std::ifstream file(std::string(kSourceDir) + "/src/limits/peer_speeds.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(PeerFiles().front().body, text);
  const auto parsed = PeerSpeeds::Parse(text);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->engines.size(), 3u);
  for (const PeerRow& row : parsed->rows) EXPECT_EQ(row.tokens_per_s.size(), 3u) << row.model << row.batch;
}

TEST(PeerSpeeds, RowsOfAModelOnItsGpu) {
  const PeerSpeeds& speeds = PeerSpeeds::BuiltIn();
  const LlmShape shape = *FindPlainPreset("llama-3.1-8b");
  const auto rows = speeds.Find(kH200, shape, {{"bf16", 1000}, {"f32", 10}});
  const PeerRow* row = FindWork(rows, /*prefill=*/false, 512, 64);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->model, "llama-3.1-8b");
  EXPECT_EQ(row->weights, "bf16");
  EXPECT_EQ(row->best().tokens_per_s, std::max({row->tokens_per_s.at("vllm"), row->tokens_per_s.at("sglang"),
                                                row->tokens_per_s.at("trtllm")}));
  EXPECT_EQ(row->tokens_per_s.at(row->best().engine), row->best().tokens_per_s);
  EXPECT_EQ(FindWork(rows, /*prefill=*/false, 512, 63), nullptr);
  EXPECT_EQ(FindWork(rows, /*prefill=*/false, 511, 64), nullptr);
  EXPECT_NE(FindWork(rows, /*prefill=*/true, 2048, 1), nullptr);
  // The same shape by another name.
  EXPECT_EQ(speeds.Find(kH200, *FindPlainPreset("llama-3-8b"), {{"bf16", 1}}).size(), rows.size());
  // 8-bit weights stand beside fp8.
  const auto eight = speeds.Find(kH200, shape, {{"int8", 1000}, {"bf16", 10}});
  ASSERT_FALSE(eight.empty());
  EXPECT_EQ(eight.front().weights, "fp8");
}

TEST(PeerSpeeds, NothingForOtherGpusShapesAndWeights) {
  const PeerSpeeds& speeds = PeerSpeeds::BuiltIn();
  const LlmShape shape = *FindPlainPreset("llama-3.1-8b");
  for (const char* device : {"cpu", "cuda:0 (NVIDIA H100)", "cuda:0 (NVIDIA H200 NVL)", "NVIDIA H200", ""})
    EXPECT_THAT(speeds.Find(device, shape, {{"bf16", 1}}), IsEmpty()) << device;
  EXPECT_THAT(speeds.Find(kH200, *FindPlainPreset("llama-2-7b"), {{"bf16", 1}}), IsEmpty());
  EXPECT_THAT(speeds.Find(kH200, shape, {{"int4-g128", 1}}), IsEmpty());
  EXPECT_THAT(speeds.Find(kH200, shape, {}), IsEmpty());
}

TEST(PeerSpeeds, OddFilesAreRefused) {
  const std::string good =
      R"({"model": "llama-3.1-8b", "weights": "bf16", "phase": "decode", "prompt": 512, "batch": 1, )"
      R"("tokens_per_s": {"vllm": 5}})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string row = good;
    row.replace(row.find(from), from.size(), to);
    return PeerSpeeds::Parse(OneRow(row));
  };
  ASSERT_TRUE(PeerSpeeds::Parse(OneRow(good)));
  EXPECT_THAT(with("decode", "both").error().message(), HasSubstr("neither decode nor prefill"));
  EXPECT_THAT(with("llama-3.1-8b", "llama-9").error().message(), HasSubstr("llama-9"));
  EXPECT_THAT(with("vllm", "other").error().message(), HasSubstr("'other' is not an engine"));
  EXPECT_FALSE(with(": 5", ": -5"));
  EXPECT_FALSE(with("512", "0"));
  EXPECT_FALSE(with("\"batch\": 1, ", ""));
  EXPECT_FALSE(PeerSpeeds::Parse("{"));
}

}  // namespace
}  // namespace celer
