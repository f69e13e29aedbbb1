// Where one recurrent layer keeps what it remembers of each sequence.
#pragma once

#include <cstdint>
#include <span>

namespace celer {

// The states of the sequences in a batch. A state is all zeros before a sequence's first token: nothing is read of
// it in a step that begins at position 0.
struct RecurrentStates {
  float* data = nullptr;                // of slot 0
  int64_t stride = 0;                   // floats from one slot to the next
  std::span<const int32_t> slots = {};  // [seqs], each sequence's own
  // Empty, or [seqs]: of a sequence's tokens only the first `certain` change the state in its slot, and the others, which
  // are drafted and may be rejected, leave theirs in the draft slot. -1: none are drafted.
  std::span<const int32_t> draft_slots = {};
  std::span<const int32_t> certain = {};

  float* Of(int64_t seq) const { return data + slots[static_cast<size_t>(seq)] * stride; }
  bool Drafts(int64_t seq) const {
    return !draft_slots.empty() && draft_slots[static_cast<size_t>(seq)] >= 0;
  }
  float* DraftOf(int64_t seq) const { return data + draft_slots[static_cast<size_t>(seq)] * stride; }
  // How many of a sequence's `tokens` change the state in its slot.
  int64_t Certain(int64_t seq, int64_t tokens) const {
    return Drafts(seq) ? certain[static_cast<size_t>(seq)] : tokens;
  }
};

}  // namespace celer
