// Measures what this machine can do at best: memory bandwidth and arithmetic peaks, of the CPU and of GPUs.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "celer/limits.h"
#include "device/variant.h"

namespace celer {

// One quantity, repeated. Rates are per second: bytes for "read*" and "copy", operations otherwise.
struct Rate {
  std::string what;     // "read", "read_one", "copy", or a dtype: "f32", "tf32", "f16", "bf16", "int8", "fp8"
  std::string variant;  // the kernel that ran
  int cores = 0;        // CPU cores, or the GPU's multiprocessors
  int repetitions = 0;
  double best = 0;
  double median = 0;
  double p10 = 0, p90 = 0;

  double spread() const { return p10 > 0 ? p90 / p10 : 0; }
};

struct DeviceProbe {
  Device device;
  // What `celer limits` works with: each quantity's best. On a CPU other processes only ever slow a
  // repetition down; a GPU's clocks fall as it heats up, and work that runs before that must not exceed its
  // own limit.
  Machine machine;
  std::vector<Rate> rates;
  double clock_hz = 0;  // CPU: cycles per second seen while one core was busy
  double seconds = 0;   // how long the measurement took
  bool quick = false;   // measured with ProbeOptions::quick
  int cores = 0;        // CPU: how many were measured together

  const Rate* Find(std::string_view what) const;
};

struct ProbeOptions {
  bool quick = false;  // a third of the time, for tests and impatience
  int cores = 0;       // CPU: this many of its cores; 0, or more than there are: all
  std::function<void(std::string_view what)> progress;  // called before each quantity
};

// How many cores a probe with these options measures.
int CoresToProbe(const ProbeOptions& options);

Result<DeviceProbe> ProbeCpu(const ProbeOptions& options = {});
Result<DeviceProbe> ProbeGpu(int index,
                             const ProbeOptions& options = {});  // an error in a build without CUDA

// The GPUs that ProbeGpu() may be asked for. Empty without CUDA, driver or device.
struct GpuInfo {
  std::string name;
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
};
std::vector<GpuInfo> ListGpus();

// The tables of the CPU loops, for `celer kernels`.
std::vector<OperatorInfo> ProbeOperators();

namespace internal {

// From the seconds that each repetition of `amount` units took. `seconds` is not empty, each above zero.
Rate Summarize(std::string_view what, double amount, std::vector<double> seconds);
std::string MeasuredToday();  // "measured 2026-11-15"

}  // namespace internal
}  // namespace celer
