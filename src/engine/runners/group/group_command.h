// What rank 0 tells the other ranks to do, as bytes: a step of the model, or something with the blocks of the KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/loop/step_batch.h"
#include "kernels/llm/kv_block.h"

namespace celer {

struct GroupCommand {
  // Of GPUs kDecode is a step of one token of each sequence, whose successors are chosen on the GPU; kDecodeOn is one whose
  // tokens are those that the step before chose.
  enum class Kind : uint8_t { kStep, kDecode, kDecodeOn, kCopy, kSwapOut, kSwapIn, kClear, kDiscard, kEnd };

  Kind kind = Kind::kEnd;
  bool IsStep() const { return kind <= Kind::kDecodeOn; }
  StepBatch step = {};                 // of those
  std::vector<int32_t> cuts = {};      // likewise: where its micro-batches begin, after the first one
  std::vector<BlockCopy> copies = {};  // of kCopy, kSwapOut and kSwapIn
  std::vector<int32_t> blocks = {};    // of kClear

  std::vector<std::byte> Encode() const;
  // What does not fit a model with that vocabulary and those blocks is an error.
  struct Limits {
    int64_t vocab = 0, kv_blocks = 0, host_blocks = 0, context = 0;
  };
  static Result<GroupCommand> Decode(std::span<const std::byte> bytes, const Limits& limits);
};

// A step that is encoded without being copied.
std::vector<std::byte> EncodeStep(const StepBatch& step, GroupCommand::Kind kind = GroupCommand::Kind::kStep,
                                  std::span<const int32_t> cuts = {});

}  // namespace celer
