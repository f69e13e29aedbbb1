// Every matmul variant that runs here, at 1, 8 and 256 tokens, on a matrix larger than the last-level cache.
// Prints the bytes per second of weights, the limit by this machine's measured peaks, and the ratio of the
// two times.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "device/cpu_features.h"
#include "formats/decode.h"
#include "kernels/llm/matmul/matmul.h"
#include "limits/measured_machine.h"
#include "limits/roofline.h"

namespace celer {
namespace {

constexpr int64_t kCols = 2048;

// Three times the last-level cache: what stays in a cache from one call to the next would beat the memory's
// limit.
int64_t RowsFor(DType dtype) {
  const int64_t bytes = std::max<int64_t>(int64_t{96} << 20, 3 * HostCpu().last_level_bytes);
  return bytes / *BytesFor(dtype, kCols) / 64 * 64;
}

struct Case {
  DType dtype;
  const char* arithmetic;  // the peak that bounds it
};
constexpr Case kCases[] = {{DType::kQ8_0, "int8"}, {DType::kQ4_0, "int8"}, {DType::kQ4_1, "int8"},
                           {DType::kQ4_K, "int8"}, {DType::kQ6_K, "int8"}, {DType::kBf16, "bf16"},
                           {DType::kF16, "f32"}};

// One encoded row, repeated with a rotation: real values in every block without minutes of encoding.
std::vector<std::byte> MakeWeights(DType dtype, int64_t rows) {
  std::mt19937 random(1);
  std::vector<float> row(kCols);
  for (float& v : row) v = static_cast<float>(random()) / 2147483648.0f - 1.0f;
  const int64_t row_bytes = *BytesFor(dtype, kCols);
  std::vector<std::byte> out(rows * row_bytes);
  for (int64_t r = 0; r < rows; ++r) {
    if (r < 64) {
      std::rotate(row.begin(), row.begin() + 97, row.end());
      EncodeRow(dtype, row.data(), kCols, out.data() + r * row_bytes);
    } else {
      std::copy_n(out.data() + (r - 64) * row_bytes, row_bytes, out.data() + r * row_bytes);
    }
  }
  return out;
}

void Measure(benchmark::State& state, const MatmulKernels& kernels, const Case& c, int64_t tokens) {
  const int64_t rows = RowsFor(c.dtype);
  const std::vector<std::byte> data = MakeWeights(c.dtype, rows);
  WeightView w{.dtype = c.dtype,
               .rows = rows,
               .cols = kCols,
               .data = data.data(),
               .row_bytes = *BytesFor(c.dtype, kCols)};
  std::vector<std::byte> packed(static_cast<size_t>(kernels.packed_bytes ? kernels.packed_bytes(w) : 0));
  if (!packed.empty()) {
    kernels.pack(w, DefaultThreadPool(), packed.data());
    w = PackedView(w, kernels, packed.data());
  }
  std::vector<float> x(tokens * kCols, 0.5f), out(tokens * rows);
  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const MatmulOutput to{.w = w, .out = out.data(), .out_stride = rows};
    kernels.run({.x = x.data(), .tokens = tokens, .outputs = {&to, 1}, .pool = &DefaultThreadPool()});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const auto machine = LoadOrMeasureThisMachine(/*allow_measure=*/true, Device::Cpu());
  if (!machine) return state.SkipWithError(machine.error().message().c_str());
  const auto roof = RoofOf(*machine, c.arithmetic);
  if (!roof) return state.SkipWithError(roof.error().message().c_str());
  const Work work = MatmulWork(
      {.m = tokens, .n = rows, .k = kCols, .a_bits = 32, .w_bits = BitsPerElement(c.dtype), .out_bits = 32});
  const RooflineLimit limit = LimitOf(work, *roof);
  state.counters["GB/s"] = static_cast<double>(w.bytes()) / best * 1e-9;
  state.counters["limit_ms"] = limit.seconds() * 1e3;
  state.counters["ratio"] = RatioToLimit(limit, best);
  state.SetLabel("bound by " + BoundBy(limit, *roof));
}

const bool kRegistered = [] {
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere() || std::string_view(variant.name) == "reference") continue;
    for (const Case& c : kCases)
      for (const int64_t tokens : {1, 8, 256})
        benchmark::RegisterBenchmark(
            ("matmul/" + std::string(variant.name) + "/" + std::string(Name(c.dtype)) +
             "/tokens:" + std::to_string(tokens))
                .c_str(),
            [=, kernels = variant.run](benchmark::State& state) { Measure(state, *kernels, c, tokens); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(tokens > 8 ? 3 : 15);
  }
  return true;
}();

}  // namespace
}  // namespace celer
