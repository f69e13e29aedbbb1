// x <- x * sigmoid(gate): what some models do with the output of attention, head by head.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"

namespace celer {

struct OutputGateArgs {
  float* x = nullptr;           // [heads, head_dim], of all tokens
  const float* gate = nullptr;  // likewise, `stride` floats from one head to the next
  int64_t stride = 0;
  int64_t heads = 0, head_dim = 0;
  ThreadPool* pool = nullptr;
};

void OutputGate(const OutputGateArgs& args);

}  // namespace celer
