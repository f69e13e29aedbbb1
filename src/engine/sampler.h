// Chooses a token from one row of logits. What it draws depends on the seed and the number of the step alone,
// so a request's text does not depend on its company in the batch.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "celer/engine.h"

namespace celer {

class Sampler {
 public:
  Sampler(SamplingParams params, std::span<const int32_t> prompt);

  struct Choice {
    int32_t token = 0;
    float logprob = 0;              // of the untouched logits
    std::vector<TokenLogprob> top;  // most likely first
  };
  Choice Next(std::span<const float> logits);  // and remembers the choice for the penalties
  void Accept(int32_t token);                  // remembers a choice that was made elsewhere

  const SamplingParams& params() const { return params_; }

 private:
  struct Candidate {
    int32_t token;
    float logit;
    float probability;
  };
  void Penalize(std::vector<float>* logits) const;
  int32_t Draw(std::span<const float> logits);
  double NextUniform();  // in [0, 1)

  SamplingParams params_;
  std::unordered_map<int32_t, int64_t> prompt_counts_;
  std::unordered_map<int32_t, int64_t> output_counts_;
  uint64_t step_ = 0;
  std::vector<float> scratch_;
  std::vector<Candidate> candidates_;
};

// The largest logit, and nothing to report.
inline bool IsPlainGreedy(const SamplingParams& p) {
  return p.temperature == 0 && p.repetition_penalty == 1 && p.presence_penalty == 0 &&
         p.frequency_penalty == 0 && p.logit_bias.empty() && p.logprobs < 0;
}

// log(sum(exp(x))), without overflow.
double LogSumExp(std::span<const float> x);

}  // namespace celer
