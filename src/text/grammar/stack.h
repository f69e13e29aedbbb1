// Items and frames: see automaton.h.
#pragma once

#include <cstdint>

namespace celer::grammar {

inline constexpr uint32_t kBottom = ~uint32_t{0};  // below the last frame; no further alternative

struct Item {
  uint32_t state;
  uint32_t frame;  // the top of its stacks, or kBottom
  bool operator==(const Item&) const = default;
};

// A frame stands for a set of stacks of one depth: its own alternative, and those of `other`. Readings of an
// ambiguous text that differ only below the top share what they have in common (a graph-structured stack),
// and equal sets have one index, so that readings that have come to the same place are one.
struct Frame {
  uint32_t to;               // the state to go on with
  uint32_t parent;           // the frame below, or kBottom
  uint32_t depth;            // frames from the bottom to this one
  uint32_t other = kBottom;  // the next alternative, whose `to` is larger
  bool operator==(const Frame&) const = default;
};

// Bounds one mask or the acceptance of one token. Counted in places visited rather than in time, so that what
// is refused is refused on every machine.
struct Effort {
  uint64_t limit;
  uint64_t spent = 0;
  bool exceeded() const { return spent > limit; }
  void Exceed() { spent = spent > limit ? spent : limit + 1; }
};

}  // namespace celer::grammar
