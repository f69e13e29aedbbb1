// Items and frames: see automaton.h.
#pragma once

#include <cstdint>

namespace celer::grammar {

inline constexpr uint32_t kBottom = ~uint32_t{0};  // below the last frame

struct Item {
  uint32_t state;
  uint32_t frame;  // the top of its stack, or kBottom
  bool operator==(const Item&) const = default;
};

struct Frame {
  uint32_t to;      // the state to go on with
  uint32_t parent;  // the frame below, or kBottom
  uint32_t depth;   // frames from the bottom to this one
  bool operator==(const Frame&) const = default;
};

}  // namespace celer::grammar
