// Traces, replays and their figures; tests/cli/bench_serve_test.py runs the command itself.
#include "cli/bench_serve/bench_serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "limits/quantity.h"
#include "loadtest/http/gzip.h"
#include "loadtest/simulate.h"

namespace celer::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.7500000,374,44\r\n"
    "2023-11-17 00:00:01.2500000,4808,10\r\n"
    "\r\n"
    "2023-11-17T00:00:02+00:00,3,1\n";
constexpr const char* kMooncake =
    "{\"timestamp\": 5000, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 1, 9]}\n"
    "{\"timestamp\": 2000, \"input_length\": 1024, \"output_length\": 3, \"hash_ids\": [0, 2]}\n"
    "{\"timestamp\": 5000, \"input_length\": 30, \"output_length\": 2}\n";

Trace Parse(const std::string& text) {
  const auto trace = ParseTrace(text, "t");
  EXPECT_TRUE(trace) << trace.error().message();
  return trace ? *trace : Trace{};
}

std::string Message(const auto& result) {
  return result ? "no error" : result.error().message();
}

// --- percentiles -----------------------------------------------------------------------------------------

TEST(Percentile, IsThatOfNumpy) {
  const std::vector<double> values = {15, 20, 35, 40, 50, 1, 7};
  // numpy.percentile(values, [0, 50, 90, 99, 100])
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.5), 20);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.9), 44);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.99), 49.4);
  EXPECT_DOUBLE_EQ(Percentile(values, 1), 50);
  EXPECT_DOUBLE_EQ(Percentile({3}, 0.99), 3);
  EXPECT_DOUBLE_EQ(Percentile({}, 0.5), 0);
  const Percentiles p = PercentilesOf(values);
  EXPECT_DOUBLE_EQ(p.mean, 24);
  EXPECT_DOUBLE_EQ(p.max, 50);
}

// --- traces ----------------------------------------------------------------------------------------------

TEST(Trace, ReadsAzure) {
  const Trace trace = Parse(kAzure);
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[0].prompt, 374);
  EXPECT_EQ(trace.requests[0].output, 44);
  EXPECT_EQ(trace.requests[0].arrival_s, 0);
  EXPECT_NEAR(trace.requests[1].arrival_s, 1.5, 1e-6);
  EXPECT_NEAR(trace.requests[2].arrival_s, 2.25, 1e-6);
  EXPECT_EQ(trace.block_tokens, 0);
}

TEST(Trace, ReadsMooncakeInTheOrderOfArrival) {
  const Trace trace = Parse(kMooncake);
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[0].prompt, 1024);
  EXPECT_EQ(trace.requests[0].hashes, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(trace.requests[1].prompt, 1100);
  EXPECT_EQ(trace.requests[1].arrival_s, 3);
  EXPECT_TRUE(trace.requests[2].hashes.empty());
  EXPECT_EQ(trace.block_tokens, 512);
}

