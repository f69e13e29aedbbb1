// What one core does in a cycle in each peak loop. A compiler that sees through a loop makes it faster than
// any CPU is: such a row is an error.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "limits/probe/probe_variants.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;

template <class Work>
double Seconds(const Work& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The most per cycle that one core of any known CPU does: 2 x 512 bits of f32, 2 x 512 of f16; one AMX unit
// for bf16 and int8; each with a factor of 2 to spare. Arm without SVE: four 128-bit pipes, again with 2 to
// spare.
#if defined(__aarch64__)
const std::map<std::string, double> kMost = {{"f32", 64}, {"f16", 128}, {"bf16", 256}, {"int8", 512}};
#else
const std::map<std::string, double> kMost = {{"f32", 128}, {"f16", 256}, {"bf16", 2048}, {"int8", 4096}};
#endif

void PerCycle(benchmark::State& state, const probe::PeakTable& table, size_t variant) {
  constexpr int64_t kRounds = 2000, kCycles = 10000;
  double cycle = 1e30, best = 1e30;
  int64_t done = 0;
  for (auto _ : state) {
    cycle = std::min(cycle, Seconds([] { probe::DependentCycles(kCycles); }) /
                                static_cast<double>(probe::DependentCycles(kCycles)));
    const double seconds = Seconds([&] { done = table.variants[variant].run(kRounds); });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const double per_cycle = static_cast<double>(done) / best * cycle;
  state.counters["per_cycle"] = per_cycle;
  if (per_cycle > kMost.at(std::string(table.dtype))) state.SkipWithError("faster than any CPU is");
}

[[maybe_unused]] const int kRegistered = [] {
  for (const probe::PeakTable& table : probe::PeakTables())
    for (size_t i = 0; i < table.variants.size(); ++i)
      if (table.variants[i].RunsHere())
        benchmark::RegisterBenchmark(
            (std::string(table.operator_name) + ":" + table.variants[i].name).c_str(),
            [table, i](benchmark::State& state) { PerCycle(state, table, i); })
            ->UseManualTime();
  return 0;
}();

}  // namespace
}  // namespace celer
