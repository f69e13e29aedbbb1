// Large batches on a GPU, and `deterministic`: the same bits whatever else runs.
#include <gtest/gtest.h>

#include <map>

#include "base/device.h"
#include "base/source_dir.h"
#include "celer/engine.h"

namespace celer {
namespace {

const std::string kFolder = std::string(kSourceDir) + "/tests/golden/";

#define NEEDS_CUDA() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

std::unique_ptr<Engine> MustLoad(const std::string& model, EngineOptions options) {
  options.model = kFolder + model;
  options.device = DeviceOptions::Cuda(0);
  if (options.sequences == 0) options.kv_memory.bytes = int64_t{64} << 20;  // other tests need some, too
  auto engine = Engine::Load(options);
  if (!engine) ADD_FAILURE() << engine.error().message();
  return engine ? std::move(*engine) : nullptr;
}

Request Ask(int seed, int length, int64_t tokens) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back((seed * 31 + i * i * 7 + i) % 48);
  request.max_tokens = tokens;
  request.sampling.logprobs = 0;
  if (seed % 3 == 1) {
    request.sampling.temperature = 1.2f;
    request.sampling.seed = static_cast<uint64_t>(seed);
  }
  return request;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

std::map<int64_t, Answer> Drain(Engine& engine) {
  std::map<int64_t, Answer> out;
  while (engine.HasWork()) {
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_EQ(event.error, "");
      out[event.request].tokens.push_back(event.token);
      out[event.request].logprobs.push_back(event.logprob);
    }
    if (engine.fault()) ADD_FAILURE() << engine.fault()->message();
  }
  return out;
}

// Requests one after the other, each alone.
std::vector<Answer> Alone(const std::string& model, const EngineOptions& options,
                          const std::vector<Request>& requests) {
  auto engine = MustLoad(model, options);
  std::vector<Answer> out;
  if (!engine) return out;
  for (const Request& request : requests) {
    const auto id = engine->Submit(request);
    EXPECT_TRUE(id);
    out.push_back(Drain(*engine)[*id]);
  }
  return out;
}

std::vector<Answer> Together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<int64_t> ids;
  for (const Request& request : requests) {
    const auto id = engine.Submit(request);
    EXPECT_TRUE(id);
    ids.push_back(*id);
  }
  auto answers = Drain(engine);
  std::vector<Answer> out;
  for (const int64_t id : ids) out.push_back(std::move(answers[id]));
  return out;
}

void ExpectSame(const std::vector<Answer>& got, const std::vector<Answer>& expected, const std::string& how) {
  ASSERT_EQ(got.size(), expected.size());
  int different = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (++different > 1) continue;
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << how << ", request " << i;
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << how << ", request " << i;
  }
  EXPECT_EQ(different, 0) << how << ": of " << got.size();
}

struct Case {
  const char* model;
  const char* weights;
};
class CudaDeterministic : public ::testing::TestWithParam<Case> {};

TEST_P(CudaDeterministic, CompanyChunksCachePreemptionChangeNoBit) {
  NEEDS_CUDA();
  EngineOptions options{.context = 256, .deterministic = true};
  if (GetParam().weights[0]) options.weights = *WeightOptions::Parse(GetParam().weights);
  std::vector<Request> requests;
  for (int i = 0; i < 90; ++i) requests.push_back(Ask(i, 1 + i * 13 % 120, 4 + i % 23));
  EngineOptions plain = options;
  plain.prefix_cache = false;
  const auto expected = Alone(GetParam().model, plain, requests);
  {
    auto engine = MustLoad(GetParam().model, options);
    ASSERT_TRUE(engine);
    ExpectSame(Together(*engine, requests), expected, "in a batch");
    ExpectSame(Together(*engine, requests), expected, "from the cache");
    // A model with states has few of them to spare for cached prefixes while many requests run.
    const std::vector<Request> few(requests.begin(), requests.begin() + 8);
    for (int i = 0; i < 2; ++i)
      ExpectSame(Together(*engine, few), {expected.begin(), expected.begin() + 8}, "a few from the cache");
    EXPECT_GT(engine->stats().cached_tokens, 0);
  }
  for (const int64_t chunk : {7, 33}) {
    EngineOptions cut = plain;
    cut.chunk = chunk;
    auto engine = MustLoad(GetParam().model, cut);
    ASSERT_TRUE(engine);
    ExpectSame(Together(*engine, requests), expected, "in pieces of " + std::to_string(chunk));
  }
  EngineOptions tight = options;
  tight.sequences = 2;  // KV of two long ones for all
  auto engine = MustLoad(GetParam().model, tight);
  ASSERT_TRUE(engine);
  ExpectSame(Together(*engine, requests), expected, "with little room");
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDeterministic,
                         ::testing::Values(Case{"models/llama3", ""}, Case{"models/llama3", "int8"},
                                           Case{"models/llama3", "fp8"}, Case{"models/qwen2", "int4-g32"},
                                           Case{"gguf/fused-q4_0.gguf", ""}, Case{"models/gemma2", "int8"},
                                           Case{"models/gemma3", ""}, Case{"models/cohere", ""},
                                           Case{"models/gpt2", ""}, Case{"models/granite", ""},
                                           Case{"models/qwen3_5", ""}, Case{"models/mixtral", "bf16"},
                                           Case{"models/qwen2_moe", "int8"}, Case{"models/gpt_oss", "bf16"},
                                           Case{"models/glm4_moe", ""}, Case{"models/minicpm3", ""},
                                           Case{"models/deepseek_v3", ""}));

// More than the graphs hold, and more than one attention launch of old; sequences end at different steps.
TEST(CudaManySequences, AnswersAreThoseOfOneAlone) {
  NEEDS_CUDA();
  std::vector<Request> few, many;
  for (int i = 0; i < 5; ++i) few.push_back(Ask(3 * i, 9 + 17 * i, 6));
  for (int i = 0; i < 400; ++i) {
    many.push_back(few[static_cast<size_t>(i % 5)]);
    many.back().max_tokens = 1 + i % 6;
  }
  const auto expected = Alone("models/llama3", {.context = 128}, few);
  auto engine = MustLoad("models/llama3", {.context = 128, .sequences = 400, .prefix_cache = false});
  ASSERT_TRUE(engine);
  const auto got = Together(*engine, many);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].tokens.size(), i % 6 + 1);
    // Larger batches round to bf16 more often, so only the first token is compared closely.
    EXPECT_NEAR(got[i].logprobs[0], expected[i % 5].logprobs[0], 0.05) << i;
  }
}

}  // namespace
}  // namespace celer
