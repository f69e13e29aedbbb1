#include "limits/probe/probe.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "base/safe_math.h"
#include "device/cpu_features.h"
#include "device/gpu/gpu_code.h"
#include "device/thread_pool.h"
#include "limits/probe/probe_variants.h"

namespace celer {
namespace internal {

Rate Summarize(std::string_view what, double amount, std::vector<double> seconds) {
  CELER_CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());  // fastest first
  CELER_CHECK_GT(seconds.front(), 0);
  const auto at = [&seconds](double fraction) {
    return seconds[static_cast<size_t>(std::lround(fraction * static_cast<double>(seconds.size() - 1)))];
  };
  Rate rate;
  rate.what = what;
  rate.repetitions = static_cast<int>(seconds.size());
  rate.best = amount / seconds.front();
  rate.median = amount / at(0.5);
  rate.p10 = amount / at(0.9);
  rate.p90 = amount / at(0.1);
  return rate;
}

std::string MeasuredToday() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("measured {:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

}  // namespace internal

namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration span) {
  return std::chrono::duration<double>(span).count();
}

// Pages of one thread: touched first by the thread that uses them, so that they lie in its NUMA node.
class Pages {
 public:
  Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
  }

  bool Allocate(size_t bytes) {
    mapped_ = bytes + kHuge;
    void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return false;
    mapping_ = mapping;
    data_ = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(mapping), kHuge));
    madvise(data_, bytes, MADV_HUGEPAGE);  // best effort: TLB misses would be measured otherwise
    std::memset(data_, 0x5a, bytes);       // unwritten pages would all be the one zero page, in the cache
    return true;
  }
  char* data() const { return data_; }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  char* data_ = nullptr;
};

// How long to repeat: at least `repetitions` times, then until `seconds` are over; on a very slow machine,
// four times that long at most.
struct Effort {
  double seconds = 0.5;
  int repetitions = 10;
};

// Threads wait here for each other without sleeping: waking one up takes longer than what is measured may.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}

  void Wait() {
    const int round = round_.load();
    if (waiting_.fetch_add(1) + 1 == threads_) {
      waiting_ = 0;
      round_ = round + 1;
      return;
    }
    for (int spins = 0; round_.load() == round; ++spins)
      if (spins > 20000) std::this_thread::yield();  // the others may need this core to get here
  }
  // For threads that never come. Those that wait are let through.
  void Break() { round_ += 1; }

 private:
  const int threads_;
  std::atomic<int> waiting_ = 0, round_ = 0;
};

// One repetition: when each thread started and ended.
struct Span {
  Clock::time_point start, end;
};
using Repetition = std::vector<Span>;

// Threads that start each repetition together. Not a ThreadPool: here each thread has a physical core to
// itself and keeps it, the first one too.
class Cores {
 public:
  // One thread per entry; -1 leaves the placement to the system.
  explicit Cores(std::vector<int> cpus) : cpus_(std::move(cpus)) {}

  // prepare(thread) once, false if memory is short; then work(thread, repetition) again and again.
  Result<std::vector<Repetition>> Time(const Effort& effort, const std::function<bool(int)>& prepare,
                                       const std::function<void(int, int)>& work) const {
    const int count = static_cast<int>(cpus_.size());
    SpinBarrier barrier(count);
    Repetition current(cpus_.size());
    std::vector<Repetition> all;
    std::atomic<bool> failed = false, done = false;
    const auto body = [&](int thread) {
      const size_t i = static_cast<size_t>(thread);
      if (cpus_[i] >= 0) PinThisThread(cpus_[i]);  // best effort
      if (!prepare(thread)) failed = true;
      barrier.Wait();
      if (failed) return;
      work(thread, 0);  // warm-up: page tables, caches, clock
      const Clock::time_point begin = Clock::now();
      for (int repetition = 1;; ++repetition) {
        barrier.Wait();
        current[i].start = Clock::now();
        work(thread, repetition);
        current[i].end = Clock::now();
        barrier.Wait();
        if (thread == 0) {
          all.push_back(current);
          const double passed = Seconds(Clock::now() - begin);
          done = repetition >= effort.repetitions ? passed >= effort.seconds : passed >= 4 * effort.seconds;
        }
        barrier.Wait();
        if (done) return;
      }
    };
    std::vector<std::thread> threads;
    try {
      threads.reserve(cpus_.size());
      for (int thread = 0; thread < count; ++thread) threads.emplace_back(body, thread);
    } catch (const std::system_error& error) {
      failed = true;
      barrier.Break();
      for (std::thread& thread : threads) thread.join();
      return Error::OutOfMemory("probe: cannot start ", count, " threads: ", error.what());
    }
    for (std::thread& thread : threads) thread.join();
    if (failed) return Error::OutOfMemory("probe: not enough memory for the bandwidth measurement");
    return all;
  }

