// Every kind of group, from one to eight ranks: the collectives, and what the others see when one rank ends or hangs.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>

#include "device/group/socket.h"
#include "device/group/socket_group.h"
#include "device/group/thread_group.h"

namespace celer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Group = std::vector<std::unique_ptr<Communicator>>;

enum class Backend : uint8_t { kThreads, kSockets };

uint16_t FreePort() {
  auto socket = Listen("127.0.0.1", 0);
  EXPECT_TRUE(socket) << socket.error().message();
  return socket ? LocalEndpoint(*socket)->port : 0;
}

// What `work` gives on each rank, in threads of this process.
template <class T>
std::vector<T> OnRanks(Backend backend, int ranks, milliseconds watchdog,
                       const std::function<T(Communicator&)>& work) {
  std::vector<T> out(static_cast<size_t>(ranks));
  Group group(static_cast<size_t>(ranks));
  if (backend == Backend::kThreads)
    group = MakeThreadGroup({.ranks = ranks, .watchdog = watchdog, .spin = std::chrono::microseconds(0)});
  const uint16_t port = backend == Backend::kSockets ? FreePort() : uint16_t{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      auto& mine = group[static_cast<size_t>(r)];
      if (backend == Backend::kSockets) {
        auto joined = JoinSocketGroup({.rank = r, .size = ranks, .port = port, .watchdog = watchdog});
        if (!joined) {
          ADD_FAILURE() << joined.error().message();
          return;
        }
        mine = std::move(*joined);
      }
      out[static_cast<size_t>(r)] = work(*mine);
      mine.reset();
    });
  for (std::thread& thread : threads) thread.join();
  return out;
}

class GroupTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupTest, ::testing::Values(Backend::kThreads, Backend::kSockets),
                         [](const auto& test) {
                           return test.param == Backend::kThreads ? "threads" : "sockets";
                         });

float ValueOf(int rank, int64_t i) {
  return static_cast<float>((i * 7919 + rank * 104729) % 1009) / 977.0f + 1e-4f * static_cast<float>(rank);
}

