// The batch in a GPU's memory, with a mirror on the host, so that only what changed is uploaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/llm/batch.h"
#include "kernels/shared/cuda/device_batch.h"
#include "models/cuda/memory/upload.h"
#include "models/cuda/memory/workspace.h"

namespace celer {

class CudaBatch {
 public:
  void Use(const CudaMemory& memory, const CudaShape& shape);

  Status Check(const RaggedBatch& batch) const;  // that it fits
  // `slots`: of the states of the sequences, of a model with recurrent layers.
  Status Send(const RaggedBatch& batch, std::span<const int32_t> slots, UploadRing& ring);
  // A decode step: the device has advanced its positions itself, and what is unchanged is not uploaded again.
  Status SendStep(const RaggedBatch& batch, std::span<const int32_t> slots, UploadRing& ring);

  cuda::DeviceBatch OnDevice(int count) const;
  const int32_t* seq_start() const { return memory_->seq_start; }
  const int32_t* slots() const { return memory_->slots; }

  // Of the batch that was sent last.
  int64_t longest() const { return longest_; }  // tokens of one sequence
  int64_t sequences() const { return sequences_; }
  int64_t leading_singles() const { return leading_singles_; }  // sequences in front that have one token

 private:
  Status SendAll(const RaggedBatch& batch, std::span<const int32_t> slots, UploadRing& ring);

  const CudaMemory* memory_ = nullptr;
  int64_t table_width_ = 0, context_ = 0;
  int64_t longest_ = 0, sequences_ = 0, leading_singles_ = 0;
  std::vector<int32_t> seen_positions_, seen_table_, seen_slots_;  // of a decode step
};

}  // namespace celer