TEST(Trace, SaysWhichLineIsWrong) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n",
                    good = "2023-11-16 18:17:03.97,4808,10\n";
  const std::string json = "{\"timestamp\": 0, \"input_length\": 3, \"output_length\": 1}\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "t: holds no requests"},
      {"\n\n", "t: holds no requests"},
      {header, "t: holds no requests"},
      {"time,prompt\n", "t: line 1: 'time,prompt' begins neither"},
      {std::string("\x1b[31m\0bad\n", 10), "t: line 1: '\\x1b[31m"},
      {header + good + "2023-11-16 18:17:03,1\n", "t: line 3: '2023-11-16 18:17:03,1' is not TIMESTAMP,"},
      {header + good + "2023-11-16 18:17:03,1,2,3\n", "t: line 3: "},
      {header + "yesterday,1,2\n", "t: line 2: TIMESTAMP is 'yesterday', expected one like"},
      {header + "2023-13-16 18:17:03,1,2\n", "TIMESTAMP is '2023-13-16 18:17:03'"},
      {header + "2023-02-30 18:17:03,1,2\n", "TIMESTAMP is"},
      {header + "2023-11-16 25:17:03,1,2\n", "TIMESTAMP is"},
      {header + "2023-11-16 18:17:03.,1,2\n", "TIMESTAMP is"},
      {header + "2023-11-16 18:17:03.-5,1,2\n", "TIMESTAMP is"},
      {header + "2023-11-16 18:17:03,0,2\n", "t: line 2: ContextTokens is '0', expected 1 to 16777216"},
      {header + "2023-11-16 18:17:03,5,-2\n", "GeneratedTokens is '-2'"},
      {header + "2023-11-16 18:17:03,5,1e3\n", "GeneratedTokens is '1e3'"},
      {header + "2023-11-16 18:17:03,99999999999999999999,1\n", "ContextTokens is '99999999999999999999'"},
      {json + "{\"timestamp\": 0,\n", "t: line 2"},
      {json + "[1]\n", "t: line 2: expected a JSON object"},
      {json + "{\"input_length\": 3, \"output_length\": 1}\n", "t: line 2: 'timestamp' is missing"},
      {json + "{\"timestamp\": -1, \"input_length\": 3, \"output_length\": 1}\n",
       "t: line 2: 'timestamp' is -1"},
      {json + "{\"timestamp\": 1e300, \"input_length\": 3, \"output_length\": 1}\n",
       "t: line 2: 'timestamp' is"},
      {json + "{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}\n", "'input_length'"},
      {json + "{\"timestamp\": 0, \"input_length\": 3, \"output_length\": \"x\"}\n", "'output_length'"},
      {json + "{\"timestamp\": 0, \"input_length\": 3, \"output_length\": 1, \"hash_ids\": [1, 2]}\n",
       "t: line 2: 'hash_ids' has 2 blocks, but 'input_length' 3 is 1 blocks of 512 tokens"},
      {json + "{\"timestamp\": 0, \"input_length\": 3, \"output_length\": 1, \"hash_ids\": [\"a\"]}\n",
       "'hash_ids'"},
  };
  for (const auto& [text, want] : cases) EXPECT_THAT(Message(ParseTrace(text, "t")), HasSubstr(want)) << text;
}

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST(Gzip, UnpacksAndRefusesWhatIsDamaged) {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += std::to_string(i * 7919 % 1000);
  const std::string packed = Gzip(text);
  const auto back = Gunzip(packed, "f", 1 << 20);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, text);
  const auto two = Gunzip(packed + Gzip("tail"), "f", 1 << 20);  // several streams
  ASSERT_TRUE(two);
  EXPECT_EQ(*two, text + "tail");
  for (const size_t length : {size_t{5}, packed.size() / 2, packed.size() - 1})
    EXPECT_EQ(Message(Gunzip(packed.substr(0, length), "f", 1 << 20)),
              "f: cannot be unpacked: the file ends early");
  std::string wrong = packed;
  wrong[wrong.size() - 6] = static_cast<char>(wrong[wrong.size() - 6] ^ 1);  // the checksum
  EXPECT_THAT(Message(Gunzip(wrong, "f", 1 << 20)), HasSubstr("incorrect data check"));
  EXPECT_THAT(Message(Gunzip(packed + "rubbish", "f", 1 << 20)), HasSubstr("cannot be unpacked"));
  EXPECT_EQ(Message(Gunzip(Gzip(std::string(1 << 20, 'x')), "f", 1000)),
            "f: more than 1000 bytes unpacked, which is the most accepted");
}

TEST(Trace, PoissonArrivalsHaveTheirRate) {
  const Trace trace = PoissonTrace(4, 20000, 10, 5, 1);
  ASSERT_EQ(trace.requests.size(), 20000u);
  EXPECT_NEAR(trace.seconds() / 20000, 0.25, 0.01);
  // The gaps of such arrivals vary as much as they are long.
  double squares = 0;
  for (size_t i = 1; i < trace.requests.size(); ++i)
    squares += std::pow(trace.requests[i].arrival_s - trace.requests[i - 1].arrival_s - 0.25, 2);
  EXPECT_NEAR(std::sqrt(squares / 20000), 0.25, 0.01);
  EXPECT_EQ(PoissonTrace(4, 100, 10, 5, 1).seconds(), trace.requests[99].arrival_s);
  EXPECT_NE(PoissonTrace(4, 100, 10, 5, 2).seconds(), trace.requests[99].arrival_s);
}

