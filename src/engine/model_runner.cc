#include "engine/model_runner.h"

#include <algorithm>

#include "core/check.h"

namespace celer {

std::span<const float> ModelRunner::Run(std::span<const Piece> pieces) {
  tokens_.clear();
  positions_.clear();
  seq_start_.assign(1, 0);
  logit_rows_.clear();
  size_t max_blocks = 0;
  for (const Piece& piece : pieces) max_blocks = std::max(max_blocks, piece.block_table.size());
  block_table_.assign(pieces.size() * max_blocks, -1);

  for (size_t s = 0; s < pieces.size(); ++s) {
    const Piece& piece = pieces[s];
    const auto count = static_cast<int64_t>(piece.tokens.size());
    CELER_CHECK_GE(static_cast<int64_t>(piece.block_table.size()) * KvCache::kBlockSize,
                   piece.position + count);
    for (int64_t i = 0; i < count; ++i) {
      const bool wanted =
          piece.logits == Piece::Logits::kAll || (piece.logits == Piece::Logits::kLast && i == count - 1);
      if (wanted) logit_rows_.push_back(static_cast<int32_t>(tokens_.size()));
      tokens_.push_back(piece.tokens[static_cast<size_t>(i)]);
      positions_.push_back(static_cast<int32_t>(piece.position + i));
    }
    seq_start_.push_back(static_cast<int32_t>(tokens_.size()));
    std::copy(piece.block_table.begin(), piece.block_table.end(),
              block_table_.begin() + static_cast<int64_t>(s * max_blocks));
  }
  const size_t needed = logit_rows_.size() * static_cast<size_t>(vocab());
  if (logits_.size() < needed) logits_.resize(needed);

  decoder_.Forward({.tokens = tokens_,
                    .positions = positions_,
                    .seq_start = seq_start_,
                    .block_table = block_table_,
                    .max_blocks = static_cast<int64_t>(max_blocks),
                    .logit_rows = logit_rows_},
                   kv_.layers(), logits_.data());
  return {logits_.data(), needed};
}

}  // namespace celer
