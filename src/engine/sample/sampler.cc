#include "engine/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/result.h"
#include "base/split_mix.h"

namespace celer {
namespace {

// How far from the largest logit tokens are first looked for, in units of the temperature. At a language
// model's temperature some hundred tokens are nearer, and they hold nearly everything.
constexpr float kFirstReach = 8;
constexpr float kWholeReach = 88;  // nothing further weighs anything in float
constexpr float kSlack = 0.01f;    // more than rounding

float InverseOf(float temperature) {
  return std::min(1 / temperature, std::numeric_limits<float>::max());
}

double WeightOf(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += double{c.weight};
  return sum;
}

// `row` holds the logits, and `total` the logarithm of their sum.
std::vector<TokenLogprob> MostLikely(std::span<const float> logits, double total, int count, LogitRow& row,
                                     std::vector<Candidate>* candidates) {
  std::vector<TokenLogprob> top;
  if (count <= 0) return top;
  row.Gather(row.ReachedBy(static_cast<size_t>(count)), 0, candidates);  // each weighs 1
  const size_t found = std::min(static_cast<size_t>(count), candidates->size());
  SortFirst(*candidates, found);
  for (size_t i = 0; i < found; ++i)
    top.push_back({(*candidates)[i].token, static_cast<float>((*candidates)[i].logit - total)});
  // As many as were requested, even where the rest have probability 0.
  const size_t wanted = std::min(static_cast<size_t>(count), logits.size());
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t t = 0; t < logits.size() && top.size() < wanted; ++t)
    if (logits[t] == kNever) top.push_back({static_cast<int32_t>(t), kNever});
  return top;
}

Status CheckRange(const char* name, double value, double min, double max, const char* range) {
  if (std::isfinite(value) && value >= min && value <= max) return {};
  return Error::Invalid(name, " is ", value, ", expected ", range);
}

float ProbabilityOf(int32_t token, const Distribution& of) {
  const auto it = std::lower_bound(of.begin(), of.end(), token,
                                   [](const TokenProbability& a, int32_t b) { return a.token < b; });
  return it != of.end() && it->token == token ? it->probability : 0;
}

// The residual distribution of rejection sampling, max(0, p - q). Not normalized.
Distribution Without(const Distribution& p, const Distribution& q) {
  Distribution more;
  auto other = q.begin();
  for (const auto& [token, probability] : p) {
    while (other != q.end() && other->token < token) ++other;
    const float less = other != q.end() && other->token == token ? other->probability : 0;
    if (probability > less) more.push_back({token, probability - less});
  }
  return more.empty() ? p : more;  // p and q differ by rounding only
}

int32_t DrawFrom(const Distribution& from, double uniform) {
  double weight = 0;
  for (const TokenProbability& one : from) weight += double{one.probability};
  double left = weight * uniform;
  for (const auto& [token, probability] : from) {
    left -= double{probability};
    if (left < 0) return token;
  }
  return from.back().token;
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
  for (const int32_t token : p.allowed_tokens)
    if (token < 0 || token >= vocab)
      return Error::Invalid("the allowed tokens name token ", token, ", but the vocabulary has ", vocab,
                            " tokens");
  return {};
}

bool LogitsAreFinite(std::span<const float> logits) {
  // Ordered comparisons are false for NaN. No branches: the compiler makes lanes of it.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  uint32_t below = 1, above = 0;
  for (const float logit : logits) {
    below &= static_cast<uint32_t>(logit < kInfinity);
    above |= static_cast<uint32_t>(logit > -kInfinity);
  }
  return (below & above) != 0;
}

double LogSumExp(std::span<const float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += std::exp(double{v} - max);
  return max + std::log(sum);
}

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt) : params_(std::move(params)) {
  if (HasPenalties())
    for (const int32_t token : prompt) ++prompt_counts_[token];
}

