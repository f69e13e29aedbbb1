// Work of the host in the middle of a step that is queued as a whole (kernels/llm/crossing).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/function_ref.h"
#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"

namespace celer {

class CudaCrossing {
 public:
  Status Make(int device, int64_t floats);  // that cross at once, at most
  int64_t floats() const { return floats_; }

  // x[count] goes to the host, times `scale`, and comes back. The host has to Answer() before it asks the GPU for anything.
  cudaError_t Launch(float* x, int64_t count, float scale, const Stream& stream) const;
  // Waits for the next x and lets `work` change it, which must not throw. An error if the GPU will hand over nothing more.
  Status Answer(const Stream& stream, FunctionRef<void(float* x)> work);

 private:
  float* x() const;

  int64_t floats_ = 0;
  Buffer host_;    // pinned: a cache line for each count, then x
  Buffer device_;  // the GPU's count
  uint32_t seen_ = 0;
};

}  // namespace celer