TEST_P(GroupTest, SumsAreThoseOfTheRanksInOrder) {
  for (const int ranks : {1, 2, 3, 4, 5, 8})
    for (const int64_t n : {1, 15, 17, 1000, 4099, 100'003}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(n));
      const auto sums = OnRanks<std::vector<float>>(GetParam(), ranks, seconds(60), [&](Communicator& group) {
        std::vector<float> values(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = ValueOf(group.rank(), i);
        EXPECT_TRUE(group.AllReduceSum(values));
        return values;
      });
      std::vector<float> expected(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        float sum = ValueOf(0, i);
        for (int r = 1; r < ranks; ++r) sum += ValueOf(r, i);
        expected[static_cast<size_t>(i)] = sum;
      }
      for (const auto& sum : sums)
        ASSERT_EQ(0, std::memcmp(sum.data(), expected.data(), expected.size() * sizeof(float)));
    }
}

TEST_P(GroupTest, GathersPartsOfSeveralSizes) {
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<int64_t> sizes;
    for (int r = 0; r < ranks; ++r) sizes.push_back(r == 1 ? 0 : 1 + 1000 * r);
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const auto all = OnRanks<std::string>(GetParam(), ranks, seconds(60), [&](Communicator& group) {
      const std::string mine(static_cast<size_t>(sizes[static_cast<size_t>(group.rank())]),
                             static_cast<char>('a' + group.rank()));
      std::string out(static_cast<size_t>(total), '.');
      EXPECT_TRUE(
          group.AllGather(std::as_bytes(std::span(mine)), sizes, reinterpret_cast<std::byte*>(out.data())));
      return out;
    });
    std::string expected;
    for (int r = 0; r < ranks; ++r)
      expected += std::string(static_cast<size_t>(sizes[static_cast<size_t>(r)]), static_cast<char>('a' + r));
    for (const std::string& one : all) EXPECT_TRUE(one == expected);
  }
}

TEST_P(GroupTest, MessagesOfAnySizeReachAll) {
  const auto heard = OnRanks<std::string>(GetParam(), 3, seconds(60), [](Communicator& group) {
    std::string all;
    for (const size_t size : {0UL, 1UL, 300'000UL}) {
      const std::string text(size, 'x');
      if (group.rank() == 2) {
        EXPECT_TRUE(SendMessage(group, std::as_bytes(std::span(text))));
        all += text;
      } else {
        const auto got = ReceiveMessage(group, 2, Communicator::Wait::kIdle);
        EXPECT_TRUE(got);
        if (got) all.append(reinterpret_cast<const char*>(got->data()), got->size());
      }
    }
    const auto numbers = GatherNumbers(group, 10 + group.rank());
    EXPECT_TRUE(numbers);
    if (numbers) {
      EXPECT_EQ(*numbers, (std::vector<int64_t>{10, 11, 12}));
    }
    EXPECT_TRUE(group.Barrier());
    return all;
  });
  for (const std::string& one : heard) EXPECT_TRUE(one == std::string(300'001, 'x'));
}

TEST_P(GroupTest, ARankThatEndsEndsTheOthers) {
  const Clock::time_point begin = Clock::now();
  const auto errors = OnRanks<std::string>(GetParam(), 4, seconds(60), [](Communicator& group) {
    std::vector<float> values(1000, 1.0f);
    const Status first = group.AllReduceSum(values);
    if (group.rank() == 2) {  // its communicator is destroyed
      EXPECT_TRUE(first);
      return std::string("gone");
    }
    if (!first) return first.error().message();  // another rank was faster
    const Status sum = group.AllReduceSum(values);
    EXPECT_FALSE(sum);
    EXPECT_FALSE(group.Barrier());  // it stays so
    EXPECT_FALSE(group.status());
    return sum ? "" : sum.error().message();
  });
  EXPECT_LT(Clock::now() - begin, seconds(20));
  for (const int r : {0, 1, 3})
    EXPECT_NE(errors[static_cast<size_t>(r)].find("rank 2"), std::string::npos)
        << errors[static_cast<size_t>(r)];
}

TEST_P(GroupTest, TheReasonOfAnAbortReachesThoseWhoWaitWithoutEnd) {
  const auto errors = OnRanks<std::string>(GetParam(), 3, seconds(60), [](Communicator& group) {
    if (group.rank() == 1) {
      group.Abort(Error::OutOfMemory("rank 1: no room for the weights"));
      return group.status().error().message();
    }
    const auto got = ReceiveMessage(group, 1, Communicator::Wait::kIdle);
    EXPECT_FALSE(got);
    return got ? "" : got.error().message();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1: no room for the weights"), std::string::npos) << error;
}

TEST_P(GroupTest, TheWatchdogEndsWhatHangs) {
  std::atomic<int> over{0};
  const auto errors = OnRanks<std::string>(GetParam(), 3, milliseconds(300), [&](Communicator& group) {
    if (group.rank() == 1) {  // it lives and does not come
      while (over < 2) std::this_thread::sleep_for(milliseconds(5));
      return std::string();
    }
    const Clock::time_point begin = Clock::now();
    const Status barrier = group.Barrier();
    EXPECT_LT(Clock::now() - begin, seconds(20));
    ++over;
    EXPECT_FALSE(barrier);
    return barrier ? "" : barrier.error().message();
  });
  for (const int r : {0, 2}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    EXPECT_NE(error.find("300 ms"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  }
}

// Who sends goes on, however much it is and whether or not the other one listens; messages come in order.
TEST_P(GroupTest, MessagesOfOneRankToAnotherDoNotWait) {
  constexpr int kMessages = 6;
  constexpr size_t kNumbers = 1'500'000;  // more than sockets hold
  std::atomic<bool> sent{false};
  OnRanks<int>(GetParam(), 3, seconds(60), [&](Communicator& group) {
    std::vector<int32_t> numbers(kNumbers);
    for (int i = 0; i < kMessages; ++i) {
      if (group.rank() == 0) {
        std::fill(numbers.begin(), numbers.end(), i);
        EXPECT_TRUE(group.Send(std::as_bytes(std::span(numbers)), 2));
        sent = i + 1 == kMessages;
      } else if (group.rank() == 2) {
        while (!sent) std::this_thread::sleep_for(milliseconds(1));
        EXPECT_TRUE(group.Receive(std::as_writable_bytes(std::span(numbers)), 0, -1));
        EXPECT_EQ(numbers.front(), i);
        EXPECT_EQ(numbers.back(), i);
      }
    }
    EXPECT_TRUE(group.Barrier());
    return 0;
  });
}

TEST_P(GroupTest, PartsAreGroupsOfTheirOwn) {
  const auto sums = OnRanks<std::vector<float>>(GetParam(), 6, seconds(60), [](Communicator& group) {
    const int first = group.rank() / 2 * 2;
    const auto part = group.Part(first, 2);
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), group.rank() - first);
    std::vector<float> values(3, static_cast<float>(1 + group.rank()));
    for (int i = 0; i < 3 * first + 1; ++i) EXPECT_TRUE(part->Barrier());  // each part at its own pace
    EXPECT_TRUE(part->AllReduceSum(values));
    EXPECT_TRUE(group.AllReduceSum(std::span(values).first(1)));
    return values;
  });
  for (size_t r = 0; r < sums.size(); ++r) {
    const auto pair = static_cast<float>(3 + 4 * (r / 2));
    EXPECT_EQ(sums[r], (std::vector<float>{2 * (3 + 7 + 11), pair, pair}));
  }
}

TEST_P(GroupTest, AnErrorOfAPartIsOneOfTheGroup) {
  const auto errors = OnRanks<std::string>(GetParam(), 4, seconds(60), [](Communicator& group) {
    const auto part = group.Part(group.rank() / 2 * 2, 2);
    std::vector<float> values(group.rank() == 3 ? 7 : 8);  // which do not fit together
    Status status = part->AllReduceSum(values);
    for (int i = 0; status && i < 1000; ++i) {
      std::this_thread::sleep_for(milliseconds(5));
      status = group.rank() < 2 ? part->AllReduceSum(values) : Status();
    }
    EXPECT_FALSE(group.status());
    EXPECT_FALSE(part->status());
    return status ? "" : status.error().message();
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 2"), std::string::npos) << error;
    EXPECT_NE(error.find("3"), std::string::npos) << error;
  }
}

// In a chain of ranks that wait for each other, long work is no fault as long as it is reported.
TEST_P(GroupTest, ProgressKeepsTheWatchdogQuiet) {
  OnRanks<int>(GetParam(), 3, milliseconds(400), [](Communicator& group) {
    float row = 0;
    const auto bytes = std::as_writable_bytes(std::span(&row, 1));
    const bool first = group.rank() == 0, last = group.rank() == 2;
    for (int i = 0; first && i < 100; ++i) {  // 2 s of work
      std::this_thread::sleep_for(milliseconds(20));
      group.ReportProgress(1);
    }
    EXPECT_TRUE(first || group.Receive(bytes, group.rank() - 1, last ? -1 : 2));
    row += 1;
    EXPECT_TRUE(last || group.Send(bytes, group.rank() + 1));
    EXPECT_TRUE(!last || row == 3);
    EXPECT_TRUE(group.Barrier());
    return 0;
  });
}

TEST_P(GroupTest, ARankThatSendsNothingIsNamed) {
  std::atomic<int> over{0};
  const auto errors = OnRanks<std::string>(GetParam(), 3, milliseconds(400), [&](Communicator& group) {
    if (group.rank() == 0) {
      while (over < 2) std::this_thread::sleep_for(milliseconds(5));
      return std::string();
    }
    float row = 0;
    const Status got = group.Receive(std::as_writable_bytes(std::span(&row, 1)), group.rank() - 1,
                                     group.rank() < 2 ? 2 : -1);
    ++over;
    EXPECT_FALSE(got);
    return got ? "" : got.error().message();
  });
  for (const int r : {1, 2}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    EXPECT_NE(error.find("400 ms"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
  }
}

TEST_P(GroupTest, DifferentCallsAreAnErrorForAll) {
  const auto errors = OnRanks<std::string>(GetParam(), 3, seconds(60), [](Communicator& group) {
    std::vector<float> values(group.rank() == 1 ? 900 : 1000);
    const Status sum = group.AllReduceSum(values);
    return sum ? "" : sum.error().message();
  });
  for (const std::string& error : errors) EXPECT_NE(error, "");
}

TEST(SocketGroup, WhoDoesNotComeIsNamed) {
  const auto joined = JoinSocketGroup({.rank = 0, .size = 3, .port = FreePort(), .join = milliseconds(200)});
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message().find("1, 2"), std::string::npos) << joined.error().message();
  const auto alone = JoinSocketGroup({.rank = 1, .size = 3, .port = FreePort(), .join = milliseconds(200)});
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().message().find("127.0.0.1"), std::string::npos) << alone.error().message();
}

TEST(SocketGroup, APortThatIsTakenIsSaid) {
  const auto taken = Listen("127.0.0.1", 0);
  ASSERT_TRUE(taken);
  const auto joined = JoinSocketGroup({.rank = 0, .size = 2, .port = LocalEndpoint(*taken)->port});
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message().find("choose another port"), std::string::npos)
      << joined.error().message();
}

TEST(SocketGroup, OtherOptionsAreRefusedOnBothSides) {
  const uint16_t port = FreePort();
  std::string errors[2];
  std::thread other([&] {
    const auto joined = JoinSocketGroup({.rank = 1, .size = 2, .port = port, .identity = "celer 2, model b"});
    if (!joined) errors[1] = joined.error().message();
  });
  const auto joined = JoinSocketGroup({.rank = 0, .size = 2, .port = port, .identity = "celer 1, model a"});
  if (!joined) errors[0] = joined.error().message();
  other.join();
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("model a"), std::string::npos) << error;
    EXPECT_NE(error.find("model b"), std::string::npos) << error;
  }
}

// Port scanners and browsers.
TEST(SocketGroup, StrangersDoNotDisturb) {
  const uint16_t port = FreePort();
  std::thread stranger([&] {
    const auto until = Clock::now() + seconds(20);
    for (const std::string text : {"GET / HTTP/1.1\r\nHost: here\r\n\r\n............", ""}) {
      const auto socket = Connect("127.0.0.1", port, until);
      ASSERT_TRUE(socket) << socket.error().message();
      EXPECT_TRUE(SendAll(*socket, std::as_bytes(std::span(text)), until));
    }
  });
  std::thread other([&] {
    stranger.join();
    const auto joined = JoinSocketGroup({.rank = 1, .size = 2, .port = port});
    ASSERT_TRUE(joined) << joined.error().message();
    EXPECT_TRUE((*joined)->Barrier());
  });
  const auto joined = JoinSocketGroup({.rank = 0, .size = 2, .port = port});
  ASSERT_TRUE(joined) << joined.error().message();
  EXPECT_TRUE((*joined)->Barrier());
  other.join();
}

#ifndef __SANITIZE_THREAD__  // which forbids threads in a child
// A process, ended and stopped from outside.
class SocketGroupSignals : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, SocketGroupSignals, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& test) { return test.param == SIGKILL ? "killed" : "stopped"; });

TEST_P(SocketGroupSignals, EndTheOthers) {
  const uint16_t port = FreePort();
  const pid_t child = fork();
  if (child == 0) {
    const auto joined = JoinSocketGroup({.rank = 1, .size = 2, .port = port});
    std::vector<float> values(100);
    while (joined && (*joined)->AllReduceSum(values)) {
    }
    _exit(0);
  }
  const auto joined = JoinSocketGroup({.rank = 0, .size = 2, .port = port, .watchdog = milliseconds(500)});
  ASSERT_TRUE(joined) << joined.error().message();
  std::vector<float> values(100);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*joined)->AllReduceSum(values));
  kill(child, GetParam());
  const Clock::time_point begin = Clock::now();
  Status sum;
  for (int i = 0; i < 1'000'000 && sum; ++i) sum = (*joined)->AllReduceSum(values);
  EXPECT_FALSE(sum);
  EXPECT_LT(Clock::now() - begin, seconds(5));
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}
#endif

TEST(PartOfRank, PartsCoverAllOnce) {
  for (const int size : {1, 2, 3, 8})
    for (const int64_t n : {0, 1, 16, 17, 1000}) {
      int64_t at = 0;
      for (int r = 0; r < size; ++r) {
        const GroupPart part = PartOfRank(n, r, size);
        EXPECT_EQ(part.begin, at);
        at = part.end;
      }
      EXPECT_EQ(at, n);
    }
}

}  // namespace
}  // namespace celer
