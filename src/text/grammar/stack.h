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

// A node of a graph-structured stack: a set of stacks of one depth, its own alternative and those of `other`.
// Parses of an ambiguous text that differ only below the top share what they have in common, and equal sets
// are interned (one index), so that parses that have reached the same state are one.
struct Frame {
  uint32_t to;               // the state to go on with
  uint32_t parent;           // the frame below, or kBottom
  uint32_t depth;            // frames from the bottom to this one
  uint32_t other = kBottom;  // the next alternative, whose `to` is larger
  bool operator==(const Frame&) const = default;
};

// Bounds the work of one mask or of the acceptance of one token. Counted in items visited rather than in
// time, so that what is refused is refused on every machine.
struct Effort {
  uint64_t limit;
  uint64_t spent = 0;
  bool exceeded() const { return spent > limit; }
  void Exceed() { spent = spent > limit ? spent : limit + 1; }
};

}  // namespace celer::grammar
