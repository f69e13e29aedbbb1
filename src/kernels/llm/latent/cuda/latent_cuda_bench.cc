// The kernels of latent attention on a GPU, each after itself and one after the other, by shape, tokens and keys. Time is
// that of one launch in a stream of them.
#include "kernels/llm/latent/cuda/latent_cuda.h"

#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/device.h"
#include "kernels/shared/cuda/device_matrix.h"

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
  int heads, rank, rope, nope, value;
};
constexpr Shape kShapes[] = {{"deepseek-v2-lite", 16, 512, 64, 128, 128},
                             {"glm-4.7-flash", 20, 512, 64, 192, 256},
                             {"minicpm3", 40, 256, 32, 64, 64},
                             {"deepseek-v3", 128, 512, 64, 128, 128}};
enum Part { kQueries, kAttention, kValues, kAll };
constexpr const char* kParts[] = {"queries", "attention", "values", "all"};

struct Work {
  Shape shape;
  int sequences, tokens, keys;  // tokens of each
};

// A layer's arguments, with matrices for a few layers, so that they come from memory.
class Layers {
 public:
  explicit Layers(const Work& w) : w_(w), count_(w.sequences * w.tokens) {
    const Shape& s = w.shape;
    const int dim = s.rank + s.rope, blocks = (w.keys + 15) / 16;
    std::vector<int32_t> positions, owner, starts = {0}, table;
    for (int i = 0; i < w.sequences; ++i) {
      for (int t = 0; t < w.tokens; ++t) positions.push_back(w.keys - w.tokens + t), owner.push_back(i);
      starts.push_back(static_cast<int32_t>(positions.size()));
      for (int b = 0; b < blocks; ++b) table.push_back(i * blocks + b);
    }
    for (auto* v : {&positions, &owner, &starts, &table}) ints_.push_back(Upload(*v));
    batch_ = {nullptr, ints_[0].get(), ints_[1].get(), ints_[3].get(), blocks, count_};
    kv_ = {nullptr, nullptr, DType::kF16, 1, dim, dim};
    kv_rows_ = Zeros<std::byte>(kv_.block_bytes() * blocks * w.sequences);
    kv_.k = kv_rows_.get();
    const int64_t pieces = LatentPieceCount(count_, s.heads), rows = int64_t{count_} * s.heads;
    for (const int64_t n : {rows * (s.nope + s.rope), int64_t{count_} * dim, int64_t{s.rank},
                            int64_t{w.keys} * s.rope, rows * dim, pieces * s.rank, rows * s.value})
      floats_.push_back(Zeros<float>(n));
    tops_ = Zeros<float2>(pieces);
    for (int i = 0; i < kLayers; ++i) {
      k_b_.push_back(Matrix(s.heads * s.rank, s.nope));
      v_b_.push_back(Matrix(s.heads * s.value, s.rank));
    }
  }

  cudaError_t Run(Part part, int i) {
    const Shape& s = w_.shape;
    cudaError_t code = cudaSuccess;
    if (part == kQueries || part == kAll)
      code = LaunchLatentQueries({.batch = batch_,
                                  .kv = kv_,
                                  .q = floats_[0].get(),
                                  .kv_row = floats_[1].get(),
                                  .q_stride = s.heads * (s.nope + s.rope),
                                  .kv_row_stride = kv_.head_dim,
                                  .kv_norm = floats_[2].get(),
                                  .k_b = k_b_[static_cast<size_t>(i % kLayers)],
                                  .heads = s.heads,
                                  .kv_rank = s.rank,
                                  .nope_dim = s.nope,
                                  .rope_dim = s.rope,
                                  .rope_cos = floats_[3].get(),
                                  .rope_sin = floats_[3].get(),
                                  .decode = w_.tokens == 1,
                                  .out = floats_[4].get()},
                                 nullptr);
    LatentAttentionArgs a{.batch = batch_,
                          .count = count_,
                          .kv = kv_,
                          .q = floats_[4].get(),
                          .heads = s.heads,
                          .kv_rank = s.rank,
                          .alone = count_ <= 8 || w_.tokens == 1,
                          .decode = w_.tokens == 1,
                          .seq_start = ints_[2].get(),
                          .sequences = w_.sequences};
    a.pieces = {.splits = LatentSplits(a), .sums = floats_[5].get(), .tops = tops_.get()};
    if (code == cudaSuccess && (part == kAttention || part == kAll)) code = LaunchLatentAttention(a, nullptr);
    if (code == cudaSuccess && (part == kValues || part == kAll))
      code = LaunchLatentValues({.pieces = a.pieces,
                                 .count = count_,
                                 .heads = s.heads,
                                 .kv_rank = s.rank,
                                 .v_b = v_b_[static_cast<size_t>(i % kLayers)],
                                 .joined = floats_[4].get(),
                                 .out = floats_[6].get()},
                                nullptr);
    return code;
  }

 private:
  static constexpr int kLayers = 32;

  DeviceMatrix Matrix(int rows, int cols) {
    DeviceMatrix m;
    m.rows = rows, m.cols = cols;
    m.padded = (cols + kColumnPad - 1) / kColumnPad * kColumnPad;
    m.row_bytes = PaddedRowBytes(m.format, cols);
    matrices_.push_back(Zeros<std::byte>(m.data_bytes()));
    m.data = matrices_.back().get();
    return m;
  }

  Work w_;
  int count_;
  DeviceBatch batch_;
  DeviceKv kv_;
  std::vector<OnDevice<int32_t>> ints_;
  std::vector<OnDevice<float>> floats_;
  OnDevice<float2> tops_;
  OnDevice<std::byte> kv_rows_;
  std::vector<OnDevice<std::byte>> matrices_;
  std::vector<DeviceMatrix> k_b_, v_b_;
};

void Latent(benchmark::State& state, const Work& work, Part part) {
  if (CudaDeviceCount() == 0) return state.SkipWithError("no CUDA device here");
  Layers layers(work);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  constexpr int kRuns = 64;
  for (auto _ : state) {
    cudaEventRecord(begin);
    for (int i = 0; i < kRuns; ++i)
      if (layers.Run(part, i) != cudaSuccess) state.SkipWithError("a kernel did not start");
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
    for (const auto& [sequences, tokens, keys] : {std::array{1, 1, 40},
                                                  {1, 1, 512},
                                                  {1, 1, 4096},
                                                  {1, 1, 32768},
                                                  {16, 1, 512},
                                                  {64, 1, 512},
                                                  {1, 512, 512},
                                                  {1, 512, 8192}})
      for (const Part part : {kQueries, kAttention, kValues, kAll}) {
        const Work work{shape, sequences, tokens, keys};
        const std::string name = std::string("latent/") + shape.name + "/" + kParts[part] + "/" +
                                 std::to_string(sequences) + "x" + std::to_string(tokens) + " of " +
                                 std::to_string(keys);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [work, part](benchmark::State& s) { Latent(s, work, part); })
            ->UseManualTime()
            ->Iterations(8)
            ->Unit(benchmark::kMicrosecond);
      }
  return true;
}();

}  // namespace
}  // namespace celer::cuda
