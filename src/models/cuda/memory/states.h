// The states of recurrent layers on a GPU, slot by slot (engine/kv/state_slots.h): a slot has those of all layers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/llm/delta_rule/delta_net_cuda.h"
#include "kernels/llm/kv_block.h"
#include "models/config/decoder_config.h"

namespace celer {

cuda::DeltaNetShape DeviceDeltaShape(const RecurrentConfig& config);
// Of a sequence, in all layers; 0: the model has none.
int64_t DeviceStateBytes(const RecurrentConfig& config);
// One sentence if the kernels do not take layers of this shape.
Status CheckStatesRunOnGpu(const RecurrentConfig& config);

class CudaStates {
 public:
  static Result<std::unique_ptr<CudaStates>> Make(int device, const RecurrentConfig& config, int64_t slots);
  // Nothing that was queued may still use it: the decoder is gone by then.
  ~CudaStates() = default;
  CudaStates(const CudaStates&) = delete;
  CudaStates& operator=(const CudaStates&) = delete;

  int64_t slots() const { return slots_; }
  int64_t stride() const { return stride_; }                  // floats from one slot to the next
  std::span<float* const> layers() const { return layers_; }  // slot 0 of each layer; none for other layers

  // Queued on `stream`, one after the other.
  Status Copy(std::span<const BlockCopy> copies, cudaStream_t stream);

 private:
  CudaStates() = default;

  int device_ = 0;
  int64_t slots_ = 0, stride_ = 0;
  Buffer memory_;  // [slots, recurrent layers, floats of a state]
  std::vector<float*> layers_;
};

}  // namespace celer
