#include "kernels/shared/cuda/per_device.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace celer::cuda {
namespace {

thread_local int current = 0;
int FakeDevice() {
  return current;
}

TEST(PerDevice, EveryDeviceHasItsOwnValue) {
  PerDevice<int, FakeDevice> value;
  int made = 0;
  const auto get = [&](int device) {
    current = device;
    return value.Get([&] {
      ++made;
      return 100 + device;
    });
  };
  EXPECT_EQ(100, get(0));
  EXPECT_EQ(101, get(1));  // a function static would answer 100
  EXPECT_EQ(100, get(0));
  EXPECT_EQ(101, get(1));
  EXPECT_EQ(2, made);
}

TEST(PerDevice, WithoutADeviceNothingIsRemembered) {
  PerDevice<int, FakeDevice> value;
  current = -1;
  EXPECT_EQ(1, value.Get([] { return 1; }));
  EXPECT_EQ(2, value.Get([] { return 2; }));
  current = 100000;
  EXPECT_EQ(3, value.Get([] { return 3; }));
  EXPECT_EQ(4, value.Get([] { return 4; }));
}

TEST(PerDevice, ThreadsThatAskAtOnceMakeOneValuePerDevice) {
  constexpr int kThreads = 8, kDevices = 3, kRounds = 1000;
  for (int round = 0; round < kRounds / kThreads; ++round) {
    PerDevice<int, FakeDevice> value;
    std::atomic<int> made = 0, wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kDevices; ++i) {
          current = (t + i) % kDevices;
          const int got = value.Get([&] {
            ++made;
            return current * 10;
          });
          if (got != current * 10) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(kDevices, made);
    ASSERT_EQ(0, wrong);
  }
}

}  // namespace
}  // namespace celer::cuda
