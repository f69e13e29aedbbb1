#include "engine/loop/engine_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/source_dir.h"

namespace celer {
namespace {

using namespace std::chrono_literals;
using Ending = EngineThread::Ending;

std::unique_ptr<Engine> MustLoad() {
  EngineOptions options{.context = 128, .chunk = 32};
  options.model = std::string(kSourceDir) + "/tests/golden/models/llama3";
  options.sequences = 4;
  options.threads = 1;
  auto engine = Engine::Load(options);
  if (!engine) ADD_FAILURE() << engine.error().message();
  return std::move(*engine);
}

Request Ask(int seed, int64_t max_tokens) {
  Request request;
  for (int i = 0; i < 5 + seed % 20; ++i) request.prompt.push_back((seed * 31 + i * i * 7 + i) % 48);
  request.max_tokens = max_tokens;
  if (seed % 2 == 1) request.sampling.temperature = 1.3f;
  request.sampling.seed = static_cast<uint64_t>(seed);
  return request;
}

// What a plain engine says to each of them.
std::map<int, std::vector<int32_t>> Expected(int count, int64_t max_tokens) {
  auto engine = MustLoad();
  std::map<int64_t, int> seeds;
  for (int i = 0; i < count; ++i) seeds[*engine->Submit(Ask(i, max_tokens))] = i;
  std::map<int, std::vector<int32_t>> out;
  while (engine->HasWork())
    for (const TokenEvent& event : engine->Step()) out[seeds[event.request]].push_back(event.token);
  return out;
}

struct Answer {
  std::vector<int32_t> tokens = {};
  FinishReason finish = FinishReason::kNone;
  std::string error = {};
};
Answer ReadAll(EngineThread::Ticket& ticket) {
  Answer answer;
  while (auto event = ticket.Next()) {
    EXPECT_EQ(event->request, ticket.id());
    EXPECT_EQ(answer.finish, FinishReason::kNone) << "an event after the last one";
    answer.finish = event->finish;
    answer.error = event->error;
    if (event->finish != FinishReason::kCancelled && event->finish != FinishReason::kError)
      answer.tokens.push_back(event->token);
  }
  return answer;
}

TEST(EngineThread, ManyThreadsGetWhatAPlainEngineSays) {
  constexpr int kThreads = 4, kEach = 5, kTokens = 12;
  const auto expected = Expected(kThreads * kEach, kTokens);
  EngineThread thread(MustLoad());
  std::vector<std::thread> users;
  for (int t = 0; t < kThreads; ++t)
    users.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int seed = t * kEach + i;
        auto cancelled = thread.Submit(Ask(seed + 100, 100));  // part of the batch for a while
        auto ticket = thread.Submit(Ask(seed, kTokens));
        ASSERT_TRUE(ticket && cancelled);
        if (i % 2 == 0) cancelled->Next(1ms);
        cancelled->Cancel();
        const Answer answer = ReadAll(*ticket);
        EXPECT_EQ(answer.tokens, expected.at(seed));
        EXPECT_EQ(answer.finish, FinishReason::kLength);
        if (i % 3 == 0) {
          const Answer rest = ReadAll(*cancelled);
          EXPECT_TRUE(rest.finish == FinishReason::kCancelled || rest.finish == FinishReason::kLength);
        }
      }
    });
  for (std::thread& user : users) user.join();
}

TEST(EngineThread, CallbacksGetTheSameInOrder) {
  const auto expected = Expected(6, 9);
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<int32_t>> found;
  int finished = 0;
  EngineThread thread(MustLoad());
  std::vector<EngineThread::Ticket> tickets;
  for (int i = 0; i < 6; ++i) {
    auto ticket = thread.Submit(Ask(i, 9), [&, i](const TokenEvent& event) {
      const std::lock_guard lock(mutex);
      found[i].push_back(event.token);
      finished += event.finish != FinishReason::kNone;
      changed.notify_all();
    });
    ASSERT_TRUE(ticket);
    tickets.push_back(*std::move(ticket));
  }
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, 60s, [&] { return finished == 6; }));
  EXPECT_EQ(found, expected);
}

