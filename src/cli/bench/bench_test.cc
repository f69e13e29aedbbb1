// What `celer bench` makes of its measurements; tests/cli/bench_cli_test.py runs the command itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/bench/batches.h"
#include "cli/bench/ladder.h"
#include "cli/bench/report.h"
#include "limits/quantity.h"

namespace celer::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

BenchReport SomeBenchReport() {
  BenchReport report;
  report.model = "tiny <&> model";
  report.machine = {.name = "m",
                    .source = "flags",
                    .memory_bytes = 1e9,
                    .read_bytes_per_s = 1e9,
                    .flops = {{"f32", 1e10}, {"int8", 1e11}}};
  report.plan.ops = true;
  BenchResult decode{.length = 4096, .batch = 8, .steps = 10, .seconds = {0.5, 0.2, 0.4}};
  decode.work = {.name = "step", .bytes = 1e8, .flops = {{"int8", 1e9}}};
  decode.ops.push_back(
      {.work = {.name = "qkv", .bytes = 1e8, .flops = {{"int8", 1e9}}}, .calls = 20, .seconds = 0.2});
  decode.ops.push_back({.work = {.name = "sampling"}, .calls = 80, .seconds = 0.1});
  BenchResult prefill{.prefill = true, .length = 256, .seconds = {1.0, 2.0}};
  prefill.work = {.name = "step", .bytes = 1e8, .flops = {{"int8", 5e10}, {"f32", 1e9}}};
  report.results = {prefill, decode};
  return report;
}

TEST(BenchResult, MedianAndSpread) {
  const BenchReport report = SomeBenchReport();
  EXPECT_DOUBLE_EQ(report.results[0].median(), 1.5);
  EXPECT_DOUBLE_EQ(report.results[1].median(), 0.4);
  EXPECT_DOUBLE_EQ(report.results[1].fastest(), 0.2);
  EXPECT_DOUBLE_EQ(report.results[1].slowest(), 0.5);
  EXPECT_EQ(report.results[0].tokens(), 256);
  EXPECT_EQ(report.results[1].tokens(), 80);
}

TEST(BenchPlan, PositionsOfTheLongestSequence) {
  BenchPlan plan{.prompts = {16, 300}, .depths = {0, 200}, .batches = {1, 8}, .tokens = 50};
  EXPECT_EQ(plan.positions(), 301);
  EXPECT_EQ(plan.max_batch(), 8);
  plan.tokens = 200;
  EXPECT_EQ(plan.positions(), 401);
  plan.prompts = {};
  plan.tokens = 0;
  EXPECT_EQ(plan.positions(), 2);
}

TEST(BenchReport, RatioIsLimitByTime) {
  const BenchReport report = SomeBenchReport();
  const Against decode = Compare(report.results[1].work, 0.4, report.machine);
  EXPECT_DOUBLE_EQ(decode.ratio, 0.25);
  EXPECT_EQ(decode.bound_by, "memory");
  const Against prefill = Compare(report.results[0].work, 1.5, report.machine);
  EXPECT_DOUBLE_EQ(prefill.limit.compute_s, 0.6);
  EXPECT_DOUBLE_EQ(prefill.ratio, 0.4);
  EXPECT_EQ(prefill.bound_by, "int8 arithmetic");
  EXPECT_EQ(Compare({.name = "sampling"}, 0.1, report.machine).bound_by, "");
}

TEST(BenchReport, TextSaysTokensPerSecondAndTheRest) {
  const std::string text = BenchText(SomeBenchReport());
  EXPECT_THAT(text, HasSubstr("decode at 4,096"));
  EXPECT_THAT(text, HasSubstr("200"));        // 80 tokens in 0.4 s
  EXPECT_THAT(text, HasSubstr("160..400"));   // slowest and fastest
  EXPECT_THAT(text, HasSubstr("800"));        // the limit: 80 tokens in 0.1 s
  EXPECT_THAT(text, HasSubstr("\n  rest "));  // 0.3667 - 0.3 s
  EXPECT_THAT(text, HasSubstr("18.2 %"));
}

TEST(BenchReport, JsonKeepsEverySample) {
  const nlohmann::ordered_json json = BenchJson(SomeBenchReport());
  const auto& decode = json["results"][1];
  EXPECT_EQ(decode["seconds"], (std::vector<double>{0.5, 0.2, 0.4}));
  EXPECT_DOUBLE_EQ(decode["limit_tokens_per_s"], 800);
  EXPECT_DOUBLE_EQ(decode["ratio"], 0.25);
  EXPECT_EQ(decode["depth"], 4096);
  EXPECT_TRUE(decode["ops"][1]["ratio"].is_null());
  EXPECT_NEAR(decode["rest_s"], 1.1 / 3 - 0.3, 1e-12);
  EXPECT_EQ(json["results"][0]["prompt"], 256);
}

TEST(BenchReport, PageHasEveryFigure) {
  const std::string html = BenchHtml(SomeBenchReport());
  EXPECT_THAT(html, HasSubstr("tiny \\u003c&> model"));
  EXPECT_THAT(html, Not(HasSubstr("<&>")));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  // The median of the decode, and its spread.
  EXPECT_THAT(html, HasSubstr(R"("track":1.0,"bar":0.25,"floor":0.0,"low":0.2,"high":0.5)"));
}

TEST(BenchReport, OnAGpuTheRestIsGaps) {
  BenchReport report = SomeBenchReport();
  report.info.device = "cuda:0 (some GPU)";
  report.results[1].ops[0].seconds = 0.4;  // operators by themselves may take longer than the step
  EXPECT_THAT(BenchText(report), HasSubstr("\n  gaps "));
  EXPECT_THAT(BenchText(report), HasSubstr("-36.4 %"));
  EXPECT_NEAR(BenchJson(report)["results"][1]["gaps_s"], 1.1 / 3 - 0.5, 1e-12);
  EXPECT_THAT(BenchHtml(report), HasSubstr(R"("name":"gaps")"));
}

