// Where memory lives and work runs.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace celer {

struct Device {
  enum class Kind : unsigned char { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;

  static constexpr Device Cpu() { return {}; }
  static constexpr Device Cuda(int index = 0) { return {Kind::kCuda, index}; }
  static Result<Device> Parse(std::string_view text);  // "cpu", "cuda", "cuda:1"

  bool is_cpu() const { return kind == Kind::kCpu; }
  std::string ToString() const;
  bool operator==(const Device&) const = default;
};

// Number of CUDA devices that can be used; 0 without a driver or in a build without CUDA.
int CudaDeviceCount();
bool BuiltWithCuda();

}  // namespace celer
