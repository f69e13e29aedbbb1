#include "models/cuda/batch.h"

#include <algorithm>

namespace celer {

void CudaBatch::Use(const CudaMemory& memory, const CudaShape& shape) {
  memory_ = &memory;
  table_width_ = shape.table_width();
  context_ = shape.context;
}

Status CudaBatch::Check(const RaggedBatch& batch) const {
  if (batch.max_blocks > table_width_)
    return Error::Invalid("a sequence of ", batch.max_blocks, " blocks; the GPU was set up for ",
                          table_width_, ", a context of ", context_);
  for (const int32_t position : batch.positions)
    if (position < 0 || position >= context_)
      return Error::Invalid("position ", position, "; the GPU was set up for a context of ", context_);
  return {};
}

Status CudaBatch::Send(const RaggedBatch& batch, std::span<const int32_t> slots, UploadRing& ring) {
  seen_positions_.clear();
  return SendAll(batch, slots, ring);
}

Status CudaBatch::SendStep(const RaggedBatch& batch, std::span<const int32_t> slots, UploadRing& ring) {
  const auto same = [](std::span<const int32_t> a, const std::vector<int32_t>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  const bool continues = same(batch.positions, seen_positions_);
  const bool same_table = continues && same(batch.block_table, seen_table_) && same(slots, seen_slots_);
  if (continues && same_table) {
    if (!batch.tokens.empty())
      CELER_RETURN_IF_ERROR(
          ring.Upload(memory_->tokens, batch.tokens.data(), static_cast<int64_t>(batch.tokens.size_bytes())));
  } else {
    RaggedBatch step = batch;
    step.logit_rows = {};
    CELER_RETURN_IF_ERROR(SendAll(step, slots, ring));
    seen_slots_.assign(slots.begin(), slots.end());
    seen_table_.assign(batch.block_table.begin(), batch.block_table.end());
  }
  seen_positions_.assign(batch.positions.begin(), batch.positions.end());
  for (int32_t& position : seen_positions_) ++position;
  return {};
}

Status CudaBatch::SendAll(const RaggedBatch& batch, std::span<const int32_t> slots, UploadRing& ring) {
  // A decode step may leave out its tokens.
  const auto count = static_cast<int64_t>(batch.positions.size()),
             rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t table_count = batch.seqs() * batch.max_blocks;
  sequences_ = batch.seqs();
  longest_ = leading_singles_ = 0;
  std::vector<int32_t> owner;
  owner.reserve(static_cast<size_t>(count));
  for (size_t s = 0; s + 1 < batch.seq_start.size(); ++s) {
    const int32_t tokens = batch.seq_start[s + 1] - batch.seq_start[s];
    longest_ = std::max<int64_t>(longest_, tokens);
    if (tokens == 1 && leading_singles_ == static_cast<int64_t>(s)) ++leading_singles_;
    owner.insert(owner.end(), static_cast<size_t>(tokens), static_cast<int32_t>(s));
  }
  CELER_ASSIGN(std::byte * piece, ring.Begin((5 * count + 1 + rows + table_count) * 4));
  auto* at = reinterpret_cast<int32_t*>(piece);
  const auto send = [&](int32_t* to, std::span<const int32_t> values) -> Status {
    if (values.empty()) return {};
    std::copy(values.begin(), values.end(), at);
    CELER_RETURN_IF_ERROR(ring.Copy(to, at, static_cast<int64_t>(values.size_bytes())));
    at += values.size();
    return {};
  };
  CELER_RETURN_IF_ERROR(send(memory_->tokens, batch.tokens));
  CELER_RETURN_IF_ERROR(send(memory_->positions, batch.positions));
  CELER_RETURN_IF_ERROR(send(memory_->sequence, owner));
  CELER_RETURN_IF_ERROR(send(memory_->seq_start, batch.seq_start));
  CELER_RETURN_IF_ERROR(send(memory_->logit_rows, batch.logit_rows));
  CELER_RETURN_IF_ERROR(send(memory_->slots, slots));
  std::copy(batch.block_table.begin(), batch.block_table.end(), at);
  if (table_count > 0)
    CELER_RETURN_IF_ERROR(
        ring.CopyRows(memory_->table, table_width_ * 4, at, batch.max_blocks * 4, batch.seqs()));
  return ring.End();
}

cuda::DeviceBatch CudaBatch::OnDevice(int count) const {
  return {memory_->tokens,
          memory_->positions,
          memory_->sequence,
          memory_->table,
          static_cast<int>(table_width_),
          count};
}

}  // namespace celer
