// How well a model predicts a text, and how far two models are apart.
//
//   auto found = celer::MeasurePerplexity(*engine, *prompter, text);
//   std::printf("%.4f +- %.4f\n", found->value(), found->error());
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "celer/error.h"
#include "celer/text.h"

namespace celer {

// A text cut into windows of tokens that are scored one by one.
//
// llama.cpp's method: windows side by side; the second half of each is scored, and each begins with BOS if
// the vocabulary has it. With a stride windows overlap, and each scores the tokens that the one before did
// not.
class TextWindows {
 public:
  // window: 4 tokens or more. stride: less than that; 0: llama.cpp's method. `at_most`: windows, 0 for all there are.
  // `name`: of the text, for the error if it is too short.
  static Result<TextWindows> Cut(const Prompter& prompter, const std::string& text, const std::string& name,
                                 int64_t window, int64_t stride, int64_t at_most);

  int64_t count() const { return count_; }
  std::vector<int32_t> Tokens(int64_t index) const;
  int64_t First(int64_t index) const;  // the first of them that is scored

 private:
  std::vector<int32_t> tokens_;
  std::optional<int32_t> bos_;  // replaces the first token of each window
  int64_t window_ = 0, stride_ = 0, count_ = 0;
};

// e to the mean negative log-likelihood of the tokens that were scored.
class Perplexity {
 public:
  void Add(std::span<const float> logprobs);  // of one window

  double value() const;  // of no token: not a number
  double error() const;  // one standard error
  int64_t tokens() const { return tokens_; }
  int64_t windows() const { return windows_; }

 private:
  double sum_ = 0, squares_ = 0;  // of negative log-likelihoods
  int64_t tokens_ = 0, windows_ = 0;
};

struct PerplexityOptions {
  int64_t window = 512, stride = 0, at_most = 0;  // see TextWindows::Cut
  std::string name = "the text";                  // for errors
  // After each window, with how many there will be; false: no further one.
  std::function<bool(const Perplexity& so_far, int64_t windows)> progress = {};
};
Result<Perplexity> MeasurePerplexity(Engine& engine, const Prompter& prompter, const std::string& text,
                                     const PerplexityOptions& options = {});

// In place: logits become log-probabilities. False if one of them is not a number, or none is finite.
bool LogSoftmax(std::span<float> logits);

// What two distributions over the vocabulary have in common at one position.
struct Agreement {
  double divergence = 0;  // KL(exact || other), in nats
  bool same_top = false;  // the same most likely token
  int shared_top5 = 0;    // of the five most likely ones
};
// Log-probabilities of the same tokens.
Agreement CompareDistributions(std::span<const float> exact, std::span<const float> other);

// Over many positions; of none, Max() and Percentile() are not to be called.
struct Divergence {
  std::vector<float> values = {};  // KL of each position
  int64_t same_top = 0;
  int64_t shared_top5 = 0;

  void Add(const Agreement& at);
  double Mean() const;
  double Max() const;
  double Percentile(double percent) const;  // the nearest rank
  double SameTop() const;                   // a share
  double SharedTop5() const;                // a share
};

}  // namespace celer
