#include "engine/runners/group/group_command.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace celer {
namespace {

Error NotACommand(const char* what) {
  return Error::Corrupt("rank 0 sent a command that is none: ", what);
}

template <class T>
void Append(std::span<const T> list, std::vector<std::byte>* out) {
  const auto count = static_cast<int64_t>(list.size());
  const auto add = [&](std::span<const std::byte> bytes) {
    out->insert(out->end(), bytes.begin(), bytes.end());
  };
  add(std::as_bytes(std::span(&count, 1)));
  add(std::as_bytes(list));
}

template <class T>
Result<std::vector<T>> TakeList(std::span<const std::byte>* bytes) {
  int64_t count = 0;
  if (bytes->size() < sizeof count) return NotACommand("it ends early");
  std::memcpy(&count, bytes->data(), sizeof count);
  *bytes = bytes->subspan(sizeof count);
  if (count < 0 || static_cast<uint64_t>(count) > bytes->size() / sizeof(T))
    return NotACommand("it ends early");
  std::vector<T> list(static_cast<size_t>(count));
  if (count > 0) std::memcpy(list.data(), bytes->data(), list.size() * sizeof(T));
  *bytes = bytes->subspan(list.size() * sizeof(T));
  return list;
}

bool AllBelow(std::span<const int32_t> list, int64_t most) {
  return std::all_of(list.begin(), list.end(), [&](int32_t i) { return i >= 0 && i < most; });
}

Status CheckCopies(const GroupCommand& command, const GroupCommand::Limits& limits) {
  const bool out = command.kind == GroupCommand::Kind::kSwapOut,
             in = command.kind == GroupCommand::Kind::kSwapIn;
  for (const BlockCopy& copy : command.copies)
    if (copy.from < 0 || copy.from >= (in ? limits.host_blocks : limits.kv_blocks) || copy.to < 0 ||
        copy.to >= (out ? limits.host_blocks : limits.kv_blocks))
      return NotACommand("it names a block that is not there");
  return {};
}

}  // namespace

class StepCodec {
  // Each list of the batch, in one order.
  template <class Batch>
  static auto ListsOf(Batch& batch) {
    return std::tie(batch.tokens_, batch.positions_, batch.seq_start_, batch.block_table_, batch.logit_rows_,
                    batch.prompt_lengths_);
  }

 public:
  static void Encode(const StepBatch& step, std::vector<std::byte>* out) {
    std::apply([&](const auto&... list) { (Append(std::span<const int32_t>(list), out), ...); },
               ListsOf(step));
  }

  static Result<StepBatch> Decode(std::span<const std::byte>* bytes, const GroupCommand::Limits& limits) {
    StepBatch step;
    Status status;
    const auto take = [&](std::vector<int32_t>& list) {
      if (!status) return;
      auto taken = TakeList<int32_t>(bytes);
      if (taken)
        list = std::move(*taken);
      else
        status = taken.error();
    };
    std::apply([&](auto&... list) { (take(list), ...); }, ListsOf(step));
    if (!status) return status.error();
    CELER_RETURN_IF_ERROR(Check(&step, limits));
    return step;
  }

 private:
  static Status Check(StepBatch* step, const GroupCommand::Limits& limits) {
    const auto tokens = std::ssize(step->tokens_), seqs = std::ssize(step->seq_start_) - 1;
    if (seqs < 0 || std::ssize(step->positions_) != tokens || step->seq_start_.front() != 0 ||
        step->seq_start_.back() != tokens ||
        !std::is_sorted(step->seq_start_.begin(), step->seq_start_.end()) ||
        std::ssize(step->prompt_lengths_) != seqs ||
        (seqs == 0 ? !step->block_table_.empty() : std::ssize(step->block_table_) % seqs != 0))
      return NotACommand("its sequences do not fit together");
    if (!AllBelow(step->tokens_, limits.vocab) || !AllBelow(step->positions_, limits.context) ||
        !AllBelow(step->block_table_, limits.kv_blocks) || !AllBelow(step->logit_rows_, tokens))
      return NotACommand("a token, position or block of a step is out of range");
    step->max_blocks_ = seqs > 0 ? std::ssize(step->block_table_) / seqs : 0;
    for (const int32_t position : step->positions_)
      if (position / kKvBlockTokens >= step->max_blocks_)
        return NotACommand("a position of a step has no block");
    return {};
  }
};

std::vector<std::byte> EncodeStep(const StepBatch& step, GroupCommand::Kind kind,
                                  std::span<const int32_t> cuts) {
  std::vector<std::byte> out = {static_cast<std::byte>(kind)};
  StepCodec::Encode(step, &out);
  Append(cuts, &out);
  return out;
}

std::vector<std::byte> GroupCommand::Encode() const {
  if (IsStep()) return EncodeStep(step, kind, cuts);
  std::vector<std::byte> out = {static_cast<std::byte>(kind)};
  Append(std::span<const BlockCopy>(copies), &out);
  Append(std::span<const int32_t>(blocks), &out);
  return out;
}

Result<GroupCommand> GroupCommand::Decode(std::span<const std::byte> bytes, const Limits& limits) {
  if (bytes.empty() || bytes[0] > static_cast<std::byte>(Kind::kEnd))
    return NotACommand("its kind is unknown");
  GroupCommand command{.kind = static_cast<Kind>(bytes[0])};
  bytes = bytes.subspan(1);
  if (command.IsStep()) {
    CELER_ASSIGN(command.step, StepCodec::Decode(&bytes, limits));
    CELER_ASSIGN(command.cuts, TakeList<int32_t>(&bytes));
    int32_t last = 0;
    for (const int32_t cut : command.cuts)
      if (cut <= std::exchange(last, cut) || cut >= command.step.token_count())
        return NotACommand("its micro-batches do not fit together");
  } else {
    CELER_ASSIGN(command.copies, TakeList<BlockCopy>(&bytes));
    CELER_ASSIGN(command.blocks, TakeList<int32_t>(&bytes));
    CELER_RETURN_IF_ERROR(CheckCopies(command, limits));
    if (!AllBelow(command.blocks, limits.kv_blocks)) return NotACommand("it names a block that is not there");
  }
  if (!bytes.empty()) return NotACommand("something follows it");
  return command;
}

}  // namespace celer
