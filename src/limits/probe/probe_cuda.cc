#include "limits/probe/probe_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/safe_math.h"
#include "base/spin.h"
#include "device/cuda_status.h"
#include "device/gpu/gpu_code.h"
#include "limits/probe/probe.h"
#include "limits/probe/probe_gemm_cuda.h"
#include "limits/probe/probe_timer_cuda.h"

namespace celer {
namespace {

using probe::CudaReadConfig;
using probe::CudaScratch;
using probe::CudaTimer;

// Which way of reading is fastest depends on the GPU's generation, so all are tried.
constexpr CudaReadConfig kReadConfigs[] = {
    {4, 512, true},   {8, 512, true},  {8, 256, true},   {16, 256, true},
    {4, 1024, false}, {8, 512, false}, {16, 256, false},
};

std::string ConfigName(const CudaReadConfig& config) {
  return fmt::format("cuda_16Bx{}_{}t{}", config.unroll, config.threads,
                     config.persistent ? "_persistent" : "");
}

Result<Rate> MeasureRead(CudaTimer& timer, const CudaScratch& data, size_t bytes, int multiprocessors,
                         int repetitions) {
  CELER_ASSIGN(const CudaScratch sink, CudaScratch::Allocate(sizeof(uint32_t)));
  Rate best;
  uint32_t expected = 0;
  for (size_t i = 0; i < std::size(kReadConfigs); ++i) {
    const CudaReadConfig& config = kReadConfigs[i];
    const auto queue = [&]() -> Status {
      const cudaError_t error = probe::LaunchProbeRead(
          config, data.get(), bytes, static_cast<uint32_t*>(sink.get()), multiprocessors, timer.stream());
      if (error == cudaErrorNoKernelImageForDevice)
        return Error::Unsupported(
            "this celer has no code for this GPU; rebuild with -DCELER_CUDA_ARCHS=native");
      return CudaStatus(error, "the read bandwidth kernel");
    };
    // The same answer from every config proves that every byte was read. An even number of runs cancels out
    // in the xor, so one run is looked at alone.
    uint32_t sum = 0;
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(sink.get(), 0, sizeof(sum), timer.stream()), "clearing the sum"));
    CELER_RETURN_IF_ERROR(queue());
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(&sum, sink.get(), sizeof(sum), cudaMemcpyDeviceToHost, timer.stream()),
                   "reading the sum"));
    CELER_RETURN_IF_ERROR(timer.owned_stream().Synchronize());
    if (i == 0) expected = sum;
    if (sum != expected)
      return Error::Device("the read bandwidth kernel ", ConfigName(config), " computed ", sum, ", not ",
                           expected, "; the GPU's memory or this build is faulty");

    CELER_ASSIGN(std::vector<double> seconds, timer.Time(2, repetitions, queue));
    Rate rate = internal::Summarize("read", static_cast<double>(bytes), std::move(seconds));
    if (rate.median > best.median) {
      best = std::move(rate);
      best.variant = ConfigName(config);
    }
  }
  best.cores = multiprocessors;
  return best;
}

// One half of the buffer over the other; bytes read and bytes written both count.
Result<Rate> MeasureCopy(CudaTimer& timer, const CudaScratch& data, size_t bytes, int multiprocessors,
                         int repetitions) {
  const size_t half = bytes / 2;
  const auto queue = [&] {
    return CudaStatus(
        cudaMemcpyAsync(data.bytes() + half, data.bytes(), half, cudaMemcpyDeviceToDevice, timer.stream()),
        "copying on the GPU");
  };
  CELER_ASSIGN(std::vector<double> seconds, timer.Time(3, repetitions, queue));
  Rate rate = internal::Summarize("copy", 2.0 * static_cast<double>(half), std::move(seconds));
  rate.variant = "cudaMemcpyAsync";
  rate.cores = multiprocessors;
  return rate;
}

// Pinned memory, freed with the scope.
class PinnedScratch {
 public:
  explicit PinnedScratch(size_t bytes) { code_ = cudaHostAlloc(&data_, bytes, cudaHostAllocDefault); }
  PinnedScratch(const PinnedScratch&) = delete;
  ~PinnedScratch() { cudaFreeHost(data_); }
  cudaError_t code() const { return code_; }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  cudaError_t code_;
};

Result<Rate> MeasureHostRead(CudaTimer& timer, const CudaScratch& data, int repetitions) {
  constexpr size_t kBytes = size_t{64} << 20;  // as weights are sent, in large pieces
  const PinnedScratch host(kBytes);
  CELER_RETURN_IF_ERROR(CudaStatus(host.code(), "allocating pinned memory"));
  std::memset(host.bytes(), 1, kBytes);
  const auto queue = [&] {
    return CudaStatus(
        cudaMemcpyAsync(data.bytes(), host.bytes(), kBytes, cudaMemcpyHostToDevice, timer.stream()),
        "copying to the GPU");
  };
  CELER_ASSIGN(std::vector<double> seconds, timer.Time(2, repetitions, queue));
  Rate rate = internal::Summarize("read_host", static_cast<double>(kBytes), std::move(seconds));
  rate.variant = "cudaMemcpyAsync";
  return rate;
}

