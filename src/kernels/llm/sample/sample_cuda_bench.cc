// What choosing tokens costs on a GPU, by vocabulary, rows, distribution and settings. Time is the kernel's
// own.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/device.h"
#include "kernels/llm/sample/sample_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kHostSlots = 8;

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};
template <class T>
using OnDevice = std::unique_ptr<T[], Free>;

template <class T>
OnDevice<T> Upload(const std::vector<T>& values) {
  void* to = nullptr;
  if (cudaMalloc(&to, values.size() * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return OnDevice<T>(static_cast<T*>(to));
}

// kUsual: spread as logits are. kFlat: nearly all tokens count. kEqual: nothing but ties.
enum class Spread { kUsual, kFlat, kEqual };
constexpr const char* kSpreads[] = {"usual", "flat", "equal"};

struct Setting {
  const char* name;
  SampleRow row;
};
const Setting kSettings[] = {
    {"largest", {.temperature = 0}},
    {"plain", {.temperature = 1}},
    {"top-k 50", {.temperature = 0.8f, .top_k = 50}},
    {"top-p 0.9", {.temperature = 0.8f, .top_p = 0.9f}},
    {"top-k, top-p, min-p", {.temperature = 0.8f, .top_p = 0.9f, .top_k = 50, .reach = Reach(0.01f)}}};

void Sample(benchmark::State& state, int vocab, int count, Spread spread, const Setting& setting) {
  if (CudaDeviceCount() == 0) return state.SkipWithError("no CUDA device here");
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, spread == Spread::kFlat ? 0.1f : 2.5f);
  std::vector<float> logits(static_cast<size_t>(vocab) * static_cast<size_t>(count), -3.25f);
  if (spread != Spread::kEqual)
    for (float& l : logits) l = normal(random);
  std::vector<SampleRow> rows(static_cast<size_t>(count), setting.row);
  for (size_t r = 0; r < rows.size(); ++r) rows[r].seed = HashDraw(r);
  const std::vector<int32_t> zeros(rows.size() * kHostSlots);
  const auto device_logits = Upload(logits);
  const auto device_rows = Upload(rows);
  const auto tokens = Upload(zeros), positions = Upload(zeros), host = Upload(zeros);
  const SampleArgs args{.logits = device_logits.get(),
                        .rows = count,
                        .vocab = vocab,
                        .sampling = device_rows.get(),
                        .tokens = tokens.get(),
                        .positions = positions.get(),
                        .host_tokens = host.get(),
                        .host_stride = count,
                        .host_slots = kHostSlots};
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  constexpr int kRuns = 50;
  for (auto _ : state) {
    cudaEventRecord(begin);
    for (int k = 0; k < kRuns; ++k)
      if (LaunchSample(args, nullptr) != cudaSuccess) state.SkipWithError("the kernel did not start");
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    state.SetIterationTime(double{milliseconds} * 1e-3 / kRuns);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

[[maybe_unused]] const int kRegistered = [] {
  for (const int vocab : {32000, 128256, 262144})
    for (const int count : {1, 64})
      for (const Spread spread : {Spread::kUsual, Spread::kFlat, Spread::kEqual})
        for (const Setting& setting : kSettings)
          benchmark::RegisterBenchmark(
              ("sample/" + std::to_string(vocab) + "x" + std::to_string(count) + "/" +
               kSpreads[static_cast<int>(spread)] + "/" + setting.name)
                  .c_str(),
              [=](benchmark::State& state) { Sample(state, vocab, count, spread, setting); })
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond);
  return 0;
}();

}  // namespace
}  // namespace celer::cuda
