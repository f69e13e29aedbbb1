#include "engine/runners/cpu_runner.h"

#include <algorithm>

#include "base/check.h"
#include "engine/runners/group/micro_batches.h"
#include "models/step_work.h"

namespace celer {
namespace {

// "4 ranks", "4 ranks in 2 stages"
std::string Describe(StageLink& link) {
  std::string text = std::to_string(link.all().size()) + " ranks";
  if (link.stages() > 1) text += " in " + std::to_string(link.stages()) + " stages";
  return text;
}

}  // namespace

CpuRunner::CpuRunner(CpuRank rank, std::unique_ptr<GroupLeader> group)
    : pool_(std::move(rank.pool)),
      model_(std::move(rank.model)),
      group_(std::move(group)),
      decoder_(*model_, *pool_),
      kv_(std::move(rank.kv)),
      states_(std::move(rank.states)),
      other_stages_(std::move(rank.other_stages)),
      kv_bytes_per_token_(KvBytesPerToken(model_->config(), rank.kv_format)) {
  info_ = {.config = model_->whole_config(),
           .device = group_ ? "cpu (" + Describe(group_->link()) + ")" : "cpu",
           .threads = rank.threads,
           .context = rank.context,
           .weight_bytes = rank.weight_bytes,
           .bytes_by_format = std::move(rank.bytes_by_format),
           .kv_bytes_per_token = rank.kv_bytes_per_token,
           .kv_blocks = kv_.blocks(),
           .kv_host_blocks = kv_.host_blocks(),
           .state_slots = states_.slots(),
           .drafts_states = true,
           .first_layer = rank.layers.first};
  if (group_) JoinGroup(group_->link(), *model_, &decoder_);
}

Status CpuRunner::CheckLora(const LoraMix& mix) const {
  if (group_ && !mix.uses().empty())
    return Error::Unsupported(
        "LoRA adapters do not run on several ranks yet; merge them into the model with "
        "celer merge, or use one rank");
  for (const LoraUse& use : mix.uses()) CELER_RETURN_IF_ERROR(decoder_.CheckLora(*use.adapter));
  return {};
}

Status CpuRunner::Queue(std::span<const Slice> slices) {
  for (const Slice& slice : slices)
    if (info_.state_slots > 0 &&
        (slice.state < 0 || std::max(slice.state, slice.draft_state) >= info_.state_slots))
      return Error::Invalid("sequence ", slice.sequence, " has states ", slice.state, " and ",
                            slice.draft_state, " of ", info_.state_slots);
  Queued step{.batch = StepBatch(slices), .parts = {}, .after = {}};
  int64_t token = 0;
  for (const Slice& slice : slices) {
    CELER_CHECK_EQ(slice.rows == Slice::Rows::kSample, slice.sampler != nullptr);
    step.parts.push_back({slice.sequence, token, slice.row_count(), slice.sampler});
    token += slice.count();
  }
  queued_.push_back(std::move(step));
  return {};
}

Result<StepOutput> CpuRunner::Take() {
  CELER_CHECK(!queued_.empty());
  Queued step = std::move(queued_.front());
  queued_.pop_front();
  for (const Queued::Part& part : step.parts)
    if (int32_t& token = step.batch.tokens()[part.first_token]; token == Slice::kChosenBefore) {
      const auto chosen = chosen_.find(part.sequence);
      CELER_CHECK(chosen != chosen_.end());
      token = chosen->second;
    }
  const auto vocab = static_cast<size_t>(info_.config.vocab);
  const size_t needed = static_cast<size_t>(step.batch.rows()) * vocab;
  if (logits_.size() < needed) logits_.resize(needed);
  const size_t hidden = step.batch.hidden_rows().size() * static_cast<size_t>(info_.config.hidden);
  if (hidden_.size() < hidden) hidden_.resize(hidden);
  CELER_RETURN_IF_ERROR(RunStep(step.batch));

  StepOutput output;
  OpClock clock(profile_);
  clock.Begin(Op::kSampling);
  output.choices = Sample(step);
  size_t row = 0, kept = 0;
  for (const Queued::Part& part : step.parts) {
    float* const rows = logits_.data() + row * vocab;
    row += static_cast<size_t>(part.rows);
    if (part.sampler || part.rows == 0) continue;
    // The rows that are returned as logits, packed.
    const size_t count = static_cast<size_t>(part.rows) * vocab;
    if (rows != logits_.data() + kept) std::copy(rows, rows + count, logits_.data() + kept);
    kept += count;
  }
  output.logits = {logits_.data(), kept};
  output.hidden = {hidden_.data(), hidden};
  for (const auto& operation : step.after) operation();
  return output;
}

Status CpuRunner::RunStep(const StepBatch& batch) {
  const bool pipeline = group_ && group_->link().stages() > 1;
  // One who watches sees all tokens at once.
  const std::vector<int32_t> cuts =
      pipeline && !watched_ ? MicroBatchCuts(batch.token_count(), group_->link().stages(), micro_batch_)
                            : std::vector<int32_t>();
  if (group_) CELER_RETURN_IF_ERROR(group_->Begin(batch, GroupCommand::Kind::kStep, cuts));
  float *logits = logits_.data(), *hidden = hidden_.data();
  const auto run = [&](const StepBatch& part) {
    decoder_.Forward(part.View(), kv_.layers(), logits, {.tokens = part.hidden_rows(), .out = hidden},
                     {.layers = states_.layers(),
                      .stride = states_.stride(),
                      .slots = part.states(),
                      .draft_slots = part.draft_states(),
                      .certain = part.certain()},
                     part.lora());
    logits += part.rows() * info_.config.vocab;
    hidden += std::ssize(part.hidden_rows()) * info_.config.hidden;
    return group_ ? group_->status() : Status();
  };
  if (cuts.empty()) return run(batch);
  for (const StepBatch& part : batch.Cut(cuts)) CELER_RETURN_IF_ERROR(run(part));
  return {};
}

std::vector<Sampler::Choice> CpuRunner::Sample(const Queued& step) {
  struct Draw {
    const Queued::Part* part;
    std::span<const float> logits;
  };
  const auto vocab = static_cast<size_t>(info_.config.vocab);
  std::vector<Draw> draws;
  size_t row = 0;
  for (const Queued::Part& part : step.parts) {
    if (part.sampler) draws.push_back({&part, {logits_.data() + row * vocab, vocab}});
    row += static_cast<size_t>(part.rows);
  }
  std::vector<Sampler::Choice> choices(draws.size());
  // Masks are applied here as well: serially, the rows of many constrained answers would delay the whole
  // batch.
  pool_->ParallelForDynamic(std::ssize(draws), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      choices[i] = draws[i].part->sampler->Next(draws[i].logits);
  });
  chosen_.clear();
  for (size_t i = 0; i < draws.size(); ++i) chosen_[draws[i].part->sequence] = choices[i].token;
  return choices;
}