double Sampler::Uniform(Purpose purpose) const {
  constexpr uint64_t kApart = 0xd1342543de82ef95u;
  const uint64_t bits =
      SplitMix64(SplitMix64(params_.seed) ^ step_ ^ (static_cast<uint64_t>(purpose) * kApart));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void Sampler::Penalize(std::vector<float>* logits) const {
  for (const auto& [token, bias] : params_.logit_bias) (*logits)[token] += bias;
  if (params_.repetition_penalty != 1) {
    const auto repeat = [&](int32_t token) {
      float& logit = (*logits)[token];
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    };
    for (const auto& [token, count] : prompt_counts_) repeat(token);
    for (const auto& [token, count] : output_counts_)
      if (!prompt_counts_.contains(token)) repeat(token);
  }
  for (const auto& [token, count] : output_counts_)
    (*logits)[token] -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
}

bool Sampler::HasPenalties() const {
  return params_.repetition_penalty != 1 || params_.presence_penalty != 0 || params_.frequency_penalty != 0 ||
         !params_.logit_bias.empty();
}

// A token's weight is exp((logit - max) / temperature): the largest weighs 1. Weights need not sum to 1,
// since every step compares with a share of their sum.
int32_t Sampler::Draw() {
  if (TakesLargest()) return row_.Largest();
  const double uniform = Uniform(Purpose::kToken);
  const double weight = Keep(InverseOf(params_.temperature), uniform);
  const size_t count = TakeUntil(candidates_, weight * uniform, /*exceed=*/true);
  if (count <= candidates_.size()) return candidates_[count - 1].token;
  // Rounding left a little over.
  return std::min_element(candidates_.begin(), candidates_.end(), Before)->token;
}

bool Sampler::TakesLargest() const {
  return params_.temperature == 0 || !std::isfinite(row_.max());
}

double Sampler::Keep(float inverse, double uniform) {
  double weight = 0;
  if (params_.min_p > 0) {
    weight = KeepLargeEnough(inverse);
    if (params_.typical_p < 1) {
      double weighted = 0;
      for (const Candidate& c : candidates_)
        weighted += double{c.weight} * ((double{c.logit} - row_.max()) * inverse);
      weight = KeepTypical(weighted / weight, weight, inverse);
    }
  } else if (params_.typical_p < 1) {
    weight = GatherTypical(inverse);
  } else if (params_.top_k > 0) {
    row_.Gather(row_.ReachedBy(static_cast<size_t>(params_.top_k)), inverse, &candidates_);
    weight = WeightOf(candidates_);
  } else {
    // Only the most likely tokens that hold this much of the weight can be chosen.
    weight = row_.SumWeights(inverse, false).weight;
    const double enough = weight * (params_.top_p < 1 ? double{params_.top_p} : uniform);
    Widen(inverse, uniform < 1 || params_.top_p < 1 ? kFirstReach : kWholeReach,
          [&](float) { return WeightOf(candidates_) > enough; });
  }
  if (params_.top_k > 0) weight = KeepTopK(weight);
  if (params_.top_p < 1) weight = KeepTopP(weight);
  return weight;
}

template <class Enough>
void Sampler::Widen(float inverse, float reach, const Enough& enough) {
  for (;; reach *= 2) {
    const bool all = reach >= kWholeReach;
    row_.Gather(all ? -std::numeric_limits<float>::infinity() : row_.max() - reach / inverse, inverse,
                &candidates_);
    if (all || enough(reach)) return;
  }
}

double Sampler::KeepLargeEnough(float inverse) {
  // Gathers a little more than min-p asks for; the weights decide.
  row_.Gather(row_.max() - (kSlack - std::log(params_.min_p)) / inverse, inverse, &candidates_);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < params_.min_p; });
  return WeightOf(candidates_);
}

// With z = (logit - max) / temperature, a token's surprise is log(sum) - z, and the expected surprise
// log(sum) - mean(z). So the typical tokens are those whose z is nearest the mean.
double Sampler::GatherTypical(float inverse) {
  const LogitRow::Sums sums = row_.SumWeights(inverse, true);
  const double mean = sums.weighted_logit / sums.weight;
  // What is not gathered is further from the mean than mean + reach. So it is enough if those that are nearer
  // hold the share.
  Widen(inverse, kFirstReach - static_cast<float>(2 * mean), [&](float reach) {
    double nearer = 0;
    for (const Candidate& c : candidates_)
      if (std::abs((double{c.logit} - row_.max()) * inverse - mean) < mean + reach - kSlack)
        nearer += double{c.weight};
    return nearer > sums.weight * params_.typical_p;
  });
  return KeepTypical(mean, sums.weight, inverse);
}

double Sampler::KeepTypical(double mean, double weight, float inverse) {
  for (Candidate& c : candidates_)
    c.rank = static_cast<float>(std::abs((double{c.logit} - row_.max()) * inverse - mean));
  const size_t count = TakeUntil(candidates_, weight * params_.typical_p, /*exceed=*/false);
  candidates_.resize(std::min(count, candidates_.size()));
  for (Candidate& c : candidates_) c.rank = -c.logit;
  return WeightOf(candidates_);
}

double Sampler::KeepTopK(double weight) {
  const auto k = static_cast<size_t>(params_.top_k);
  if (candidates_.size() <= k) return weight;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(k), candidates_.end(),
                   Before);
  candidates_.resize(k);
  return WeightOf(candidates_);
}

double Sampler::KeepTopP(double weight) {
  const size_t count = TakeUntil(candidates_, weight * params_.top_p, /*exceed=*/false);
  candidates_.resize(std::min(count, candidates_.size()));
  return WeightOf(candidates_);
}

void Sampler::Accept(int32_t token) {
  ++step_;
  if (TokenMask* const mask = mask_.get()) {
    mask->Accept(token);
    mask_ready_ = false;
  }
  if (HasPenalties()) ++output_counts_[token];
  if (on_trial_) trial_.push_back(token);
}

void Sampler::Mark() {
  on_trial_ = true;
  mask_before_ = mask_;
  mask_ready_before_ = mask_ready_;
}

