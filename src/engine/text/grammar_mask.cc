#include "engine/text/grammar_mask.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace celer {
namespace {

// Prepare() does all the work: Accept() only records the token, and Allow() copies the bits.
class GrammarMask : public TokenMask {
 public:
  GrammarMask(Grammar::Pointer grammar, std::string thought_end)
      : state_(std::move(grammar)), thought_end_(std::move(thought_end)), thinking_(!thought_end_.empty()) {}

  std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<GrammarMask>(*this); }

  Result<Prepared> Prepare(uint64_t max_work) override {
    if (thinking_ || ready_) return Prepared{};
    const uint64_t limit = state_.grammar().limits().max_token_steps;
    grammar::Effort effort{std::min(max_work, limit)};
    const auto exceeded = [&]() -> Result<Prepared> {
      if (max_work < limit) return Prepared{.ready = false, .work = max_work};
      return state_.TooMuchWork();
    };
    for (; !accepted_.empty(); accepted_.erase(accepted_.begin()))
      if (state_.Accept(accepted_.front(), effort) == GrammarState::Step::kExceeded) return exceeded();
    bits_.resize(state_.grammar().table().mask_words());
    ready_ = state_.Mask(bits_, effort);
    if (!ready_) return exceeded();
    return Prepared{.work = effort.spent};
  }

  void Allow(std::span<uint32_t> bits) override {
    if (thinking_) return AllowFirst(state_.grammar().table().vocab_size(), bits);
    if (const Result<Prepared> prepared = Prepare(kAnyWork); prepared)
      std::copy_n(bits_.begin(), std::min(bits_.size(), bits.size()), bits.begin());
  }

  void Accept(int32_t token) override {
    if (!thinking_) {
      accepted_.push_back(token);
      ready_ = false;
      return;
    }
    tail_ += state_.grammar().table().Bytes(token);
    const size_t end = tail_.find(thought_end_);
    if (end == std::string::npos) {
      if (tail_.size() > 256) tail_.erase(0, tail_.size() - thought_end_.size());
      return;
    }
    thinking_ = false;
    // White space between that tag and the answer is skipped; other text in the same token as the tag belongs
    // to the answer.
    state_.AcceptBytes(std::string_view(tail_).substr(end + thought_end_.size()));
  }

 private:
  GrammarState state_;
  std::vector<int32_t> accepted_;  // not applied to state_ yet
  std::vector<uint32_t> bits_;     // of the allowed tokens, once they are ready
  bool ready_ = false;
  std::string thought_end_;
  bool thinking_;
  std::string tail_;
};

}  // namespace

void AllowFirst(int64_t tokens, std::span<uint32_t> bits) {
  const auto whole = static_cast<size_t>(tokens / 32);
  std::fill_n(bits.begin(), whole, ~uint32_t{0});
  if (tokens % 32 != 0) bits[whole] |= (uint32_t{1} << (tokens % 32)) - 1;
}

std::shared_ptr<const TokenMask> MakeGrammarMask(Grammar::Pointer grammar, std::string thought_end) {
  return std::make_shared<GrammarMask>(std::move(grammar), std::move(thought_end));
}

}  // namespace celer