TEST(Trace, EqualHashesGiveEqualTokens) {
  for (const double length : {1.0, 0.1, 0.037}) {
    const Trace trace = Scaled(Parse(kMooncake), {.length = length});
    const auto a = PromptOf(trace, 0, 1000), b = PromptOf(trace, 1, 1000), c = PromptOf(trace, 2, 1000);
    EXPECT_EQ(std::ssize(a), std::llround(1024 * length));
    EXPECT_EQ(std::ssize(b), std::llround(1100 * length));
    const auto block = static_cast<int64_t>(512 * length);
    ASSERT_TRUE(std::equal(a.begin(), a.begin() + block, b.begin()));
    // The second blocks are different, and so is a prompt without hashes.
    EXPECT_FALSE(std::equal(a.begin() + block, a.begin() + block + 4, b.begin() + block));
    EXPECT_NE(c[0], b[0]);
    for (const int32_t token : b) EXPECT_TRUE(token >= 0 && token < 1000);
  }
}

TEST(Trace, SharedTokensAreThoseOfAllPromptsBefore) {
  Trace trace{.name = "t", .block_tokens = 24};
  const std::vector<std::vector<int64_t>> hashes = {{1, 2}, {1, 3}, {1, 2, 4}, {5}, {1, 2}, {}, {1, 3}};
  const std::vector<int64_t> prompts = {48, 40, 70, 24, 48, 20, 33};
  for (size_t i = 0; i < hashes.size(); ++i)
    trace.requests.push_back(
        {.arrival_s = double(i), .prompt = prompts[i], .output = 1, .hashes = hashes[i]});
  const std::vector<int64_t> shared = SharedTokens(trace, 1 << 20, 16);
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto own = PromptOf(trace, i, 1 << 20);
    int64_t want = 0;
    for (size_t j = 0; j < i; ++j) {
      const auto other = PromptOf(trace, j, 1 << 20);
      const auto most = static_cast<int64_t>(std::min(own.size() - 1, other.size()));
      const auto differs = std::mismatch(own.begin(), own.begin() + most, other.begin()).first - own.begin();
      want = std::max<int64_t>(want, differs / 16 * 16);
    }
    EXPECT_EQ(shared[i], want) << i;
  }
  EXPECT_EQ(shared, (std::vector<int64_t>{0, 16, 48, 0, 32, 0, 32}));
  // Large enough for all; with 4 blocks what the second and the last share is gone; with one block the first
  // block of the last prompt stays until another comes.
  EXPECT_EQ(SharedTokens(trace, 1 << 20, 16, 1000), shared);
  EXPECT_EQ(SharedTokens(trace, 1 << 20, 16, 4), (std::vector<int64_t>{0, 16, 48, 0, 32, 0, 16}));
  EXPECT_EQ(SharedTokens(trace, 1 << 20, 16, 1), (std::vector<int64_t>{0, 16, 16, 0, 0, 0, 0}));
  // An answer takes room, too.
  trace.requests[1].output = 60;
  EXPECT_EQ(SharedTokens(trace, 1 << 20, 16, 4), (std::vector<int64_t>{0, 16, 16, 0, 32, 0, 16}));
}

TEST(Trace, ScalesRateLengthAndCount) {
  const Trace trace = Scaled(Parse(kAzure), {.rate = 2, .length = 0.5, .requests = 2});
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_NEAR(trace.requests[1].arrival_s, 0.75, 1e-6);
  EXPECT_EQ(trace.requests[1].prompt, 2404);
  EXPECT_EQ(Scaled(Parse(kAzure), {.length = 0.001}).requests[2].prompt, 1);
}

// --- figures ---------------------------------------------------------------------------------------------

