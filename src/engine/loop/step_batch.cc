#include "engine/loop/step_batch.h"

#include <algorithm>

#include "base/check.h"

namespace celer {

StepBatch::StepBatch(std::span<const Slice> slices) : seq_start_{0} {
  for (const Slice& slice : slices)
    max_blocks_ = std::max(max_blocks_, static_cast<int64_t>(slice.block_table.size()));
  block_table_.assign(slices.size() * static_cast<size_t>(max_blocks_), 0);
  for (size_t s = 0; s < slices.size(); ++s) {
    const Slice& slice = slices[s];
    const int64_t count = slice.count(), first_row = count - slice.row_count(),
                  first_hidden = count - slice.hidden_count();
    CELER_CHECK_GE(static_cast<int64_t>(slice.block_table.size()) * kKvBlockTokens, slice.position + count);
    for (int64_t i = 0; i < count; ++i) {
      if (i >= first_row) logit_rows_.push_back(static_cast<int32_t>(tokens_.size()));
      if (i >= first_hidden) hidden_rows_.push_back(static_cast<int32_t>(tokens_.size()));
      tokens_.push_back(slice.tokens[i]);
      positions_.push_back(static_cast<int32_t>(slice.position + i));
    }
    states_.push_back(slice.state);
    if (slice.lora) lora_.resize(slices.size());
    if (slice.lora) lora_[s] = slice.lora;
    draft_states_.push_back(slice.draft_state);
    certain_.push_back(static_cast<int32_t>(slice.certain));
    seq_start_.push_back(static_cast<int32_t>(tokens_.size()));
    prompt_lengths_.push_back(
        static_cast<int32_t>(slice.prompt_length > 0 ? slice.prompt_length : slice.position + count));
    std::copy(slice.block_table.begin(), slice.block_table.end(),
              block_table_.begin() + static_cast<int64_t>(s) * max_blocks_);
  }
  if (std::all_of(draft_states_.begin(), draft_states_.end(), [](int32_t slot) { return slot < 0; })) {
    draft_states_.clear();
    certain_.clear();
  }
}

StepBatch StepBatch::Part(int64_t begin, int64_t end) const {
  StepBatch part;
  part.max_blocks_ = max_blocks_;
  part.tokens_.assign(tokens_.begin() + begin, tokens_.begin() + end);
  part.positions_.assign(positions_.begin() + begin, positions_.begin() + end);
  part.seq_start_.push_back(0);
  for (size_t s = 0; s + 1 < seq_start_.size(); ++s) {
    if (seq_start_[s] >= end || seq_start_[s + 1] <= begin) continue;
    part.seq_start_.push_back(static_cast<int32_t>(std::min<int64_t>(seq_start_[s + 1], end) - begin));
    part.prompt_lengths_.push_back(prompt_lengths_[s]);
    const auto table = block_table_.begin() + static_cast<int64_t>(s) * max_blocks_;
    part.block_table_.insert(part.block_table_.end(), table, table + max_blocks_);
  }
  const auto take = [&](const std::vector<int32_t>& rows, std::vector<int32_t>* out) {
    for (const int32_t row : rows)
      if (row >= begin && row < end) out->push_back(static_cast<int32_t>(row - begin));
  };
  take(logit_rows_, &part.logit_rows_);
  take(hidden_rows_, &part.hidden_rows_);
  return part;
}

std::vector<StepBatch> StepBatch::Cut(std::span<const int32_t> cuts) const {
  std::vector<StepBatch> parts;
  int64_t begin = 0;
  for (const int32_t cut : cuts) {
    parts.push_back(Part(begin, cut));
    begin = cut;
  }
  parts.push_back(Part(begin, token_count()));
  return parts;
}

RaggedBatch StepBatch::View() const {
  return {.tokens = tokens_,
          .positions = positions_,
          .seq_start = seq_start_,
          .block_table = block_table_,
          .max_blocks = max_blocks_,
          .logit_rows = logit_rows_,
          .prompt_lengths = prompt_lengths_};
}

}  // namespace celer
