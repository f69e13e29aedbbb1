#include "engine/sample/beams.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/sample/sampler.h"

namespace celer {

int64_t Beams::Candidates(const Request& request) {
  // Enough that `width` beams stay alive, even if the best candidates all end.
  const auto stops = static_cast<int64_t>(request.stop_tokens.size());
  return std::max<int64_t>(2, 1 + stops) * request.beam.width;
}

Beams::Beams(const Request& request)
    : settings_(request.beam),
      stop_tokens_(request.stop_tokens),
      min_tokens_(request.min_tokens),
      max_tokens_(request.max_tokens),
      candidates_(Candidates(request)) {}

std::vector<Beams::Next> Beams::Advance(std::span<const float> logits, int64_t vocab) {
  struct Option {
    float score, logprob;
    int parent;
    int32_t token;
  };
  const auto better = [](const Option& a, const Option& b) {
    return std::tuple(-a.score, a.parent, a.token) < std::tuple(-b.score, b.parent, b.token);
  };
  const auto width = static_cast<size_t>(settings_.width), row_size = static_cast<size_t>(vocab);
  CELER_CHECK_EQ(logits.size(), running_.size() * row_size);
  const auto length = static_cast<int64_t>(running_[0].tokens.size()) + 1;  // with the token to come
  const bool too_short = length <= min_tokens_;
  const auto stops = [&](int32_t token) {
    return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  };

  // The best of each row are enough.
  std::vector<Option> best, row_best;
  const auto keep = static_cast<size_t>(std::min(candidates_, vocab));
  for (size_t beam = 0; beam < running_.size(); ++beam) {
    const auto row = logits.subspan(beam * row_size, row_size);
    const auto total = static_cast<float>(LogSumExp(row));
    row_best.clear();
    for (size_t t = 0; t < row_size; ++t) {
      const auto token = static_cast<int32_t>(t);
      if (too_short && stops(token)) continue;
      const float logprob = row[t] - total;
      row_best.push_back({running_[beam].score + logprob, logprob, static_cast<int>(beam), token});
    }
    const auto middle = row_best.begin() + static_cast<int64_t>(std::min(keep, row_best.size()));
    std::nth_element(row_best.begin(), middle, row_best.end(), better);
    best.insert(best.end(), row_best.begin(), middle);
  }
  std::sort(best.begin(), best.end(), better);
  best.resize(std::min(best.size(), keep));

  const bool full = ended_.size() >= width;
  const bool closed = !can_improve_ || (full && settings_.early_stopping == BeamSearch::EarlyStopping::kYes);
  std::vector<Text> next;
  std::vector<Next> how;
  const auto extended = [&](const Option& c) {
    Text text = running_[c.parent];
    text.tokens.push_back(c.token);
    text.logprobs.push_back(c.logprob);
    text.score = c.score;
    return text;
  };
  for (size_t i = 0; i < best.size(); ++i) {
    const bool stopped = stops(best[i].token), ends = stopped || length >= max_tokens_;
    if (!ends && next.size() < width) {
      next.push_back(extended(best[i]));
      how.push_back({best[i].parent, best[i].token});
    }
    // Candidates ranked below `width` may extend a beam, but do not become a finished hypothesis.
    if (!ends || i >= width || closed) continue;
    Text text = extended(best[i]);
    text.score /= std::pow(static_cast<float>(length), settings_.length_penalty);
    text.stopped = stopped;
    const auto place = std::find_if(ended_.begin(), ended_.end(),
                                    [&](const Text& other) { return other.score < text.score; });
    ended_.insert(place, std::move(text));
    if (ended_.size() > width) ended_.pop_back();
  }
  running_ = std::move(next);
  if (running_.empty()) return {};

  const bool all_ended = ended_.size() >= width;
  const bool to_the_end =
      settings_.early_stopping == BeamSearch::EarlyStopping::kNever && settings_.length_penalty > 0;
  const float possible = running_[0].score / std::pow(static_cast<float>(to_the_end ? max_tokens_ : length),
                                                      settings_.length_penalty);
  can_improve_ = can_improve_ && (!all_ended || possible > ended_.back().score);
  const bool enough = all_ended && settings_.early_stopping == BeamSearch::EarlyStopping::kYes;
  return can_improve_ && !enough ? how : std::vector<Next>();
}

}  // namespace celer
