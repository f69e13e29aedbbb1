#include "text/grammar/mask_cache.h"

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "text/grammar/walker.h"

namespace celer::grammar {
namespace {

constexpr size_t kMaxKey = 1024;  // frames and alternatives of one key; what needs more is not kept

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
              Found& found, const Effort& effort) {
  const auto nodes = table.nodes();
  const auto tokens = table.tokens();
  for (uint32_t i = begin; i < end;) {
    const TokenTable::Node& node = nodes[i];
    const size_t level = node.depth - base - size_t{1};
    if (!walker.Step(level, node.byte)) {
      if (effort.exceeded()) return;
      i = node.end;
      continue;
    }
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) found.ids.push_back(tokens[t]);
    if (found.pops && walker.Ended(level + 1) && node.end > i + 1) found.pops->push_back(i);
    i = walker.Items(level + 1).empty() ? node.end : i + 1;
  }
}

// The same for the whole trie and one item without a stack: as long as no rule is called, a state is all
// there is. Most of the trie is walked so; the rest is left to `walker`.
void WalkTrieFrom(uint32_t state, const Automaton& automaton, Walker& walker, const TokenTable& table,
                  Found& found, uint32_t* height, Effort& effort) {
  const auto nodes = table.nodes();
  const auto tokens = table.tokens();
  const uint32_t end = table.node_count();
  std::vector<uint32_t> at(table.longest() + 1, state);  // by depth
  const Automaton::Repeat repeat = automaton.RepeatOf(state);
  found.counted = repeat.chain != kNoChain;
  std::vector<uint16_t> copies(table.longest() + 1, 0);  // by depth
  std::vector<char> inside(table.longest() + 1, true);   // by depth: the repetition has not been left
  // The effort is kept in a register as long as the walker does not add to it.
  uint64_t steps = 0, most = effort.limit - std::min(effort.limit, effort.spent);
  for (uint32_t i = 0; i < end;) {
    const TokenTable::Node& node = nodes[i];
    const uint32_t to = automaton.Next(at[node.depth - size_t{1}], node.byte);
    if (++steps > most) return effort.Exceed();
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
      const Item item{to, kBottom};
      walker.StartClosed({&item, 1});
      return walker.Ended(0);
    }();
    if (pops && node.end > i + 1) found.pops->push_back(i);
    uint32_t next = i + 1;
    if (automaton.Calls(to).empty()) {
      at[node.depth] = to;
      if (!automaton.TakesBytes(to)) next = node.end;
    } else {
      WalkTrie(walker, table, i + 1, node.end, node.depth, found, effort);
      if (effort.exceeded()) return;
      most = effort.limit - effort.spent;
      *height = std::max(*height, walker.height());
      next = node.end;
    }
    if (found.counted) {
      found.copies.resize(found.ids.size(), copies[node.depth]);
      found.pop_copies.resize(found.pops->size(), copies[node.depth]);
    }
    i = next;
  }
  effort.spent += steps;
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

// The mask at a later position of a repetition: without the tokens that take more copies than are left.
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

MaskCache::LocalPointer MaskCache::ComputeLocal(uint32_t state, Effort& effort) const {
  const Automaton::Repeat& repeat = automaton_.RepeatOf(state);
  if (repeat.chain != kNoChain && repeat.base != state) {
    const LocalPointer base = FindLocal(repeat.base, effort);
    if (!base) return nullptr;
    if (base->counted) {
      effort.spent += table_->mask_words();
      return WithFewerCopies(*base, repeat.copies - repeat.used);
    }
  }
  Scratch& scratch = ThreadScratch();
  Walker walker(automaton_, effort);
  Found found{scratch.ids, &scratch.pops};
  auto local = std::make_shared<Local>();
  walker.Reset({});
  WalkTrieFrom(state, automaton_, walker, *table_, found, &local->height, effort);
  effort.spent += table_->mask_words();
  if (effort.exceeded()) return nullptr;
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
  Effort effort{max_steps};
  for (uint32_t state = 0; state < automaton_.size() && bytes_ < max_bytes_ / 2; ++state) {
    if (automaton_.MaskClass(state) != state || !automaton_.TakesBytes(state)) continue;
    // Quickly made from its base when it is needed.
    if (automaton_.RepeatOf(state).base != state) continue;
    if (!FindLocal(state, effort)) return;
  }
}

void MaskCache::Insert(Entry entry) const {
  // Another thread may have been first.
  if (entry.count == 0 ? locals_.contains(entry.key[0]) : contexts_.contains(entry.key)) return;
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  const Entry& kept = entries_.front();
  if (kept.count == 0) {
    locals_.emplace(kept.key[0], entries_.begin());
  } else {
    contexts_.emplace(kept.key, entries_.begin());
    auto& depths = depths_[kept.key[0]];
    const auto at = std::find_if(depths.begin(), depths.end(),
                                 [&](const Depth& depth) { return depth.count >= kept.count; });
    if (at != depths.end() && at->count == kept.count)
      ++at->keys;
    else
      depths.insert(at, {kept.count, 1});
  }
  while (bytes_ > max_bytes_ && entries_.size() > 1) EvictLeastRecentlyUsed();
}

void MaskCache::EvictLeastRecentlyUsed() const {
  const Entry& last = entries_.back();
  bytes_ -= last.bytes;
  if (last.count == 0) {
    locals_.erase(last.key[0]);
  } else {
    contexts_.erase(last.key);
    const auto depths = depths_.find(last.key[0]);
    const auto at = std::find_if(depths->second.begin(), depths->second.end(),
                                 [&](const Depth& depth) { return depth.count == last.count; });
    if (--at->keys == 0) depths->second.erase(at);
    if (depths->second.empty()) depths_.erase(depths);
  }
  entries_.pop_back();
}

