// The residual to the host and back in the middle of a step: one kernel, which hands it over in pinned memory and waits
// there for the host's answer. So a step with work of the host in it is one captured graph, and a crossing takes a few
// microseconds on either side: no launch, no copy, no stream that somebody waits for.
//
// The host has to answer every such kernel that was launched, in their order, without asking the GPU for anything
// meanwhile that waits for it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

constexpr int kCrossingThreads = 1024;

struct CrossingArgs {
  float* x = nullptr;  // [count], aligned to 16 bytes; what comes back is in its place
  int64_t count = 0;
  float scale = 1;                // of what the host sees; what it answers is divided by that
  float* host = nullptr;          // [count], pinned, aligned likewise
  uint32_t* handed = nullptr;     // pinned: how many times x was handed over
  uint32_t* answered = nullptr;   // pinned, and in another cache line: how many times the host has answered
  uint32_t* crossings = nullptr;  // in the GPU's memory: the same count
};

// One block: what crosses is small.
cudaError_t LaunchCrossing(const CrossingArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