 private:
  std::vector<int> cpus_;
};

// For what the threads compete for: from the first start to the last end.
std::vector<double> TogetherSeconds(const std::vector<Repetition>& repetitions) {
  std::vector<double> seconds;
  for (const Repetition& repetition : repetitions) {
    Span whole = repetition.front();
    for (const Span& span : repetition) {
      whole.start = std::min(whole.start, span.start);
      whole.end = std::max(whole.end, span.end);
    }
    seconds.push_back(Seconds(whole.end - whole.start));
  }
  return seconds;
}

// For what each thread has for itself: the rates add up, so the harmonic mean of the times counts.
std::vector<double> ApartSeconds(const std::vector<Repetition>& repetitions) {
  std::vector<double> seconds;
  for (const Repetition& repetition : repetitions) {
    double rates = 0;
    for (const Span& span : repetition) rates += 1 / Seconds(span.end - span.start);
    seconds.push_back(static_cast<double>(repetition.size()) / rates);
  }
  return seconds;
}

Cores UseCores(int count) {
  const CpuFeatures& cpu = HostCpu();
  // Where a quota grants less than all cores, pinning would tie us to cores that others keep busy.
  if (cpu.usable_cores < cpu.physical_cores) return Cores(std::vector<int>(static_cast<size_t>(count), -1));
  return Cores({cpu.core_cpus.begin(), cpu.core_cpus.begin() + count});
}

// Bytes to stream over, all threads together: far beyond the caches, yet a small part of the memory.
size_t StreamBytes() {
  const CpuFeatures& cpu = HostCpu();
  const int64_t wanted = std::clamp<int64_t>(8 * cpu.last_level_bytes, int64_t{256} << 20, int64_t{8} << 30);
  return static_cast<size_t>(std::min(wanted, std::max<int64_t>(cpu.memory_bytes / 8, int64_t{16} << 20)));
}

// A repetition streams over the next of these windows. Short repetitions find quiet moments on a busy
// machine; going round keeps each window out of the caches.
constexpr size_t kWindows = 4;

// Per thread and window.
size_t WindowBytes(int threads) {
  constexpr size_t kUnit = 2 * probe::kStreamBytes;  // so that each half holds whole streams
  return std::max(kUnit, StreamBytes() / static_cast<size_t>(threads) / kWindows / kUnit * kUnit);
}

std::atomic<uint64_t> g_sink;  // results go here, so that no loop is without effect

Rate Finish(std::string_view what, double amount, std::vector<double> seconds, const char* variant,
            int threads) {
  Rate rate = internal::Summarize(what, amount * threads, std::move(seconds));
  rate.variant = variant;
  rate.cores = threads;
  return rate;
}

// stream(window, bytes) on every thread, over its own memory.
template <class Stream>
Result<std::vector<double>> TimeStreams(int threads, size_t bytes, const Effort& effort,
                                        const Stream& stream) {
  std::vector<Pages> pages(static_cast<size_t>(threads));
  CELER_ASSIGN(const std::vector<Repetition> repetitions,
               UseCores(threads).Time(
                   effort, [&](int t) { return pages[t].Allocate(kWindows * bytes); },
                   [&](int t, int repetition) {
                     const size_t window = static_cast<size_t>(repetition) % kWindows;
                     stream(pages[t].data() + window * bytes, bytes);
                   }));
  return TogetherSeconds(repetitions);
}

// By the fastest of the variants that share the chosen one's instruction set, which are ways to read.
Result<Rate> MeasureRead(std::string_view what, const Variant<probe::ReadFn>& chosen, int threads,
                         const Effort& effort) {
  const size_t bytes = WindowBytes(threads);
  Rate fastest;
  for (const Variant<probe::ReadFn>& variant : probe::ReadVariants()) {
    if (&variant < &chosen || variant.isa != chosen.isa) continue;
    CELER_ASSIGN(std::vector<double> seconds,
                 TimeStreams(threads, bytes, effort,
                             [&](const char* data, size_t n) { g_sink ^= variant.run(data, n); }));
    Rate rate = Finish(what, static_cast<double>(bytes), std::move(seconds), variant.name, threads);
    if (rate.best > fastest.best) fastest = std::move(rate);
  }
  return fastest;
}

// Each thread copies one half of its window over the other; bytes read and bytes written both count.
Result<Rate> MeasureCopy(const Variant<probe::CopyFn>& variant, int threads, const Effort& effort) {
  const size_t bytes = WindowBytes(threads);
  CELER_ASSIGN(std::vector<double> seconds, TimeStreams(threads, bytes, effort, [&](char* data, size_t n) {
                 variant.run(data + n / 2, data, n / 2);
               }));
  return Finish("copy", static_cast<double>(bytes), std::move(seconds), variant.name, threads);
}

