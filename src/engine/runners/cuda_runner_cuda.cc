#include "engine/runners/cuda_runner.h"

#include <algorithm>

#include "base/check.h"
#include "engine/kv/kv_cache.h"
#include "engine/runners/group/cuda_group.h"
#include "models/lora/lora.h"

namespace celer {

Result<std::unique_ptr<CudaRunner>> CudaRunner::Make(std::unique_ptr<CudaDecoder> decoder,
                                                     const CudaDecoderOptions& options, int64_t host_blocks,
                                                     int threads, int64_t blocks) {
  const DecoderConfig& config = decoder->config();
  const CudaMemoryPlan& plan = decoder->plan();
  CELER_ASSIGN(std::unique_ptr<CudaKv> kv, CudaKv::Make(options.device, config, options.kv,
                                                        blocks > 0 ? blocks : plan.kv_blocks, host_blocks));
  std::unique_ptr<CudaStates> states;
  if (plan.state_slots > 0) {
    CELER_ASSIGN(states, CudaStates::Make(options.device, config.recurrent, plan.state_slots));
  }
  CELER_RETURN_IF_ERROR(decoder->UseKv(*kv, states.get()));
  CudaRank rank;
  rank.config = config;
  rank.weight_bytes = decoder->active_bytes();
  rank.kv_bytes_per_token = KvBytesPerToken(config, options.kv);
  rank.bytes_by_format = decoder->bytes_by_format();
  rank.kv = std::move(kv);
  rank.states = std::move(states);
  rank.decoder = std::move(decoder);
  return std::make_unique<CudaRunner>(std::move(rank), options, threads, nullptr);
}

CudaRunner::CudaRunner(CudaRank rank, const CudaDecoderOptions& options, int threads,
                       std::unique_ptr<CudaGroup> group)
    : group_(std::move(group)),
      kv_(std::move(rank.kv)),
      states_(std::move(rank.states)),
      decoder_(std::move(rank.decoder)),
      sampler_(*decoder_),
      queues_ahead_(options.launch != StepLaunch::kEager && !decoder_->needs_host()) {
  const std::string name = decoder_->device_name();
  info_ = {
      .config = std::move(rank.config),
      .device = group_ ? group_->Describe(name) : Device::Cuda(options.device).ToString() + " (" + name + ")",
      .threads = threads,
      .context = options.context,
      .weight_bytes = rank.weight_bytes,
      .bytes_by_format = std::move(rank.bytes_by_format),
      .kv_bytes_per_token = rank.kv_bytes_per_token,
      .kv_blocks = kv_->blocks(),
      .kv_host_blocks = kv_->host_blocks(),
      .state_slots = decoder_->plan().state_slots};
}

Status CudaRunner::CheckLora(const LoraMix& mix) const {
  if (group_ && !mix.uses().empty())
    return Error::Unsupported(
        "LoRA adapters do not run on several ranks yet; merge them into the model with "
        "celer merge, or use one rank");
  return decoder_->CheckLora(mix);
}

CudaRunner::~CudaRunner() {
  if (!group_) return;
  // No rank's memory goes away while another one reads it.
  (void)decoder_->Synchronize();
  group_->End();
}

Status CudaRunner::WithGroup(Status own) {
  return group_ ? group_->Combine(std::move(own)) : own;
}

void CudaRunner::Tell(GroupCommand::Kind kind, std::span<const BlockCopy> copies,
                      std::span<const int32_t> blocks) {
  if (group_)
    group_->Send(
        {.kind = kind, .copies = {copies.begin(), copies.end()}, .blocks = {blocks.begin(), blocks.end()}});
}

std::vector<OperatorWork> CudaRunner::Work(const StepShape& shape) const {
  std::vector<OperatorWork> work = decoder_->Work(shape);
  // The parts of the others are as large, to one block.
  for (OperatorWork& each : work) {
    const OperatorWork part = each;
    for (int r = 1; group_ && r < group_->size(); ++r) each += part;
  }
  return work;
}

// One token of each sequence, of which the GPU chooses the next.
bool CudaRunner::IsDecode(std::span<const Slice> slices) const {
  return static_cast<int64_t>(slices.size()) <= decoder_->max_decode() &&
         std::all_of(slices.begin(), slices.end(),
                     [&](const Slice& slice) {
                       return slice.rows == Slice::Rows::kSample && slice.count() == 1 &&
                              !slice.sampler->IsConstrained() &&
                              CudaSampler::CanSample(slice.sampler->params(), info_.config.vocab);
                     }) &&
         LoraFits(slices);
}

// Whether the GPU has room for the adapters of all of them at once.
bool CudaRunner::LoraFits(std::span<const Slice> slices) const {
  std::vector<std::shared_ptr<const LoraMix>> mixes;
  for (const Slice& slice : slices)
    if (slice.lora && (mixes.empty() || mixes.back() != slice.lora)) mixes.push_back(slice.lora);
  return decoder_->LoraFits(mixes);
}

bool CudaRunner::RunsAhead(std::span<const Slice> slices) const {
  return queues_ahead_ && IsDecode(slices);
}

std::vector<CudaSampler::Row> CudaRunner::SamplerRows(std::span<const Slice> slices) const {
  std::vector<CudaSampler::Row> rows;
  for (const Slice& slice : slices)
    if (slice.rows == Slice::Rows::kSample)
      rows.push_back({.id = slice.sequence,
                      .params = &slice.sampler->params(),
                      .tokens = slice.history,
                      .prompt = slice.prompt_length,
                      .position = slice.position + slice.count() - 1});
  return rows;
}

Status CudaRunner::Queue(std::span<const Slice> slices) {
  return WithGroup(QueueOnOne(slices));
}

Status CudaRunner::QueueOnOne(std::span<const Slice> slices) {
  Queued step;
  for (const Slice& slice : slices) {
    CELER_CHECK_EQ(slice.rows == Slice::Rows::kSample, slice.sampler != nullptr);
    if (slice.sampler)
      step.sampled.push_back({slice.sequence, slice.position + slice.count() - 1, slice.sampler});
  }
  step.decode = IsDecode(slices);
  CELER_RETURN_IF_ERROR(step.decode ? QueueDecode(slices) : RunBatches(slices, &step));
  queued_.push_back(std::move(step));
  return {};
}

Status CudaRunner::QueueDecode(std::span<const Slice> slices) {
  const auto unknown = [](const Slice& slice) { return slice.tokens[0] == Slice::kChosenBefore; };
  std::vector<int64_t> sequences;
  for (const Slice& slice : slices) sequences.push_back(slice.sequence);
  // Layers in front of these, on another device, would need the tokens.
  const bool goes_on =
      !decoder_->needs_host() && std::all_of(slices.begin(), slices.end(), unknown) && sequences == decoding_;
  StepBatch batch(slices);
  if (!goes_on && std::any_of(slices.begin(), slices.end(), unknown)) {
    if (!queued_.empty()) CELER_RETURN_IF_ERROR(Complete(&queued_.back()));
    for (size_t i = 0; i < slices.size(); ++i)
      if (unknown(slices[i])) {
        const auto chosen = chosen_.find(slices[i].sequence);
        CELER_CHECK(chosen != chosen_.end());
        batch.tokens()[i] = chosen->second;
      }
  }
  bool most_likely = true;
  for (const Slice& slice : slices) most_likely = most_likely && IsPlainGreedy(slice.sampler->params());
  if (!most_likely) CELER_RETURN_IF_ERROR(sampler_.Prepare(SamplerRows(slices)));
  if (group_) {
    if (goes_on) std::fill(batch.tokens().begin(), batch.tokens().end(), 0);
    CELER_RETURN_IF_ERROR(
        group_->Begin(batch, goes_on ? GroupCommand::Kind::kDecodeOn : GroupCommand::Kind::kDecode));
  }
  RaggedBatch view = batch.View();
  if (goes_on) view.tokens = {};
  view.logit_rows = {};
  decoding_ = std::move(sequences);
  return decoder_->Decode(view,
                          most_likely ? CudaDecoder::Choose::kMostLikely : CudaDecoder::Choose::kSampled,
                          batch.states(), batch.lora());
}

// As many slices at once as the decoder has rows of logits for, and room for their adapters.
Status CudaRunner::RunBatches(std::span<const Slice> slices, Queued* step) {
  decoding_.clear();
  if (!queued_.empty()) {
    CELER_RETURN_IF_ERROR(Complete(&queued_.back()));
    Queued& before = queued_.back();
    if (before.logits.empty()) before.logits.assign(before.output.logits.begin(), before.output.logits.end());
  }
  const bool on_device = std::all_of(slices.begin(), slices.end(), [&](const Slice& slice) {
    return !slice.sampler || (!slice.sampler->IsConstrained() &&
                              CudaSampler::CanSample(slice.sampler->params(), info_.config.vocab));
  });
  for (size_t first = 0; first < slices.size();) {
    int64_t rows = slices[first].row_count();
    size_t last = first + 1;
    while (last < slices.size() && rows + slices[last].row_count() <= decoder_->max_logit_rows() &&
           LoraFits(slices.subspan(first, last + 1 - first)))
      rows += slices[last++].row_count();
    const auto now = slices.subspan(first, last - first);
    StepBatch batch(now);
    int64_t token = 0;
    for (const Slice& slice : now) {
      if (slice.tokens[0] == Slice::kChosenBefore) batch.tokens()[token] = chosen_.at(slice.sequence);
      token += slice.count();
    }
    if (group_) CELER_RETURN_IF_ERROR(group_->Begin(batch, GroupCommand::Kind::kStep));
    CELER_RETURN_IF_ERROR(decoder_->Forward(batch.View(), batch.states(), batch.lora()));
    if (!batch.hidden_rows().empty()) CELER_RETURN_IF_ERROR(TakeHidden(now, step));
    CELER_RETURN_IF_ERROR(FinishBatch(now, on_device, now.size() == slices.size(), step));
    first = last;
  }
  step->done = true;
  chosen_.clear();
  for (size_t i = 0; i < step->sampled.size(); ++i)
    chosen_[step->sampled[i].sequence] = step->output.choices[i].token;
  return {};
}

Status CudaRunner::TakeHidden(std::span<const Slice> slices, Queued* step) {
  CELER_ASSIGN(const std::span<const float> rows, decoder_->Hidden());
  const int64_t width = info_.config.hidden;
  int64_t end = 0;
  for (const Slice& slice : slices) {
    end += slice.count();
    const auto mine =
        rows.subspan((end - slice.hidden_count()) * width, static_cast<size_t>(slice.hidden_count() * width));
    step->hidden.insert(step->hidden.end(), mine.begin(), mine.end());
  }
  return {};
}

// Its tokens are chosen and its logits are here. `only`: it is the whole step.
Status CudaRunner::FinishBatch(std::span<const Slice> slices, bool on_device, bool only, Queued* step) {
  int64_t rows = 0;
  bool all_sampled = true, none_sampled = true;
  for (const Slice& slice : slices) {
    rows += slice.row_count();
    all_sampled = all_sampled && (slice.sampler || slice.row_count() == 0);
    none_sampled = none_sampled && !slice.sampler;
  }
  if (rows == 0) return {};
  if (all_sampled && on_device) {
    const std::vector<CudaSampler::Row> sampled = SamplerRows(slices);
    CELER_RETURN_IF_ERROR(sampler_.Prepare(sampled));
    std::vector<int32_t> chosen(sampled.size());
    CELER_RETURN_IF_ERROR(decoder_->Sample(chosen));
    for (size_t i = 0; i < sampled.size(); ++i)
      step->output.choices.push_back(CudaSampler::ToChoice(
          chosen[i], *sampled[i].params, decoder_->SampledLogprobs(static_cast<int64_t>(i))));
    size_t i = 0;
    for (const Slice& slice : slices)
      if (slice.sampler) {
        if (chosen[i] != Sampler::kNoToken) slice.sampler->Accept(chosen[i]);
        ++i;
      }
    return {};
  }
  CELER_ASSIGN(const std::span<const float> logits, decoder_->Logits());
  if (only && none_sampled) {
    step->output.logits = logits;
    return {};
  }
  const auto vocab = static_cast<size_t>(info_.config.vocab);
  size_t row = 0;
  for (const Slice& slice : slices) {
    const auto mine = logits.subspan(row * vocab, static_cast<size_t>(slice.row_count()) * vocab);
    row += static_cast<size_t>(slice.row_count());
    if (slice.sampler)
      step->output.choices.push_back(slice.sampler->Next(mine));
    else
      step->logits.insert(step->logits.end(), mine.begin(), mine.end());
  }
  return {};
}

Status CudaRunner::Complete(Queued* step) {
  if (step->done) return {};
  std::vector<int32_t> positions, tokens(step->sampled.size());
  for (const Queued::Row& row : step->sampled) positions.push_back(static_cast<int32_t>(row.position));
  CELER_RETURN_IF_ERROR(decoder_->ChosenTokens(positions, tokens));
  chosen_.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& [sequence, position, sampler] = step->sampled[i];
    step->output.choices.push_back(CudaSampler::ToChoice(
        tokens[i], sampler->params(), decoder_->ChosenLogprobs(static_cast<int64_t>(i), position)));
    if (tokens[i] != Sampler::kNoToken) sampler->Accept(tokens[i]);
    chosen_[sequence] = tokens[i];
  }
  step->done = true;
  return {};
}

