#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "device/gpu/gpu_code.h"

namespace celer {
namespace {

// All kernels of a program are compiled for the same targets, so this one says which code the driver takes.
__global__ void ProbedKernel() {}

GpuCode FindCode(int device) {
  GpuCode code;
  const Result<int> asked = ForcedGpuArch();
  const int forced = asked ? *asked : 0;
  if (device < 0) {
    if (forced == 0) return code;
    code.capability = code.stands_for = forced;
    code.compiled_for = forced == 90 ? 90 : 80;
    code.shared_bytes = SharedBytesOf(forced);
    return code;
  }
  int major = 0, minor = 0, before = device;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  cudaDeviceGetAttribute(&code.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  code.capability = 10 * major + minor;
  code.stands_for = forced > 0 ? forced : code.capability;
  if (forced > 0) code.shared_bytes = std::min(code.shared_bytes, SharedBytesOf(forced));
  cudaFuncAttributes attributes = {};
  cudaGetDevice(&before);
  if (before != device) cudaSetDevice(device);
  code.compiled_for = 0;
  // The first call that makes a context.
  switch (cudaFuncGetAttributes(&attributes, ProbedKernel)) {
    case cudaSuccess:
      code.compiled_for = attributes.ptxVersion;
      break;
    case cudaErrorDevicesUnavailable:
      code.taken =
          "another process has it to itself (nvidia-smi -q -d COMPUTE says which mode it is in); end that "
          "process, name another GPU, or use `device` cpu";
      break;
    case cudaErrorMemoryAllocation:
      code.taken =
          "other processes have filled its memory (nvidia-smi says which); end one, name another GPU, or use "
          "`device` cpu";
      break;
    default:
      break;
  }
  if (before != device) cudaSetDevice(before);
  cudaGetLastError();  // that there is no code is no error that sticks
  return code;
}

}  // namespace

const GpuCode& CodeOnGpu(int device) {
  constexpr int kRemembered = 64;
  static std::array<std::once_flag, kRemembered + 1> once;
  static std::array<GpuCode, kRemembered + 1> codes;
  const auto at = static_cast<size_t>(std::clamp(device, -1, kRemembered - 1) + 1);
  std::call_once(once[at], [&] { codes[at] = FindCode(device); });
  return codes[at];
}

}  // namespace celer
