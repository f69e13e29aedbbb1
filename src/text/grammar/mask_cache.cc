#include "text/grammar/mask_cache.h"

#include <algorithm>
#include <mutex>

#include "core/check.h"

namespace celer::grammar {
namespace {

constexpr size_t kMaxItems = 512;
// No grammar that anyone writes comes near: a walk that is this ambiguous ends with the tokens found so far.
constexpr uint64_t kMaxWork = 30'000'000;

// Scratch memory of one thread.
struct Scratch {
  std::vector<int32_t> ids;
  std::vector<uint32_t> pops;
};

struct Found {
  std::vector<int32_t>& ids;
  std::vector<uint32_t>* pops;
  // The copies of a bounded repetition that each of them takes, while that can be told.
  bool counted = false;
  std::vector<uint16_t> copies = {}, pop_copies = {};
};

// Walks nodes [begin, end), whose parents have depth `base` and the places of level 0.
void WalkTrie(Walker& walker, const TokenTable& table, uint32_t begin, uint32_t end, uint32_t base,
              Found& found) {
  const auto nodes = table.nodes();
  const auto tokens = table.tokens();
  for (uint32_t i = begin; i < end;) {
    const TokenTable::Node& node = nodes[i];
    const size_t level = node.depth - base - size_t{1};
    if (!walker.Step(level, node.byte)) {
      i = node.end;
      continue;
    }
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) found.ids.push_back(tokens[t]);
    if (found.pops && walker.Ended(level + 1) && node.end > i + 1) found.pops->push_back(i);
    i = walker.Items(level + 1).empty() ? node.end : i + 1;
    if (walker.work() > kMaxWork && !found.ids.empty()) return;
  }
}

// The same for the whole trie and one item without a stack: as long as no rule is called, a state is all
// there is. Most of the trie is walked so; the rest is left to `walker`, which is told of its height and
// work.
void WalkTrieFrom(uint32_t state, const Automaton& automaton, Walker& walker, const TokenTable& table,
                  Found& found, uint32_t* height, uint64_t* work) {
  const auto nodes = table.nodes();
  const auto tokens = table.tokens();
  const uint32_t end = table.node_count();
  std::vector<uint32_t> at(table.longest() + 1, state);  // by depth
  const Automaton::Repeat repeat = automaton.RepeatOf(state);
  found.counted = repeat.chain != kNoChain;
  std::vector<uint16_t> copies(table.longest() + 1, 0);  // by depth
  std::vector<char> inside(table.longest() + 1, true);   // by depth: the repetition has not been left
  for (uint32_t i = 0; i < end;) {
    const TokenTable::Node& node = nodes[i];
    const uint32_t to = automaton.Next(at[node.depth - size_t{1}], node.byte);
    ++*work;
    if (to == Automaton::kDead) {
      i = node.end;
      continue;
    }
    if (found.counted) {
      copies[node.depth] = copies[node.depth - 1];
      inside[node.depth] = inside[node.depth - 1];
      if (inside[node.depth]) {
        const Automaton::Repeat& now = automaton.RepeatOf(to);
        if (now.chain == repeat.chain && now.used >= repeat.used && automaton.Calls(to).empty())
          copies[node.depth] = std::max(copies[node.depth], static_cast<uint16_t>(now.used - repeat.used));
        else if (now.chain == repeat.chain || now.mixed)
          found.counted = false;
        else
          inside[node.depth] = false;
      }
    }
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) found.ids.push_back(tokens[t]);
    *height = std::max(*height, automaton.Need(to));
    const bool pops = [&] {
      if (automaton.IsPlain(to)) return false;
      if (automaton.Calls(to).empty()) return true;
      walker.Reset({});
      walker.AddClosed({to, kBottom});
      return walker.Ended(0);
    }();
    if (pops && node.end > i + 1) found.pops->push_back(i);
    uint32_t next = i + 1;
    if (automaton.Calls(to).empty()) {
      at[node.depth] = to;
      if (!automaton.TakesBytes(to)) next = node.end;
    } else {
      WalkTrie(walker, table, i + 1, node.end, node.depth, found);
      *height = std::max(*height, walker.height());
      *work += walker.work();
      next = node.end;
    }
    if (found.counted) {
      found.copies.resize(found.ids.size(), copies[node.depth]);
      found.pop_copies.resize(found.pops->size(), copies[node.depth]);
    }
    i = next;
    if (*work > kMaxWork && !found.ids.empty()) {
      found.counted = false;
      return;
    }
  }
}

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  scratch.ids.clear();
  scratch.pops.clear();
  return scratch;
}

}  // namespace