// Rounds of `loop` that take about `seconds` on one core.
int64_t Calibrate(probe::PeakFn loop, double seconds) {
  for (int64_t rounds = 256;; rounds *= 4) {
    const Clock::time_point start = Clock::now();
    loop(rounds);
    const double took = Seconds(Clock::now() - start);
    if (took >= seconds / 16 || rounds >= (int64_t{1} << 40))
      return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(rounds) * seconds / took));
  }
}

Result<Rate> MeasurePeak(const char* dtype, const Variant<probe::PeakFn>& variant, int threads,
                         const Effort& effort) {
  const int64_t rounds = Calibrate(variant.run, 0.0005);
  std::atomic<int64_t> operations = 0;
  CELER_ASSIGN(const std::vector<Repetition> repetitions,
               UseCores(threads).Time(
                   effort, [](int) { return true; }, [&](int, int) { operations = variant.run(rounds); }));
  return Finish(dtype, static_cast<double>(operations), ApartSeconds(repetitions), variant.name, threads);
}

double MeasureClock() {
  const int64_t rounds = Calibrate(probe::DependentCycles, 0.0005);
  double best = 0;
  for (int i = 0; i < 50; ++i) {
    const Clock::time_point start = Clock::now();
    const int64_t cycles = probe::DependentCycles(rounds);
    best = std::max(best, static_cast<double>(cycles) / Seconds(Clock::now() - start));
  }
  return best;
}

}  // namespace

const Rate* DeviceProbe::Find(std::string_view what) const {
  for (const Rate& rate : rates)
    if (rate.what == what) return &rate;
  return nullptr;
}

int CoresToProbe(const ProbeOptions& options) {
  const int all = HostCpu().usable_cores;
  return options.cores > 0 ? std::min(options.cores, all) : all;
}

Result<DeviceProbe> ProbeCpu(const ProbeOptions& options) {
#if !defined(__OPTIMIZE__)
  log::Warning("probe: this is a build without optimization; its rates are not the machine's");
#endif
  const Clock::time_point begin = Clock::now();
  const CpuFeatures& cpu = HostCpu();
  const int all = CoresToProbe(options);
  const Effort bandwidth = {options.quick ? 0.15 : 1.2, options.quick ? 5 : 10};
  const Effort peak = {options.quick ? 0.06 : 0.5, 10};
  const auto announce = [&options](const std::string& what) {
    if (options.progress) options.progress(what);
  };

  DeviceProbe result;
  result.device = Device::Cpu();
  result.quick = options.quick;
  result.cores = all;
  announce("clock");
  result.clock_hz = MeasureClock();

  const auto* read = Pick<probe::ReadFn>("probe_read", probe::ReadVariants());
  const auto* copy = Pick<probe::CopyFn>("probe_copy", probe::CopyVariants());
  CELER_CHECK(read != nullptr && copy != nullptr);  // both tables end with a portable row
  announce("read, one core");
  CELER_ASSIGN(Rate read_one, MeasureRead("read_one", *read, 1, bandwidth));
  announce(fmt::format("read, {} cores", all));
  CELER_ASSIGN(Rate read_all, MeasureRead("read", *read, all, bandwidth));
  announce(fmt::format("copy, {} cores", all));
  CELER_ASSIGN(Rate copy_all, MeasureCopy(*copy, all, bandwidth));

  Machine& machine = result.machine;
  machine.name = fmt::format("{}, {} core{}", cpu.model, all, all == 1 ? "" : "s");
  machine.source = internal::MeasuredToday();
  machine.memory_bytes = static_cast<double>(cpu.memory_bytes);
  machine.read_bytes_per_s = read_all.best;
  machine.read_bytes_per_s_one = read_one.best;
  machine.copy_bytes_per_s = copy_all.best;
  result.rates = {std::move(read_all), std::move(read_one), std::move(copy_all)};

  for (const probe::PeakTable& table : probe::PeakTables()) {
    const auto* variant = Pick<probe::PeakFn>(table.operator_name, table.variants);
    if (variant == nullptr) continue;  // this CPU has no instruction for the dtype
    announce(fmt::format("{}, {} cores", table.dtype, all));
    CELER_ASSIGN(Rate rate, MeasurePeak(table.dtype, *variant, all, peak));
    machine.flops[table.dtype] = rate.best;
    result.rates.push_back(std::move(rate));
  }
  result.seconds = Seconds(Clock::now() - begin);
  return result;
}

#if !CELER_WITH_CUDA

std::vector<GpuInfo> ListGpus() {
  return {};
}
Result<DeviceProbe> ProbeGpu(int index, const ProbeOptions&) {
  return CheckGpu(index).error();
}

#endif

}  // namespace celer
