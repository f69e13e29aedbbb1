// Chooses a token from one row of logits. What it draws depends on the seed and the number of the step alone,
// so a request's text does not depend on the rest of the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "celer/engine.h"
#include "engine/sample/sampler_select.h"

namespace celer {

// Value semantics for the polymorphic mask: copying a sampler clones it.
class CloneOnCopyMask {
 public:
  explicit CloneOnCopyMask(std::shared_ptr<TokenMask> mask = nullptr) : mask_(std::move(mask)) {}
  CloneOnCopyMask(const CloneOnCopyMask& other) : mask_(other.mask_ ? other.mask_->Clone() : nullptr) {}
  CloneOnCopyMask(CloneOnCopyMask&&) noexcept = default;
  CloneOnCopyMask& operator=(CloneOnCopyMask other) noexcept {
    mask_ = std::move(other.mask_);
    return *this;
  }
  TokenMask* get() const { return mask_.get(); }
  const std::shared_ptr<TokenMask>& shared() const { return mask_; }

 private:
  std::shared_ptr<TokenMask> mask_;  // also of the thread that prepares it
};

// A distribution over tokens, in the order of their ids. The probabilities add up to 1.
struct TokenProbability {
  int32_t token;
  float probability;
};
using Distribution = std::vector<TokenProbability>;

class Sampler {
 public:
  Sampler(SamplingParams params, std::span<const int32_t> prompt);

  static constexpr int32_t kNoToken = -1, kNoneAllowed = -2;
  struct Choice {
    // kNoToken: the logits are not finite (see LogitsAreFinite). kNoneAllowed: no token can be chosen.
    int32_t token = 0;
    float logprob = 0;              // of the untouched logits
    std::vector<TokenLogprob> top;  // most likely first
  };
  Choice Next(std::span<const float> logits);  // and remembers the choice, if there is one, for the penalties
  void Accept(int32_t token);                  // remembers a choice that was made elsewhere

  // --- Speculative decoding by rejection sampling: the draft model draws a token from its own distribution
  // q, and the target's distribution p accepts or rejects it. ---

  // What Next() would draw from. Empty: the logits are not finite, or no token can be chosen.
  Distribution DistributionOf(std::span<const float> logits);
  int32_t DrawDraft(const Distribution& q) const;
  // Rejection sampling, in the place of Next(): accepts `draft_token`, which was drawn from `q`, with
  // probability min(1, p / q), else draws from max(0, p - q). The result is distributed as the tokens of
  // Next() are.
  Choice Verify(std::span<const float> logits, int32_t draft_token, const Distribution& q);
  // Tokens accepted after Mark() are on trial: Rewind() takes them back.
  void Mark();
  void Rewind();

  // None of these can be chosen in the first `steps` steps.
  void Forbid(std::vector<int32_t> tokens, int64_t steps);

  // --- The mask, whose work may take long (TokenMask::Prepare). ---

  void set_mask(std::unique_ptr<TokenMask> mask) { mask_ = CloneOnCopyMask(std::move(mask)); }
  bool has_mask() const { return mask_.get() != nullptr; }
  // The next token can be chosen, but not at once.
  bool awaits_mask() const { return has_mask() && !mask_ready_; }
  // Prepares it, if that takes no more than `*work` steps, and subtracts what was spent. True: it is ready,
  // or there is none.
  Result<bool> PrepareMask(uint64_t* work);
  // To a thread that prepares it. The sampler chooses nothing until MaskIsReady() is called.
  std::shared_ptr<TokenMask> LendMask() const { return mask_.shared(); }
  void MaskIsReady() { mask_ready_ = true; }

  // Constrained decoding: some tokens cannot be chosen in the next step.
  bool IsConstrained() const {
    return mask_.get() || !params_.allowed_tokens.empty() || (static_cast<int64_t>(step_) < forbidden_steps_);
  }

  const SamplingParams& params() const { return params_; }

 private:
  bool HasPenalties() const;
  void Penalize(std::vector<float>* logits) const;
  bool Constrain(std::vector<float>* logits);  // false: no token is left
  // Puts the logits of allowed tokens into row_. Returns 0, or kNoToken or kNoneAllowed.
  int32_t Load(std::span<const float> logits);
  bool TakesLargest() const;
  int32_t Draw();  // from row_
  // Leaves those of row_ that can be drawn in candidates_ and returns their weight. With `uniform` below 1
  // only as many as are needed to draw with it.
  double Keep(float inverse_temperature, double uniform);
  // Steps of Keep(). Each leaves the tokens that it keeps in candidates_ and returns their weight.
  double KeepLargeEnough(float inverse_temperature);  // min-p
  double GatherTypical(float inverse_temperature);
  double KeepTypical(double mean, double weight, float inverse_temperature);
  double KeepTopK(double weight);
  double KeepTopP(double weight);
  // Gathers the tokens whose logits are near the largest, then more and more of them until enough(reach) says
  // so, or all. `reach`: in units of the temperature.
  template <class Enough>
  void Widen(float inverse_temperature, float reach, const Enough& enough);
  void ReportLogprobs(std::span<const float> logits, Choice* choice);
  enum class Purpose : uint64_t { kToken, kDraft, kAccept, kInstead };
  double Uniform(Purpose purpose) const;  // in [0, 1), for the next step

  SamplingParams params_;
  std::vector<int32_t> forbidden_;
  int64_t forbidden_steps_ = 0;
  CloneOnCopyMask mask_;
  bool mask_ready_ = false;
  std::vector<uint32_t> bits_;
  std::unordered_map<int32_t, int64_t> prompt_counts_;
  std::unordered_map<int32_t, int64_t> output_counts_;
  uint64_t step_ = 0;
  std::vector<int32_t> trial_;  // accepted after Mark()
  bool on_trial_ = false;
  CloneOnCopyMask mask_before_;
  bool mask_ready_before_ = false;
  std::vector<float> scratch_;
  LogitRow row_;
  std::vector<Candidate> candidates_;
};

// Greedy, without penalties, bias or logprobs.
inline bool IsPlainGreedy(const SamplingParams& p) {
  return p.temperature == 0 && p.repetition_penalty == 1 && p.presence_penalty == 0 &&
         p.frequency_penalty == 0 && p.logit_bias.empty() && p.logprobs < 0;
}

// Whether a token can be chosen: no NaN, no +infinity, and not all of them -infinity.
bool LogitsAreFinite(std::span<const float> logits);

// The log-probability of a token and of the most likely ones.
TokenEvent::PromptToken LogprobsOf(std::span<const float> logits, int32_t token, int alternatives);

// log(sum(exp(x))), without overflow.
double LogSumExp(std::span<const float> x);

}  // namespace celer