TEST(Serve, MetricsOfAReplayByHand) {
  Replay replay;
  // TTFT 1, gaps 0.5 and 1.5; TTFT 0.2, one token; not done.
  replay.requests = {
      {.arrival_s = 1,
       .prompt = 10,
       .output = 3,
       .cached = 4,
       .tokens = 3,
       .first_s = 2,
       .last_s = 4,
       .done = true},
      {.arrival_s = 3, .prompt = 30, .output = 1, .tokens = 1, .first_s = 3.2, .last_s = 3.2, .done = true},
      {.arrival_s = 3, .prompt = 50, .output = 9, .tokens = 2, .first_s = 4, .last_s = 5, .error = "x"}};
  replay.gaps = {0.5, 1.5, 1};
  replay.steps = {{.begin_s = 1, .end_s = 2, .tokens = 10, .running = 1, .waiting = 0, .kv_blocks_used = 2},
                  {.begin_s = 3, .end_s = 6, .tokens = 2, .running = 2, .waiting = 5, .kv_blocks_used = 6}};
  replay.after.kv_blocks = 8;
  replay.before.swaps = 1;
  replay.after.swaps = 4;
  replay.after.recomputations = 2;
  const ServeMetrics m = Summarize(replay, {.ttft = 1.5, .gap = 0.9});
  EXPECT_EQ(m.done, 2);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.seconds, 4);
  EXPECT_EQ(m.busy_s, 4);
  EXPECT_DOUBLE_EQ(m.ttft.p50, 0.6);
  EXPECT_DOUBLE_EQ(m.ttft.max, 1);
  EXPECT_DOUBLE_EQ(m.gap.p50, 1);
  EXPECT_DOUBLE_EQ(m.end_to_end.max, 3);
  EXPECT_DOUBLE_EQ(m.hit_rate(), 0.1);
  EXPECT_EQ(m.output_tokens, 4);
  EXPECT_EQ(m.good, 1);  // the first has a mean gap of 1
  EXPECT_DOUBLE_EQ(m.kv_mean, (0.25 + 3 * 0.75) / 4);
  EXPECT_DOUBLE_EQ(m.kv_peak, 0.75);
  EXPECT_EQ(m.swaps, 3);
  EXPECT_EQ(m.recomputations, 2);
  EXPECT_EQ(Summarize(replay, {}).good, 2);

  const std::vector<TimelinePart> parts = Timeline(replay, 100);  // no more than there are steps
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].at_s, 1.5);
  EXPECT_EQ(parts[0].tokens_per_step, 10);
  EXPECT_EQ(parts[0].kv_share, 0.25);
  EXPECT_EQ(parts[1].waiting, 5);
  EXPECT_EQ(parts[1].tokens_per_step, 2);
  EXPECT_EQ(parts[1].kv_share, 0.75);
  replay.steps[0].end_s = 3;  // into the second part
  EXPECT_EQ(Timeline(replay, 100)[1].tokens_per_step, 6);
}

LlmShape TinyShape() {
  return {{.layers = 2,
           .hidden = 64,
           .intermediate = 96,
           .vocab = 300,
           .heads = 4,
           .kv_heads = 2,
           .head_dim = 16},
          {},
          "tiny"};
}

CostedModel TinyModel() {
  const DecoderConfig config = FromLlmShape(TinyShape());
  const auto matrices = std::make_shared<StepMatrices>(MatricesOf(TinyShape(), {}));
  const int64_t kv = 2 * 2 * 2 * 2 * 16;
  return {.config = config,
          .cost = StepCost(config, [=](const StepShape& s) { return CountStep(config, *matrices, kv, s); }),
          .resident_bytes = BytesOf(*matrices),
          .kv_bytes_per_token = kv};
}

Machine TinyMachine() {
  return {.name = "m",
          .source = "flags",
          .memory_bytes = 4e6,
          .read_bytes_per_s = 1e8,
          .flops = {{"f32", 1e9}, {"bf16", 4e9}}};
}

