// The memory of the states of recurrent layers on a CPU, slot by slot (state_slots.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "kernels/llm/kv_block.h"
#include "models/config/decoder_config.h"

namespace celer {

class StateCache {
 public:
  StateCache() = default;  // of a model without recurrent layers
  static Result<StateCache> Make(const RecurrentConfig& config, int64_t slots, Allocator& allocator);

  int64_t slots() const { return slots_; }
  std::span<float* const> layers() const { return layers_; }  // slot 0 of each layer; none for other layers
  int64_t stride() const { return stride_; }                  // floats from one slot to the next

  void Copy(std::span<const BlockCopy> copies);

 private:
  std::vector<Buffer> buffers_;
  std::vector<float*> layers_;
  int64_t slots_ = 0, stride_ = 0;
};

}  // namespace celer
