// Which engine gets a request: the one with its prefix, the least busy one, the one that the client names.
#include "server/service/replicas.h"

#include <gtest/gtest.h>

#include "engine/loop/engine_thread.h"

namespace celer::server {
namespace {

// Runs nothing, and says how much of a prompt it has.
class IdleStepper : public Stepper {
 public:
  explicit IdleStepper(int64_t cached) : cached_(cached) { info_.kv_tokens = 100; }
  const Engine::Info& info() const override { return info_; }
  Status Check(const Request&) const override { return {}; }
  Result<int64_t> Submit(Request) override { return Error::Invalid("it runs nothing"); }
  void Cancel(int64_t) override {}
  bool HasWork() const override { return false; }
  std::vector<TokenEvent> Step() override { return {}; }
  std::optional<Error> fault() const override { return {}; }
  int64_t CachedTokens(const Request& request) const override {
    return std::min(cached_, std::ssize(request.prompt));
  }
  Engine* engine() override { return nullptr; }

 private:
  Engine::Info info_;
  int64_t cached_;
};

Replicas Make(std::initializer_list<int64_t> cached) {
  std::vector<std::unique_ptr<EngineThread>> engines;
  for (const int64_t tokens : cached)
    engines.push_back(
        std::make_unique<EngineThread>(StartEngineThread(std::make_unique<IdleStepper>(tokens))));
  return Replicas(std::move(engines));
}

Request Prompt(int tokens, int n = 1) {
  Request request{.prompt = std::vector<int32_t>(static_cast<size_t>(tokens), 7)};
  request.n = n;
  return request;
}

TEST(Replicas, EqualOnesTakeTurns) {
  Replicas replicas = Make({0, 0, 0});
  std::vector<int64_t> ranks;
  for (int i = 0; i < 7; ++i) ranks.push_back(replicas.Choose(Prompt(10), {}).rank());
  EXPECT_EQ(ranks, (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(replicas.kv_tokens(), 300);
}

TEST(Replicas, TheLongestPrefixWinsUntilItsEngineIsMuchBusier) {
  Replicas replicas = Make({0, 160, 480});
  std::vector<Replicas::Place> places;
  int64_t with_prefix = 0;
  while (true) {
    Replicas::Place place = replicas.Choose(Prompt(500), {});
    if (place.rank() != 2) {
      EXPECT_EQ(place.rank(), 1) << "the second-longest prefix is the next best";
      break;
    }
    place.Begin();
    places.push_back(std::move(place));
    ++with_prefix;
  }
  // 320 tokens more to compute are worth five answers in flight.
  EXPECT_EQ(with_prefix, 5);
  EXPECT_EQ(replicas.InFlight(), (std::vector<int64_t>{0, 0, 5}));
  places.clear();
  EXPECT_EQ(replicas.InFlight(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(replicas.Choose(Prompt(500), {}).rank(), 2);
}

TEST(Replicas, WhatWaitsCountsByItsTokens) {
  Replicas replicas = Make({0, 0});
  Replicas::Place large = replicas.Choose(Prompt(10'000), 0);
  std::vector<Replicas::Place> small;
  for (int i = 0; i < 20; ++i) small.push_back(replicas.Choose(Prompt(10), {}));
  EXPECT_EQ(replicas.InFlight(), (std::vector<int64_t>{1, 20}));
  large.Begin();  // what is left of it is one answer
  EXPECT_EQ(replicas.Choose(Prompt(10), {}).rank(), 0);
  large.End();
  large.End();
  EXPECT_EQ(replicas.InFlight(), (std::vector<int64_t>{0, 20}));
}

TEST(Replicas, TheClientsChoiceIsTakenHoweverBusy) {
  Replicas replicas = Make({0, 480});
  std::vector<Replicas::Place> places;
  for (int i = 0; i < 30; ++i) {
    places.push_back(replicas.Choose(Prompt(500, 4), 0));
    EXPECT_EQ(places.back().rank(), 0);
  }
  EXPECT_EQ(replicas.InFlight(), (std::vector<int64_t>{120, 0}));
}

TEST(Replicas, APlaceOutlivesTheEngines) {
  std::optional<Replicas> replicas(Make({0}));
  Replicas::Place place = replicas->Choose(Prompt(3), {});
  replicas.reset();
  place.Begin();
  place.End();
}

}  // namespace
}  // namespace celer::server
