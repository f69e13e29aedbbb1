// Decode steps as captured graphs, one for each kind of step.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "base/function_ref.h"
#include "base/result.h"
#include "device/stream.h"
#include "models/cuda/strategy.h"

namespace celer {

class DecodeGraphs {
 public:
  static constexpr int kMaxSequences = 64;

  DecodeGraphs() = default;
  ~DecodeGraphs();
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  struct Kind {
    ForwardStrategy strategy = ForwardStrategy::kMatvec;
    bool sampled = false;
    bool adapted = false;  // with LoRA adapters
    int sequences = 0;
  };
  // Launches the graph of that kind. The first time, `queue` puts its kernels on the stream.
  Status Launch(const Kind& kind, const Stream& stream, FunctionRef<Status()> queue);
  // The next steps with adapters are captured again.
  void ForgetAdapted();
  // A graph of `queue` for this one time; waits for its end.
  static Status LaunchOnce(const Stream& stream, FunctionRef<Status()> queue);

 private:
  static Status Capture(const Stream& stream, FunctionRef<Status()> queue, cudaGraphExec_t* graph);

  using ByCount = std::array<cudaGraphExec_t, kMaxSequences + 1>;
  // By strategy, `adapted` and `sampled`.
  std::array<std::array<std::array<ByCount, 2>, 2>, kForwardStrategies> graphs_ = {};
};

}  // namespace celer
