// The links of a pipeline over both kinds of groups: rows arrive whole, in order, and no stage waits for the one behind it.
#include "engine/runners/group/stage_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "device/group/socket.h"
#include "device/group/socket_group.h"
#include "device/group/thread_group.h"

namespace celer {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class StageLinkTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Groups, StageLinkTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "sockets" : "threads"; });

void OnRanks(bool sockets, int stages, int shares, const std::function<void(StageLink&)>& work) {
  const int ranks = stages * shares;
  std::vector<std::unique_ptr<Communicator>> group(static_cast<size_t>(ranks));
  uint16_t port = 0;
  if (sockets) {
    const auto free = Listen("127.0.0.1", 0);
    ASSERT_TRUE(free);
    port = LocalEndpoint(*free)->port;
  } else {
    group = MakeThreadGroup({.ranks = ranks, .spin = {}});
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      auto& own = group[static_cast<size_t>(r)];
      if (sockets) {
        auto joined = JoinSocketGroup({.rank = r, .size = ranks, .port = port});
        ASSERT_TRUE(joined) << joined.error().message();
        own = std::move(*joined);
      }
      StageLink link(*own, stages);
      work(link);
      EXPECT_TRUE(own->Barrier());
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(StageLinkTest, RanksWithTheSameLayersAreNeighbours) {
  OnRanks(GetParam(), 3, 2, [](StageLink& link) {
    const int rank = link.all().rank();
    EXPECT_EQ(link.stage(), (std::vector<int>{2, 2, 0, 0, 1, 1}[static_cast<size_t>(rank)]));
    EXPECT_EQ(link.share(), rank % 2);
    EXPECT_EQ(link.last(), rank < 2);  // with rank 0, which chooses tokens
    EXPECT_EQ(link.FirstRank(link.stage()) + link.share(), rank);
    ASSERT_NE(link.sharers(), nullptr);
    EXPECT_EQ(link.sharers()->rank(), link.share());
  });
}

TEST_P(StageLinkTest, RowsArriveWholeAndInOrder) {
  for (const auto& [stages, shares] : {std::pair{2, 1}, {3, 2}, {2, 3}})
    OnRanks(GetParam(), stages, shares, [stages = stages](StageLink& link) {
      for (const size_t size : {1UL, 17UL, 40'000UL, 3UL}) {
        std::vector<float> x(size);
        ASSERT_TRUE(link.first() || link.Receive(x));
        for (size_t i = 0; i < size; ++i) {
          const float came = static_cast<float>(i) + static_cast<float>(link.stage());
          EXPECT_TRUE(link.first() || x[i] == came) << x[i];
          x[i] = static_cast<float>(i) + static_cast<float>(link.stage() + 1);
        }
        ASSERT_TRUE(link.last() || link.Send(x));
      }
      EXPECT_EQ(link.stages(), stages);
    });
}

// Eight pieces of work of the same length pass three stages in the time of ten, not of 24.
TEST_P(StageLinkTest, StagesWorkAtTheSameTime) {
  constexpr int kPieces = 8, kStages = 3;
  constexpr milliseconds kWork(30);
  milliseconds best = milliseconds::max();
  for (int attempt = 0; attempt < 5 && best >= kPieces * kStages * kWork / 2; ++attempt) {
    milliseconds took(0);
    OnRanks(GetParam(), kStages, 1, [&](StageLink& link) {
      ASSERT_TRUE(link.all().Barrier());
      const Clock::time_point begin = Clock::now();
      std::vector<float> x(1000);
      for (int piece = 0; piece < kPieces; ++piece) {
        ASSERT_TRUE(link.first() || link.Receive(x));
        std::this_thread::sleep_for(kWork);
        ASSERT_TRUE(link.last() || link.Send(x));
      }
      if (link.last()) took = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    });
    best = std::min(best, took);
  }
  EXPECT_GE(best, (kPieces + kStages - 1) * kWork);
  EXPECT_LT(best, kPieces * kStages * kWork / 2);
}

}  // namespace
}  // namespace celer
