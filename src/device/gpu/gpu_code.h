// Which of its device code a program runs on a GPU, and how much shared memory a block may have there.
//
// A program carries code of compute capability 9.0, or generic code for 8.0 and up, or both; the driver takes what suits
// the GPU best (docs/notes/cuda_generic.md). CELER_CUDA_ARCH=80|86|89|... in the environment lets a GPU stand for another
// one, whose limits then count: so an H200 tests the code of GPUs that one does not have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace celer {

// Compute capabilities and architectures are 10 * major + minor.
struct GpuCode {
  int capability = 90;  // of the GPU
  int stands_for = 90;  // that of CELER_CUDA_ARCH, else the same
  int compiled_for =
      90;  // virtual architecture of the kernels that the driver took; 0: it has none for this GPU
  int shared_bytes = 227 * 1024;  // of a block at most
  const char* taken = nullptr;    // why nothing can run there now: what other processes do with it

  // Bulk copies, clusters, programmatic launch. All other code is generic.
  bool hopper() const { return compiled_for == 90; }
  bool wgmma() const { return hopper() && capability == 90 && stands_for == 90; }
};

// Of the GPU with this number; without one, what a Hopper or the GPU of CELER_CUDA_ARCH has. In a build with CUDA.
const GpuCode& CodeOnGpu(int device);

// Whether the kernels run there; one sentence if not.
Status CheckGpuCode(int device, const std::string& name, const GpuCode& code);

// Whether there is a GPU with this number; one sentence if not: no driver or an old one, GPUs that are hidden.
Status CheckGpu(int device);

// A sentence for each GPU: which path is taken there, and why. Empty without one.
std::vector<std::string> DescribeGpuCode();

// The value of CELER_CUDA_ARCH, read once: "86" or "8.6"; 0 if it is not set.
Result<int> ForcedGpuArch();

// Bytes of shared memory that a block may have, of a GPU of this compute capability.
int SharedBytesOf(int capability);

namespace internal {

// What the driver answered when it was asked for its GPUs.
struct DriverAnswer {
  enum class Kind : unsigned char { kCounted, kNoDriver, kOldDriver, kNoGpu, kFailed };
  Kind kind = Kind::kCounted;
  int count = 0;
  int driver = 0, built_with = 0;  // CUDA versions, 1000 * major + 10 * minor
  std::string error = {};          // of kFailed
  std::string visible = {};        // CUDA_VISIBLE_DEVICES
};
Status CheckAnswer(int device, const DriverAnswer& answer);

Result<int> ParseGpuArch(std::string_view text);
std::string CapabilityText(int capability);  // "8.6"
std::string DescribeGpuCode(int device, const std::string& name, const GpuCode& code);

}  // namespace internal
}  // namespace celer
