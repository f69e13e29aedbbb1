// Steps an automaton over bytes, keeping the places of every prefix, so that a trie can be walked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/stack.h"

namespace celer::grammar {

class Walker {
 public:
  // An ambiguous grammar has several readings of a text. No more than `max_items` are kept: the rest of the
  // text is then held to those.
  Walker(const Automaton& automaton, size_t max_items) : automaton_(automaton), max_items_(max_items) {}

  // Level 0 without items; the frames stay valid until the next Reset.
  void Reset(std::span<const Frame> frames);
  // To level 0, with all that follows from it without a byte.
  void AddClosed(Item item);
  // To level 0, the item alone.
  void AddAlone(Item item) {
    items_.push_back(item);
    items_end_[0] = items_.size();
  }

  // From the places at `level` over one byte to those at level + 1. False if there are none: neither an item
  // nor an end.
  bool Step(size_t level, uint8_t byte);

  std::span<const Item> Items(size_t level) const {
    const size_t begin = level == 0 ? 0 : items_end_[level - 1];
    return {items_.data() + begin, items_end_[level] - begin};
  }
  // Whether the text may end here: a rule ended with no frame below it.
  bool Ended(size_t level) const { return ended_[level]; }
  const Frame& frame(uint32_t index) const { return frames_[index]; }
  uint32_t Depth(uint32_t frame) const { return frame == kBottom ? 0 : frames_[frame].depth; }

  // How far down the frames given to Reset were looked at: the least depth of a frame that was popped, 0 for
  // the bottom itself.
  uint32_t lowest() const { return lowest_; }
  // The most frames that any item seen had, with those it needs to come to an end.
  uint32_t height() const { return height_; }
  uint64_t work() const { return work_; }

 private:
  void Close(size_t first);
  void Append(Item item, size_t first);

  const Automaton& automaton_;
  size_t max_items_;
  std::vector<Item> items_;
  std::vector<size_t> items_end_;   // by level
  std::vector<size_t> frames_end_;  // by level
  std::vector<char> ended_;         // by level
  std::vector<Frame> frames_;
  std::unordered_set<uint64_t> seen_;  // of the level under construction, once it is large
  size_t given_ = 0;                   // frames given to Reset
  bool ends_ = false;
  uint32_t lowest_ = 0, height_ = 0;
  uint64_t work_ = 0;
};

}  // namespace celer::grammar
