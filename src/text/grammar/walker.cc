#include "text/grammar/walker.h"

namespace celer::grammar {
namespace {

constexpr size_t kLinear = 24;  // up to here a search through the items is quicker than a table
// Bounds of the memory of a walk. Both are far beyond what a grammar that anyone writes needs.
constexpr size_t kMaxItems = 16384, kMaxFrames = size_t{1} << 20;
constexpr size_t kFewFrames = 16;  // likewise for frames
constexpr size_t kMergedSlots = 1024;

uint64_t Mix(uint64_t a, uint64_t b) {
  const uint64_t x = (a * 0x9E3779B97F4A7C15u) ^ (b + 0x7F4A7C15u) * 0xD1342543DE82EF95u;
  return x ^ (x >> 29);
}

size_t BucketOf(const Frame& frame, size_t buckets) {
  return Mix(uint64_t{frame.to} << 32 | frame.parent, frame.other) & (buckets - 1);
}

}  // namespace

void Walker::Reset(std::span<const Frame> frames) {
  items_.clear();
  frames_.assign(frames.begin(), frames.end());
  bucket_.clear();
  before_.clear();
  items_end_.assign(1, 0);
  frames_end_.assign(1, frames_.size());
  ended_.assign(1, false);
  lowest_ = ~uint32_t{0};
  height_ = 0;
  BeginLevel(0);
}

void Walker::BeginLevel(size_t first) {
  level_first_ = first;
  closed_with_.clear();
  if (++epoch_ == 0) {  // all slots look new again
    table_.assign(table_.size(), {});
    epoch_ = 1;
  }
  in_table_ = 0;
}

void Walker::LinkFrames(size_t buckets) {
  bucket_.assign(buckets, kBottom);
  before_.resize(frames_.size());
  for (size_t i = 0; i < frames_.size(); ++i) {
    uint32_t& last = bucket_[BucketOf(frames_[i], buckets)];
    before_[i] = last;
    last = static_cast<uint32_t>(i);
  }
}

void Walker::TruncateFrames(size_t count) {
  if (bucket_.empty()) frames_.resize(std::min(count, frames_.size()));
  while (frames_.size() > count) {
    bucket_[BucketOf(frames_.back(), bucket_.size())] = before_.back();
    frames_.pop_back();
    before_.pop_back();
  }
}

uint32_t Walker::Intern(uint32_t to, uint32_t parent, uint32_t other) {
  const Frame frame{to, parent, Depth(parent) + 1, other};
  const auto index = static_cast<uint32_t>(frames_.size());
  if (bucket_.empty() && frames_.size() <= kFewFrames) {
    const auto at = std::find(frames_.begin(), frames_.end(), frame);
    if (at != frames_.end()) return static_cast<uint32_t>(at - frames_.begin());
    frames_.push_back(frame);
    return index;
  }
  if (frames_.size() >= 2 * bucket_.size()) {
    size_t buckets = 4 * kFewFrames;
    while (buckets < 2 * frames_.size()) buckets *= 2;
    LinkFrames(buckets);
  }
  uint32_t& last = bucket_[BucketOf(frame, bucket_.size())];
  for (uint32_t i = last; i != kBottom; i = before_[i])
    if (frames_[i] == frame) return i;
  if (frames_.size() >= kMaxFrames) effort_.Exceed();
  before_.push_back(last);
  last = index;
  frames_.push_back(frame);
  return index;
}

uint32_t Walker::Union(uint32_t a, uint32_t b) {
  ++merge_;
  if (merged_.empty()) merged_.resize(kMergedSlots);
  return UnionOf(a, b);
}

// The stacks of both, which have the same depth. Alternatives with the same `to` become one, so that a frame
// has no two ways on.
uint32_t Walker::UnionOf(uint32_t a, uint32_t b) {
  if (a == b || effort_.exceeded()) return a;
  if (a > b) std::swap(a, b);
  Merged& known = merged_[Mix(a, b) % kMergedSlots];
  if (known.epoch == merge_ && known.a == a && known.b == b) return known.both;
  std::vector<std::pair<uint32_t, uint32_t>> all;  // `to` and parent
  uint32_t x = a, y = b;
  while (x != kBottom || y != kBottom) {
    ++effort_.spent;
    const bool in_x = x != kBottom && (y == kBottom || frames_[x].to <= frames_[y].to);
    const bool in_y = y != kBottom && (x == kBottom || frames_[y].to <= frames_[x].to);
    const uint32_t to = frames_[in_x ? x : y].to;
    const uint32_t parent =
        in_x && in_y ? UnionOf(frames_[x].parent, frames_[y].parent) : frames_[in_x ? x : y].parent;
    all.emplace_back(to, parent);
    if (in_x) x = frames_[x].other;
    if (in_y) y = frames_[y].other;
  }
  uint32_t both = kBottom;
  for (size_t i = all.size(); i-- > 0;) both = Intern(all[i].first, all[i].second, both);
  merged_[Mix(a, b) % kMergedSlots] = {merge_, a, b, both};
  return both;
}

void Walker::AddClosed(Item item) {
  ends_ = ended_[0];
  closed_with_.clear();
  Append(item);
  Close();
  items_end_[0] = items_.size();
  frames_end_[0] = frames_.size();
  ended_[0] = ends_;
}

bool Walker::Step(size_t level, uint8_t byte) {
  const size_t begin = level == 0 ? 0 : items_end_[level - 1], end = items_end_[level];
  items_.resize(end);
  TruncateFrames(frames_end_[level]);
  if (items_end_.size() <= level + 1) {
    items_end_.resize(level + 2);
    frames_end_.resize(level + 2);
    ended_.resize(level + 2);
  }
  ends_ = false;
  effort_.spent += end - begin;
  BeginLevel(end);
  if (end - begin == 1) {
    // By far the most frequent case, in strings and names.
    const Item item = items_[begin];
    const uint32_t to = automaton_.Next(item.state, byte);
    if (to != Automaton::kDead) {
      const uint32_t height = Depth(item.frame) + automaton_.Need(to);
      height_ = std::max(height_, height);
      if (height <= automaton_.max_depth()) items_.push_back({to, item.frame});
      if (!automaton_.IsPlain(to)) Close();
    }
  } else {
    for (size_t i = begin; i < end; ++i) {
      const Item item = items_[i];
      const uint32_t to = automaton_.Next(item.state, byte);
      if (to != Automaton::kDead) Append({to, item.frame});
    }
    Close();
  }
  items_end_[level + 1] = items_.size();
  frames_end_[level + 1] = frames_.size();
  ended_[level + 1] = ends_;
  return !effort_.exceeded() && (items_.size() > end || ends_);
}

void Walker::FillTable() {
  const size_t count = items_.size() - level_first_;
  if (4 * count > table_.size()) table_.assign(8 * count, {});
  for (size_t i = level_first_; i < items_.size(); ++i) {
    size_t at = Mix(items_[i].state, Depth(items_[i].frame)) % table_.size();
    while (table_[at].epoch == epoch_) at = (at + 1) % table_.size();
    table_[at] = {epoch_, static_cast<uint32_t>(i)};
  }
  in_table_ = count;
}

size_t Walker::FindItem(uint32_t state, uint32_t depth) {
  const auto is = [&](const Item& item) { return item.state == state && Depth(item.frame) == depth; };
  const size_t count = items_.size() - level_first_;
  if (count <= kLinear) {
    const auto at = std::find_if(items_.begin() + static_cast<ptrdiff_t>(level_first_), items_.end(), is);
    return static_cast<size_t>(at - items_.begin());
  }
  if (in_table_ < count || 2 * count > table_.size()) FillTable();
  size_t at = Mix(state, depth) % table_.size();
  for (; table_[at].epoch == epoch_; at = (at + 1) % table_.size())
    if (is(items_[table_[at].item])) return table_[at].item;
  table_[at] = {epoch_, static_cast<uint32_t>(items_.size())};
  ++in_table_;
  return items_.size();
}

void Walker::Append(Item item) {
  const uint32_t depth = Depth(item.frame), height = depth + automaton_.Need(item.state);
  height_ = std::max(height_, height);
  // An item that could not end within the stack would lead nowhere.
  if (height > automaton_.max_depth()) return;
  ++effort_.spent;
  const size_t at = FindItem(item.state, depth);
  if (at == items_.size()) {
    if (at - level_first_ >= kMaxItems) effort_.Exceed();
    items_.push_back(item);
    return;
  }
  if (items_[at].frame == item.frame) return;
  items_[at].frame = Union(items_[at].frame, item.frame);
  const size_t place = at - level_first_;
  if (place < closed_with_.size() && closed_with_[place] != items_[at].frame) again_.push_back(at);
}

// Adds what follows from the level's items without a byte: calls push, ends of rules pop.
void Walker::Close() {
  again_.clear();
  while (!effort_.exceeded()) {
    const size_t next = level_first_ + closed_with_.size();
    if (next < items_.size()) {
      closed_with_.push_back(items_[next].frame);
      CloseItem(next);
    } else if (!again_.empty()) {
      const size_t index = again_.back();
      again_.pop_back();
      uint32_t& closed_with = closed_with_[index - level_first_];
      if (closed_with == items_[index].frame) continue;
      closed_with = items_[index].frame;
      CloseItem(index);
    } else {
      return;
    }
  }
}

void Walker::CloseItem(size_t index) {
  const Item item = items_[index];
  if (automaton_.IsPlain(item.state)) return;
  const uint32_t depth = Depth(item.frame);
  for (const Automaton::Call& call : automaton_.Calls(item.state)) {
    ++effort_.spent;
    if (call.to == Automaton::kDead) {
      Append({call.start, item.frame});
      continue;
    }
    if (depth + automaton_.Need(call.to) > automaton_.max_depth() ||
        depth + 1 + automaton_.Need(call.start) > automaton_.max_depth()) {
      height_ = std::max(height_, automaton_.max_depth() + 1);
      continue;
    }
    Append({call.start, Intern(call.to, item.frame, kBottom)});
  }
  if (!automaton_.Accepts(item.state)) return;
  lowest_ = std::min(lowest_, depth);
  if (item.frame == kBottom) {
    ends_ = true;
    return;
  }
  for (uint32_t frame = item.frame; frame != kBottom; frame = frames_[frame].other)
    Append({frames_[frame].to, frames_[frame].parent});
}

}  // namespace celer::grammar
