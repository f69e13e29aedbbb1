// All layers of a decode step in one kernel, for the models that one of the two such kernels runs. They have
// no operators to call one by one, which is why they stand beside LayerStrategy and not behind it.
#pragma once

#include <vector>

#include "kernels/llm/decode_step/decode_batch_cuda.h"
#include "kernels/llm/decode_step/decode_step_cuda.h"
#include "models/cuda/operators.h"

namespace celer {

class FusedStep {
 public:
  explicit FusedStep(CudaOperators& op) : op_(op) {}

  // Once the layers have their KV, whose addresses become part of what the kernels read.
  Status Prepare();
  bool runs() const { return !layers_.empty(); }
  // What of it decides about a strategy.
  void Describe(CudaFacts* facts) const;

  // 1 to 4 sequences: from the embedding to x, and where HasHead(), to the logits. With a `choice` the most
  // likely tokens, too.
  bool HasHead(int count) const { return cuda::DecodeStepHasHead(Args(count)); }
  void RunStep(int count, const cuda::GreedyTarget* choice);
  // Up to 16 tokens: the layers, behind an embedding that counts at BatchCounter().
  uint32_t* BatchCounter(int count) const;
  void RunBatch(int count);

 private:
  cuda::DecodeStepArgs Args(int count) const;

  CudaOperators& op_;
  std::vector<cuda::DecodeStepLayer> layers_;  // empty: neither kernel runs the model
  int step_tokens_ = 0, batch_tokens_ = 0;     // at once
};

}  // namespace celer