TEST(Serve, LeastWorkCountsEachPromptAndAnswerOnce) {
  const CostedModel model = TinyModel();
  Replay replay;
  replay.requests = {{.prompt = 20, .output = 5, .cached = 16, .tokens = 5, .done = true},
                     {.prompt = 8, .output = 1, .tokens = 1, .done = true},
                     {.prompt = 999, .output = 1}};  // refused: no work
  const LeastWork least = LeastWorkOf(replay, model.cost, TinyMachine(), 1000);
  EXPECT_EQ(least.steps, 5);
  // The same by steps: both prompts in the first, then one token in each.
  const std::vector<SliceShape> first = {{16, 4, 1}, {0, 8, 1}};
  OperatorWork want = Sum(model.cost.Work(first));
  for (int64_t i = 0; i < 4; ++i) {
    const SliceShape one{.position = 20 + i};
    want += Sum(model.cost.Work({&one, 1}));
  }
  // Each token's row of the embedding is counted by the step's mean number of tokens.
  EXPECT_NEAR(least.work.bytes, want.bytes, 2.0 * 64 * 5);
  EXPECT_NEAR(least.work.flops.at("auto"), want.flops.at("auto"), 1e-6 * want.flops.at("auto"));
  EXPECT_DOUBLE_EQ(least.limit.memory_s, least.work.bytes / 1e8);

  // A KV that holds 10 tokens: 5 steps with 4 to 8 tokens and one with 8 need 3.8 of them. One that holds
  // 4: 10.
  EXPECT_EQ(LeastWorkOf(replay, model.cost, TinyMachine(), 10).steps, 5);
  EXPECT_EQ(LeastWorkOf(replay, model.cost, TinyMachine(), 4).steps, 10);
}

// --- simulation ------------------------------------------------------------------------------------------

struct Simulated {
  Replay replay;
  ServeMetrics metrics;
};

Simulated Play(const Trace& trace, int64_t chunk, int64_t context = 200) {
  const CostedModel model = TinyModel();
  EngineOptions options{.model = "tiny", .context = context, .chunk = chunk};
  auto made = MakeSimulatedEngine(model, TinyMachine(), {}, options);
  EXPECT_TRUE(made) << made.error().message();
  SimulatedClock clock(*made->runner);
  auto replay = PlayTrace(*made->engine, trace, clock, [](int64_t) {});
  EXPECT_TRUE(replay) << replay.error().message();
  return {*replay, Summarize(*replay, {})};
}

Trace SmallTrace(double rate) {
  Trace trace = PoissonTrace(rate, 60, 1, 1, 3);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    trace.requests[i].prompt = 1 + static_cast<int64_t>(i * 37 % 90);
    trace.requests[i].output = 1 + static_cast<int64_t>(i * 13 % 40);
  }
  return trace;
}

TEST(Simulate, TokensInAreTokensOut) {
  const Trace trace = SmallTrace(50);
  const Simulated run = Play(trace, 64);
  int64_t asked = 0, prompts = 0;
  for (const TraceRequest& request : trace.requests) {
    asked += request.output;
    prompts += request.prompt;
  }
  EXPECT_EQ(run.metrics.done, 60);
  EXPECT_EQ(run.metrics.output_tokens, asked);
  EXPECT_EQ(run.metrics.prompt_tokens, prompts);
  EXPECT_EQ(std::ssize(run.replay.gaps), asked - 60);
  for (const ReplayedRequest& r : run.replay.requests) {
    EXPECT_EQ(r.tokens, r.output);
    EXPECT_GT(r.first_s, r.arrival_s);
    EXPECT_GE(r.last_s, r.first_s);
  }
  // Time only goes on, and steps do not overlap.
  for (size_t i = 1; i < run.replay.steps.size(); ++i)
    EXPECT_GE(run.replay.steps[i].begin_s, run.replay.steps[i - 1].end_s);
}

TEST(Simulate, TheSameAgainAndTheSameTextHoweverItIsScheduled) {
  const Trace trace = SmallTrace(50);
  const Simulated a = Play(trace, 64), b = Play(trace, 64);
  EXPECT_EQ(a.replay.text, b.replay.text);
  ASSERT_EQ(a.replay.steps.size(), b.replay.steps.size());
  for (size_t i = 0; i < a.replay.steps.size(); ++i)
    EXPECT_EQ(a.replay.steps[i].end_s, b.replay.steps[i].end_s);
  const Simulated small = Play(trace, 8), slow = Play(SmallTrace(2), 64);
  EXPECT_NE(small.replay.steps.size(), a.replay.steps.size());
  EXPECT_EQ(small.replay.text, a.replay.text);
  EXPECT_EQ(slow.replay.text, a.replay.text);
  EXPECT_LT(slow.metrics.ttft.p90, a.metrics.ttft.p90);
  Trace other = trace;
  other.requests[0].prompt += 1;
  EXPECT_NE(Play(other, 64).replay.text, a.replay.text);
}

