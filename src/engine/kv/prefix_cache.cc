#include "engine/kv/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "base/check.h"
#include "engine/kv/kv_event_log.h"

namespace celer {

PrefixCache::PrefixCache() : seed_(uint64_t{std::random_device()()} << 32 | 1) {}

PrefixCache::Content PrefixCache::TakeRoot(std::string_view salt, std::shared_ptr<const KvScope> scope) {
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = root_of_.try_emplace(std::string(salt), next_);
  if (fresh) {
    roots_[next_] = {std::string(salt), 0, std::move(scope)};
    ++next_;
  }
  ++roots_[it->second].ref_count;
  return it->second;
}

void PrefixCache::DropRoot(Content root) {
  CELER_CHECK(roots_.contains(root));
  const std::lock_guard lock(mutex_);
  LeaveRoot(root);
}

void PrefixCache::LeaveRoot(Content root) {
  const auto it = roots_.find(root);
  if (it == roots_.end() || --it->second.ref_count > 0) return;
  root_of_.erase(it->second.salt);
  roots_.erase(it);
}

uint64_t PrefixCache::HashOf(Content before, BlockTokens tokens) const {
  uint64_t hash = seed_ ^ static_cast<uint64_t>(before);
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 29;
  }
  return hash;
}

PrefixCache::Found PrefixCache::Find(Content before, BlockTokens tokens) const {
  const auto [first, last] = by_hash_.equal_range(HashOf(before, tokens));
  for (auto it = first; it != last; ++it) {
    const Entry& entry = entries_[static_cast<size_t>(it->second)];
    if (entry.before == before && std::equal(tokens.begin(), tokens.end(), entry.tokens))
      return {it->second, entry.content};
  }
  return {};
}

PrefixCache::Content PrefixCache::Insert(Content before, BlockTokens tokens, int32_t block) {
  if (const Found found = Find(before, tokens); found.block != kNone) return found.content;
  const auto root = roots_.find(before);
  const auto parent = block_of_.find(before);
  if (root == roots_.end() && parent == block_of_.end()) return kGone;
  CELER_CHECK(!Holds(block));
  const std::lock_guard lock(mutex_);
  if (entries_.size() <= static_cast<size_t>(block)) entries_.resize(static_cast<size_t>(block) + 1);
  Entry& entry = entries_[block];
  entry = {.content = next_++, .before = before, .hash = HashOf(before, tokens)};
  std::copy(tokens.begin(), tokens.end(), entry.tokens);
  if (root != roots_.end()) {
    ++root->second.ref_count;
  } else {
    entry.parent = parent->second;
    int32_t& first = entries_[entry.parent].child;
    entry.next = first;
    if (first != kNone) entries_[first].previous = block;
    first = block;
  }
  by_hash_.emplace(entry.hash, block);
  block_of_.emplace(entry.content, block);
  ++size_;
  if (log_) log_->Stored(Stored(entry));
  return entry.content;
}

KvChange PrefixCache::Stored(const Entry& entry) const {
  const auto root = roots_.find(entry.before);
  KvChange change{.kind = KvChange::Kind::kStored,
                  .first = root != roots_.end(),
                  .content = entry.content,
                  .before = entry.before};
  std::copy(std::begin(entry.tokens), std::end(entry.tokens), change.tokens.begin());
  if (change.first) change.scope = root->second.scope;
  return change;
}

void PrefixCache::ForEach(const std::function<void(const KvChange& stored)>& visit) const {
  std::vector<const Entry*> held;
  for (const Entry& entry : entries_)
    if (entry.content != 0) held.push_back(&entry);
  // A chain's ids ascend.
  std::sort(held.begin(), held.end(), [](const Entry* a, const Entry* b) { return a->content < b->content; });
  for (const Entry* const entry : held) visit(Stored(*entry));
}

std::span<const int32_t> PrefixCache::Erase(int32_t block) {
  erased_.clear();
  if (!Holds(block)) return {};
  const std::lock_guard lock(mutex_);
  erased_.push_back(block);
  for (size_t i = 0; i < erased_.size(); ++i)
    for (int32_t child = entries_[erased_[i]].child; child != kNone; child = entries_[child].next)
      erased_.push_back(child);
  // Those behind first.
  std::reverse(erased_.begin(), erased_.end());
  for (const int32_t one : erased_) EraseOne(one);
  return erased_;
}

void PrefixCache::EraseOne(int32_t block) {
  Entry& entry = entries_[block];
  CELER_CHECK_EQ(entry.child, kNone);
  const auto [first, last] = by_hash_.equal_range(entry.hash);
  const auto it = std::find_if(first, last, [block](const auto& row) { return row.second == block; });
  CELER_CHECK(it != last);
  by_hash_.erase(it);
  block_of_.erase(entry.content);
  if (entry.parent == kNone) LeaveRoot(entry.before);
  if (entry.next != kNone) entries_[entry.next].previous = entry.previous;
  if (entry.previous != kNone)
    entries_[entry.previous].next = entry.next;
  else if (entry.parent != kNone)
    entries_[entry.parent].child = entry.next;
  if (log_) log_->Erased(entry.content);
  entry = {};
  --size_;
}

void PrefixCache::Clear() {
  KvEventLog* const log = std::exchange(log_, nullptr);
  for (size_t block = 0; block < entries_.size(); ++block) Erase(static_cast<int32_t>(block));
  log_ = log;
  if (log_) log_->Cleared();
}

int64_t PrefixCache::CountFor(std::string_view salt, std::span<const int32_t> tokens) const {
  const std::lock_guard lock(mutex_);
  const auto root = root_of_.find(salt);
  return root == root_of_.end() ? 0 : CountCached(tokens, root->second);
}

int64_t PrefixCache::CountCached(std::span<const int32_t> tokens, Content content) const {
  int64_t count = 0;
  for (size_t at = 0; at + kKvBlockTokens <= tokens.size(); at += kKvBlockTokens, ++count) {
    const Found found = Find(content, tokens.subspan(at).first<kKvBlockTokens>());
    if (found.block == kNone) break;
    content = found.content;
  }
  return count;
}

}  // namespace celer
