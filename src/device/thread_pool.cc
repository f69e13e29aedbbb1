#include "device/thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "base/safe_math.h"
#include "base/spin.h"
#include "device/cgroup.h"

namespace celer {
namespace {

constexpr int kMaxThreads = 1024;

thread_local bool t_inside_run = false;

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while word == expected; may return early.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>& word, int count = std::numeric_limits<int>::max()) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}
// Each parked worker that wakes up wakes this many others: one thread would take long to wake them all.
constexpr int kWakeFan = 2;

class InsideRunScope {
 public:
  InsideRunScope() { t_inside_run = true; }
  ~InsideRunScope() { t_inside_run = false; }
};

}  // namespace

ThreadPool::ThreadPool(const Options& options) : spin_(options.spin) {
  CELER_CHECK_GE(options.threads, 0);
  CELER_CHECK_LE(options.threads, kMaxThreads);
  size_ = options.threads;
  if (size_ == 0) {
    const auto threads = ThreadsFromEnvironment();
    if (!threads) log::WarningOnce("{}; using {} threads", threads.error().message(), UsableCpus());
    size_ = threads ? *threads : UsableCpus();
  }
  crowded_ = size_ > UsableCpus();
  const std::vector<int> cpus = UsableCpuList();
  workers_.reserve(size_ - 1);
  for (int t = 1; t < size_; ++t) {
    const int cpu = options.pin && !cpus.empty() ? cpus[static_cast<size_t>(t) % cpus.size()] : -1;
    try {
      workers_.emplace_back([this, t, cpu] { Work(t, cpu); });
    } catch (const std::system_error& error) {  // a limit of the process or of its memory
      log::WarningOnce("the system refused a thread ({}); using {} instead of {}", error.code().message(), t,
                       size_);
      size_ = t;
    }
  }
}

ThreadPool::~ThreadPool() {
  task_ = nullptr;
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(epoch_);
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::InsideRun() {
  return t_inside_run;
}

// Looks for a bounded time; true as soon as ready().
template <class Ready>
bool ThreadPool::SpinUntil(const Ready& ready) const {
  return celer::SpinUntil(ready, crowded_ ? std::chrono::nanoseconds::zero() : spin_);
}

void ThreadPool::Work(int thread, int cpu) {
  if (cpu >= 0 && !PinThisThread(cpu)) log::WarningOnce("thread {} cannot be pinned to CPU {}", thread, cpu);
  t_inside_run = true;  // all that ever runs here is part of a run
  uint32_t seen = 0;
  for (;;) {
    const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!SpinUntil(changed)) {
      // Either the caller sees that we are parked and wakes us, or we see its new epoch: both sides write
      // before they read, in one total order.
      parked_workers_.fetch_add(1, std::memory_order_seq_cst);
      while (epoch_.load(std::memory_order_seq_cst) == seen) FutexWait(epoch_, seen);
      parked_workers_.fetch_sub(1, std::memory_order_relaxed);
      FutexWake(epoch_, kWakeFan);  // always: each worker that wakes up wakes others, and they rely on it
    }
    ++seen;  // no further epoch can start before we have counted down
    if (task_ == nullptr) return;
    (*task_)(thread);
    if (running_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
        parked_caller_.load(std::memory_order_seq_cst))
      FutexWake(running_);
  }
}

void ThreadPool::Run(FunctionRef<void(int)> fn) {
  if (t_inside_run) {
    for (int t = 0; t < size_; ++t) fn(t);
    return;
  }
  const InsideRunScope inside;
  if (size_ == 1) return fn(0);
  const std::lock_guard lock(callers_);
  // A worker has nobody to throw to: the first exception waits here for the caller.
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
  const auto guarded = [&](int thread) {
    try {
      fn(thread);
    } catch (...) {
      if (!failed.exchange(true, std::memory_order_relaxed)) failure = std::current_exception();
    }
  };
  const FunctionRef<void(int)> task(guarded);
  task_ = &task;
  running_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_workers_.load(std::memory_order_seq_cst) > 0) FutexWake(epoch_, kWakeFan);
  guarded(0);
  const auto finished = [&] { return running_.load(std::memory_order_acquire) == 0; };
  if (!SpinUntil(finished)) {
    parked_caller_.store(true, std::memory_order_seq_cst);
    for (uint32_t left; (left = running_.load(std::memory_order_seq_cst)) != 0;) FutexWait(running_, left);
    parked_caller_.store(false, std::memory_order_relaxed);
  }
  if (failure) std::rethrow_exception(failure);
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> fn) {
  CELER_CHECK_GE(grain, 1);
  if (n <= 0) return;
  if (n <= grain || size_ == 1 || t_inside_run) return fn(0, n);
  const int64_t units = n / grain + (n % grain != 0);
  const int64_t pieces = std::min<int64_t>(units, size_);
  const int64_t each = units / pieces;
  const int64_t longer = units % pieces;  // the first `longer` pieces have one unit more
  Run([&](int thread) {
    if (thread >= pieces) return;
    const int64_t first = thread * each + std::min<int64_t>(thread, longer);
    const int64_t last = first + each + (thread < longer);
    fn(first * grain, last == units ? n : last * grain);
  });
}

void ThreadPool::ParallelForDynamic(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> fn) {
  CELER_CHECK_GE(grain, 1);
  if (n <= 0) return;
  if (n <= grain || size_ == 1 || t_inside_run) return fn(0, n);
  const int64_t units = n / grain + (n % grain != 0);
  alignas(64) std::atomic<int64_t> next{0};
  Run([&](int) {
    for (int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;)
      fn(unit * grain, unit + 1 == units ? n : (unit + 1) * grain);
  });
}

std::vector<int> UsableCpuList() {
  std::vector<int> out;
  // The mask must be as large as the kernel's; grow it until the kernel accepts it.
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(cpus));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < cpus; ++cpu)
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) out.push_back(cpu);
    CPU_FREE(set);
    if (known) break;
  }
  return out;
}

int UsableCpus() {
  const size_t listed = UsableCpuList().size();
  int cpus = listed > 0 ? static_cast<int>(listed) : static_cast<int>(std::thread::hardware_concurrency());
  if (const auto quota = ReadCgroupLimits().cpus) cpus = static_cast<int>(std::min<double>(cpus, *quota));
  return std::clamp(cpus, 1, kMaxThreads);
}

Result<int> ThreadsFromEnvironment() {
  const char* const text = std::getenv("CELER_THREADS");
  if (text == nullptr || *text == '\0') return UsableCpus();
  const std::string_view digits = text;
  int threads = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), threads);
  if (error != std::errc() || end != digits.data() + digits.size() || threads < 1 || threads > kMaxThreads)
    return Error::Invalid("CELER_THREADS='", digits, "' is not a number from 1 to ", kMaxThreads);
  return threads;
}

bool PinThisThread(int cpu) {
  CELER_CHECK_GE(cpu, 0);
  const auto cpus = static_cast<size_t>(cpu) + 1;
  cpu_set_t* const set = CPU_ALLOC(cpus);
  const size_t bytes = CPU_ALLOC_SIZE(cpus);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const bool pinned = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return pinned;
}

ThreadPool& DefaultThreadPool() {
  static auto* const pool = new ThreadPool;  // never destroyed: threads of others may still use it at exit
  return *pool;
}

}  // namespace celer
