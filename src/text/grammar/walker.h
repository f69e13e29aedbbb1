// Steps an automaton over bytes and keeps the items after every prefix, so that a trie can be walked depth
// first.
//
// The items of one position are merged: for each state and depth there is one, with all its stacks (stack.h).
// So the items of an ambiguous text are bounded by the states of the grammar, not by the number of its
// parses. Equal sets of items are interned, and the transition of a set over a byte class is memoized: lazy
// determinization.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/stack.h"

namespace celer::grammar {

class Walker {
 public:
  // Adds its work to `effort`, and goes no further once that is exceeded: what it then says is of no use.
  Walker(const Automaton& automaton, Effort& effort) : automaton_(automaton), effort_(effort) {}

  // Forgets all, and takes the frames that items may have.
  void Reset(std::span<const Frame> frames);
  // Level 0 is these items, of which no two have the same state and depth.
  void Start(std::span<const Item> items);
  // Level 0 is the epsilon closure of these items.
  void StartClosed(std::span<const Item> items);

  // From the places at `level` over one byte to those at level + 1. False if there are none: neither an item
  // nor an end.
  bool Step(size_t level, uint8_t byte);

  std::span<const Item> Items(size_t level) const {
    const Level& at = levels_[level];
    if (at.set == kSingle) return {&at.single, 1};
    if (at.set == kNoSet) return {};
    return {pool_.data() + sets_[at.set].begin, sets_[at.set].count};
  }
  // Whether the text may end here: a rule ended with no frame below it.
  bool Ended(size_t level) const {
    const Level& at = levels_[level];
    return at.set < sets_.size() && sets_[at.set].ended;
  }
  const Frame& frame(uint32_t index) const { return frames_[index]; }
  size_t frame_count() const { return frames_.size(); }
  uint32_t Depth(uint32_t frame) const { return frame == kBottom ? 0 : frames_[frame].depth; }

  // How far down the stacks were looked at since Reset: the least depth of a frame that was popped, 0 for the
  // bottom itself.
  uint32_t lowest() const { return lowest_; }
  // The most frames that any item since Reset had, with those it needs to come to an end.
  uint32_t height() const { return height_; }

 private:
  // Most positions have one item, which is its own epsilon closure; it needs no set.
  static constexpr uint32_t kSingle = ~uint32_t{0}, kUnknown = kSingle - 1, kNoSet = kSingle - 2;
  struct Level {
    uint32_t set;
    Item single;
  };
  struct Set {
    size_t begin;
    uint32_t count;
    bool ended;
  };
  struct Slot {
    uint32_t epoch = 0;
    uint32_t item = 0;
  };
  struct Merged {
    uint64_t epoch = 0;
    uint32_t a = 0, b = 0, both = 0;
  };

  Level& At(size_t level);
  bool StepSet(size_t level, uint32_t from, uint8_t byte);
  uint32_t SetAfter(Item item);  // the item with all that follows from it
  // The set under construction, items_.
  void Begin();
  void Append(Item item);
  void Close();
  void CloseItem(size_t index);
  uint32_t InternSet();  // kNoSet: it has neither items nor an end
  // The index of the item with this state and depth. If there is none, the caller appends it.
  size_t FindItem(uint32_t state, uint32_t depth);
  void FillTable();

  uint32_t Intern(uint32_t to, uint32_t parent, uint32_t other);
  void LinkFrames(size_t buckets);
  uint32_t Union(uint32_t a, uint32_t b);
  uint32_t UnionOf(uint32_t a, uint32_t b);

  const Automaton& automaton_;
  Effort& effort_;
  std::vector<Level> levels_;
  std::vector<Frame> frames_;
  // Finds equal frames, once they are many: the last frame of each bucket, and for each frame the one before
  // it in its bucket.
  std::vector<uint32_t> bucket_, before_;
  std::vector<Merged> merged_;  // unions of the current outermost one
  uint64_t merge_ = 0;

  std::vector<Item> pool_;  // of all sets
  std::vector<Set> sets_;
  std::unordered_multimap<uint64_t, uint32_t> set_by_hash_;
  std::unordered_map<uint64_t, uint32_t> closed_;  // the set that follows from an item
  std::vector<uint32_t> next_;                     // [set, class of bytes]: the set after it

  std::vector<Item> items_;
  bool ends_ = false;
  // The frame that each item was closed with, and the items to be closed again because they got more stacks
  // since.
  std::vector<uint32_t> closed_with_;
  std::vector<size_t> again_;
  // Finds items, once they are many. Slots of older epochs are free.
  std::vector<Slot> table_;
  size_t in_table_ = 0;
  uint32_t epoch_ = 0;

  uint32_t lowest_ = 0, height_ = 0;
};

}  // namespace celer::grammar
