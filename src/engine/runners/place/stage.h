// Some of a model's layers on one device, in front of those of another one (placed_runner.h). A batch passes the stages
// one after the other; the keys and values of a layer are where the layer is.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/limits.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/kv_block.h"
#include "models/layer_watch.h"
#include "models/op_profile.h"

namespace celer {

class Stage {
 public:
  virtual ~Stage() = default;

  struct Info {
    std::string device;  // "cpu", "cuda:0 (NVIDIA H200)"
    int64_t layers = 0;
    int64_t weight_bytes = 0;  // read by one decode step
    std::map<std::string, int64_t> bytes_by_format;
  };
  virtual const Info& info() const = 0;

  // Runs the layers. x[tokens, hidden] is what the first of them reads, which the first stage of all makes of the tokens
  // instead, and then what the last one leaves.
  virtual Status Run(const RaggedBatch& batch, float* x) = 0;

  // As those of a Runner; no step is under way.
  virtual Status CopyBlocks(std::span<const BlockCopy> copies) = 0;
  virtual Status SwapOut(std::span<const BlockCopy> copies) = 0;
  virtual Status SwapIn(std::span<const BlockCopy> copies) = 0;
  virtual Status ClearBlocks(std::span<const int32_t> blocks) = 0;
  virtual Status DiscardKv() { return {}; }

  virtual std::vector<OperatorWork> Work(const StepShape& shape) const = 0;
  virtual void set_profile(OpProfile* profile) = 0;
  virtual void set_watch(LayerWatch watch) = 0;  // layers are counted from this stage's first one
};

}  // namespace celer
