#include "device/gpu/gpu_code.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/device.h"

#if CELER_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace celer {
namespace {

constexpr int kLeast = 80;
// KB of shared memory of a block (CUDA programming guide, technical specifications per compute capability).
constexpr std::pair<int, int> kSharedKb[] = {{75, 64},   {80, 163},  {86, 99},  {87, 163},
                                             {88, 99},   {89, 99},   {90, 227}, {100, 227},
                                             {103, 227}, {110, 227}, {120, 99}, {121, 99}};

}  // namespace

int SharedBytesOf(int capability) {
  int kb = kSharedKb[0].second;
  for (const auto& [from, its] : kSharedKb)
    if (capability >= from) kb = its;
  return kb * 1024;
}

Result<int> ForcedGpuArch() {
  static const Result<int> forced = []() -> Result<int> {
    const char* const text = std::getenv("CELER_CUDA_ARCH");
    if (text == nullptr || *text == '\0') return 0;
    return internal::ParseGpuArch(text);
  }();
  return forced;
}

Status CheckGpu(int device) {
#if CELER_WITH_CUDA
  internal::DriverAnswer answer;
  using Kind = internal::DriverAnswer::Kind;
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) answer.visible = visible;
  answer.built_with = CUDART_VERSION;
  const cudaError_t error = cudaGetDeviceCount(&answer.count);
  if (error != cudaSuccess) {
    cudaGetLastError();  // or the next launch would report this as its own
    cudaDriverGetVersion(&answer.driver);
    answer.error = cudaGetErrorString(error);
    answer.kind = error == cudaErrorInsufficientDriver
                      ? answer.driver == 0 ? Kind::kNoDriver : Kind::kOldDriver
                  : error == cudaErrorNoDevice ? Kind::kNoGpu
                                               : Kind::kFailed;
  }
  return internal::CheckAnswer(device, answer);
#else
  return Error::Unsupported(
      "cuda:", device, ": celer was built without CUDA; build with -DCELER_CUDA=ON, or use `device` cpu");
#endif
}

Status CheckGpuCode(int device, const std::string& name, const GpuCode& code) {
  if (const Result<int> forced = ForcedGpuArch(); !forced) return forced.error();
  const auto refuse = [&](const auto&... more) -> Status {
    return Error::Unsupported("cuda:", device, ": ", name, more...);
  };
  if (code.taken) return Error::Device("cuda:", device, ": ", name, ": ", code.taken);
  const int least = std::min(code.capability, code.stands_for);
  if (least < kLeast)
    return refuse(" has compute capability ", internal::CapabilityText(least), ", the kernels need ",
                  internal::CapabilityText(kLeast),
                  " (products of bf16, copies past the registers); try `device` cpu");
  if (code.compiled_for == 0)
    return refuse(" has compute capability ", internal::CapabilityText(code.capability),
                  ", for which this build has no code; build with -DCELER_CUDA_ARCHS=", code.capability,
                  ", or use `device` cpu");
  if (code.hopper() && code.stands_for != code.capability && code.stands_for != 90)
    return refuse(
        " is to stand for ", internal::CapabilityText(code.stands_for),
        " (CELER_CUDA_ARCH), but this program has code of 9.0 there; use a program with generic code alone "
        "(-DCELER_CUDA_ARCHS=80-virtual, or the twins of -DCELER_CUDA_TWIN=ON)");
  return {};
}

std::vector<std::string> DescribeGpuCode() {
  std::vector<std::string> out;
#if CELER_WITH_CUDA
  for (int device = 0; device < CudaDeviceCount(); ++device) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    out.push_back(internal::DescribeGpuCode(device, properties.name, CodeOnGpu(device)));
  }
#endif
  return out;
}

namespace internal {

Status CheckAnswer(int device, const DriverAnswer& answer) {
  using Kind = DriverAnswer::Kind;
  const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
  const std::string name = "cuda:" + std::to_string(device) + ": ";
  const std::string hidden =
      answer.visible.empty() ? "" : " (CUDA_VISIBLE_DEVICES is '" + answer.visible + "')";
  switch (answer.kind) {
    case Kind::kNoDriver:
      return Error::Invalid(name, "there is no CUDA device, as there is no NVIDIA driver; try `device` cpu");
    case Kind::kOldDriver:
      return Error::Invalid(name, "the NVIDIA driver here runs programs of CUDA ", version(answer.driver),
                            " at most and this one was built with ", version(answer.built_with),
                            "; update the driver, or use `device` cpu");
    case Kind::kFailed:
      return Error::Invalid(name, "starting the NVIDIA driver: ", answer.error, hidden, "; try `device` cpu");
    case Kind::kNoGpu:
    case Kind::kCounted:
      break;
  }
  if (answer.count == 0) return Error::Invalid(name, "there is no CUDA device", hidden, "; try `device` cpu");
  if (device < 0 || device >= answer.count)
    return Error::Invalid(
        name, "there ",
        answer.count == 1 ? "is 1 CUDA device" : "are " + std::to_string(answer.count) + " CUDA devices",
        ", counted from 0", hidden);
  return {};
}

Result<int> ParseGpuArch(std::string_view text) {
  std::string digits;
  for (const char c : text)
    if (c != '.') digits += c;
  const bool number = !digits.empty() && digits.size() <= 3 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int arch = number ? std::atoi(digits.c_str()) : 0;
  for (const auto& [known, kb] : kSharedKb)
    if (arch == known) return arch;
  return Error::Invalid("CELER_CUDA_ARCH: '", text,
                        "' is no compute capability; one of 80, 86, 87, 89, 90, 100, 103, 110, 120, 121");
}

std::string CapabilityText(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

std::string DescribeGpuCode(int device, const std::string& name, const GpuCode& code) {
  if (const Status runs = CheckGpuCode(device, name, code); !runs) return runs.error().message();
  std::string out = "cuda:" + std::to_string(device) + ": " + name + ", compute capability " +
                    CapabilityText(code.capability);
  if (code.stands_for != code.capability)
    out += " (stands for " + CapabilityText(code.stands_for) + ": CELER_CUDA_ARCH)";
  if (code.wgmma())
    out += ": kernels of 9.0 (wgmma, bulk copies, clusters, early starts)";
  else if (code.hopper())
    out += ": kernels of 9.0 as PTX (bulk copies, clusters, early starts; wgmma is for 9.0 alone)";
  else
    out += ": generic kernels (mma.sync, cp.async), as compiled for " + CapabilityText(code.compiled_for);
  return out + "; " + std::to_string(code.shared_bytes / 1024) + " KB of shared memory to a block";
}

}  // namespace internal
}  // namespace celer
