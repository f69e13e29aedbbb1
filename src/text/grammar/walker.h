// Steps an automaton over bytes, keeping the places of every prefix, so that a trie can be walked.
//
// The items of one place are merged: for each state and depth there is one, with all its stacks (stack.h). So
// the places of an ambiguous text are bounded by the states of the grammar, not by the number of its
// readings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/stack.h"

namespace celer::grammar {

class Walker {
 public:
  // Adds its work to `effort`, and goes no further once that is exceeded: what it then says is of no use.
  Walker(const Automaton& automaton, Effort& effort) : automaton_(automaton), effort_(effort) {}

  // Level 0 without items; the frames stay valid until the next Reset.
  void Reset(std::span<const Frame> frames);
  // To level 0, with all that follows from it without a byte.
  void AddClosed(Item item);
  // To level 0, the item alone. No two have the same state and depth.
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
  size_t frame_count() const { return frames_.size(); }
  uint32_t Depth(uint32_t frame) const { return frame == kBottom ? 0 : frames_[frame].depth; }

  // How far down the stacks were looked at: the least depth of a frame that was popped, 0 for the bottom
  // itself.
  uint32_t lowest() const { return lowest_; }
  // The most frames that any item seen had, with those it needs to come to an end.
  uint32_t height() const { return height_; }

 private:
  struct Slot {
    uint32_t epoch = 0;
    uint32_t item = 0;
  };
  struct Merged {
    uint64_t epoch = 0;
    uint32_t a = 0, b = 0, both = 0;
  };

  void BeginLevel(size_t first);
  // All of the level under construction, whose items are those from level_first_ on.
  void Close();
  void CloseItem(size_t index);
  void Append(Item item);
  // The index of the level's item with this state and depth. If there is none, the caller appends it.
  size_t FindItem(uint32_t state, uint32_t depth);
  void FillTable();
  uint32_t Intern(uint32_t to, uint32_t parent, uint32_t other);
  void TruncateFrames(size_t count);
  void LinkFrames(size_t buckets);
  uint32_t Union(uint32_t a, uint32_t b);
  uint32_t UnionOf(uint32_t a, uint32_t b);

  const Automaton& automaton_;
  Effort& effort_;
  std::vector<Item> items_;
  std::vector<size_t> items_end_;   // by level
  std::vector<size_t> frames_end_;  // by level
  std::vector<char> ended_;         // by level
  std::vector<Frame> frames_;
  // Finds equal frames, once they are many: the last frame of each bucket, and for each frame the one before
  // it in its bucket. Frames come and go in order, so the last one is always the first of its bucket.
  std::vector<uint32_t> bucket_, before_;
  // Finds the items of the level under construction, once they are many. Slots of older epochs are free.
  std::vector<Slot> table_;
  size_t in_table_ = 0;
  uint32_t epoch_ = 0;
  size_t level_first_ = 0;
  // The frame that each item of the level was closed with, and the items to be closed again because they got
  // more stacks since.
  std::vector<uint32_t> closed_with_;
  std::vector<size_t> again_;
  std::vector<Merged> merged_;  // unions of the current outermost one
  uint64_t merge_ = 0;
  bool ends_ = false;
  uint32_t lowest_ = 0, height_ = 0;
};

}  // namespace celer::grammar
