#include "models/cuda/host/crossing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/device.h"
#include "kernels/shared/cuda/on_device.h"
#include "models/cuda/graphs.h"

namespace celer {
namespace {

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

// Three crossings in a graph that is launched several times; counts with and without a rest of four.
TEST(CudaCrossing, TheHostWorksInTheMiddleOfAGraph) {
  NEEDS_GPU();
  for (const int64_t count : {int64_t{1}, int64_t{64}, int64_t{2050}, int64_t{40'000}}) {
    SCOPED_TRACE(count);
    auto stream = Stream::Create(0);
    ASSERT_TRUE(stream);
    std::vector<float> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 1.0f);
    const cuda::testing::OnDevice<float> x(values);
    CudaCrossing crossing;
    ASSERT_TRUE(crossing.Make(0, count));
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    DecodeGraphs graphs;
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(graphs.Launch({.sequences = 1}, *stream, [&]() -> Status {
        for (int i = 0; i < 3; ++i) {
          const cudaError_t launched = crossing.Launch(x.get(), count, 4.0f, *stream);
          if (launched != cudaSuccess) return Error::Device(cudaGetErrorString(launched));
        }
        return {};
      }));
      for (int i = 0; i < 3; ++i)
        ASSERT_TRUE(crossing.Answer(*stream, [&](float* host) {
          for (int64_t v = 0; v < count; ++v) {
            ASSERT_EQ(host[v], 4 * values[static_cast<size_t>(v)]);
            host[v] += 4.0f * static_cast<float>(i + 1);
          }
          for (float& value : values) value += static_cast<float>(i + 1);
        }));
    }
    ASSERT_TRUE(stream->Synchronize());
    EXPECT_EQ(x.Read(), values);
  }
}

TEST(CudaCrossing, NothingToAnswerIsAnError) {
  NEEDS_GPU();
  auto stream = Stream::Create(0);
  ASSERT_TRUE(stream);
  CudaCrossing crossing;
  ASSERT_TRUE(crossing.Make(0, 4));
  EXPECT_FALSE(crossing.Answer(*stream, [](float*) {}));
}

}  // namespace
}  // namespace celer
