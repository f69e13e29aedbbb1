// The engines of a server with --data-parallel-size, and which of them gets a request. On the loop's thread.
//
// A request goes where its first token should come soonest: what waits in front of it, and what of its prompt is not in that
// engine's prefix cache. So it follows a cached prefix, unless that engine has so much more to do that another one computes
// the prefix sooner.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "celer/engine_thread.h"

namespace celer::server {

class Replicas {
 public:
  explicit Replicas(std::vector<std::unique_ptr<EngineThread>> engines);

  int64_t size() const { return static_cast<int64_t>(engines_.size()); }
  EngineThread& engine(int64_t rank) { return *engines_[static_cast<size_t>(rank)]; }
  const EngineThread& engine(int64_t rank) const { return *engines_[static_cast<size_t>(rank)]; }

  // What a request adds to an engine's load, until it goes away. It may outlive the engines.
  class Place {
   public:
    Place(Place&&) noexcept = default;
    Place& operator=(Place&& other) noexcept;
    ~Place() { End(); }
    int64_t rank() const { return rank_; }
    void Begin();  // it has its first token
    void End();

   private:
    friend class Replicas;
    struct Load {
      int64_t answers = 0;         // in flight
      int64_t waiting_tokens = 0;  // to compute before the first tokens of those that have none
    };
    Place(std::shared_ptr<Load> load, int64_t rank, int64_t answers, int64_t tokens);

    std::shared_ptr<Load> load_;  // null: it has ended
    int64_t rank_ = 0, answers_ = 0, tokens_ = 0;
  };
  // `rank`: which the client wants; within size().
  Place Choose(const Request& request, std::optional<int64_t> rank);

  std::optional<Error> fault() const;      // of the first that has one
  std::vector<EngineStats> stats() const;  // of each
  int64_t kv_tokens() const;               // of all together
  std::vector<int64_t> InFlight() const;   // answers, of each

 private:
  // As much as so many tokens of a prompt does an answer in flight delay a request that comes.
  static constexpr int64_t kAnswerTokens = 64;

  std::vector<std::unique_ptr<EngineThread>> engines_;
  std::vector<std::shared_ptr<Place::Load>> loads_;
  int64_t next_ = 0;  // of equals, the one that was not chosen for the longest time
};

// Of all engines together.
EngineStats Sum(const std::vector<EngineStats>& stats);

}  // namespace celer::server
