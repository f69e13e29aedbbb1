// The kernels of low rank on a GPU at the shapes of an 8B model, 64 tokens with 8 adapters of rank 16 in turns: A x and B of
// it. Time is that of one launch (of two) in a stream of them; the adapters' numbers come from
// memory, as in a step of many layers.
#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/device.h"
#include "kernels/llm/low_rank/low_rank_cuda.h"

namespace celer::cuda {
namespace {

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};
template <class T>
using OnDevice = std::unique_ptr<T[], Free>;

template <class T>
OnDevice<T> Zeros(int64_t n) {
  void* to = nullptr;
  if (cudaMalloc(&to, static_cast<size_t>(n) * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemset(to, 0, static_cast<size_t>(n) * sizeof(T));
  return OnDevice<T>(static_cast<T*>(to));
}
template <class T>
OnDevice<T> Upload(const std::vector<T>& values) {
  OnDevice<T> to = Zeros<T>(static_cast<int64_t>(values.size()));
  cudaMemcpy(to.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return to;
}

struct Shape {
  const char* name;
  int cols;
  std::array<int, 3> rows;
  int count;
  bool activates;
};
constexpr Shape kShapes[] = {{"qkv", 4096, {4096, 1024, 1024}, 3, false},
                             {"o", 4096, {4096}, 1, false},
                             {"gate_up", 4096, {14336, 14336}, 2, true},
                             {"down", 14336, {4096}, 1, false}};
constexpr int kTokens = 64, kAdapters = 8, kRank = 16, kLayers = 32;
enum Way { kShrink, kExpand, kBoth };
constexpr const char* kWays[] = {"a", "b", "a and b"};

// A product of each layer.
class Products {
 public:
  explicit Products(const Shape& s) : s_(s), places_(kLayers * s.count) {
    int64_t numbers = 0;
    for (int m = 0; m < s.count; ++m) stride_ += s.rows[m], numbers += kRank * (s.cols + s.rows[m]);
    numbers_ = Zeros<uint16_t>(numbers * kAdapters * kLayers);
    const uint16_t* at = numbers_.get();
    std::vector<DeviceTerm> terms;
    for (int a = 0; a < kAdapters; ++a)
      for (int layer = 0; layer < kLayers; ++layer)
        for (int m = 0; m < s.count; ++m) {
          DeviceTerm term{.rank = kRank,
                          .a_stride = s.cols,
                          .b_stride = s.rows[m],
                          .a_type = LowRankType::kBf16,
                          .b_type = LowRankType::kBf16};
          term.a = at, at += kRank * s.cols;
          term.b = at, at += kRank * s.rows[m];
          terms.push_back(term);
        }
    std::vector<DeviceUse> uses;
    std::vector<LowRankTile> tiles;
    for (int a = 0; a < kAdapters; ++a) {
      uses.push_back({.slot = a});
      LowRankTile tile{.count = kLowRankTile, .first_use = a, .uses = 1, .rank = kRank, .plain = 1};
      for (int t = 0; t < kLowRankTile; ++t) tile.rows[static_cast<size_t>(t)] = t * kAdapters + a;
      tiles.push_back(tile);
    }
    terms_ = Upload(terms), uses_ = Upload(uses), tiles_ = Upload(tiles);
    count_ = Upload(std::vector<int32_t>{kAdapters});
    x_ = Zeros<float>(int64_t{kTokens} * s.cols);
    product_ = Zeros<float>(int64_t{kTokens} * stride_);
    room_ = int64_t{PlainPieces(s.cols)} * PlainWidth(s.count);
    low_ = Zeros<float>(kTokens * room_);
  }

  cudaError_t Run(Way way, int i) {
    const LowRankPlan plan{count_.get(), tiles_.get(), uses_.get(), terms_.get(), places_};
    const int first = i % kLayers * s_.count;
    LowRankArgs args;
    args.plan = plan;
    args.rows = kTokens, args.most_rank = kRank;
    args.x = x_.get(), args.x_stride = args.cols = s_.cols;
    args.plain_low = low_.get(), args.plain_room = room_, args.most_plain_rank = kRank, args.others = false;
    args.count = s_.count;
    float* to = product_.get();
    for (int m = 0; m < s_.count; to += s_.rows[m], ++m)
      args.matrices[m] = {.place = first + m, .rows = s_.rows[m], .product = to, .stride = stride_};
    if (way != kExpand)
      if (const cudaError_t code = LaunchLowRankShrink(args, nullptr); code != cudaSuccess || way == kShrink)
        return code;
    return s_.activates ? LaunchLowRankExpandActivate(args, {.out = product_.get()}, nullptr)
                        : LaunchLowRankExpand(args, nullptr);
  }

 private:
  Shape s_;
  int places_;
  int64_t stride_ = 0, room_ = 0;
  OnDevice<uint16_t> numbers_;
  OnDevice<DeviceTerm> terms_;
  OnDevice<DeviceUse> uses_;
  OnDevice<LowRankTile> tiles_;
  OnDevice<int32_t> count_;
  OnDevice<float> x_, product_, low_;
};

void LowRank(benchmark::State& state, const Shape& shape, Way way) {
  if (CudaDeviceCount() == 0) return state.SkipWithError("no CUDA device here");
  Products products(shape);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  constexpr int kRuns = 128;
  for (auto _ : state) {
    cudaEventRecord(begin);
    for (int i = 0; i < kRuns; ++i)
      if (products.Run(way, i) != cudaSuccess) state.SkipWithError("a kernel did not start");
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    state.SetIterationTime(milliseconds / 1e3 / kRuns);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Shape& shape : kShapes)
    for (const Way way : {kShrink, kExpand, kBoth}) {
      const std::string name = std::string("low_rank/") + shape.name + "/" + kWays[way];
      benchmark::RegisterBenchmark(name.c_str(),
                                   [shape, way](benchmark::State& s) { LowRank(s, shape, way); })
          ->UseManualTime()
          ->Iterations(8)
          ->Unit(benchmark::kMicrosecond);
    }
  return true;
}();

}  // namespace
}  // namespace celer::cuda
