#include "server/service/replicas.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace celer::server {

Replicas::Replicas(std::vector<std::unique_ptr<EngineThread>> engines) : engines_(std::move(engines)) {
  CELER_CHECK(!engines_.empty());
  for (size_t i = 0; i < engines_.size(); ++i) loads_.push_back(std::make_shared<Place::Load>());
}

Replicas::Place::Place(std::shared_ptr<Load> load, int64_t rank, int64_t answers, int64_t tokens)
    : load_(std::move(load)), rank_(rank), answers_(answers), tokens_(tokens) {
  load_->answers += answers_;
  load_->waiting_tokens += tokens_;
}

Replicas::Place& Replicas::Place::operator=(Place&& other) noexcept {
  End();
  load_ = std::move(other.load_);
  rank_ = other.rank_;
  answers_ = other.answers_;
  tokens_ = other.tokens_;
  return *this;
}

void Replicas::Place::Begin() {
  if (load_) load_->waiting_tokens -= std::exchange(tokens_, 0);
}

void Replicas::Place::End() {
  if (!load_) return;
  Begin();
  load_->answers -= answers_;
  load_.reset();
}

Replicas::Place Replicas::Choose(const Request& request, std::optional<int64_t> rank) {
  const auto prompt = std::ssize(request.prompt) + std::ssize(request.resumed);
  int64_t best = rank.value_or(0), least = std::numeric_limits<int64_t>::max(), tokens = prompt;
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t candidate = (next_ + i) % size();
    if (rank && candidate != *rank) continue;
    // One alone need not be asked.
    const int64_t cached = size() > 1 ? engine(candidate).CachedTokens(request) : 0;
    const Place::Load& load = *loads_[static_cast<size_t>(candidate)];
    const int64_t cost = load.waiting_tokens + kAnswerTokens * load.answers + prompt - cached;
    if (cost >= least) continue;
    best = candidate;
    least = cost;
    tokens = prompt - cached;
  }
  next_ = (best + 1) % size();
  const int64_t answers = std::max({request.n, request.best_of, request.beam.width, 1});
  return {loads_[static_cast<size_t>(best)], best, answers, tokens};
}

std::optional<Error> Replicas::fault() const {
  for (const auto& engine : engines_)
    if (auto fault = engine->fault()) return fault;
  return std::nullopt;
}

std::vector<EngineStats> Replicas::stats() const {
  std::vector<EngineStats> stats;
  for (const auto& engine : engines_) stats.push_back(engine->stats());
  return stats;
}

int64_t Replicas::kv_tokens() const {
  int64_t tokens = 0;
  for (const auto& engine : engines_) tokens += engine->info().kv_tokens;
  return tokens;
}

std::vector<int64_t> Replicas::InFlight() const {
  std::vector<int64_t> answers;
  for (const auto& load : loads_) answers.push_back(load->answers);
  return answers;
}

EngineStats Sum(const std::vector<EngineStats>& stats) {
  EngineStats sum;
  for (const EngineStats& one : stats) {
    sum.running += one.running;
    sum.waiting += one.waiting;
    sum.kv_blocks += one.kv_blocks;
    sum.kv_blocks_used += one.kv_blocks_used;
  }
  return sum;
}

}  // namespace celer::server