TokenSet::TokenSet(std::span<const int32_t> ids, size_t words) {
  if (ids.size() < words) {
    ids_.assign(ids.begin(), ids.end());
    return;
  }
  words_.assign(words, 0);
  for (const int32_t id : ids) words_[id / 32] |= uint32_t{1} << id % 32;
}

void TokenSet::Remove(std::span<const int32_t> ids) {
  CELER_CHECK(is_large());
  for (const int32_t id : ids) words_[id / 32] &= ~(uint32_t{1} << id % 32);
}

void TokenSet::AddTo(std::span<uint32_t> bits) const {
  for (const int32_t id : ids_) bits[id / 32] |= uint32_t{1} << id % 32;
  for (size_t i = 0; i < words_.size(); ++i) bits[i] |= words_[i];
}

size_t MaskCache::KeyHash::operator()(const std::vector<uint32_t>& key) const {
  uint64_t hash = key.size();
  for (const uint32_t x : key) hash = (hash ^ x) * 0x9E3779B97F4A7C15u + (hash >> 29);
  return hash;
}

size_t MaskCache::Local::bytes() const {
  return sizeof(Local) + tokens.bytes() + pops.size() * sizeof(uint32_t) +
         by_copies.size() * sizeof(int32_t) + first_with.size() * sizeof(uint32_t) +
         pop_copies.size() * sizeof(uint16_t);
}

// The mask of a place from that of an earlier one: without the tokens that take more copies than are left.
MaskCache::LocalPointer MaskCache::WithFewerCopies(const Local& base, uint32_t copies_left) const {
  auto local = std::make_shared<Local>();
  const size_t kept = base.first_with[std::min<size_t>(copies_left + size_t{1}, base.first_with.size() - 1)];
  const std::span<const int32_t> ids = base.by_copies;
  if (base.tokens.is_large() && kept > ids.size() / 2) {
    local->tokens = base.tokens;
    local->tokens.Remove(ids.subspan(kept));
  } else {
    local->tokens = TokenSet(ids.first(kept), table_->mask_words());
  }
  for (size_t i = 0; i < base.pops.size(); ++i)
    if (base.pop_copies[i] <= copies_left) local->pops.push_back(base.pops[i]);
  local->height = base.height;
  return local;
}

MaskCache::LocalPointer MaskCache::ComputeLocal(uint32_t state, uint64_t* steps) const {
  const Automaton::Repeat& repeat = automaton_.RepeatOf(state);
  if (repeat.chain != kNoChain && repeat.base != state) {
    const LocalPointer base = FindLocal(repeat.base);
    if (base->counted) {
      if (steps) *steps = table_->mask_words();
      return WithFewerCopies(*base, repeat.copies - repeat.used);
    }
  }
  Scratch& scratch = ThreadScratch();
  Walker walker(automaton_, kMaxItems);
  Found found{scratch.ids, &scratch.pops};
  auto local = std::make_shared<Local>();
  uint64_t work = 0;
  WalkTrieFrom(state, automaton_, walker, *table_, found, &local->height, &work);
  if (steps) *steps = work + table_->mask_words();
  local->tokens = TokenSet(scratch.ids, table_->mask_words());
  local->pops = scratch.pops;
  if (found.counted) {
    uint16_t most = 0;
    for (const uint16_t copies : found.copies) most = std::max(most, copies);
    local->counted = true;
    local->first_with.assign(most + size_t{2}, 0);
    for (const uint16_t copies : found.copies) ++local->first_with[copies + size_t{1}];
    for (size_t n = 1; n < local->first_with.size(); ++n) local->first_with[n] += local->first_with[n - 1];
    std::vector<uint32_t> next = local->first_with;
    local->by_copies.resize(scratch.ids.size());
    for (size_t i = 0; i < scratch.ids.size(); ++i)
      local->by_copies[next[found.copies[i]]++] = scratch.ids[i];
    local->pop_copies = std::move(found.pop_copies);
  }
  return local;
}

void MaskCache::Precompute(uint64_t max_steps) {
  for (uint32_t state = 0; state < automaton_.size() && bytes_ < max_bytes_ / 2; ++state) {
    if (automaton_.MaskClass(state) != state || !automaton_.TakesBytes(state)) continue;
    // Quickly made from its base when it is needed.
    if (automaton_.RepeatOf(state).base != state) continue;
    uint64_t steps = 0;
    const LocalPointer local = ComputeLocal(state, &steps);
    bytes_ += local->bytes();
    locals_.emplace(state, local);
    if (steps > max_steps) return;
    max_steps -= steps;
  }
}

