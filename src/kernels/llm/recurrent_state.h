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

  float* Of(int64_t seq) const { return data + slots[static_cast<size_t>(seq)] * stride; }
};

}  // namespace celer
