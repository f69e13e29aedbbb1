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

Status CudaRunner::RunInGroups(std::span<const Piece> pieces, FunctionRef<Status(int64_t)> done) {
  queued_.clear();
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
    CELER_RETURN_IF_ERROR(done(static_cast<int64_t>(logit_rows_.size())));
    first = last;
  }
  return {};
}

Result<std::span<const float>> CudaRunner::Run(std::span<const Piece> pieces) {
  logits_.clear();
  std::span<const float> rows;
  const auto take = [&](int64_t) -> Status {
    logits_.insert(logits_.end(), rows.begin(), rows.end());  // those of the run before
    CELER_ASSIGN(rows, decoder_->Logits());
    return {};
  };
  CELER_RETURN_IF_ERROR(RunInGroups(pieces, take));
  if (logits_.empty()) return rows;
  logits_.insert(logits_.end(), rows.begin(), rows.end());
  return std::span<const float>(logits_);
}

Result<std::vector<Sampler::Choice>> CudaRunner::RunAndChoose(std::span<const Piece> pieces,
                                                              std::span<const CudaSampler::Row> rows) {
  std::vector<Sampler::Choice> choices;
  const auto choose = [&](int64_t count) -> Status {
    if (count == 0) return {};
    const auto now = rows.subspan(choices.size(), static_cast<size_t>(count));
    CELER_RETURN_IF_ERROR(sampler_.Prepare(now));
    std::vector<int32_t> chosen(now.size());
    CELER_RETURN_IF_ERROR(decoder_->Sample(chosen));
    for (size_t i = 0; i < now.size(); ++i)
      choices.push_back(CudaSampler::ToChoice(chosen[i], *now[i].params,
                                              decoder_->SampledLogprobs(static_cast<int64_t>(i))));
    return {};
  };
  CELER_RETURN_IF_ERROR(RunInGroups(pieces, choose));
  CELER_CHECK_EQ(choices.size(), rows.size());
  return choices;
}

Status CudaRunner::Queue(std::span<const Decoding> step, int64_t ahead) {
  tokens_.clear();
  positions_.clear();
  queued_.clear();
  const size_t width = Widest(step);
  block_table_.assign(step.size() * width, 0);
  std::vector<CudaSampler::Row> rows;
  bool most_likely = true;
  for (size_t s = 0; s < step.size(); ++s) {
    rows.push_back(step[s].row);
    rows.back().position += ahead;
    most_likely = most_likely && IsPlainGreedy(*rows.back().params);
    if (ahead == 0) tokens_.push_back(step[s].token);
    positions_.push_back(static_cast<int32_t>(rows.back().position));
    std::copy(step[s].block_table.begin(), step[s].block_table.end(),
              block_table_.begin() + static_cast<int64_t>(s * width));
    queued_.emplace_back(rows.back().id, rows.back().position);
  }
  if (!most_likely) CELER_RETURN_IF_ERROR(sampler_.Prepare(rows));
  return decoder_->Decode(tokens_, positions_, block_table_, static_cast<int64_t>(width),
                          most_likely ? CudaDecoder::Choose::kMostLikely : CudaDecoder::Choose::kSampled);
}

Status CudaRunner::Start(std::span<const Decoding> step) {
  bool already = queued_.size() == step.size();
  for (size_t i = 0; already && i < step.size(); ++i)
    already = queued_[i] == std::pair(step[i].row.id, step[i].row.position);
  if (already) return {};
  return Queue(step, 0);
}

Status CudaRunner::StartNext(std::span<const Decoding> step) {
  return Queue(step, 1);
}

Result<std::vector<Sampler::Choice>> CudaRunner::Choices(std::span<const Decoding> step) {
  std::vector<int32_t> positions, tokens(step.size());
  for (const Decoding& d : step) positions.push_back(static_cast<int32_t>(d.row.position));
  CELER_RETURN_IF_ERROR(decoder_->ChosenTokens(positions, tokens));
  std::vector<Sampler::Choice> choices;
  for (size_t i = 0; i < step.size(); ++i)
    choices.push_back(
        CudaSampler::ToChoice(tokens[i], *step[i].row.params,
                              decoder_->ChosenLogprobs(static_cast<int64_t>(i), step[i].row.position)));
  return choices;
}

}  // namespace celer