Result<StepOutput> CudaRunner::Take() {
  CELER_CHECK(!queued_.empty());
  CELER_RETURN_IF_ERROR(WithGroup(Complete(&queued_.front())));
  StepOutput output = std::move(queued_.front().output);
  taken_logits_ = std::move(queued_.front().logits);
  if (!taken_logits_.empty()) output.logits = taken_logits_;
  taken_hidden_ = std::move(queued_.front().hidden);
  output.hidden = taken_hidden_;
  queued_.pop_front();
  return output;
}

Status CudaRunner::CopyBlocks(std::span<const BlockCopy> copies) {
  Tell(GroupCommand::Kind::kCopy, copies);
  return kv_->Copy(copies, decoder_->stream());
}
Status CudaRunner::SwapOut(std::span<const BlockCopy> copies) {
  Tell(GroupCommand::Kind::kSwapOut, copies);
  return kv_->SwapOut(copies, decoder_->stream());
}
Status CudaRunner::SwapIn(std::span<const BlockCopy> copies) {
  Tell(GroupCommand::Kind::kSwapIn, copies);
  return kv_->SwapIn(copies, decoder_->stream());
}
Status CudaRunner::ClearBlocks(std::span<const int32_t> blocks) {
  Tell(GroupCommand::Kind::kClear, {}, blocks);
  return kv_->Clear(blocks, decoder_->stream());
}

Status CudaRunner::CopyStates(std::span<const BlockCopy> copies) {
  if (!states_) return Runner::CopyStates(copies);
  return states_->Copy(copies, decoder_->stream());
}

Result<int64_t> CudaRunner::BlockBytes() const {
  if (group_) return NotTransferred();
  return kv_->block_bytes();
}
Status CudaRunner::ReadBlocks(std::span<const int32_t> blocks, std::span<std::byte> out) {
  if (group_) return NotTransferred();
  return kv_->Read(blocks, out, decoder_->stream());
}
Status CudaRunner::WriteBlocks(std::span<const int32_t> blocks, std::span<const std::byte> bytes) {
  if (group_) return NotTransferred();
  return kv_->Write(blocks, bytes, decoder_->stream());
}

void CudaRunner::set_profile(OpProfile* profile) {
  decoder_->set_profile(profile);
}

}  // namespace celer
