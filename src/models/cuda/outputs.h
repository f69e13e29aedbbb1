// Where the results of steps reach the host: pinned memory that the GPU writes to by itself.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/llm/sample/greedy_cuda.h"
#include "kernels/llm/sample/sample_cuda.h"
#include "models/cuda/memory/workspace.h"

namespace celer {

class CudaOutputs {
 public:
  Status Make(int device, const CudaShape& shape);

  // Sampling at the end of a decode step.
  cuda::GreedyTarget Greedy(const CudaMemory& memory) const;
  cuda::SampleArgs Sampled(const CudaMemory& memory, int rows) const;
  // Of the rows of a batch: nothing moves on.
  cuda::SampleArgs SampledRows(const CudaMemory& memory, int rows) const;

  // The end of the step whose first sequence stands at `position`. Steps a few positions back are still here.
  Event& StepDone(int64_t position) { return *step_done_[static_cast<size_t>(position % cuda::kHostSlots)]; }
  int32_t StepToken(int64_t row, int64_t position) const;
  const cuda::SampleLogprobs& StepLogprobs(int64_t row, int64_t position) const;
  int32_t RowToken(int64_t row) const;
  const cuda::SampleLogprobs& RowLogprobs(int64_t row) const;

  // Waits for them.
  Result<std::span<const float>> Logits(const CudaMemory& memory, int64_t rows, const Stream& stream);
  // What the last layer left, times `scale`.
  Result<std::span<const float>> Residual(const CudaMemory& memory, int64_t values, float scale,
                                          const Stream& stream);
  // What the last layer left of the first `tokens` tokens of the batch, normed on the host, because it is
  // rarely used.
  struct LastNorm {
    const float* weight;          // [hidden], on the GPU
    const float* bias = nullptr;  // likewise; may be none
    bool layer = false;           // LayerNorm
    int64_t hidden;
    float eps;
  };
  Result<std::span<const float>> Hidden(const CudaMemory& memory, int64_t tokens, const LastNorm& norm,
                                        const Stream& stream);

 private:
  // Tokens and logprobs: [kHostSlots, sequences_] of the decode steps, then [rows_] of rows.
  int64_t first_row() const { return cuda::kHostSlots * sequences_; }
  int64_t StepAt(int64_t row, int64_t position) const {
    return position % cuda::kHostSlots * sequences_ + row;
  }

  int64_t vocab_ = 0, sequences_ = 0, rows_ = 0;
  Buffer logits_, residual_;  // allocated on first use
  Buffer tokens_, logprobs_;
  std::vector<float> hidden_, norm_, norm_bias_;
  std::array<std::optional<Event>, cuda::kHostSlots> step_done_;
};

}  // namespace celer