// Decodes of 8B in bf16 on the GPU whose peers are known.
BenchReport OverBatches(std::vector<int64_t> batches, int64_t depth) {
  BenchReport report = SomeBenchReport();
  report.info.device = "cuda:0 (NVIDIA H200)";
  report.info.shape = *FindModelPreset("llama-3.1-8b");
  report.info.bytes_by_format = {{"bf16", 16'000'000'000}};
  report.results.clear();
  for (const int64_t batch : batches) {
    BenchResult decode{.length = depth, .batch = batch, .steps = 10, .seconds = {0.5}};
    decode.work = {.name = "step", .bytes = 1e8, .flops = {{"f32", 1e9}}};
    report.results.push_back(decode);
  }
  return report;
}

size_t Count(const std::string& text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(BatchCharts, CelerTheLimitAndThePeers) {
  const std::string page = BenchHtml(OverBatches({64, 1, 16}, 512));
  EXPECT_EQ(Count(page, "Throughput over batch size"), 1u);
  for (const char* name : {">celer\\u003c", ">limit\\u003c", "vLLM", "SGLang", "TensorRT-LLM", "aisimulate"})
    EXPECT_THAT(page, HasSubstr(name));
  // Dots: three of celer's, those of three peers at 1, 8, 16 and 64 sequences, and one beside each name.
  EXPECT_EQ(Count(page, "\\u003ccircle"), 3u + 3 * 4 + 4);
}

TEST(BatchCharts, PeersOnlyWhereEverythingMatches) {
  const auto peers = [](const BenchReport& report) {
    const std::string page = BenchHtml(report);
    EXPECT_EQ(Count(page, "Throughput over batch size"), 1u);
    return Count(page, "SGLang") > 0;
  };
  EXPECT_TRUE(peers(OverBatches({1, 16}, 512)));
  EXPECT_FALSE(peers(OverBatches({1, 16}, 496)));
  BenchReport report = OverBatches({1, 16}, 512);
  report.info.device = "cuda:0 (NVIDIA H100)";
  EXPECT_FALSE(peers(report));
  report = OverBatches({1, 16}, 512);
  report.info.shape = *FindModelPreset("llama-2-7b");
  EXPECT_FALSE(peers(report));
  report = OverBatches({1, 16}, 512);
  report.info.bytes_by_format = {{"int4-g128", 4'000'000'000}};
  EXPECT_FALSE(peers(report));
  EXPECT_FALSE(peers(OverBatches({2, 4}, 512)));  // none of theirs lies in between
}

TEST(BatchCharts, NoneForOneBatchSize) {
  for (const BenchReport& report : {OverBatches({64}, 512), SomeBenchReport()})
    EXPECT_EQ(Count(BenchHtml(report), "Throughput over batch size"), 0u);
}

LadderReport Ladder() {
  LadderReport report;
  report.model = "llama<7b>";
  report.device = "cuda:0 (some GPU)";
  report.machine = {
      .name = "m", .source = "flags", .memory_bytes = 1e9, .read_bytes_per_s = 1e9, .flops = {}};
  report.plan = {.prompts = {}, .depths = {8}, .tokens = 100, .repeat = 3};
  double bytes = 4e8;
  for (const LadderStep& step : LadderSteps()) {
    LadderRung rung{.step = step, .weight_bytes = static_cast<int64_t>(bytes / 100), .result = {}};
    rung.result = {.length = 8, .steps = 100, .seconds = {bytes / 5e8, bytes / 4e8, bytes / 8e8}};
    rung.result.work = {.name = "step", .bytes = bytes};
    report.rungs.push_back(rung);
    bytes /= 2;
  }
  return report;
}

TEST(BenchLadder, EveryStepHasItsLimit) {
  const LadderReport report = Ladder();
  ASSERT_GE(report.rungs.size(), 4u);
  const Table table = LadderTable(report);
  ASSERT_EQ(table.rows.size(), report.rungs.size());
  // 100 tokens in 0.8 s, 0.4 s at best.
  EXPECT_EQ(table.rows[0], (std::vector<std::string>{LadderSteps()[0].name, "125.0", "100.0..200.0", "1.00",
                                                     FormatBytes(4e6), "250.0", "0.50"}));
  EXPECT_EQ(table.rows[1][3], "2.00");
  const auto json = LadderJson(report);
  EXPECT_EQ(json["steps"].size(), report.rungs.size());
  EXPECT_DOUBLE_EQ(json["steps"][1]["limit_tokens_per_s"], 500);
  EXPECT_DOUBLE_EQ(json["steps"][1]["ratio"], 0.5);
  const std::string html = LadderHtml(report);
  EXPECT_THAT(html, HasSubstr("llama\\u003c7b>"));
  // The fastest step's limit is the longest track.
  EXPECT_THAT(html, HasSubstr(R"("track":1.0,"bar":0.5,"floor":0.0,"low":0.4,"high":0.8)"));
}

TEST(BenchLadder, NeedsAKnownModelAndAGpu) {
  const auto unknown = MeasureLadder("no-such-model", DeviceOptions::Cuda(), 1, [](const std::string&) {});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message(), HasSubstr("no-such-model"));
  const auto on_cpu = MeasureLadder("llama-2-7b", DeviceOptions(), 1, [](const std::string&) {});
  ASSERT_FALSE(on_cpu);
  EXPECT_THAT(on_cpu.error().message(), HasSubstr("measures a GPU"));
}

}  // namespace
}  // namespace celer::cli
