#include "engine/runners/simulated_runner.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/check.h"
#include "base/split_mix.h"
#include "models/lora/lora.h"

namespace celer {
namespace {

// For larger vocabularies greedy sampling takes the argmax directly, without a row of logits.
constexpr int64_t kSmallVocab = 4096;

bool TakesLargest(const SamplingParams& params) {
  return IsPlainGreedy(params) && params.allowed_tokens.empty();
}

}  // namespace

uint64_t HashModel::Start() const {
  return SplitMix64(seed);
}

uint64_t HashModel::Extend(uint64_t prefix, int32_t token) {
  return SplitMix64(prefix ^ SplitMix64(static_cast<uint64_t>(token)));
}

int32_t HashModel::Largest(uint64_t prefix) const {
  return static_cast<int32_t>(SplitMix64(prefix) % static_cast<uint64_t>(vocab));
}

void HashModel::Logits(uint64_t prefix, std::span<float> row) const {
  CELER_CHECK_EQ(static_cast<int64_t>(row.size()), vocab);
  for (size_t i = 0; i < row.size(); ++i) {
    const uint64_t bits = (prefix + i * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    row[i] = static_cast<float>(bits >> 40) * (6 * 0x1p-24f) - 3;
  }
  row[Largest(prefix)] = 4;
}

void HashModel::Hidden(uint64_t prefix, std::span<float> row) const {
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<float>(SplitMix64(prefix + i) >> 40) * (2 * 0x1p-24f) - 1;
}

uint64_t HashModel::HashOf(std::span<const int32_t> tokens) const {
  if (order > 0 && static_cast<int64_t>(tokens.size()) > order) tokens = tokens.last(order);
  uint64_t hash = Start();
  for (const int32_t token : tokens) hash = Extend(hash, token);
  return hash;
}

SimulatedRunner::Slots::Slots(int64_t blocks) {
  const size_t bytes = static_cast<size_t>(std::max<int64_t>(1, blocks) * kKvBlockTokens) * sizeof(Slot);
  // Overcommitted: more than this machine's memory may be reserved, as long as it is not touched.
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CELER_CHECK(mapped != MAP_FAILED);
  slots_ = {static_cast<Slot*>(mapped), Unmap{bytes}};
}

void SimulatedRunner::Slots::Unmap::operator()(Slot* slots) const {
  munmap(slots, bytes);
}

std::span<SimulatedRunner::Slot> SimulatedRunner::Slots::Block(int32_t block) {
  return {slots_.get() + int64_t{block} * kKvBlockTokens, kKvBlockTokens};
}

SimulatedRunner::SimulatedRunner(Options options)
    : options_(std::move(options)), kv_(options_.info.kv_blocks), host_(options_.info.kv_host_blocks) {
  Info& info = options_.info;
  CELER_CHECK(info.kv_blocks > 0 && info.kv_host_blocks >= 0 && info.context > 0);
  CELER_CHECK(options_.model.vocab > 0 && options_.model.order >= 0);
  info.config.vocab = options_.model.vocab;
  if (info.config.max_positions == 0) info.config.max_positions = info.context;
  if (info.device.empty()) info.device = "simulated";
  written_.resize(info.kv_blocks);
  states_.resize(info.state_slots);
  info.drafts_states = info.state_slots > 0;
}

void SimulatedRunner::AdvanceTo(double seconds) {
  now_ = std::max(now_, seconds);
}

Status SimulatedRunner::Check(std::span<const Slice> slices) {
  ++steps_;
  std::unordered_set<int32_t> states;
  for (const Slice& s : slices) {
    CELER_CHECK(!s.tokens.empty() && s.position >= 0);
    CELER_CHECK_EQ(s.rows == Slice::Rows::kSample, s.sampler != nullptr);
    const int64_t end = s.position + s.count(), covered = std::ssize(s.block_table) * kKvBlockTokens;
    if (end > covered)
      return Error::Device("sequence ", s.sequence, " runs up to position ", end - 1, ", but its ",
                           s.block_table.size(), " blocks end at ", covered);
    if (end > options_.info.context)
      return Error::Device("sequence ", s.sequence, " runs up to position ", end - 1,
                           ", but the context has ", options_.info.context);
    for (size_t i = 0; i < s.tokens.size(); ++i)
      if (s.tokens[i] >= options_.model.vocab ||
          (s.tokens[i] < 0 && (i > 0 || s.tokens[i] != Slice::kChosenBefore)))
        return Error::Device("sequence ", s.sequence, " has token ", s.tokens[i], " at position ",
                             s.position + static_cast<int64_t>(i), ", and the vocabulary has ",
                             options_.model.vocab);
    if (options_.info.state_slots > 0 &&
        (s.state < 0 || s.state >= options_.info.state_slots || !states.insert(s.state).second))
      return Error::Device("sequence ", s.sequence, " has state ", s.state, " of ", options_.info.state_slots,
                           ", or another one has it in the same step");
    if (s.draft_state >= 0 && (s.draft_state >= options_.info.state_slots || s.certain < 0 ||
                               s.certain >= s.count() || !states.insert(s.draft_state).second))
      return Error::Device("sequence ", s.sequence, " drafts into state ", s.draft_state, " behind ",
                           s.certain, " of ", s.count(), " tokens, or another one has it in the same step");
    const int64_t first_written = s.position / kKvBlockTokens;
    for (int64_t i = options_.verify ? 0 : first_written; i < KvBlocksFor(end); ++i) {
      const int32_t block = s.block_table[i];
      if (block < 0 || block >= options_.info.kv_blocks)
        return Error::Device("sequence ", s.sequence, " has block ", block, " at position ",
                             i * kKvBlockTokens, ", and the pool has ", options_.info.kv_blocks);
      if (i < first_written) continue;
      int64_t& step = written_[block];
      if (step == steps_)
        return Error::Device("block ", block, " is written by sequence ", s.sequence, " at position ",
                             std::max(s.position, i * kKvBlockTokens),
                             " and by another slice of the same step");
      step = steps_;
    }
  }
  return {};
}

uint64_t SimulatedRunner::StartOf(const Slice& slice) const {
  const uint64_t start = options_.model.Start();
  return slice.lora ? SplitMix64(start ^ std::hash<std::string>()(slice.lora->key())) : start;
}

Status SimulatedRunner::Queue(std::span<const Slice> slices) {
  CELER_RETURN_IF_ERROR(Check(slices));
  Step step;
  for (const Slice& s : slices) {
    Part part{.sequence = s.sequence,
              .position = s.position,
              .state = s.state,
              .draft_state = s.draft_state,
              .certain = s.certain,
              .first_token = std::ssize(step.tokens),
              .tokens = s.count(),
              .blocks = std::ssize(step.blocks),
              .history = std::ssize(step.history),
              .rows = s.rows,
              .keeps_hidden = s.keeps_hidden,
              .sampler = s.sampler,
              .start = StartOf(s)};
    step.tokens.insert(step.tokens.end(), s.tokens.begin(), s.tokens.end());
    if (options_.verify) {
      part.history_size = std::min(s.position, std::ssize(s.history));
      step.history.insert(step.history.end(), s.history.begin(), s.history.begin() + part.history_size);
    } else {
      part.first_block =
          std::max<int64_t>(0, s.position - std::max<int64_t>(1, options_.model.order)) / kKvBlockTokens;
    }
    step.blocks.insert(step.blocks.end(), s.block_table.begin() + part.first_block,
                       s.block_table.begin() + KvBlocksFor(s.position + s.count()));
    step.parts.push_back(part);
  }
  if (options_.step_seconds) step.seconds = options_.step_seconds(slices);
  queued_.push_back(std::move(step));
  return {};
}

int64_t SimulatedRunner::SlotOf(const Step& step, const Part& part, int64_t position) const {
  const int64_t index = part.blocks + position / kKvBlockTokens - part.first_block;
  return int64_t{step.blocks[index]} * kKvBlockTokens + position % kKvBlockTokens;
}

Status SimulatedRunner::Verify(const Step& step, const Part& part) const {
  // Without `verify`, the last one: the text goes on from there.
  int64_t i = options_.verify ? 0 : std::max<int64_t>(0, part.position - 1);
  uint64_t before = part.start;
  for (; i < part.position; ++i) {
    const int64_t at = SlotOf(step, part, i);
    const Slot& slot = kv_[at];
    const auto wrong = [&](const std::string& what) {
      return Error::Device("block ", at / kKvBlockTokens, " holds ", what, " at position ", i,
                           " of sequence ", part.sequence);
    };
    if (slot.token() < 0) return wrong("nothing");
    if (!options_.verify) break;
    if (slot.prefix != HashModel::Extend(before, slot.token())) return wrong("the keys of another text");
    if (i < part.history_size) {
      const int32_t token = step.history[part.history + i];
      if (slot.token() != token)
        return wrong(fmt::format("the keys of token {} instead of {}", slot.token(), token));
    }
    before = slot.prefix;
  }
  return {};
}

Status SimulatedRunner::VerifyState(const Step& step, const Part& part) const {
  if (states_.empty() || part.position == 0) return {};
  if (states_[part.state] != kv_[SlotOf(step, part, part.position - 1)].prefix)
    return Error::Device("state ", part.state, " is not that of sequence ", part.sequence,
                         " in front of position ", part.position);
  return {};
}

uint64_t SimulatedRunner::HashAt(const Step& step, const Part& part, int64_t position) const {
  const int64_t order = options_.model.order;
  if (order == 0) return kv_[SlotOf(step, part, position)].prefix;
  uint64_t hash = part.start;
  for (int64_t i = std::max<int64_t>(0, position + 1 - order); i <= position; ++i)
    hash = HashModel::Extend(hash, kv_[SlotOf(step, part, i)].token());
  return hash;
}

Status SimulatedRunner::Run(const Step& step, const Part& part, StepOutput* output) {
  CELER_RETURN_IF_ERROR(Verify(step, part));
  CELER_RETURN_IF_ERROR(VerifyState(step, part));
  uint64_t prefix = part.position == 0 ? part.start : kv_[SlotOf(step, part, part.position - 1)].prefix;
  for (int64_t i = 0; i < part.tokens; ++i) {
    if (part.draft_state >= 0 && i == part.certain) states_[part.state] = prefix;
    const int32_t token = step.tokens[part.first_token + i];
    prefix = HashModel::Extend(prefix, token);
    kv_[SlotOf(step, part, part.position + i)] = {prefix, token + 1};
  }
  if (!states_.empty()) states_[part.draft_state >= 0 ? part.draft_state : part.state] = prefix;

  const auto vocab = static_cast<size_t>(options_.model.vocab);
  const int64_t last = part.position + part.tokens - 1;
  const Slice slice{.tokens = {step.tokens.data(), static_cast<size_t>(part.tokens)},
                    .draft_state = part.draft_state,
                    .certain = part.certain,
                    .rows = part.rows,
                    .keeps_hidden = part.keeps_hidden};
  const auto hidden = static_cast<size_t>(options_.info.config.hidden);
  for (int64_t i = last + 1 - slice.hidden_count(); i <= last; ++i) {
    hidden_.resize(hidden_.size() + hidden);
    options_.model.Hidden(HashAt(step, part, i), std::span(hidden_).last(hidden));
  }
  if (part.sampler) {
    const uint64_t hash = HashAt(step, part, last);
    if (options_.model.vocab > kSmallVocab && TakesLargest(part.sampler->params())) {
      const int32_t token = options_.model.Largest(hash);
      part.sampler->Accept(token);
      output->choices.push_back({.token = token, .logprob = 0, .top = {}});
    } else {
      row_.resize(vocab);
      options_.model.Logits(hash, row_);
      output->choices.push_back(part.sampler->Next(row_));
    }
    chosen_[part.sequence] = output->choices.back().token;
    return {};
  }
  const int64_t rows = slice.row_count();
  for (int64_t i = last + 1 - rows; i <= last; ++i) {
    logits_.resize(logits_.size() + vocab);
    options_.model.Logits(HashAt(step, part, i), std::span(logits_).last(vocab));
  }
  return {};
}

Result<StepOutput> SimulatedRunner::Take() {
  CELER_CHECK(!queued_.empty());
  Step step = std::move(queued_.front());
  queued_.pop_front();
  now_ += step.seconds;
  StepOutput output;
  logits_.clear();
  hidden_.clear();
  for (const Part& part : step.parts)
    if (int32_t& token = step.tokens[part.first_token]; token == Slice::kChosenBefore) {
      const auto chosen = chosen_.find(part.sequence);
      if (chosen == chosen_.end())
        return Error::Device("sequence ", part.sequence, " goes on at position ", part.position,
                             " with a token that the step before did not choose");
      token = chosen->second;
    }
  chosen_.clear();
  for (const Part& part : step.parts) CELER_RETURN_IF_ERROR(Run(step, part, &output));
  output.logits = logits_;
  output.hidden = hidden_;
  for (const auto& operation : step.after) operation();
  return output;
}

void SimulatedRunner::DropQueued() {
  for (const Step& step : queued_) {
    now_ += step.seconds;
    for (const Part& part : step.parts)
      for (int64_t i = 0; i < part.tokens; ++i)
        kv_[SlotOf(step, part, part.position + i)] = {~uint64_t{0}, 1};
    for (const auto& operation : step.after) operation();
  }
  queued_.clear();
}

bool SimulatedRunner::RunsAhead(std::span<const Slice> slices) const {
  return options_.runs_ahead && std::all_of(slices.begin(), slices.end(), [](const Slice& s) {
           return s.rows == Slice::Rows::kSample && s.count() == 1;
         });
}

Status SimulatedRunner::InOrder(double seconds, std::function<void()> block_operation) {
  if (queued_.empty()) {
    now_ += seconds;
    block_operation();
  } else {
    queued_.back().seconds += seconds;
    queued_.back().after.push_back(std::move(block_operation));
  }
  return {};
}

namespace {

// Devices copy in no order: no block may be written twice, or both read and written in the same pool.
Status CheckCopies(const char* what, std::span<const BlockCopy> copies, int64_t from, int64_t to,
                   bool one_pool) {
  std::unordered_set<int32_t> written;
  for (const BlockCopy& copy : copies) {
    if (copy.from < 0 || copy.from >= from || copy.to < 0 || copy.to >= to)
      return Error::Device(what, " block ", copy.from, " to ", copy.to, ", but there are ", from, " and ",
                           to);
    if (!written.insert(copy.to).second)
      return Error::Device(what, " blocks writes block ", copy.to, " twice");
  }
  for (const BlockCopy& copy : copies)
    if (one_pool && written.contains(copy.from))
      return Error::Device(what, " blocks both reads and writes block ", copy.from);
  return {};
}

}  // namespace

std::function<void()> SimulatedRunner::Copies(std::span<const BlockCopy> copies, Slots& from, Slots& to) {
  return [list = std::vector(copies.begin(), copies.end()), &from, &to] {
    for (const BlockCopy& copy : list) std::ranges::copy(from.Block(copy.from), to.Block(copy.to).begin());
  };
}

Status SimulatedRunner::CopyBlocks(std::span<const BlockCopy> copies) {
  const int64_t pool = options_.info.kv_blocks;
  CELER_RETURN_IF_ERROR(CheckCopies("copying", copies, pool, pool, true));
  return InOrder(static_cast<double>(copies.size()) * options_.copy_block_s, Copies(copies, kv_, kv_));
}

Status SimulatedRunner::SwapOut(std::span<const BlockCopy> copies) {
  CELER_RETURN_IF_ERROR(
      CheckCopies("swapping out", copies, options_.info.kv_blocks, options_.info.kv_host_blocks, false));
  return InOrder(static_cast<double>(copies.size()) * options_.swap_block_s, Copies(copies, kv_, host_));
}

Status SimulatedRunner::SwapIn(std::span<const BlockCopy> copies) {
  CELER_RETURN_IF_ERROR(
      CheckCopies("swapping in", copies, options_.info.kv_host_blocks, options_.info.kv_blocks, false));
  return InOrder(static_cast<double>(copies.size()) * options_.swap_block_s, Copies(copies, host_, kv_));
}

Status SimulatedRunner::CopyStates(std::span<const BlockCopy> copies) {
  const int64_t slots = options_.info.state_slots;
  CELER_RETURN_IF_ERROR(CheckCopies("copying states as", copies, slots, slots, true));
  return InOrder(0, [this, list = std::vector(copies.begin(), copies.end())] {
    for (const auto& [from, to] : list) states_[to] = states_[from];
  });
}

Status SimulatedRunner::ReadBlocks(std::span<const int32_t> blocks, std::span<std::byte> out) {
  for (const int32_t block : blocks) {
    if (block < 0 || block >= options_.info.kv_blocks)
      return Error::Device("reading block ", block, ", but there are ", options_.info.kv_blocks);
    const auto bytes = std::as_bytes(kv_.Block(block));
    if (out.size() < bytes.size()) return Error::Device("reading ", blocks.size(), " blocks into too little");
    std::ranges::copy(bytes, out.begin());
    out = out.subspan(bytes.size());
  }
  return {};
}

Status SimulatedRunner::WriteBlocks(std::span<const int32_t> blocks, std::span<const std::byte> bytes) {
  const size_t each = kKvBlockTokens * sizeof(Slot);
  if (bytes.size() != blocks.size() * each)
    return Error::Device("writing ", blocks.size(), " blocks from ", bytes.size(), " bytes");
  for (const int32_t block : blocks)
    if (block < 0 || block >= options_.info.kv_blocks)
      return Error::Device("writing block ", block, ", but there are ", options_.info.kv_blocks);
  return InOrder(0, [this, each, to = std::vector(blocks.begin(), blocks.end()),
                     from = std::vector(bytes.begin(), bytes.end())] {
    for (size_t i = 0; i < to.size(); ++i) std::memcpy(kv_.Block(to[i]).data(), from.data() + i * each, each);
  });
}

Status SimulatedRunner::ClearBlocks(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks)
    if (block < 0 || block >= options_.info.kv_blocks)
      return Error::Device("clearing block ", block, ", but there are ", options_.info.kv_blocks);
  return InOrder(0, [this, list = std::vector(blocks.begin(), blocks.end())] {
    for (const int32_t block : list) std::ranges::fill(kv_.Block(block), Slot{});
  });
}

std::vector<OperatorWork> SimulatedRunner::Work(const StepShape& shape) const {
  return options_.work ? options_.work(shape) : std::vector<OperatorWork>{};
}

}  // namespace celer