// Seconds of one crossing.
Result<double> MeasureCrossing(CudaTimer& timer, const CudaScratch& data) {
  constexpr int kWarm = 16, kRounds = 256;
  constexpr size_t kLine = 128, kDataBytes = probe::kCrossingFloats * sizeof(float);
  const PinnedScratch host(2 * kLine + kDataBytes);
  CELER_RETURN_IF_ERROR(CudaStatus(host.code(), "allocating pinned memory"));
  std::memset(host.bytes(), 0, 2 * kLine + kDataBytes);
  const probe::CrossingProbe crossing = {.data = reinterpret_cast<float*>(host.bytes() + 2 * kLine),
                                         .handed = reinterpret_cast<uint32_t*>(host.bytes()),
                                         .answered = reinterpret_cast<uint32_t*>(host.bytes() + kLine),
                                         .sink = static_cast<float*>(data.get())};
  CELER_RETURN_IF_ERROR(CudaStatus(probe::LaunchProbeCrossing(crossing, kWarm + kRounds, timer.stream()),
                                   "handing memory to the host"));
  using Clock = std::chrono::steady_clock;
  const std::atomic_ref<uint32_t> handed(*crossing.handed), answered(*crossing.answered);
  Clock::time_point begin;
  for (uint32_t round = 1; round <= kWarm + kRounds; ++round) {
    while (!SpinUntil([&] { return handed.load(std::memory_order_acquire) == round; },
                      std::chrono::milliseconds(100))) {
      CELER_ASSIGN(const bool idle, timer.owned_stream().Idle());
      if (idle) return Error::Device("handing memory to the host: the kernel has ended early");
    }
    if (round == kWarm) begin = Clock::now();
    for (int i = 0; i < probe::kCrossingFloats; ++i) crossing.data[i] += 1;
    answered.store(round, std::memory_order_release);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  CELER_RETURN_IF_ERROR(timer.owned_stream().Synchronize());
  return seconds / kRounds;
}

}  // namespace

std::vector<GpuInfo> ListGpus() {
  std::vector<GpuInfo> gpus;
  const int count = CudaDeviceCount();
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) break;
    gpus.push_back(
        {properties.name, static_cast<int64_t>(properties.totalGlobalMem), properties.multiProcessorCount});
  }
  return gpus;
}

Result<DeviceProbe> ProbeGpu(int index, const ProbeOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  CELER_RETURN_IF_ERROR(CheckGpu(index));
  const CudaDeviceScope scope(index);
  cudaDeviceProp properties{};
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index), "reading the GPU's properties"));
  const auto announce = [&](const char* what) {
    if (options.progress) options.progress(what);
  };
  DeviceProbe result;
  result.device = Device::Cuda(index);
  result.quick = options.quick;
  Machine& machine = result.machine;
  machine.name = properties.name;
  machine.source = internal::MeasuredToday();
  machine.memory_bytes = static_cast<double>(properties.totalGlobalMem);

  announce("starting");
  CELER_ASSIGN(CudaTimer timer, CudaTimer::Create(index));
  const int multiprocessors = properties.multiProcessorCount;
  {
    size_t free = 0, total = 0;
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
    // Far beyond any L2, and long enough (a millisecond on the fastest GPU) for the clocks to settle.
    const size_t bytes = std::min(size_t{4} << 30, free / 4) / probe::kCudaReadUnit * probe::kCudaReadUnit;
    if (bytes < (size_t{256} << 20))
      return Error::OutOfMemory("cuda:", index, ": only ", free >> 20,
                                " MiB are free, too little to measure; end other programs on this GPU");
    CELER_ASSIGN(const CudaScratch data, CudaScratch::Allocate(bytes));
    CELER_RETURN_IF_ERROR(CudaStatus(
        probe::LaunchProbeFill(probe::CudaFill::kF32, data.get(), bytes / 4, 3, timer.stream()), "filling"));
    const int repetitions = options.quick ? 10 : 30;
    announce("read");
    CELER_ASSIGN(Rate read, MeasureRead(timer, data, bytes, multiprocessors, repetitions));
    announce("copy");
    CELER_ASSIGN(Rate copy, MeasureCopy(timer, data, bytes, multiprocessors, repetitions));
    machine.read_bytes_per_s = read.best;
    machine.copy_bytes_per_s = copy.best;
    announce("read_host");
    CELER_ASSIGN(Rate host_read, MeasureHostRead(timer, data, options.quick ? 5 : 15));
    machine.host_bytes_per_s = host_read.best;
    CELER_ASSIGN(machine.crossing_s, MeasureCrossing(timer, data));
    result.rates = {std::move(read), std::move(copy), std::move(host_read)};
  }
  CELER_ASSIGN(std::vector<Rate> gemms, probe::MeasureGemms(timer, options));
  for (Rate& rate : gemms) {
    rate.cores = multiprocessors;
    machine.flops[rate.what] = rate.best;
    result.rates.push_back(std::move(rate));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace celer
