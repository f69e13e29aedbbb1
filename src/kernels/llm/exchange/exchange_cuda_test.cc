// Ranks as threads that share one GPU, each with its own stream: the same kernels serve GPUs that read each other's memory.
#include "kernels/llm/exchange/exchange_cuda.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/device.h"
#include "device/stream.h"
#include "kernels/llm/exchange/peers_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using ::celer::testing::RandomFloats;
using testing::OnDevice;

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

std::unique_ptr<CudaPeers> PeersOnOne(int ranks,
                                      std::chrono::milliseconds watchdog = std::chrono::seconds(20)) {
  const std::vector<int> devices(static_cast<size_t>(ranks), 0);
  auto peers = CudaPeers::Make(devices, watchdog);
  if (peers) return std::move(*peers);
  ADD_FAILURE() << peers.error().message();
  return nullptr;
}

// Loads the kernels: doing that while one of them waits on the GPU would wait for it, too. In a group that has been ended
// they do not wait.
void Warm(int ranks) {
  const auto peers = PeersOnOne(ranks);
  ASSERT_TRUE(peers);
  peers->Abort();
  AllReduceArgs reduce{.group = peers->GroupOf(0)};
  GatherColumnsArgs gather{.group = peers->GroupOf(0)};
  ASSERT_EQ(cudaSuccess, LaunchAllReduce(reduce, nullptr));
  ASSERT_EQ(cudaSuccess, LaunchGatherColumns(gather, nullptr));
  ASSERT_EQ(cudaSuccess, LaunchShareLists({.group = peers->GroupOf(0)}, nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
}

void OnEach(int ranks, const std::function<void(int, const Stream&)>& work) {
  Warm(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&work, r] {
      auto stream = Stream::Create(0);
      ASSERT_TRUE(stream) << stream.error().message();
      work(r, *stream);
      EXPECT_TRUE(stream->Synchronize());
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(CudaExchange, SumsInTheOrderOfTheRanks) {
  NEEDS_GPU();
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t count :
         {int64_t{1}, int64_t{3}, int64_t{4096}, int64_t{4099}, int64_t{16384}, int64_t{300'001}}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << count);
      const auto peers = PeersOnOne(ranks);
      ASSERT_TRUE(peers);
      // More rounds than slots, each with other numbers: a part that is read too late or too early shows.
      constexpr int kRounds = 6, kSlots = 2;
      std::vector<std::vector<float>> inputs;
      std::vector<std::unique_ptr<OnDevice<float>>> given, slots, outs;
      for (int r = 0; r < ranks; ++r) {
        inputs.push_back(RandomFloats(count * kRounds, static_cast<uint32_t>(100 * ranks + r)));
        given.push_back(std::make_unique<OnDevice<float>>(inputs.back()));
        slots.push_back(std::make_unique<OnDevice<float>>((count + 3) / 4 * 4 * kSlots));
        outs.push_back(std::make_unique<OnDevice<float>>(count, 0));
      }
      OnEach(ranks, [&](int rank, const Stream& stream) {
        const auto me = static_cast<size_t>(rank);
        for (int round = 0; round < kRounds; ++round) {
          const int64_t at = round % kSlots * ((count + 3) / 4 * 4);
          ASSERT_EQ(cudaSuccess,
                    cudaMemcpyAsync(slots[me]->get() + at, given[me]->get() + round * count,
                                    static_cast<size_t>(count) * 4, cudaMemcpyDeviceToDevice, stream.get()));
          AllReduceArgs args{
              .group = peers->GroupOf(rank), .out = outs[me]->get(), .count = count, .add = round > 0};
          for (size_t r = 0; r < slots.size(); ++r) args.parts[r] = slots[r]->get() + at;
          ASSERT_EQ(cudaSuccess, LaunchAllReduce(args, stream.get()));
        }
      });
      ASSERT_TRUE(peers->status());
      std::vector<float> expected(static_cast<size_t>(count));
      for (int round = 0; round < kRounds; ++round)
        for (int64_t i = 0; i < count; ++i) {
          float sum = inputs[0][static_cast<size_t>(round * count + i)];
          for (size_t r = 1; r < inputs.size(); ++r) sum += inputs[r][static_cast<size_t>(round * count + i)];
          float& to = expected[static_cast<size_t>(i)];
          to = round > 0 ? to + sum : sum;
        }
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(outs[static_cast<size_t>(r)]->Read(), expected) << "rank " << r;
    }
}

TEST(CudaExchange, ColumnsAndLists) {
  NEEDS_GPU();
  constexpr int kRanks = 3, kRows = 5;
  const std::vector<int> widths = {1003, 64, 1};
  const int all = std::accumulate(widths.begin(), widths.end(), 0);
  const auto peers = PeersOnOne(kRanks);
  ASSERT_TRUE(peers);
  std::vector<std::vector<float>> inputs;
  std::vector<std::unique_ptr<OnDevice<float>>> parts;
  std::vector<std::unique_ptr<OnDevice<int32_t>>> tokens, positions;
  for (size_t r = 0; r < kRanks; ++r) {
    inputs.push_back(RandomFloats(int64_t{kRows} * widths[r], static_cast<uint32_t>(r + 1)));
    parts.push_back(std::make_unique<OnDevice<float>>(inputs.back()));
    const auto rank = static_cast<int32_t>(r);
    tokens.push_back(std::make_unique<OnDevice<int32_t>>(std::vector<int32_t>{10 * rank + 1, 10 * rank + 2}));
    positions.push_back(std::make_unique<OnDevice<int32_t>>(std::vector<int32_t>{7 * rank, 7 * rank + 3}));
  }
  OnDevice<float> out(int64_t{kRows} * all);
  OnDevice<int32_t> shared(4);
  OnEach(kRanks, [&](int rank, const Stream& stream) {
    const auto me = static_cast<size_t>(rank);
    GatherColumnsArgs gather{
        .group = peers->GroupOf(rank), .rows = kRows, .out = rank == 0 ? out.get() : nullptr};
    ShareListsArgs share{.group = peers->GroupOf(rank),
                         .lists = {tokens[me]->get(), positions[me]->get()},
                         .shared = shared.get(),
                         .count = 2};
    for (size_t r = 0; r < kRanks; ++r) gather.parts[r] = parts[r]->get(), gather.widths[r] = widths[r];
    ASSERT_EQ(cudaSuccess, LaunchGatherColumns(gather, stream.get()));
    ASSERT_EQ(cudaSuccess, LaunchShareLists(share, stream.get()));
  });
  ASSERT_TRUE(peers->status());
  const std::vector<float> got = out.Read();
  size_t at = 0;
  for (size_t row = 0; row < kRows; ++row)
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t i = 0; i < static_cast<size_t>(widths[r]); ++i, ++at)
        ASSERT_EQ(got[at], inputs[r][row * static_cast<size_t>(widths[r]) + i])
            << row << ", rank " << r << ", " << i;
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(tokens[r]->Read(), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(positions[r]->Read(), (std::vector<int32_t>{0, 3}));
  }
}

// A rank that does not come ends the wait with its number, and the host can end it at once.
TEST(CudaExchange, AMissingRankIsNamed) {
  NEEDS_GPU();
  const auto reduce = [](const CudaPeers& peers, int rank, const float* part, float* out,
                         const Stream& stream) {
    AllReduceArgs args{.group = peers.GroupOf(rank), .out = out, .count = 64};
    for (const float*& each : args.parts) each = part;
    ASSERT_EQ(cudaSuccess, LaunchAllReduce(args, stream.get()));
  };
  OnDevice<float> part(64, 0), out(64, 0);
  auto stream = Stream::Create(0);
  ASSERT_TRUE(stream);
  const auto peers = PeersOnOne(2, std::chrono::milliseconds(200));
  ASSERT_TRUE(peers);
  for (int i = 0; i < 3; ++i) reduce(*peers, 0, part.get(), out.get(), *stream);  // only the first one waits
  EXPECT_TRUE(stream->Synchronize());
  const Status status = peers->status();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("rank 1 on cuda:0 did not come"), std::string::npos)
      << status.error().message();

  const auto aborted = PeersOnOne(2, std::chrono::hours(1));
  ASSERT_TRUE(aborted);
  reduce(*aborted, 0, part.get(), out.get(), *stream);
  aborted->Abort();
  EXPECT_TRUE(stream->Synchronize());
  EXPECT_TRUE(aborted->status());
}

}  // namespace
}  // namespace celer::cuda
