// The slices of a step as one ragged batch, for every device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/runners/runner.h"
#include "kernels/llm/batch.h"

namespace celer {

// Holds copies: the slices' spans may end.
class StepBatch {
 public:
  StepBatch() = default;
  explicit StepBatch(std::span<const Slice> slices);

  // Of its tokens those from `begin` to before `end`, which may be in the middle of sequences. For models without
  // recurrent layers, and without adapters.
  StepBatch Part(int64_t begin, int64_t end) const;
  // Into pieces that begin at `cuts` and at 0.
  std::vector<StepBatch> Cut(std::span<const int32_t> cuts) const;

  RaggedBatch View() const;
  std::span<const int32_t> states() const { return states_; }  // [seqs], the slots of their states
  // Likewise of drafted tokens, and how many are certain; empty if no tokens are drafted.
  std::span<const int32_t> draft_states() const { return draft_states_; }
  std::span<const int32_t> certain() const { return certain_; }
  int64_t token_count() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t rows() const { return static_cast<int64_t>(logit_rows_.size()); }
  // [seqs]; empty if no sequence has adapters.
  std::span<const std::shared_ptr<const LoraMix>> lora() const { return lora_; }
  std::span<const int32_t> hidden_rows() const { return hidden_rows_; }  // tokens whose states are wanted
  std::span<int32_t> tokens() { return tokens_; }

 private:
  friend class StepCodec;  // runners/group/group_command.cc
  std::vector<int32_t> tokens_, positions_, seq_start_, block_table_, logit_rows_, prompt_lengths_,
      hidden_rows_, states_, draft_states_, certain_;
  std::vector<std::shared_ptr<const LoraMix>> lora_;
  int64_t max_blocks_ = 0;
};

}  // namespace celer
