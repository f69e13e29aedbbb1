#include "text/grammar/walker.h"

namespace celer::grammar {
namespace {

constexpr size_t kLinear = 24;  // up to here a search through the items is quicker than a set

}  // namespace

void Walker::Reset(std::span<const Frame> frames) {
  items_.clear();
  frames_.assign(frames.begin(), frames.end());
  given_ = frames.size();
  items_end_.assign(1, 0);
  frames_end_.assign(1, frames_.size());
  ended_.assign(1, false);
  lowest_ = ~uint32_t{0};
  height_ = 0;
  work_ = 0;
  seen_.clear();
}

void Walker::AddClosed(Item item) {
  ends_ = ended_[0];
  const size_t first = items_.size();
  Append(item, 0);
  Close(first);
  items_end_[0] = items_.size();
  frames_end_[0] = frames_.size();
  ended_[0] = ends_;
}

bool Walker::Step(size_t level, uint8_t byte) {
  const size_t begin = level == 0 ? 0 : items_end_[level - 1], end = items_end_[level];
  items_.resize(end);
  frames_.resize(frames_end_[level]);
  if (items_end_.size() <= level + 1) {
    items_end_.resize(level + 2);
    frames_end_.resize(level + 2);
    ended_.resize(level + 2);
  }
  ends_ = false;
  work_ += end - begin;
  if (end - begin == 1) {
    // By far the most frequent case, in strings and names.
    const Item item = items_[begin];
    const uint32_t to = automaton_.Next(item.state, byte);
    if (to != Automaton::kDead) {
      items_.push_back({to, item.frame});
      height_ = std::max(height_, Depth(item.frame) + automaton_.Need(to));
      if (!automaton_.IsPlain(to)) {
        seen_.clear();
        Close(end);
      }
    }
  } else {
    seen_.clear();
    for (size_t i = begin; i < end; ++i) {
      const Item item = items_[i];
      const uint32_t to = automaton_.Next(item.state, byte);
      if (to != Automaton::kDead) Append({to, item.frame}, end);
    }
    Close(end);
  }
  items_end_[level + 1] = items_.size();
  frames_end_[level + 1] = frames_.size();
  ended_[level + 1] = ends_;
  return items_.size() > end || ends_;
}

void Walker::Append(Item item, size_t first) {
  const uint32_t height = Depth(item.frame) + automaton_.Need(item.state);
  height_ = std::max(height_, height);
  // An item that could not end within the stack would lead nowhere.
  if (height > automaton_.max_depth() || items_.size() - first >= max_items_) return;
  const auto key = [](const Item& i) { return uint64_t{i.state} << 32 | i.frame; };
  if (items_.size() - first <= kLinear) {
    if (std::find(items_.begin() + static_cast<ptrdiff_t>(first), items_.end(), item) != items_.end()) return;
  } else {
    if (seen_.empty())
      for (size_t i = first; i < items_.size(); ++i) seen_.insert(key(items_[i]));
    if (!seen_.insert(key(item)).second) return;
  }
  items_.push_back(item);
}

// Adds what follows from the items from `first` on without a byte: calls push, ends of rules pop.
void Walker::Close(size_t first) {
  const size_t frames_before = frames_.size();
  const size_t level_first = items_end_.size() == 1 ? 0 : first;
  for (size_t i = first; i < items_.size(); ++i) {
    const Item item = items_[i];
    if (automaton_.IsPlain(item.state)) continue;
    const uint32_t depth = Depth(item.frame);
    for (const Automaton::Call& call : automaton_.Calls(item.state)) {
      ++work_;
      if (call.to == Automaton::kDead) {
        Append({call.start, item.frame}, level_first);
        continue;
      }
      if (depth + automaton_.Need(call.to) > automaton_.max_depth() ||
          depth + 1 + automaton_.Need(call.start) > automaton_.max_depth()) {
        height_ = std::max(height_, automaton_.max_depth() + 1);
        continue;
      }
      const Frame frame{call.to, item.frame, depth + 1};
      // The same frame pushed twice is one frame; otherwise a rule that may be empty would loop.
      auto at = std::find(frames_.begin() + static_cast<ptrdiff_t>(frames_before), frames_.end(), frame);
      if (at == frames_.end()) at = frames_.insert(at, frame);
      Append({call.start, static_cast<uint32_t>(at - frames_.begin())}, level_first);
    }
    if (!automaton_.Accepts(item.state)) continue;
    if (item.frame == kBottom) {
      ends_ = true;
      lowest_ = 0;
      continue;
    }
    if (item.frame < given_) lowest_ = std::min(lowest_, depth);
    Append({frames_[item.frame].to, frames_[item.frame].parent}, level_first);
  }
}

}  // namespace celer::grammar
