// The forward pass of a model's layer for multi-token prediction on a CPU.
#pragma once

#include <memory>
#include <span>

#include "device/aligned_vector.h"
#include "models/cpu/cpu_decoder.h"
#include "models/load/predictor.h"

namespace celer {

class CpuPredictor {
 public:
  CpuPredictor(std::shared_ptr<const Predictor> predictor, ThreadPool& pool);

  const Predictor& predictor() const { return *predictor_; }
  // As CpuDecoder::Forward. `before` [tokens, hidden]: the model's hidden state in front of each token, after the last norm.
  void Forward(const RaggedBatch& batch, std::span<const float> before, std::span<const KvLayerView> kv,
               float* logits, const CpuDecoder::HiddenRows& hidden);
  void set_profile(OpProfile* profile) { decoder_.set_profile(profile); }

 private:
  void Join(const RaggedBatch& batch, float* x);

  std::shared_ptr<const Predictor> predictor_;
  ThreadPool* pool_;
  CpuDecoder decoder_;
  std::span<const float> before_;
  AlignedVector<float> joined_;  // [tokens, 2 * hidden]
  AlignedVector<float> embedded_;
};

}  // namespace celer