void Sampler::Rewind() {
  for (const int32_t token : trial_)
    if (const auto it = output_counts_.find(token); it != output_counts_.end() && --it->second == 0)
      output_counts_.erase(it);
  step_ -= trial_.size();
  trial_.clear();
  on_trial_ = false;
  mask_ = std::move(mask_before_);
  mask_ready_ = mask_ready_before_;
}

Result<bool> Sampler::PrepareMask(uint64_t* work) {
  if (!awaits_mask()) return true;
  CELER_ASSIGN(const TokenMask::Prepared prepared, mask_.get()->Prepare(*work));
  *work -= std::min(*work, prepared.work);
  mask_ready_ = prepared.ready;
  return mask_ready_;
}

void Sampler::Forbid(std::vector<int32_t> tokens, int64_t steps) {
  forbidden_ = std::move(tokens);
  forbidden_steps_ = forbidden_.empty() ? 0 : steps;
}

bool Sampler::Constrain(std::vector<float>* logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto vocab = static_cast<int64_t>(logits->size());
  TokenMask* const mask = mask_.get();
  if (mask || !params_.allowed_tokens.empty()) {
    bits_.assign((vocab + 31) / 32, 0);
    if (mask) mask->Allow(bits_);
    std::vector<uint32_t> allowed;
    if (!params_.allowed_tokens.empty()) {
      allowed.assign(bits_.size(), 0);
      for (const int32_t token : params_.allowed_tokens)
        allowed[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      for (size_t i = 0; i < bits_.size(); ++i) bits_[i] = mask ? bits_[i] & allowed[i] : allowed[i];
    }
    for (int64_t first = 0; first < vocab; first += 32) {
      const uint32_t word = bits_[static_cast<size_t>(first) / 32];
      if (word == ~0u) continue;
      for (int64_t t = first; t < std::min(first + 32, vocab); ++t)
        if ((word >> (t - first) & 1) == 0) (*logits)[t] = kNever;
    }
  }
  if (static_cast<int64_t>(step_) < forbidden_steps_)
    for (const int32_t token : forbidden_)
      if (token >= 0 && token < vocab) (*logits)[token] = kNever;
  return std::any_of(logits->begin(), logits->end(), [](float logit) { return logit > kNever; });
}

int32_t Sampler::Load(std::span<const float> logits) {
  if (!LogitsAreFinite(logits)) return kNoToken;
  if (!HasPenalties() && !IsConstrained()) {
    row_.Reset(logits);
    return 0;
  }
  scratch_.assign(logits.begin(), logits.end());
  Penalize(&scratch_);
  if (IsConstrained() && !Constrain(&scratch_)) return kNoneAllowed;
  row_.Reset(scratch_);
  return 0;
}

Sampler::Choice Sampler::Next(std::span<const float> logits) {
  Choice choice;
  if (const int32_t none = Load(logits); none < 0) {
    choice.token = none;
    return choice;
  }
  choice.token = Draw();
  Accept(choice.token);
  if (params_.logprobs >= 0) ReportLogprobs(logits, &choice);
  return choice;
}

Distribution Sampler::DistributionOf(std::span<const float> logits) {
  if (Load(logits) < 0) return {};
  if (TakesLargest()) return {{row_.Largest(), 1.0f}};
  Keep(InverseOf(params_.temperature), 1);
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  const double weight = WeightOf(candidates_);
  Distribution p;
  p.reserve(candidates_.size());
  for (const Candidate& c : candidates_)
    p.push_back({c.token, static_cast<float>(double{c.weight} / weight)});
  return p;
}

int32_t Sampler::DrawDraft(const Distribution& q) const {
  return DrawFrom(q, Uniform(Purpose::kDraft));
}

Sampler::Choice Sampler::Verify(std::span<const float> logits, int32_t draft_token, const Distribution& q) {
  const Distribution p = DistributionOf(logits);
  if (p.empty()) return Next(logits);  // which says why
  Choice choice;
  choice.token = draft_token;
  if (Uniform(Purpose::kAccept) * double{ProbabilityOf(draft_token, q)} >=
      double{ProbabilityOf(draft_token, p)})
    choice.token = DrawFrom(Without(p, q), Uniform(Purpose::kInstead));
  Accept(choice.token);
  if (params_.logprobs >= 0) ReportLogprobs(logits, &choice);
  return choice;
}

void Sampler::ReportLogprobs(std::span<const float> logits, Choice* choice) {
  if (!scratch_.empty()) row_.Reset(logits);
  const double total = LogSumExp(logits);  // to the last bit what Engine::Score() says
  choice->logprob = static_cast<float>(logits[static_cast<size_t>(choice->token)] - total);
  choice->top = MostLikely(logits, total, params_.logprobs, row_, &candidates_);
}

TokenEvent::PromptToken LogprobsOf(std::span<const float> logits, int32_t token, int alternatives) {
  LogitRow row;
  row.Reset(logits);
  std::vector<Candidate> candidates;
  const double total = LogSumExp(logits);
  return {static_cast<float>(logits[token] - total),
          MostLikely(logits, total, alternatives, row, &candidates)};
}

}  // namespace celer
