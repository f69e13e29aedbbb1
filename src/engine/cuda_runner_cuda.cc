#include "engine/cuda_runner.h"

#include <algorithm>

#include "core/check.h"

namespace celer {
namespace {

size_t Widest(const auto& items) {
  size_t most = 0;
  for (const auto& item : items) most = std::max(most, item.block_table.size());
  return most;
}

}  // namespace

Result<std::span<const float>> CudaRunner::Run(std::span<const Piece> pieces) {
  queued_.clear();
  logits_.clear();
  const auto vocab = static_cast<size_t>(decoder_->config().vocab);
  for (size_t first = 0; first < pieces.size();) {
    tokens_.clear();
    positions_.clear();
    seq_start_.assign(1, 0);
    logit_rows_.clear();
    size_t last = first;
    for (; last < pieces.size(); ++last) {
      const Piece& piece = pieces[last];
      const auto count = static_cast<int64_t>(piece.tokens.size());
      const int64_t wanted = piece.logits == Piece::Logits::kAll    ? count
                             : piece.logits == Piece::Logits::kLast ? 1
                                                                    : 0;
      if (last > first && static_cast<int64_t>(logit_rows_.size()) + wanted > decoder_->max_logit_rows())
        break;
      CELER_CHECK_GE(static_cast<int64_t>(piece.block_table.size()) * KvCache::kBlockSize,
                     piece.position + count);
      for (int64_t i = 0; i < count; ++i) {
        if (i >= count - wanted) logit_rows_.push_back(static_cast<int32_t>(tokens_.size()));
        tokens_.push_back(piece.tokens[static_cast<size_t>(i)]);
        positions_.push_back(static_cast<int32_t>(piece.position + i));
      }
      seq_start_.push_back(static_cast<int32_t>(tokens_.size()));
    }
    const auto group = pieces.subspan(first, last - first);
    const size_t width = Widest(group);
    block_table_.assign(group.size() * width, 0);
    for (size_t s = 0; s < group.size(); ++s)
      std::copy(group[s].block_table.begin(), group[s].block_table.end(),
                block_table_.begin() + static_cast<int64_t>(s * width));
    CELER_RETURN_IF_ERROR(decoder_->Forward({.tokens = tokens_,
                                             .positions = positions_,
                                             .seq_start = seq_start_,
                                             .block_table = block_table_,
                                             .max_blocks = static_cast<int64_t>(width),
                                             .logit_rows = logit_rows_}));
    CELER_ASSIGN(const std::span<const float> rows, decoder_->Logits());
    if (first == 0 && last == pieces.size()) return rows;
    logits_.insert(logits_.end(), rows.begin(), rows.end());
    first = last;
  }
  CELER_CHECK_EQ(logits_.size() % vocab, 0u);
  return std::span<const float>(logits_);
}

Status CudaRunner::Queue(std::span<const Decoding> step, int64_t ahead) {
  tokens_.clear();
  positions_.clear();
  queued_.clear();
  const size_t width = Widest(step);
  block_table_.assign(step.size() * width, 0);
  for (size_t s = 0; s < step.size(); ++s) {
    if (ahead == 0) tokens_.push_back(step[s].token);
    positions_.push_back(static_cast<int32_t>(step[s].position + ahead));
    std::copy(step[s].block_table.begin(), step[s].block_table.end(),
              block_table_.begin() + static_cast<int64_t>(s * width));
    queued_.emplace_back(step[s].id, step[s].position + ahead);
  }
  return decoder_->DecodeGreedy(tokens_, positions_, block_table_, static_cast<int64_t>(width));
}

Status CudaRunner::Start(std::span<const Decoding> step) {
  bool already = queued_.size() == step.size();
  for (size_t i = 0; already && i < step.size(); ++i)
    already = queued_[i] == std::pair(step[i].id, step[i].position);
  if (already) return {};
  return Queue(step, 0);
}

Status CudaRunner::StartNext(std::span<const Decoding> step) {
  return Queue(step, 1);
}

Status CudaRunner::Tokens(std::span<const Decoding> step, std::span<int32_t> tokens) {
  std::vector<int32_t> positions;
  for (const Decoding& d : step) positions.push_back(static_cast<int32_t>(d.position));
  return decoder_->ChosenTokens(positions, tokens);
}

}  // namespace celer
