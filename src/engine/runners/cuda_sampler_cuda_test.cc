// The sampling kernel against the CPU's sampler on the same logits.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/device.h"
#include "engine/sample/sampler.h"
#include "kernels/llm/sample/sample_cuda.h"
#include "kernels/shared/cuda/on_device.h"

namespace celer {
namespace {

using cuda::testing::OnDevice;

constexpr int kHostSlots = 8;

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

// One row: what the sequence has said, how it is sampled, what the model thinks of the next token.
struct Row {
  SamplingParams params;
  std::vector<int32_t> prompt = {0}, output = {0};  // the last one is the step's input
  std::vector<float> logits;
};

struct Result {
  std::vector<int32_t> tokens;
  std::vector<cuda::SampleLogprobs> logprobs;
};

// Counts hold all but the input, which the kernel must count itself.
Result SampleOnGpu(const std::vector<Row>& rows, int repeat = 1) {
  const size_t count = rows.size(), vocab = rows[0].logits.size();
  std::vector<float> logits;
  std::vector<int32_t> inputs, positions;
  std::vector<cuda::SampleRow> sampling(count);
  std::vector<std::unique_ptr<OnDevice<uint32_t>>> counts;
  std::vector<std::unique_ptr<OnDevice<int32_t>>> counted;
  std::vector<std::unique_ptr<OnDevice<float>>> biases;
  for (size_t r = 0; r < count; ++r) {
    const Row& row = rows[r];
    const SamplingParams& p = row.params;
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    inputs.push_back(row.output.back());
    positions.push_back(static_cast<int32_t>(row.prompt.size() + row.output.size()) - 1);
    cuda::SampleRow& s = sampling[r];
    s = {.temperature = p.temperature,
         .top_p = p.top_p,
         .top_k = p.top_k,
         .reach = cuda::Reach(p.min_p),
         .repetition = p.repetition_penalty,
         .presence = p.presence_penalty,
         .frequency = p.frequency_penalty,
         .logprobs = p.logprobs,
         .seed = cuda::HashDraw(p.seed),
         .first = static_cast<int32_t>(row.prompt.size()) - 1};
    counts.push_back(std::make_unique<OnDevice<uint32_t>>(std::vector<uint32_t>(vocab)));
    std::vector<int32_t> history = row.prompt;
    history.insert(history.end(), row.output.begin(), row.output.end() - 1);
    const OnDevice<int32_t> on_gpu(history);
    EXPECT_EQ(cudaSuccess,
              cuda::LaunchCountTokens(on_gpu.get(), static_cast<int>(row.prompt.size()),
                                      static_cast<int>(history.size()), counts.back()->get(), nullptr));
    cudaDeviceSynchronize();
    counted.push_back(std::make_unique<OnDevice<int32_t>>(std::vector<int32_t>{positions.back()}));
    s.counts = counts.back()->get();
    s.counted = counted.back()->get();
    if (!p.logit_bias.empty()) {
      std::vector<float> bias(vocab);
      for (const auto& [token, value] : p.logit_bias) bias[token] = value;
      biases.push_back(std::make_unique<OnDevice<float>>(bias));
      s.bias = biases.back()->get();
    }
  }
  const OnDevice<float> device_logits(logits);
  const OnDevice<cuda::SampleRow> device_rows(sampling);
  const OnDevice<int32_t> chosen(std::vector<int32_t>(count * kHostSlots, -1));
  const OnDevice<cuda::SampleLogprobs> logprobs(std::vector<cuda::SampleLogprobs>(count * kHostSlots));
  Result result;
  for (int i = 0; i < repeat; ++i) {  // a step that runs again must not count its input again
    const OnDevice<int32_t> tokens(inputs), at(positions);
    EXPECT_EQ(cudaSuccess, cuda::LaunchSample({.logits = device_logits.get(),
                                               .rows = static_cast<int>(count),
                                               .vocab = static_cast<int>(vocab),
                                               .sampling = device_rows.get(),
                                               .tokens = tokens.get(),
                                               .positions = at.get(),
                                               .host_tokens = chosen.get(),
                                               .host_logprobs = logprobs.get(),
                                               .host_stride = static_cast<int>(count),
                                               .host_slots = kHostSlots},
                                              nullptr));
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    const std::vector<int32_t> next = tokens.Read(), moved = at.Read(), host = chosen.Read();
    const std::vector<cuda::SampleLogprobs> reported = logprobs.Read();
    result.tokens.clear();
    result.logprobs.clear();
    for (size_t r = 0; r < count; ++r) {
      EXPECT_EQ(moved[r], positions[r] + 1);
      const size_t slot = static_cast<size_t>(positions[r] % kHostSlots) * count + r;
      EXPECT_EQ(next[r], std::max(host[slot], 0)) << "the next step's input must be in the vocabulary";
      result.tokens.push_back(host[slot]);
      result.logprobs.push_back(reported[slot]);
    }
  }
  for (size_t r = 0; r < count; ++r) {
    std::vector<uint32_t> expected(vocab);
    for (const int32_t token : rows[r].output) ++expected[token];
    for (const int32_t token : rows[r].prompt) expected[token] |= cuda::kInPrompt;
    EXPECT_EQ(counts[r]->Read(), expected);
  }
  return result;
}

Sampler::Choice SampleOnCpu(const Row& row) {
  Sampler sampler(row.params, row.prompt);
  for (const int32_t token : row.output) sampler.Accept(token);
  return sampler.Next(row.logits);
}

enum class Shape { kFlat, kUsual, kPeaked, kTies, kEqual, kFewLeft };

std::vector<float> Logits(int vocab, Shape shape, std::mt19937& random) {
  std::normal_distribution<float> normal(0, shape == Shape::kFlat     ? 0.1f
                                            : shape == Shape::kPeaked ? 12.0f
                                                                      : 2.5f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& l : logits) {
    l = normal(random);
    if (shape == Shape::kTies) l = std::round(l);
    if (shape == Shape::kEqual) l = -3.25f;
    if (shape == Shape::kFewLeft && random() % 100 != 0) l = -std::numeric_limits<float>::infinity();
  }
  if (shape == Shape::kFewLeft) logits[random() % logits.size()] = 1;
  return logits;
}

SamplingParams Params(std::mt19937& random) {
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  SamplingParams p;
  p.temperature = one_of(0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 1.7f);
  p.top_k = one_of(0, 0, 1, 2, 40, 300, 5000, 1000000);
  p.top_p = one_of(1.0f, 1.0f, 1e-6f, 0.2f, 0.5f, 0.9f, 0.99f);
  p.min_p = one_of(0.0f, 0.0f, 0.02f, 0.5f, 1.0f);
  p.repetition_penalty = one_of(1.0f, 1.0f, 1.3f, 0.8f);
  p.presence_penalty = one_of(0.0f, 0.0f, 0.6f, -1.0f);
  p.frequency_penalty = one_of(0.0f, 0.0f, 0.3f);
  p.logprobs = one_of(-1, -1, 0, 5, 100);
  p.seed = random();
  return p;
}

TEST(CudaSampler, ChoosesWhatTheCpuChooses) {
  NEEDS_GPU();
  std::mt19937 random(7);
  int64_t rows_seen = 0, different = 0;
  for (const int vocab : {1, 2, 31, 257, 1000, 32000, 50257, 128256, 151936, 262144})
    for (const Shape shape :
         {Shape::kFlat, Shape::kUsual, Shape::kPeaked, Shape::kTies, Shape::kEqual, Shape::kFewLeft}) {
      const auto one = [&] { return static_cast<int32_t>(random() % static_cast<unsigned>(vocab)); };
      std::vector<Row> rows(vocab < 32000 ? 64 : vocab < 128256 ? 24 : 8);
      for (Row& row : rows) {
        row.params = Params(random);
        row.logits = Logits(vocab, shape, random);
        row.prompt = {one(), one(), one(), one()};
        row.output = {one(), one(), one(), one(), one()};
        row.output.push_back(row.output[1]);
        if (random() % 4 == 0) row.params.logit_bias = {{one(), 4.0f}, {one(), -100.0f}};
      }
      const Result got = SampleOnGpu(rows, 2);
      for (size_t r = 0; r < rows.size(); ++r) {
        const Sampler::Choice expected = SampleOnCpu(rows[r]);
        ++rows_seen;
        if (expected.token != got.tokens[r]) {
          ++different;
          const SamplingParams& p = rows[r].params;
          printf("vocab %d shape %d: %d, the CPU says %d (T %g, k %d, p %g, min-p %g)\n", vocab,
                 static_cast<int>(shape), got.tokens[r], expected.token, p.temperature, p.top_k, p.top_p,
                 p.min_p);
          continue;
        }
        if (rows[r].params.logprobs < 0) continue;
        const cuda::SampleLogprobs& reported = got.logprobs[r];
        const float tolerance = 2e-5f + 2e-6f * std::abs(expected.logprob);
        if (std::isfinite(expected.logprob)) {
          EXPECT_NEAR(reported.chosen, expected.logprob, tolerance);
        }
        ASSERT_EQ(reported.count, static_cast<int>(expected.top.size()));
        for (size_t i = 0; i < expected.top.size(); ++i) {
          EXPECT_EQ(reported.tokens[i], expected.top[i].token) << vocab << " " << i;
          const float value = expected.top[i].logprob;
          if (!std::isfinite(value)) {
            EXPECT_EQ(reported.values[i], value);
          } else {
            EXPECT_NEAR(reported.values[i], value, 2e-5f + 2e-6f * std::abs(value));
          }
        }
      }
    }
  printf("%ld of %ld choices differ from the CPU's\n", static_cast<long>(different),
         static_cast<long>(rows_seen));
  EXPECT_LE(static_cast<double>(different), 0.001 * static_cast<double>(rows_seen));
}

TEST(CudaSampler, ManyDrawsAreTheCpus) {
  NEEDS_GPU();
  std::mt19937 random(3);
  const std::vector<float> logits = Logits(5003, Shape::kUsual, random);
  const std::pair<SamplingParams, const char*> settings[] = {
      {{.temperature = 1}, "plain"},
      {{.temperature = 0.8f, .top_k = 50, .top_p = 0.9f}, "top-k and top-p"},
      {{.temperature = 1.5f, .min_p = 0.05f}, "min-p"}};
  for (const auto& [params, name] : settings) {
    int different = 0;
    constexpr int kDraws = 4096;
    std::map<int32_t, int> gpu, cpu;
    for (int base = 0; base < kDraws; base += 64) {
      std::vector<Row> rows(64);
      for (size_t r = 0; r < rows.size(); ++r) {
        rows[r].logits = logits;
        rows[r].params = params;
        rows[r].params.seed = static_cast<uint64_t>(base) + r;
      }
      const Result got = SampleOnGpu(rows);
      for (size_t r = 0; r < rows.size(); ++r) {
        const int32_t expected = SampleOnCpu(rows[r]).token;
        different += expected != got.tokens[r];
        ++gpu[got.tokens[r]];
        ++cpu[expected];
      }
    }
    EXPECT_LE(different, kDraws / 1000) << name;
    // The two histograms: half the sum of the differences, which rounding at a few places may make.
    int distance = 0;
    for (const auto& [token, count] : cpu) distance += std::abs(count - gpu[token]);
    EXPECT_LE(distance, 2 * (kDraws / 1000)) << name;
  }
}

TEST(CudaSampler, SpecialLogits) {
  NEEDS_GPU();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> one_left(777, -kInf);
  one_left[700] = -5;
  std::vector<float> infinite(777, 1.0f);
  infinite[3] = kInf;
  std::vector<float> with_nan(777, 0.0f);
  with_nan[0] = std::nanf("");
  with_nan[6] = 90;
  for (const float temperature : {0.0f, 1.0f})
    for (const auto& [logits, expected] :
         {std::pair(one_left, 700), std::pair(infinite, -1), std::pair(with_nan, -1),
          std::pair(std::vector<float>(777, -kInf), -1)}) {
      Row row;
      row.logits = logits;
      row.params.temperature = temperature;
      EXPECT_EQ(SampleOnGpu({row}).tokens[0], expected);
      EXPECT_EQ(SampleOnCpu(row).token, expected);
    }
}

TEST(CudaSampler, ARowThatIsNotFiniteHarmsNoOther) {
  NEEDS_GPU();
  std::mt19937 random(11);
  for (const int vocab : {777, 32000, 128256})
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.temperature = 1},
          SamplingParams{.temperature = 0.8f, .top_k = 50},
          SamplingParams{.temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.1f},
          SamplingParams{.temperature = 1, .logprobs = 5}}) {
      std::vector<Row> rows(5);
      for (size_t r = 0; r < rows.size(); ++r) {
        rows[r].params = params;
        rows[r].params.seed = r;
        rows[r].logits = Logits(vocab, Shape::kUsual, random);
      }
      const Result all_good = SampleOnGpu(rows);
      rows[1].logits[static_cast<size_t>(vocab) - 1] = std::nanf("");
      rows[3].logits[5] = std::numeric_limits<float>::infinity();
      const Result some_bad = SampleOnGpu(rows);
      for (size_t r = 0; r < rows.size(); ++r)
        EXPECT_EQ(some_bad.tokens[r], r % 2 == 1 ? -1 : all_good.tokens[r]) << r << " of " << vocab;
    }
}

TEST(CudaSampler, ReachOfMinP) {
  EXPECT_EQ(cuda::Reach(0), 0xfffffffeu);
  EXPECT_LE(cuda::Reach(1), 4u);
  EXPECT_NEAR(cuda::Reach(0.5f), std::log(2.0) * (1 << 26), 4);
  EXPECT_LT(cuda::Reach(std::numeric_limits<float>::denorm_min()), 0x80000000u);
}

}  // namespace
}  // namespace celer
