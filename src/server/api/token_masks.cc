#include "server/api/token_masks.h"

#include <algorithm>
#include <set>
#include <vector>

#include "engine/text/grammar_mask.h"

namespace celer::server {
namespace {

using Words = std::vector<std::vector<int32_t>>;

class BadWordsMask : public TokenMask {
 public:
  BadWordsMask(std::shared_ptr<const Words> words, int64_t vocab) : words_(std::move(words)), vocab_(vocab) {
    for (const auto& word : *words_) longest_ = std::max(longest_, word.size());
  }

  std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<BadWordsMask>(*this); }

  void Allow(std::span<uint32_t> bits) override {
    AllowFirst(vocab_, bits);
    for (const auto& word : *words_) {
      const size_t before = word.size() - 1;
      if (before <= last_.size() &&
          std::equal(word.begin(), word.end() - 1, last_.end() - static_cast<int64_t>(before)))
        bits[word.back() / 32] &= ~(uint32_t{1} << (word.back() % 32));
    }
  }

  void Accept(int32_t token) override {
    last_.push_back(token);
    if (last_.size() >= longest_) last_.erase(last_.begin());
  }

 private:
  std::shared_ptr<const Words> words_;
  int64_t vocab_;
  size_t longest_ = 1;
  std::vector<int32_t> last_;  // fewer than longest_
};

}  // namespace

std::shared_ptr<const TokenMask> MakeBadWordsMask(const Tokenizer& tokenizer,
                                                  std::span<const std::string> words, int64_t vocab) {
  std::set<std::vector<int32_t>> all;
  for (const std::string& word : words)
    for (const std::string& text : {word, " " + word}) {
      std::vector<int32_t> ids = tokenizer.Encode(text, {.add_special = false, .parse_special = false});
      if (!ids.empty()) all.insert(std::move(ids));
    }
  return std::make_shared<BadWordsMask>(std::make_shared<const Words>(all.begin(), all.end()), vocab);
}

}  // namespace celer::server