MaskCache::LocalPointer MaskCache::FindLocal(uint32_t state, Effort& effort) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = locals_.find(state); at != locals_.end()) {
      entries_.splice(entries_.begin(), entries_, at->second);
      return at->second->local;
    }
  }
  LocalPointer local = ComputeLocal(state, effort);
  if (!local) return nullptr;
  const std::lock_guard lock(mutex_);
  Insert({.key = {state}, .count = 0, .local = local, .context = {}, .bytes = local->bytes()});
  return local;
}

// The mask classes of the topmost `count` frames; the bottom counts as one more. Alternatives come in the
// order of their states, each with the frames below it.
bool MaskCache::AppendKey(uint32_t frame, uint32_t count, std::span<const Frame> frames, Key* key) const {
  constexpr uint32_t kAlternatives = kBottom - 1, kEnd = kBottom - 2;  // no states
  for (; count > 0; --count) {
    if (key->size() > kMaxKey) return false;
    if (frame == kBottom) {
      key->push_back(kBottom);
      return true;
    }
    if (frames[frame].other != kBottom) {
      key->push_back(kAlternatives);
      for (; frame != kBottom; frame = frames[frame].other) {
        key->push_back(automaton_.MaskClass(frames[frame].to));
        if (!AppendKey(frames[frame].parent, count - 1, frames, key)) return false;
      }
      key->push_back(kEnd);
      return true;
    }
    key->push_back(automaton_.MaskClass(frames[frame].to));
    frame = frames[frame].parent;
  }
  return true;
}

MaskCache::InContextPointer MaskCache::FindInContext(const Item& item, std::span<const Frame> frames,
                                                     const Local& local, Effort& effort) const {
  const uint32_t state = automaton_.MaskClass(item.state);
  const uint32_t depth = frames[item.frame].depth;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = depths_.find(state); at != depths_.end())
      for (const Depth& known : at->second) {
        Key key{state};
        if (!AppendKey(item.frame, known.count, frames, &key)) break;
        if (const auto found = contexts_.find(key); found != contexts_.end()) {
          entries_.splice(entries_.begin(), entries_, found->second);
          return found->second->context;
        }
      }
  }
  Scratch& scratch = ThreadScratch();
  Walker walker(automaton_, effort);
  walker.Reset(frames);
  std::vector<Item> after;
  for (uint32_t frame = item.frame; frame != kBottom; frame = frames[frame].other)
    after.push_back({frames[frame].to, frames[frame].parent});
  walker.StartClosed(after);
  const auto nodes = table_->nodes();
  Found found{scratch.ids, nullptr};
  for (const uint32_t pop : local.pops) {
    WalkTrie(walker, *table_, pop + 1, nodes[pop].end, nodes[pop].depth, found, effort);
    if (effort.exceeded()) return nullptr;
  }
  effort.spent += scratch.ids.size();
  if (effort.exceeded()) return nullptr;
  auto context = std::make_shared<InContext>();
  // Tokens below two pops come twice.
  std::sort(scratch.ids.begin(), scratch.ids.end());
  scratch.ids.erase(std::unique(scratch.ids.begin(), scratch.ids.end()), scratch.ids.end());
  context->tokens = TokenSet(scratch.ids, table_->mask_words());
  context->height = walker.height() > depth ? walker.height() - depth : 0;
  const uint32_t count = depth - std::min(walker.lowest(), depth) + 1;
  Key key{state};
  if (!AppendKey(item.frame, count, frames, &key)) return context;
  const size_t bytes = context->tokens.bytes() + sizeof(Entry) + 2 * key.size() * sizeof(uint32_t) + 128;
  const std::lock_guard lock(mutex_);
  Insert({.key = std::move(key), .count = count, .local = {}, .context = context, .bytes = bytes});
  return context;
}

// The whole trie, with the stack as it is.
bool MaskCache::AddDirectly(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits,
                            Effort& effort) const {
  Scratch& scratch = ThreadScratch();
  Walker walker(automaton_, effort);
  walker.Reset(frames);
  walker.Start({&item, 1});
  Found found{scratch.ids, nullptr};
  WalkTrie(walker, *table_, 0, table_->node_count(), 0, found, effort);
  for (const int32_t id : scratch.ids) bits[id / 32] |= uint32_t{1} << id % 32;
  return !effort.exceeded();
}

bool MaskCache::AddTokens(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits,
                          Effort& effort) const {
  if (!automaton_.TakesBytes(item.state)) return true;
  const uint32_t depth = item.frame == kBottom ? 0 : frames[item.frame].depth;
  const LocalPointer local = FindLocal(automaton_.MaskClass(item.state), effort);
  if (!local) return false;
  // Near the limit of the stack it matters how deep the item is.
  if (depth + local->height > automaton_.max_depth()) return AddDirectly(item, frames, bits, effort);
  if (item.frame != kBottom && !local->pops.empty()) {
    const InContextPointer context = FindInContext(item, frames, *local, effort);
    if (!context) return false;
    if (depth + context->height > automaton_.max_depth()) return AddDirectly(item, frames, bits, effort);
    context->tokens.AddTo(bits);
    effort.spent += context->tokens.steps();
  }
  local->tokens.AddTo(bits);
  effort.spent += local->tokens.steps();
  return !effort.exceeded();
}

size_t MaskCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace celer::grammar
