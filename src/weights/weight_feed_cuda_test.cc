#include "weights/weight_feed.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "formats/test_rows.h"

namespace celer::cuda {
namespace {

struct Host {
  std::vector<std::byte> bytes;
  WeightView view;
};

Host MakeHost(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  Host m;
  const int64_t row_bytes = *BytesFor(dtype, cols);
  m.bytes.resize(static_cast<size_t>(rows * row_bytes));
  // Some rows, again and again: making each of a large matrix takes long.
  constexpr int64_t kDifferent = 37;
  for (int64_t r = 0; r < rows; ++r)
    std::ranges::copy(RandomWeightRow(dtype, cols, seed + static_cast<uint32_t>(r % kDifferent)),
                      m.bytes.begin() + r * row_bytes);
  m.view = {.dtype = dtype, .rows = rows, .cols = cols, .data = m.bytes.data(), .row_bytes = row_bytes};
  return m;
}

// What is there for all that is queued on the stream.
std::vector<std::byte> Read(const std::byte* from, int64_t bytes, const Stream& stream) {
  std::vector<std::byte> to(static_cast<size_t>(bytes));
  EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream.get()));
  EXPECT_TRUE(stream.Synchronize());
  return to;
}

// Five parts by turns in two slots, twice: the bytes of matrices that are uploaded once. One of them is longer than a staging
// buffer, and its heads are reordered.
TEST(CudaWeightFeed, PartsAreWhatAnUploadGives) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  ThreadPool pool({.threads = 3});
  std::vector<Host> hosts;
  for (const DType dtype : {DType::kQ4_0, DType::kQ6_K, DType::kF16, DType::kIq3S})
    hosts.push_back(MakeHost(dtype, 300, 512, 7));
  hosts.push_back(MakeHost(DType::kBf16, 5120, 4096, 9));
  auto store = DeviceWeights::Create(0, *WeightOptions::Parse("stored"));
  auto stream = Stream::Create(0);
  auto feed = WeightFeed::Make(0, int64_t{64} << 20, pool);
  ASSERT_TRUE(store && stream && feed);
  std::vector<std::vector<DeviceMatrix>> uploaded, fed;
  for (const Host& host : hosts) {
    const MatrixSource source{host.view, WeightRole::kProjection, {host.view.rows % 128 == 0 ? 128 : 0, 64}};
    const MatrixSource sources[] = {source, source};
    auto once = store->Upload(sources);
    ASSERT_TRUE(once) << once.error().message();
    uploaded.push_back(*once);
    store->BeginFed((*feed)->slot((*feed)->parts()));
    auto again = store->Upload(std::span(sources).first(1));
    (*feed)->Add(store->TakeFed());
    ASSERT_TRUE(again) << again.error().message();
    fed.push_back(*again);
  }
  ASSERT_TRUE(store->Finish());
  for (int pass = 0; pass < 2; ++pass) {
    ASSERT_TRUE((*feed)->Begin());
    for (size_t i = 0; i < hosts.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE((*feed)->Arrive(*stream));
      const DeviceMatrix &once = uploaded[i][0], &now = fed[i][0];
      EXPECT_EQ(Read(once.data, once.data_bytes(), *stream), Read(now.data, now.data_bytes(), *stream));
      const int64_t scales = ScaleArrayBytes(once.format, once.rows, once.padded, once.group);
      if (scales > 0) {
        EXPECT_EQ(Read(once.scales, scales, *stream), Read(now.scales, scales, *stream));
      }
      ASSERT_TRUE((*feed)->Leave(*stream));
    }
  }
}

}  // namespace
}  // namespace celer::cuda
