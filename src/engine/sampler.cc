#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/result.h"

namespace celer {
namespace {

// SplitMix64: a good hash of (seed, step), so that step n needs no state of step n - 1.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Status CheckRange(const char* name, double value, double min, double max, const char* range) {
  if (std::isfinite(value) && value >= min && value <= max) return {};
  return Error::Invalid(name, " is ", value, ", expected ", range);
}

}  // namespace

Status Validate(const SamplingParams& p, int64_t vocab) {
  constexpr double kBig = 1e6;
  CELER_RETURN_IF_ERROR(CheckRange("temperature", p.temperature, 0, 100, "0 to 100"));
  CELER_RETURN_IF_ERROR(
      CheckRange("top-p", p.top_p, std::numeric_limits<float>::min(), 1, "more than 0, at most 1"));
  CELER_RETURN_IF_ERROR(CheckRange("min-p", p.min_p, 0, 1, "0 to 1"));
  CELER_RETURN_IF_ERROR(
      CheckRange("typical-p", p.typical_p, std::numeric_limits<float>::min(), 1, "more than 0, at most 1"));
  CELER_RETURN_IF_ERROR(CheckRange("repetition penalty", p.repetition_penalty, 1e-6, kBig, "more than 0"));
  CELER_RETURN_IF_ERROR(CheckRange("presence penalty", p.presence_penalty, -2, 2, "-2 to 2"));
  CELER_RETURN_IF_ERROR(CheckRange("frequency penalty", p.frequency_penalty, -2, 2, "-2 to 2"));
  if (p.top_k < 0) return Error::Invalid("top-k is ", p.top_k, ", expected 0 (all) or more");
  if (p.logprobs < -1 || p.logprobs > 100)
    return Error::Invalid("logprobs is ", p.logprobs, ", expected 0 to 100");
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab)
      return Error::Invalid("logit bias names token ", token, ", but the vocabulary has ", vocab, " tokens");
    CELER_RETURN_IF_ERROR(CheckRange("logit bias", bias, -kBig, kBig, "a finite number"));
  }
  return {};
}

double LogSumExp(std::span<const float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += std::exp(double{v} - max);
  return max + std::log(sum);
}

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt) : params_(std::move(params)) {
  for (const int32_t token : prompt) ++prompt_counts_[token];
}

double Sampler::NextUniform() {
  const uint64_t bits = Mix(Mix(params_.seed) ^ step_);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void Sampler::Penalize(std::vector<float>* logits) const {
  for (const auto& [token, bias] : params_.logit_bias) (*logits)[static_cast<size_t>(token)] += bias;
  if (params_.repetition_penalty != 1) {
    const auto repeat = [&](int32_t token) {
      float& logit = (*logits)[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    };
    for (const auto& [token, count] : prompt_counts_) repeat(token);
    for (const auto& [token, count] : output_counts_)
      if (!prompt_counts_.contains(token)) repeat(token);
  }
  for (const auto& [token, count] : output_counts_)
    (*logits)[static_cast<size_t>(token)] -=
        params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
}

int32_t Sampler::Draw(std::span<const float> logits) {
  if (params_.temperature == 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_.push_back({static_cast<int32_t>(i), logits[i] / params_.temperature, 0});
  // Most likely first; equal ones by token, so that the order is the same on every machine.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const bool all_need_order = params_.top_p < 1 || params_.typical_p < 1;
  const size_t ordered = !all_need_order && params_.top_k > 0
                             ? std::min(candidates_.size(), static_cast<size_t>(params_.top_k))
                             : candidates_.size();
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(ordered),
                    candidates_.end(), before);

  const auto softmax = [&] {
    double sum = 0;
    for (Candidate& c : candidates_) sum += c.probability = std::exp(c.logit - candidates_[0].logit);
    for (Candidate& c : candidates_) c.probability = static_cast<float>(c.probability / sum);
  };
  softmax();
  if (params_.min_p > 0) {
    const float least = params_.min_p * candidates_[0].probability;
    std::erase_if(candidates_, [&](const Candidate& c) { return c.probability < least; });
    softmax();
  }
  if (params_.typical_p < 1) {
    double entropy = 0;
    for (const Candidate& c : candidates_)
      if (c.probability > 0) entropy -= double{c.probability} * std::log(double{c.probability});
    std::vector<std::pair<double, size_t>> by_surprise;  // distance from the expected surprise, index
    for (size_t i = 0; i < candidates_.size(); ++i)
      by_surprise.emplace_back(
          std::abs(-std::log(std::max(1e-38, double{candidates_[i].probability})) - entropy), i);
    std::sort(by_surprise.begin(), by_surprise.end());
    std::vector<bool> keep(candidates_.size(), false);
    double held = 0;
    for (const auto& [distance, index] : by_surprise) {
      keep[index] = true;
      held += candidates_[index].probability;
      if (held >= params_.typical_p) break;
    }
    std::vector<Candidate> kept;
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (keep[i]) kept.push_back(candidates_[i]);
    candidates_ = std::move(kept);
    softmax();
  }
  if (params_.top_k > 0 && candidates_.size() > static_cast<size_t>(params_.top_k)) {
    candidates_.resize(static_cast<size_t>(params_.top_k));
    softmax();
  }
  if (params_.top_p < 1) {
    double held = 0;
    size_t count = 0;
    while (count < candidates_.size() && held < params_.top_p) held += candidates_[count++].probability;
    candidates_.resize(std::max<size_t>(1, count));
    softmax();
  }

  double target = NextUniform();
  for (const Candidate& c : candidates_) {
    target -= c.probability;
    if (target < 0) return c.token;
  }
  return candidates_[0].token;  // rounding left a little over
}

void Sampler::Accept(int32_t token) {
  ++step_;
  ++output_counts_[token];
}

Sampler::Choice Sampler::Next(std::span<const float> logits) {
  scratch_.assign(logits.begin(), logits.end());
  Penalize(&scratch_);
  Choice choice;
  choice.token = Draw(scratch_);
  Accept(choice.token);

  if (params_.logprobs >= 0) {
    const double total = LogSumExp(logits);
    choice.logprob = static_cast<float>(logits[static_cast<size_t>(choice.token)] - total);
    std::vector<int32_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const auto count = std::min<int64_t>(params_.logprobs, static_cast<int64_t>(order.size()));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = order[static_cast<size_t>(i)];
      choice.top.push_back({token, static_cast<float>(logits[static_cast<size_t>(token)] - total)});
    }
  }
  return choice;
}

}  // namespace celer
