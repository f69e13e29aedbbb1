#include "text/grammar/walker.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace celer::grammar {
namespace {

constexpr size_t kLinear = 24;  // up to here a search through the items is quicker than a table
// Bounds of the memory of a walk, some 16 MiB each. All are far beyond what a grammar that anyone writes
// needs.
constexpr size_t kMaxItems = 16384, kMaxFrames = size_t{1} << 20, kMaxPool = size_t{1} << 21;
constexpr size_t kMaxSteps = size_t{1} << 22;
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
  levels_.clear();
  frames_.assign(frames.begin(), frames.end());
  bucket_.clear();
  before_.clear();
  pool_.clear();
  sets_.clear();
  set_by_hash_.clear();
  closed_.clear();
  next_.clear();
  lowest_ = ~uint32_t{0};
  height_ = 0;
}

Walker::Level& Walker::At(size_t level) {
  if (levels_.size() <= level) levels_.resize(level + 1);
  return levels_[level];
}

void Walker::Start(std::span<const Item> items) {
  if (items.size() == 1) {
    At(0) = {kSingle, items[0]};
    return;
  }
  Begin();
  items_.assign(items.begin(), items.end());
  At(0) = {InternSet(), {}};
}

void Walker::StartClosed(std::span<const Item> items) {
  if (items.size() == 1) {
    At(0) = {SetAfter(items[0]), {}};
    return;
  }
  Begin();
  for (const Item& item : items) Append(item);
  Close();
  At(0) = {InternSet(), {}};
}

uint32_t Walker::SetAfter(Item item) {
  const auto [at, is_new] = closed_.try_emplace(uint64_t{item.state} << 32 | item.frame, kNoSet);
  if (is_new) {
    Begin();
    Append(item);
    Close();
    at->second = InternSet();
  }
  return at->second;
}

bool Walker::Step(size_t level, uint8_t byte) {
  const Level from = levels_[level];
  ++effort_.spent;
  if (from.set != kSingle) return StepSet(level, from.set, byte);
  // By far the most frequent case, in strings and names.
  const uint32_t to = automaton_.Next(from.single.state, byte);
  if (to == Automaton::kDead) return false;
  const uint32_t height = Depth(from.single.frame) + automaton_.Need(to);
  height_ = std::max(height_, height);
  // Prune: an item that could not end within the stack limit leads nowhere.
  if (height > automaton_.max_depth() || effort_.exceeded()) return false;
  const Item item{to, from.single.frame};
  if (automaton_.IsPlain(to)) {
    At(level + 1) = {kSingle, item};
    return true;
  }
  const uint32_t set = SetAfter(item);
  At(level + 1) = {set, {}};
  return set != kNoSet && !effort_.exceeded();
}

bool Walker::StepSet(size_t level, uint32_t from, uint8_t byte) {
  if (from == kNoSet) return false;
  const size_t classes = automaton_.classes();
  const size_t place = from * classes + automaton_.ClassOf(byte);
  if (next_.size() <= place) next_.resize(sets_.size() * classes, kUnknown);
  if (next_[place] == kUnknown) {
    Begin();
    const Set set = sets_[from];
    effort_.spent += set.count;
    for (size_t i = set.begin; i < set.begin + set.count; ++i) {
      const Item item = pool_[i];
      const uint32_t to = automaton_.Next(item.state, byte);
      if (to != Automaton::kDead) Append({to, item.frame});
    }
    Close();
    next_[place] = InternSet();
  }
  At(level + 1) = {next_[place], {}};
  return next_[place] != kNoSet && !effort_.exceeded();
}

void Walker::Begin() {
  items_.clear();
  closed_with_.clear();
  ends_ = false;
  if (++epoch_ == 0) {  // all slots would look new again
    table_.assign(table_.size(), {});
    epoch_ = 1;
  }
  in_table_ = 0;
}

uint32_t Walker::InternSet() {
  if (items_.empty() && !ends_) return kNoSet;
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return std::tie(a.state, a.frame) < std::tie(b.state, b.frame);
  });
  uint64_t hash = ends_ ? 1 : 0;
  for (const Item& item : items_) hash = Mix(hash, uint64_t{item.state} << 32 | item.frame);
  const auto [first, last] = set_by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Set& set = sets_[it->second];
    if (set.ended == ends_ && std::ranges::equal(items_, std::span(pool_).subspan(set.begin, set.count)))
      return it->second;
  }
  const auto index = static_cast<uint32_t>(sets_.size());
  if (pool_.size() >= kMaxPool || sets_.size() * automaton_.classes() >= kMaxSteps) effort_.Exceed();
  sets_.push_back({pool_.size(), static_cast<uint32_t>(items_.size()), ends_});
  pool_.insert(pool_.end(), items_.begin(), items_.end());
  set_by_hash_.emplace(hash, index);
  return index;
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

// The union of two sets of stacks of the same depth. Alternatives with the same `to` are merged, so that
// transitions stay deterministic.
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

void Walker::FillTable() {
  const size_t count = items_.size();
  if (4 * count > table_.size()) table_.assign(8 * count, {});
  for (size_t i = 0; i < items_.size(); ++i) {
    size_t at = Mix(items_[i].state, Depth(items_[i].frame)) % table_.size();
    while (table_[at].epoch == epoch_) at = (at + 1) % table_.size();
    table_[at] = {epoch_, static_cast<uint32_t>(i)};
  }
  in_table_ = count;
}

size_t Walker::FindItem(uint32_t state, uint32_t depth) {
  const auto is = [&](const Item& item) { return item.state == state && Depth(item.frame) == depth; };
  const size_t count = items_.size();
  if (count <= kLinear) {
    const auto at = std::find_if(items_.begin(), items_.end(), is);
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
  // Prune: an item that could not end within the stack limit leads nowhere.
  if (height > automaton_.max_depth()) return;
  ++effort_.spent;
  const size_t at = FindItem(item.state, depth);
  if (at == items_.size()) {
    if (at >= kMaxItems) effort_.Exceed();
    items_.push_back(item);
    return;
  }
  if (items_[at].frame == item.frame) return;
  items_[at].frame = Union(items_[at].frame, item.frame);
  if (at < closed_with_.size() && closed_with_[at] != items_[at].frame) again_.push_back(at);
}

// Adds the epsilon closure of the items: calls push, ends of rules pop.
void Walker::Close() {
  again_.clear();
  while (!effort_.exceeded()) {
    const size_t next = closed_with_.size();
    if (next < items_.size()) {
      closed_with_.push_back(items_[next].frame);
      CloseItem(next);
    } else if (!again_.empty()) {
      const size_t index = again_.back();
      again_.pop_back();
      uint32_t& closed_with = closed_with_[index];
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
