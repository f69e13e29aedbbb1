// Adapters on a CPU: their matrices as terms of the model's products, by the matrix that each kernel is given.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/llm/low_rank/low_rank.h"
#include "models/config/decoder_config.h"
#include "models/load/model.h"
#include "models/lora/lora.h"

namespace celer {

class CpuLora {
 public:
  // The model must outlive it.
  explicit CpuLora(const Model& model) : model_(model) {}

  // An error if the adapter is for another model.
  Status Check(const LoraAdapter& adapter) const;

  // The terms of a step whose sequences begin at `starts` and have these adapters. Valid until the next call.
  LowRankBatch Prepare(std::span<const std::shared_ptr<const LoraMix>> mixes,
                       std::span<const int32_t> starts);

 private:
  struct Known {
    std::weak_ptr<const LoraAdapter> adapter;
    LowRankTerms terms;
    std::vector<std::vector<float>> own;  // what is arranged otherwise here
  };
  const LowRankTerms& TermsOf(const std::shared_ptr<const LoraAdapter>& adapter);
  void AddHeads(const LoraMatrix& matrix, Known* known) const;

  const Model& model_;
  std::map<const LoraAdapter*, Known> known_;
  std::vector<std::vector<LowRankUse>> mixes_;
  std::vector<int32_t> mix_of_;
};

}  // namespace celer