void CpuRunner::DropQueued() {
  for (const Queued& step : queued_)
    for (const auto& operation : step.after) operation();
  queued_.clear();
}

Status CpuRunner::InOrder(std::function<void()> block_operation) {
  if (queued_.empty())
    block_operation();
  else
    queued_.back().after.push_back(std::move(block_operation));
  return {};
}

Status CpuRunner::CopyBlocks(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())] {
    Tell({.kind = GroupCommand::Kind::kCopy, .copies = list});
    kv_.Copy(list);
  });
}
Status CpuRunner::SwapOut(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())] {
    Tell({.kind = GroupCommand::Kind::kSwapOut, .copies = list});
    kv_.SwapOut(list);
  });
}
Status CpuRunner::SwapIn(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())] {
    Tell({.kind = GroupCommand::Kind::kSwapIn, .copies = list});
    kv_.SwapIn(list);
  });
}
Status CpuRunner::ClearBlocks(std::span<const int32_t> blocks) {
  return InOrder([this, list = std::vector(blocks.begin(), blocks.end())] {
    Tell({.kind = GroupCommand::Kind::kClear, .blocks = list});
    kv_.Clear(list);
  });
}

Status CpuRunner::CopyStates(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())] { states_.Copy(list); });
}

Result<int64_t> CpuRunner::BlockBytes() const {
  if (group_) return NotTransferred();
  return kv_.block_bytes();
}

Status CpuRunner::ReadBlocks(std::span<const int32_t> blocks, std::span<std::byte> out) {
  CELER_ASSIGN(const int64_t each, BlockBytes());
  CELER_CHECK_EQ(std::ssize(out), std::ssize(blocks) * each);
  kv_.Read(blocks, out.data());
  return {};
}

Status CpuRunner::WriteBlocks(std::span<const int32_t> blocks, std::span<const std::byte> bytes) {
  CELER_ASSIGN(const int64_t each, BlockBytes());
  CELER_CHECK_EQ(std::ssize(bytes), std::ssize(blocks) * each);
  CELER_CHECK(queued_.empty());  // a step runs when it is taken, so that none is queued between two of them
  kv_.Write(blocks, bytes.data());
  return {};
}

Status CpuRunner::DiscardKv() {
  CELER_CHECK(queued_.empty());
  Tell({.kind = GroupCommand::Kind::kDiscard});
  kv_.Discard();
  model_->DropPages();
  return {};
}

std::vector<OperatorWork> CpuRunner::Work(const StepShape& shape) const {
  std::vector<OperatorWork> work =
      CountStep(model_->config(), MatricesOf(model_->weights()), kv_bytes_per_token_, shape);
  for (const StageFacts& stage : other_stages_)
    AddWork(&work, CountStep(stage.config, stage.matrices, stage.kv_bytes_per_token, shape));
  // The parts of those that share the layers are as large, to one block.
  for (OperatorWork& each : work) {
    const OperatorWork part = each;
    for (int r = 1; group_ && r < group_->link().shares(); ++r) each += part;
  }
  return work;
}

void CpuRunner::set_watch(LayerWatch watch) {
  watched_ = static_cast<bool>(watch);
  // Of a pipeline the last layers are seen, and what those in front of them leave.
  if (watch && info_.first_layer > 0)
    watch = [watch = std::move(watch), first = info_.first_layer](int64_t layer, std::span<const float> x) {
      watch(first + layer, x);
    };
  decoder_.set_watch(std::move(watch));
}

void CpuRunner::set_profile(OpProfile* profile) {
  profile_ = profile;
  decoder_.set_profile(profile);
}

}  // namespace celer