// With the lock held. Masks in use stay alive with their users.
void MaskCache::MakeRoom() const {
  if (bytes_ <= max_bytes_) return;
  locals_.clear();
  contexts_.clear();
  depths_.clear();
  bytes_ = 0;
}

MaskCache::LocalPointer MaskCache::FindLocal(uint32_t state) const {
  {
    const std::shared_lock lock(mutex_);
    if (const auto at = locals_.find(state); at != locals_.end()) return at->second;
  }
  LocalPointer local = ComputeLocal(state, nullptr);
  const std::unique_lock lock(mutex_);
  MakeRoom();
  if (locals_.emplace(state, local).second) bytes_ += local->bytes();
  return local;
}

MaskCache::InContextPointer MaskCache::FindInContext(const Item& item, std::span<const Frame> frames,
                                                     const Local& local) const {
  const uint32_t state = automaton_.MaskClass(item.state);
  const uint32_t depth = item.frame == kBottom ? 0 : frames[item.frame].depth;
  // The state and the classes of the topmost `count` frames; the bottom counts as one more.
  const auto key_of = [&](uint32_t count) {
    std::vector<uint32_t> key{state};
    uint32_t frame = item.frame;
    for (uint32_t i = 0; i < count; ++i) {
      if (frame == kBottom) {
        key.push_back(kBottom);
        break;
      }
      key.push_back(automaton_.MaskClass(frames[frame].to));
      frame = frames[frame].parent;
    }
    return key;
  };
  {
    const std::shared_lock lock(mutex_);
    if (const auto at = depths_.find(state); at != depths_.end())
      for (const uint32_t count : at->second)
        if (const auto found = contexts_.find(key_of(count)); found != contexts_.end()) return found->second;
  }
  Scratch& scratch = ThreadScratch();
  Walker walker(automaton_, kMaxItems);
  walker.Reset(frames);
  walker.AddClosed({frames[item.frame].to, frames[item.frame].parent});
  const auto nodes = table_->nodes();
  Found found{scratch.ids, nullptr};
  for (const uint32_t pop : local.pops)
    WalkTrie(walker, *table_, pop + 1, nodes[pop].end, nodes[pop].depth, found);
  auto context = std::make_shared<InContext>();
  // Tokens below two pops come twice.
  std::sort(scratch.ids.begin(), scratch.ids.end());
  scratch.ids.erase(std::unique(scratch.ids.begin(), scratch.ids.end()), scratch.ids.end());
  context->tokens = TokenSet(scratch.ids, table_->mask_words());
  context->height = walker.height() > depth ? walker.height() - depth : 0;
  const uint32_t lowest = std::min(walker.lowest(), depth);
  const uint32_t count = depth - lowest + 1;

  std::vector<uint32_t> key = key_of(count);
  const std::unique_lock lock(mutex_);
  MakeRoom();
  auto& depths = depths_[state];
  if (std::find(depths.begin(), depths.end(), count) == depths.end()) {
    depths.push_back(count);
    std::sort(depths.begin(), depths.end());
  }
  if (contexts_.emplace(std::move(key), context).second) bytes_ += context->tokens.bytes() + 128 + 4 * count;
  return context;
}

// The whole trie, with the stack as it is.
void MaskCache::AddDirectly(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits) const {
  Scratch& scratch = ThreadScratch();
  Walker walker(automaton_, kMaxItems);
  walker.Reset(frames);
  walker.AddAlone(item);
  Found found{scratch.ids, nullptr};
  WalkTrie(walker, *table_, 0, table_->node_count(), 0, found);
  for (const int32_t id : scratch.ids) bits[id / 32] |= uint32_t{1} << id % 32;
}

void MaskCache::AddTokens(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits) const {
  if (!automaton_.TakesBytes(item.state)) return;
  const uint32_t depth = item.frame == kBottom ? 0 : frames[item.frame].depth;
  const LocalPointer local = FindLocal(automaton_.MaskClass(item.state));
  // Near the limit of the stack it matters how deep the item is.
  if (depth + local->height > automaton_.max_depth()) return AddDirectly(item, frames, bits);
  if (item.frame != kBottom && !local->pops.empty()) {
    const InContextPointer context = FindInContext(item, frames, *local);
    if (depth + context->height > automaton_.max_depth()) return AddDirectly(item, frames, bits);
    context->tokens.AddTo(bits);
  }
  local->tokens.AddTo(bits);
}

size_t MaskCache::bytes() const {
  const std::shared_lock lock(mutex_);
  return bytes_;
}

}  // namespace celer::grammar