TEST(EngineThread, ASlowReaderHoldsUpNobodyAndLosesNothing) {
  const auto expected = Expected(2, 30);
  EngineThread thread(MustLoad());
  auto slow = thread.Submit(Ask(0, 30)), quick = thread.Submit(Ask(1, 30));
  ASSERT_TRUE(slow && quick);
  EXPECT_EQ(ReadAll(*quick).tokens, expected.at(1));  // though nobody has read the other one
  thread.Stop(Ending::kDrain);
  EXPECT_EQ(ReadAll(*slow).tokens, expected.at(0));  // and it is all there after the end
  EXPECT_FALSE(slow->Next(0ns));
}

TEST(EngineThread, StopDrainsOrCancels) {
  for (const Ending ending : {Ending::kDrain, Ending::kCancel}) {
    EngineThread thread(MustLoad());
    auto ticket = thread.Submit(Ask(3, 60));
    ASSERT_TRUE(ticket);
    thread.Stop(ending);
    const Answer answer = ReadAll(*ticket);
    if (ending == Ending::kDrain) {
      EXPECT_EQ(answer.finish, FinishReason::kLength);
      EXPECT_EQ(answer.tokens.size(), 60u);
    } else {
      EXPECT_TRUE(answer.finish == FinishReason::kCancelled || answer.tokens.size() == 60);
    }
    const auto late = thread.Submit(Ask(1, 1));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code(), Error::Code::kCancelled);
    EXPECT_FALSE(thread.Run([](Engine&) {}));
  }
}

TEST(EngineThread, ATicketThatGoesAwayCancels) {
  EngineThread thread(MustLoad());
  { auto gone = thread.Submit(Ask(1, 100)); }
  bool idle = false;
  for (int i = 0; i < 1000 && !idle; ++i) {
    ASSERT_TRUE(thread.Run([&](Engine& engine) { idle = !engine.HasWork(); }));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(idle);
}

TEST(EngineThread, ATicketOutlivesItsThread) {
  std::optional<EngineThread::Ticket> ticket;
  {
    EngineThread thread(MustLoad());
    auto made = thread.Submit(Ask(1, 100));
    ASSERT_TRUE(made);
    ticket.emplace(*std::move(made));
  }
  const Answer answer = ReadAll(*ticket);
  EXPECT_NE(answer.finish, FinishReason::kNone);
  ticket->Cancel();
}

TEST(EngineThread, BadRequestsAreRefusedAtOnce) {
  EngineThread thread(MustLoad());
  EXPECT_FALSE(thread.Submit({}));
  Request request = Ask(1, 1);
  request.prompt[0] = 100000;
  const auto refused = thread.Submit(request);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("100000"), std::string::npos);
  request = Ask(1, 1);
  request.sampling.top_p = -1;
  EXPECT_FALSE(thread.Submit(request));
}

// Says one token per step to each request, when it is allowed to, and breaks on demand.
class FakeStepper : public Stepper {
 public:
  std::atomic<int64_t>* steps;
  std::atomic<bool>* fail;
  explicit FakeStepper(std::atomic<int64_t>* count, std::atomic<bool>* broken) : steps(count), fail(broken) {}

  const Engine::Info& info() const override { return info_; }
  Status Check(const Request&) const override { return {}; }
  Result<int64_t> Submit(Request request) override {
    if (request.max_tokens == 7) return Error::Invalid("seven is refused late");
    left_[++last_] = request.max_tokens;
    return last_;
  }
  void Cancel(int64_t request) override {
    if (left_.erase(request) > 0) cancelled_.push_back(request);
  }
  bool HasWork() const override { return !left_.empty() || !cancelled_.empty(); }
  std::vector<TokenEvent> Step() override {
    ++*steps;
    std::this_thread::sleep_for(1ms);
    std::vector<TokenEvent> events;
    for (const int64_t id : std::exchange(cancelled_, {}))
      events.push_back({.request = id, .finish = FinishReason::kCancelled, .last = true});
    if (*fail) {
      fault_ = Error::Device("the device has fallen off the bus");
      // Only running requests get events, cancelled or failed.
      if (!left_.empty())
        events.push_back({.request = left_.begin()->first, .finish = FinishReason::kCancelled, .last = true});
      left_.clear();
      return events;
    }
    for (auto it = left_.begin(); it != left_.end();) {
      const bool last = --it->second <= 0;
      events.push_back({.request = it->first,
                        .token = static_cast<int32_t>(it->second),
                        .finish = last ? FinishReason::kLength : FinishReason::kNone,
                        .last = last});
      it = last ? left_.erase(it) : std::next(it);
    }
    return events;
  }
  std::optional<Error> fault() const override { return fault_; }
  Engine* engine() override { return nullptr; }