TEST(Simulate, OneRequestTakesWhatTheModelOfTimeSays) {
  Trace trace{.name = "t"};
  trace.requests = {{.arrival_s = 0, .prompt = 50, .output = 4},
                    {.arrival_s = 100, .prompt = 20, .output = 1}};
  const Simulated run = Play(trace, 64);
  const StepTime time(TinyModel().cost, TinyMachine(), {});
  const auto seconds = [&](int64_t position, int64_t tokens) {
    const SliceShape slice{.position = position, .tokens = tokens};
    return time.Seconds({&slice, 1});
  };
  EXPECT_NEAR(run.replay.requests[0].ttft(), seconds(0, 50), 1e-12);
  ASSERT_EQ(run.replay.gaps.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(run.replay.gaps[i], seconds(50 + i, 1), 1e-12);
  EXPECT_NEAR(run.replay.requests[1].ttft(), seconds(0, 20), 1e-9);  // the machine waited for it
  EXPECT_NEAR(run.metrics.busy_s,
              seconds(0, 50) + seconds(0, 20) + seconds(50, 1) + seconds(51, 1) + seconds(52, 1), 1e-9);
}

TEST(Simulate, WhatDoesNotFitIsReportedAndTheRestDone) {
  Trace trace{.name = "t"};
  trace.requests = {{.arrival_s = 0, .prompt = 50, .output = 4},
                    {.arrival_s = 0, .prompt = 150, .output = 52},
                    {.arrival_s = 0, .prompt = 150, .output = 51}};
  const Simulated run = Play(trace, 64, 200);
  EXPECT_EQ(run.metrics.done, 2);
  EXPECT_EQ(run.replay.requests[1].error, "needs 201 positions and the context has 200");
  EXPECT_TRUE(run.replay.requests[2].done);
}

TEST(Simulate, AModelMustFitIntoTheMachine) {
  const auto machine = FindMachinePreset("rtx4090");
  ASSERT_TRUE(machine);
  const auto large = LoadCostedModel("llama-3.1-70b", {});
  ASSERT_TRUE(large) << large.error().message();
  EXPECT_THAT(Message(MakeSimulatedEngine(*large, *machine, {}, {.context = 4096})),
              HasSubstr("the weights take 141 GB and rtx4090 has"));
  const auto small = LoadCostedModel("llama-3.1-8b", {});
  ASSERT_TRUE(small);
  const auto made = MakeSimulatedEngine(*small, *machine, {}, {.context = 4096});
  ASSERT_TRUE(made) << made.error().message();
  // 16-bit KV of 8 heads of 128 in 32 layers; 90 % of what the weights leave.
  const double left = machine->memory_bytes - 2 * 8.03e9;
  EXPECT_NEAR(static_cast<double>(made->engine->info().kv_tokens), 0.9 * left / 131072, 100);
  EXPECT_THAT(Message(LoadCostedModel("no-such-model", {})), HasSubstr("no-such-model"));
}

TEST(Simulate, FlagsOfAnySizeAreAnswered) {
  const auto machine = FindMachinePreset("rtx4090");
  const auto model = LoadCostedModel("llama-3.1-8b", {});
  ASSERT_TRUE(machine && model);
  const auto host = MakeSimulatedEngine(
      *model, *machine, {}, {.context = 64, .kv_host_memory = std::numeric_limits<int64_t>::max()});
  ASSERT_TRUE(host) << host.error().message();
  EXPECT_EQ(host->engine->stats().kv_host_blocks, std::numeric_limits<int32_t>::max());
  const auto made = MakeSimulatedEngine(*model, *machine, {}, {.context = 8});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_THAT(Message(MeasureSteps(*made->engine, {.chunk = 4})), HasSubstr("leave no step to be timed"));
}

// --- the report ------------------------------------------------------------------------------------------

ServeReport Report() {
  ServeReport report;
  report.model = "tiny <&> model";
  report.trace = SmallTrace(50);
  report.target = {.ttft = 0.5, .gap = 0.05};
  report.machine = TinyMachine();
  report.simulated = Efficiency();
  report.info.shape = TinyShape();
  report.info.kv_tokens = 1000;
  const Simulated run = Play(report.trace, 64);
  report.run = {.replay = run.replay,
                .metrics = Summarize(run.replay, report.target),
                .least = LeastWorkOf(run.replay, TinyModel().cost, report.machine, 1000)};
  report.hit_bound = 0.374;
  report.hit_bound_here = 0.205;
  return report;
}

TEST(ServeReport, TextJsonAndPageSayTheSame) {
  const ServeReport report = Report();
  const LoadReport said = Describe(report);
  const std::string text = LoadText(said);
  for (const char* words :
       {"60 done", "goodput", "first token (TTFT)", "would have 37.4 %", "size 20.5 %", "ratio"})
    EXPECT_THAT(text, HasSubstr(words));
  const auto& json = said.json;
  EXPECT_EQ(json["result"]["done"], 60);
  EXPECT_EQ(json["simulated"], Efficiency().ToString());
  EXPECT_DOUBLE_EQ(json["result"]["ttft_s"]["p99"], report.run.metrics.ttft.p99);
  EXPECT_DOUBLE_EQ(json["result"]["ratio"], RatioToLeast(report.run));
  EXPECT_GT(RatioToLeast(report.run), 0);
  EXPECT_LT(RatioToLeast(report.run), 1);  // nothing is faster than the least
  EXPECT_EQ(json["timeline"]["at_s"].size(), json["timeline"]["kv_share"].size());
  const std::string html = LoadHtml(said);
  EXPECT_THAT(html, HasSubstr("tiny \\u003c&> model"));
  EXPECT_THAT(html, Not(HasSubstr("<&>")));
  for (const char* words : {"Tokens computed in a step", "KV in use", "waiting", "Served within"})
    EXPECT_THAT(html, HasSubstr(words));
  for (const Chart& chart : said.over_time) {
    EXPECT_THAT(Draw(chart).body, Not(HasSubstr("nan")));
    EXPECT_THAT(Draw(chart).body, Not(HasSubstr("inf")));
  }
}

TEST(ServeReport, AComparisonPrintsTheError) {
  ServeReport report = Report();
  report.simulated.reset();
  ServeComparison comparison{.simulated = report.run,
                             .steps = {{.slices = {{0, 8, 1}}, .seconds = 1}},
                             .step_errors = {0.125},
                             .efficiency = {}};
  comparison.simulated.metrics.ttft.p50 = 1.5 * report.run.metrics.ttft.p50;
  report.comparison = comparison;
  report.info.device = "cpu";
  report.info.threads = 4;
  report.run.cpu_s = 3 * report.run.metrics.busy_s;
  const LoadReport said = Describe(report);
  const std::string text = LoadText(said);
  EXPECT_THAT(text, HasSubstr("+50.0 %"));
  EXPECT_THAT(text, HasSubstr("75.0 % of the time of 4 cores"));
  EXPECT_THAT(text, HasSubstr("12.5 %"));
  EXPECT_EQ(said.json["comparison"]["steps"][0]["error"], 0.125);
  EXPECT_THAT(LoadHtml(said), HasSubstr("simulated"));
}

TEST(ServeReport, OfNothingIsStillAReport) {
  ServeReport report = Report();
  report.run = {};
  for (ReplayedRequest& r : report.run.replay.requests) r.done = false;
  const LoadReport said = Describe(report);
  EXPECT_THAT(LoadText(said), HasSubstr("nothing was computed"));
  EXPECT_THAT(LoadHtml(said), HasSubstr("Nothing was served"));
  EXPECT_EQ(said.json["result"]["ratio"], 0);
}

}  // namespace
}  // namespace celer::cli
