#include "engine/loop/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/file/test_folder.h"

namespace celer {
namespace {

using nlohmann::json;

json ReadTrace(const std::filesystem::path& path) {
  std::ifstream in(path);
  return json::parse(in, nullptr, /*allow_exceptions=*/false);
}

std::vector<json> Named(const json& events, const std::string& name, const std::string& ph = "") {
  std::vector<json> found;
  for (const json& event : events)
    if (event["name"] == name && (ph.empty() || event["ph"] == ph)) found.push_back(event);
  return found;
}

// A step of one token for request 1, with two operators in it.
void AddStep(StepTrace& trace, EngineStats* stats, const std::vector<TokenEvent>& events) {
  StepTrace::Step step(&trace);
  step.Scheduled();
  const auto begin = StepTrace::Clock::now();
  const auto middle = StepTrace::Clock::now();
  trace.operators()->push_back({Op::kQkv, begin, middle});
  trace.operators()->push_back({Op::kAttention, middle, StepTrace::Clock::now()});
  step.Ran();
  ++stats->steps;
  stats->computed_tokens += 3;
  ++stats->generated_tokens;
  stats->running = 1;
  stats->kv_blocks_used = 4;
  step.Committed(*stats, events);
}

TEST(StepTrace, StepsOperatorsRequestsAndCurves) {
  const TestFolder folder;
  auto trace = StepTrace::Create(folder / "trace.json");
  ASSERT_TRUE(trace);
  EngineStats stats;
  (*trace)->Submitted(1, 3, 2);
  AddStep(**trace, &stats, {{.request = 1, .token = 5, .cached_tokens = 2}});
  { const StepTrace::Moves moves(trace->get(), "swap out", 7); }
  stats.swaps = 2;
  AddStep(**trace, &stats, {{.request = 1, .token = 6, .finish = FinishReason::kLength, .last = true}});
  ASSERT_TRUE((*trace)->Close());

  const json events = ReadTrace(folder / "trace.json");
  ASSERT_TRUE(events.is_array());
  EXPECT_EQ(static_cast<int64_t>(events.size()), (*trace)->events() + 3);  // the names of the lanes
  const auto steps = Named(events, "step", "X"), qkv = Named(events, "qkv", "X");
  ASSERT_EQ(steps.size(), 2u);
  ASSERT_EQ(qkv.size(), 2u);
  EXPECT_EQ(steps[1]["args"], (json{{"step", 2}, {"tokens", 3}, {"new_tokens", 1}, {"running", 1}}));
  for (size_t i = 0; i < 2; ++i) {  // what is inside a step is drawn inside it
    const double begin = steps[i]["ts"], end = begin + steps[i]["dur"].get<double>();
    for (const char* inner : {"schedule", "run", "commit", "qkv", "attention"}) {
      const json part = Named(events, inner, "X")[i];
      EXPECT_GE(part["ts"].get<double>(), begin - 0.001) << inner;
      EXPECT_LE(part["ts"].get<double>() + part["dur"].get<double>(), end + 0.0021) << inner;
    }
  }
  EXPECT_EQ(Named(events, "request", "b")[0]["args"]["prompt_tokens"], 3);
  EXPECT_EQ(Named(events, "request", "e")[0]["args"], (json{{"finish", "length"}, {"tokens", 2}}));
  EXPECT_EQ(Named(events, "to the first token", "e")[0]["args"]["cached_tokens"], 2);
  EXPECT_EQ(Named(events, "to the last token", "b").size(), 1u);
  EXPECT_EQ(Named(events, "to the last token", "e").size(), 1u);
  EXPECT_EQ(Named(events, "swap out")[0]["args"]["blocks"], 7);
  EXPECT_EQ(Named(events, "sequences swapped out", "i")[0]["args"]["count"], 2);
  EXPECT_EQ(Named(events, "KV blocks", "C")[0]["args"]["used"], 4);
  EXPECT_EQ(Named(events, "tokens per step", "C")[1]["args"], (json{{"computed", 3}, {"new", 1}}));
}

TEST(StepTrace, ARequestThatNeverBeganAndOneThatIsNotKnown) {
  const TestFolder folder;
  auto trace = StepTrace::Create(folder / "trace.json");
  ASSERT_TRUE(trace);
  (*trace)->Submitted(1, 3, 2);
  StepTrace::Step(trace->get())
      .Idle({{.request = 1, .finish = FinishReason::kCancelled, .last = true},
             {.request = 2, .finish = FinishReason::kRefused, .last = true}});
  ASSERT_TRUE((*trace)->Close());
  const json events = ReadTrace(folder / "trace.json");
  ASSERT_EQ(Named(events, "request", "e").size(), 1u);
  EXPECT_EQ(Named(events, "request", "e")[0]["args"], (json{{"finish", "cancelled"}, {"tokens", 0}}));
  EXPECT_TRUE(Named(events, "to the last token").empty());
}

TEST(StepTrace, IsValidJsonAllTheTime) {
  const TestFolder folder;
  auto trace = StepTrace::Create(folder / "trace.json");
  ASSERT_TRUE(trace);
  EXPECT_EQ(ReadTrace(folder / "trace.json").size(), 3u);
  EngineStats stats;
  size_t before = 3;
  int grown = 0;
  for (int i = 0; i < 4000; ++i) {  // some megabytes: they do not wait for the end
    AddStep(**trace, &stats, {});
    if (i % 500 != 0) continue;
    const json events = ReadTrace(folder / "trace.json");
    ASSERT_TRUE(events.is_array()) << i;
    grown += events.size() > before ? 1 : 0;
    before = events.size();
  }
  EXPECT_GE(grown, 2);
  ASSERT_TRUE((*trace)->Close());
  EXPECT_EQ(Named(ReadTrace(folder / "trace.json"), "step").size(), 4000u);
}

TEST(StepTrace, StopsGrowingAndSaysSo) {
  const TestFolder folder;
  constexpr int64_t kMax = 100'000;
  auto trace = StepTrace::Create(folder / "trace.json", kMax);
  ASSERT_TRUE(trace);
  EngineStats stats;
  for (int i = 0; i < 1000; ++i) AddStep(**trace, &stats, {});
  ASSERT_TRUE((*trace)->Close());
  EXPECT_LT(std::filesystem::file_size(folder / "trace.json"), static_cast<uintmax_t>(kMax + 2048));
  const json events = ReadTrace(folder / "trace.json");
  ASSERT_TRUE(events.is_array());
  EXPECT_GT((*trace)->left_out(), 0);
  EXPECT_EQ(events.back()["args"]["left_out"], (*trace)->left_out());
  // Operators end first, so that the steps go on.
  EXPECT_GT(Named(events, "step").size(), Named(events, "qkv").size());
}

TEST(StepTrace, APathThatCannotBeWritten) {
  EXPECT_FALSE(StepTrace::Create("/no/such/folder/trace.json"));
  auto full = StepTrace::Create("/dev/full");
  EXPECT_FALSE(full);
}

}  // namespace
}  // namespace celer