 private:
  Engine::Info info_;
  std::map<int64_t, int64_t> left_;
  std::vector<int64_t> cancelled_;
  std::optional<Error> fault_;
  int64_t last_ = 0;
};

struct Fake {
  std::atomic<int64_t> steps = 0;
  std::atomic<bool> fail = false;
  EngineThread thread{StartEngineThread(std::make_unique<FakeStepper>(&steps, &fail))};
};

Request Tokens(int64_t count) {
  Request request;
  request.max_tokens = count;
  return request;
}

TEST(EngineThread, AFaultEndsEveryRequestWithItsSentence) {
  Fake fake;
  std::vector<EngineThread::Ticket> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(*fake.thread.Submit(Tokens(1'000'000)));
  ASSERT_TRUE(tickets[0].Next());
  fake.fail = true;
  for (EngineThread::Ticket& ticket : tickets) {
    const Answer answer = ReadAll(ticket);
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_NE(answer.error.find("off the bus"), std::string::npos) << answer.error;
  }
  ASSERT_TRUE(fake.thread.fault());
  const auto late = fake.thread.Submit(Tokens(1));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Error::Code::kDevice);
  EXPECT_FALSE(fake.thread.Run([](Engine&) {}));
  fake.thread.Stop(Ending::kDrain);  // nothing to wait for
}

TEST(EngineThread, SleepsWithoutWorkAndWakesAtOnce) {
  Fake fake;
  auto ticket = fake.thread.Submit(Tokens(3));
  ASSERT_TRUE(ticket);
  EXPECT_EQ(ReadAll(*ticket).tokens, (std::vector<int32_t>{2, 1, 0}));
  const int64_t before = fake.steps;
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(fake.steps, before);
  auto again = fake.thread.Submit(Tokens(1));
  ASSERT_TRUE(again);
  EXPECT_EQ(ReadAll(*again).tokens.size(), 1u);
}

TEST(EngineThread, WhatTheEngineRefusesLateIsAnError) {
  Fake fake;
  auto ticket = fake.thread.Submit(Tokens(7));
  ASSERT_TRUE(ticket);
  const Answer answer = ReadAll(*ticket);
  EXPECT_EQ(answer.finish, FinishReason::kError);
  EXPECT_EQ(answer.error, "seven is refused late");
}

TEST(EngineThread, SubmittingAndCancellingFromManyThreadsLosesNoEnd) {
  Fake fake;
  std::atomic<int> ends = 0;
  std::vector<std::thread> users;
  for (int t = 0; t < 4; ++t)
    users.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        auto ticket = fake.thread.Submit(Tokens(1 + i % 5));
        ASSERT_TRUE(ticket);
        std::thread other;
        if (i % 4 == t) other = std::thread([&] { ticket->Cancel(); });
        const Answer answer = ReadAll(*ticket);
        ends += answer.finish != FinishReason::kNone;
        if (other.joinable()) other.join();
      }
    });
  for (std::thread& user : users) user.join();
  EXPECT_EQ(ends, 200);
}

TEST(EngineThread, ACallbackMaySubmitAndCancel) {
  Fake fake;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::optional<EngineThread::Ticket> second;
  auto first = fake.thread.Submit(Tokens(1), [&](const TokenEvent&) {
    auto made = fake.thread.Submit(Tokens(1000), [&](const TokenEvent& event) {
      const std::lock_guard lock(mutex);
      if (event.finish == FinishReason::kNone) second->Cancel();
      done |= event.finish == FinishReason::kCancelled;
      changed.notify_all();
    });
    const std::lock_guard lock(mutex);
    second.emplace(*std::move(made));
  });
  ASSERT_TRUE(first);
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, 60s, [&] { return done; }));
}

}  // namespace
}  // namespace celer
