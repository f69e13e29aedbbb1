// Sampling on the GPU through the engine: the CPU's tokens, the same ones every time, in any batch.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "base/device.h"
#include "base/source_dir.h"
#include "celer/engine.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

struct Said {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> tops;
};

std::map<int64_t, Said> Generate(const EngineOptions& options, const std::vector<Request>& requests) {
  std::map<int64_t, Said> out;
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return out;
  }
  for (const Request& request : requests) EXPECT_TRUE((*engine)->Submit(request));
  while ((*engine)->HasWork())
    for (const TokenEvent& event : (*engine)->Step()) {
      Said& said = out[event.request];
      said.tokens.push_back(event.token);
      said.logprobs.push_back(event.logprob);
      said.tops.push_back(event.top);
    }
  EXPECT_FALSE((*engine)->fault());
  return out;
}

// Sampling of many kinds; the requests end at different times, so that steps which were queued ahead are
// thrown away and run again for the others.
std::vector<Request> Requests(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request;
    for (int j = 0; j < 3 + i % 4; ++j) request.prompt.push_back((31 * i + 7 * j + 1) % 48);
    request.max_tokens = 40 - 3 * (i % 5);
    SamplingParams& p = request.sampling;
    p.seed = static_cast<uint64_t>(1000 + i);
    p.temperature = i % 4 == 3 ? 0.0f : 0.8f + 0.1f * static_cast<float>(i % 3);
    if (i % 3 == 1) p.top_k = 20;
    if (i % 3 != 0) p.top_p = 0.9f;
    if (i % 5 == 2) p.min_p = 0.02f;
    if (i % 2 == 0) p.repetition_penalty = 1.2f, p.frequency_penalty = 0.3f;
    if (i % 4 == 1) p.presence_penalty = 0.5f, p.logit_bias = {{5, 1.0f}};
    if (i % 3 == 2) p.logprobs = 3;
    requests.push_back(std::move(request));
  }
  return requests;
}

EngineOptions Options(const char* model, const char* device) {
  return {.model = (fs::path(kSourceDir) / "tests/golden/models" / model).string(),
          .device = *DeviceOptions::Parse(device),
          .context = 256,
          .chunk = 8,
          .sequences = 8};
}

TEST(CudaSampling, TokensAreTheCpus) {
  NEEDS_GPU();
  int64_t same = 0, all = 0;
  for (const char* model : {"llama3", "qwen2"})
    for (const Request& request : Requests(8)) {
      const auto gpu = Generate(Options(model, "cuda"), {request}).at(1);
      const auto cpu = Generate(Options(model, "cpu"), {request}).at(1);
      ASSERT_EQ(gpu.tokens.size(), cpu.tokens.size());
      ++all;
      if (gpu.tokens != cpu.tokens) continue;  // logits differ in their last bits: a draw may fall beside
      ++same;
      for (size_t i = 0; i < cpu.tokens.size(); ++i) {
        EXPECT_NEAR(gpu.logprobs[i], cpu.logprobs[i], 0.05);
        ASSERT_EQ(gpu.tops[i].size(), cpu.tops[i].size());
        for (size_t k = 0; k < cpu.tops[i].size(); ++k)
          EXPECT_NEAR(gpu.tops[i][k].logprob, cpu.tops[i][k].logprob, 0.05);
      }
    }
  printf("%ld of %ld texts are the CPU's\n", static_cast<long>(same), static_cast<long>(all));
  EXPECT_GE(same, all / 2);
}

TEST(CudaSampling, SameSeedSameText) {
  NEEDS_GPU();
  const std::vector<Request> requests = Requests(8);
  const auto once = Generate(Options("llama3", "cuda"), requests);
  const auto again = Generate(Options("llama3", "cuda"), requests);
  ASSERT_EQ(once.size(), requests.size());
  for (const auto& [id, said] : once) EXPECT_EQ(said.tokens, again.at(id).tokens) << "request " << id;
}

// Up to four tokens run in kernels whose results do not depend on the rest of the batch.
TEST(CudaSampling, CompanyChangesNothing) {
  NEEDS_GPU();
  const std::vector<Request> requests = Requests(4);
  EngineOptions options = Options("llama3", "cuda");
  options.chunk = 4;
  const auto together = Generate(options, requests);
  ASSERT_EQ(together.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(Generate(options, {requests[i]}).at(1).tokens, together.at(static_cast<int64_t>(i) + 1).tokens)
        << "request " << i;
}

// Typical-p is sampled on the CPU; with it in the batch all are, and no text changes.
TEST(CudaSampling, TypicalRunsOnTheCpu) {
  NEEDS_GPU();
  std::vector<Request> requests = Requests(3);
  requests[1].sampling = {.temperature = 1, .typical_p = 0.5f, .seed = 3};
  requests[1].max_tokens = 9;  // the others go on without it
  EngineOptions options = Options("llama3", "cuda");
  options.chunk = 4;
  const auto together = Generate(options, requests);
  const auto alone = Generate(options, {requests[0]});
  EXPECT_EQ(alone.at(1).tokens, together.at(1).tokens);
  EXPECT_EQ(together.at(2).tokens.size(), 9u);
}

// The ways of launching a step compute the same.
TEST(CudaSampling, LaunchChangesNothing) {
  NEEDS_GPU();
  const std::vector<Request> requests = Requests(2);
  EngineOptions options = Options("llama3", "cuda");
  options.launch = StepLaunch::kGraph;
  const auto graph = Generate(options, requests);
  options.launch = StepLaunch::kEager;
  const auto eager = Generate(options, requests);
  for (const auto& [id, said] : graph) EXPECT_EQ(said.tokens, eager.at(id).tokens);
}

TEST(CudaSampling, ProfileSeesEveryOperator) {
  NEEDS_GPU();
  auto engine = Engine::Load(Options("llama3", "cuda"));
  ASSERT_TRUE(engine) << engine.error().message();
  ASSERT_TRUE((*engine)->Submit(Requests(1)[0]));
  (*engine)->StartProfile();
  while ((*engine)->HasWork()) (*engine)->Step();
  (*engine)->StopProfile();
  std::map<std::string, OperatorTime> by_name;
  for (const OperatorTime& time : (*engine)->Profile()) by_name[time.name] = time;
  for (const OperatorWork& work : (*engine)->Work({.position = 5})) {
    ASSERT_TRUE(by_name.contains(work.name)) << work.name;
    EXPECT_GT(by_name[work.name].calls, 0);
  }
  EXPECT_GT(by_name["attention"].seconds, 0);
}

}  // namespace
}  // namespace celer
