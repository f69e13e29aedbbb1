// How long a fork and join takes: from the call of Run() with an empty task to its return.
// The bar is a median of 5 us on 2 idle cores.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "device/thread_pool.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;

// Runs `fork_join` after a pause of `gap`, each time measured alone; the mean hides what the scheduler does.
template <class F>
void Measure(benchmark::State& state, std::chrono::microseconds gap, const F& fork_join) {
  std::vector<double> samples;
  samples.reserve(1 << 20);
  for (auto _ : state) {
    const auto resume = Clock::now() + gap;
    while (Clock::now() < resume) continue;
    const auto start = Clock::now();
    fork_join();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(seconds);
    if (samples.size() < samples.capacity()) samples.push_back(seconds * 1e6);
  }
  std::ranges::sort(samples);
  const auto at = [&](size_t percent) {
    return samples[std::min(samples.size() - 1, samples.size() * percent / 100)];
  };
  state.counters["p10_us"] = at(10);
  state.counters["median_us"] = at(50);
  state.counters["p90_us"] = at(90);
  state.counters["p99_us"] = at(99);
}

int Threads(const benchmark::State& state) {
  return state.range(0) == 0 ? UsableCpus() : static_cast<int>(state.range(0));
}

void BM_ForkJoin(benchmark::State& state) {
  ThreadPool pool({.threads = Threads(state)});
  Measure(state, std::chrono::microseconds(state.range(1)),
          [&] { pool.Run([](int t) { benchmark::DoNotOptimize(t); }); });
}
// Threads (0: all usable CPUs), microseconds of serial work between two runs. The number of runs is fixed:
// the measured time is only a small part of the time it takes.
BENCHMARK(BM_ForkJoin)
    ->ArgNames({"threads", "gap_us"})
    ->ArgsProduct({{2, 0}, {0, 5, 50}})
    ->Iterations(20'000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
// The workers have parked: this is the price of the first run after a pause.
BENCHMARK(BM_ForkJoin)
    ->ArgNames({"threads", "gap_us"})
    ->Args({2, 1000})
    ->Iterations(500)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
// More threads than CPUs: nobody may spin.
BENCHMARK(BM_ForkJoin)
    ->ArgNames({"threads", "gap_us"})
    ->Args({4 * static_cast<int64_t>(std::thread::hardware_concurrency()), 0})
    ->Iterations(2'000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

void BM_ForkJoinPinned(benchmark::State& state) {
  ThreadPool pool({.threads = Threads(state), .pin = true});
  Measure(state, std::chrono::microseconds(5), [&] { pool.Run([](int t) { benchmark::DoNotOptimize(t); }); });
}
BENCHMARK(BM_ForkJoinPinned)
    ->ArgName("threads")
    ->Iterations(20'000)
    ->Arg(2)
    ->Arg(0)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

void BM_ParallelForDynamic(benchmark::State& state) {
  ThreadPool pool;
  Measure(state, std::chrono::microseconds(5), [&] {
    pool.ParallelForDynamic(256, 4, [](int64_t begin, int64_t) { benchmark::DoNotOptimize(begin); });
  });
}
BENCHMARK(BM_ParallelForDynamic)->Iterations(20'000)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace celer
