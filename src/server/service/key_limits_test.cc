// Buckets and shares of API keys, with a clock of the test's own.
#include "server/service/key_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <queue>
#include <set>

namespace celer::server {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

class KeyLimitsTest : public testing::Test {
 protected:
  KeyLimitsTest()
      : folder_(std::filesystem::path(testing::TempDir()) / ("key_limits_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "keys") << "sk-alice\nsk-bob\nsk-carol\n";
    keys_ = *ApiKeys::Load(folder_ / "keys");
  }
  ~KeyLimitsTest() override { std::filesystem::remove_all(folder_); }

  Result<KeyLimits> Load(const std::string& text) {
    std::ofstream(folder_ / "limits") << text;
    return KeyLimits::Load(folder_ / "limits", keys_);
  }
  std::string Why(const std::string& text) {
    const auto limits = Load(text);
    return limits ? "" : limits.error().message();
  }

  std::filesystem::path folder_;
  ApiKeys keys_;
  Metrics metrics_;
  Admission admission_{AdmissionLimits{}, metrics_};
  Clock::time_point now_ = Clock::time_point() + 1h;
};

TEST_F(KeyLimitsTest, RequestsPerMinute) {
  auto limits = *Load("# limits\nsk-alice name=alice rpm=3\n\n  sk-bob name=bob\n");
  for (int i = 0; i < 3; ++i) {
    ASSERT_FALSE(limits.Check(0, now_, admission_));
    limits.Take(0, 10);
  }
  auto refusal = limits.Check(0, now_, admission_);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 429);
  EXPECT_EQ(refusal->retry_after, 20);
  EXPECT_THAT(refusal->message, HasSubstr("alice may have 3 requests per minute"));
  EXPECT_THAT(refusal->message, Not(HasSubstr("sk-")));
  EXPECT_FALSE(limits.Check(1, now_, admission_)) << "bob has no limit";
  EXPECT_TRUE(limits.Check(0, now_ + 19s, admission_));
  EXPECT_FALSE(limits.Check(0, now_ + 21s, admission_));
  limits.Take(0, 10);
  EXPECT_TRUE(limits.Check(0, now_ + 22s, admission_));
  // What was not used is kept for a minute, and no longer.
  now_ += 2h;
  for (int i = 0; i < 3; ++i) {
    ASSERT_FALSE(limits.Check(0, now_, admission_));
    limits.Take(0, 10);
  }
  EXPECT_TRUE(limits.Check(0, now_, admission_));
  EXPECT_EQ(metrics_.rejected["key"], 4);
  EXPECT_EQ(limits.figures()[0].requests, 7);
  EXPECT_EQ(limits.figures()[0].rejected, 4);
  EXPECT_EQ(limits.figures()[0].tokens, 70);
}

TEST_F(KeyLimitsTest, TokensPerMinute) {
  auto limits = *Load("* name=other tpm=600\nsk-bob name=bob tpm=1000\n");
  EXPECT_EQ(limits.figures()[0].name, "other-1");
  EXPECT_EQ(limits.figures()[1].name, "bob");
  EXPECT_EQ(limits.figures()[2].name, "other-3");
  ASSERT_FALSE(limits.Check(0, now_, admission_));
  limits.Take(0, 500);
  ASSERT_FALSE(limits.Check(0, now_, admission_)) << "100 are left";
  limits.Take(0, 300);
  ASSERT_TRUE(limits.Check(0, now_, admission_));
  limits.End(0, 100);  // 300 below zero, with 10 per second
  const auto refusal = limits.Check(0, now_, admission_);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->retry_after, 31);
  EXPECT_TRUE(limits.Check(0, now_ + 29s, admission_));
  EXPECT_FALSE(limits.Check(2, now_ + 29s, admission_)) << "each other key has limits of its own";
  EXPECT_FALSE(limits.Check(0, now_ + 31s, admission_));
}

TEST_F(KeyLimitsTest, NoTwoKeysHaveOneName) {
  const auto limits = *Load("sk-alice name=o-2\n* name=o\n");
  std::set<std::string> names;
  for (const KeyFigures& figures : limits.figures())
    EXPECT_TRUE(names.insert(figures.name).second) << figures.name;
}

TEST_F(KeyLimitsTest, LongWaitsAreSaid) {
  auto limits = *Load("sk-alice name=a rpm=0.001\nsk-bob name=b rpm=1e-12\n");
  for (const auto& [key, seconds] : {std::pair{0, 60000}, {1, 86400}}) {
    EXPECT_FALSE(limits.Check(static_cast<size_t>(key), now_, admission_));
    limits.Take(static_cast<size_t>(key), 1);
    const auto refusal = limits.Check(static_cast<size_t>(key), now_, admission_);
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->retry_after, seconds);
    EXPECT_EQ(refusal->code, "rate_limit_exceeded");
  }
}

// Both keys have requests waiting at all times; one at a time is computed.
TEST_F(KeyLimitsTest, SharesFollowTheWeights) {
  auto limits = *Load("sk-alice name=alice weight=3\nsk-bob name=bob\nsk-carol name=carol\n");
  struct Waiting {
    int place;
    size_t key;
    bool operator<(const Waiting& other) const { return place > other.place; }
  };
  std::priority_queue<Waiting> waiting;
  std::vector<int64_t> tokens(3);
  const auto add = [&](size_t key) {
    const int64_t prompt = key == 1 ? 3000 : 1000;
    waiting.push({limits.Take(key, prompt), key});
  };
  for (int i = 0; i < 10; ++i) add(0), add(1);
  for (int step = 0; step < 4000; ++step) {
    const Waiting next = waiting.top();
    waiting.pop();
    limits.Begin(next.place);
    tokens[next.key] += next.key == 1 ? 3000 : 1000;
    add(next.key);
  }
  EXPECT_NEAR(static_cast<double>(tokens[0]) / static_cast<double>(tokens[1]), 3, 0.05);
  // Who did not ask before waits no longer than one of the others, and has saved up nothing.
  add(2);
  int before = 0;
  for (; waiting.top().key != 2; ++before) waiting.pop();
  EXPECT_LE(before, 4);
}

TEST_F(KeyLimitsTest, WrongFilesAreExplained) {
  EXPECT_THAT(Why("sk-alice\n"), HasSubstr("line 1 has no name=NAME"));
  EXPECT_THAT(Why("\nsk-dora name=dora\n"), HasSubstr("line 2 has a key that --api-key-file does not have"));
  EXPECT_THAT(Why("sk-dora name=dora\n"), Not(HasSubstr("sk-dora")));
  EXPECT_THAT(Why("sk-alice name=a rpm=-1\n"), HasSubstr("has rpm='-1', expected a number per minute"));
  EXPECT_THAT(Why("sk-alice name=a tpm=many\n"), HasSubstr("tpm"));
  EXPECT_THAT(Why("sk-alice name=a weight=0\n"), HasSubstr("0.001"));
  EXPECT_THAT(Why("sk-alice name=a weight=nan\n"), HasSubstr("0.001"));
  EXPECT_THAT(Why("sk-alice name=a rps=1\n"), HasSubstr("unknown field 'rps'"));
  EXPECT_THAT(Why("sk-alice name=a\nsk-alice name=b\n"), HasSubstr("line 2 has the key of an earlier line"));
  EXPECT_THAT(Why("sk-alice name=a\nsk-bob name=a\n"), HasSubstr("line 2 has the name of an earlier line"));
  EXPECT_FALSE(KeyLimits::Load(folder_ / "missing", keys_));
}

}  // namespace
}  // namespace celer::server
