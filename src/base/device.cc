#include "base/device.h"

#include <charconv>

#if CELER_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace celer {

Result<Device> Device::Parse(std::string_view text) {
  if (text == "cpu") return Cpu();
  if (text == "cuda") return Cuda(0);
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(5);
    int index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0) return Cuda(index);
  }
  return Error::Invalid("device '", text, "' is not one of cpu, cuda, cuda:N");
}

std::string Device::ToString() const {
  return is_cpu() ? "cpu" : "cuda:" + std::to_string(index);
}

int CudaDeviceCount() {
#if CELER_WITH_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // or the next launch would report this as its own
  return 0;
#else
  return 0;
#endif
}

bool BuiltWithCuda() {
  return CELER_WITH_CUDA;
}

}  // namespace celer
