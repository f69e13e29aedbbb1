#include "engine/speculate/lookup_index.h"

#include <algorithm>

namespace celer {
namespace {

constexpr int32_t kNone = -1;
constexpr int64_t kFirstSlots = 1024;
// Of a pair that occurs more often, only the most recent occurrences are looked at.
constexpr int kLooks = 128;

}  // namespace

size_t LookupIndex::Slot(std::span<const int32_t> text, int64_t end) const {
  const auto at = static_cast<size_t>(end);
  const uint64_t pair =
      (uint64_t{static_cast<uint32_t>(text[at - 2])} << 32) | static_cast<uint32_t>(text[at - 1]);
  return static_cast<size_t>((pair * 0x9e3779b97f4a7c15u) >> 32) & (last_.size() - 1);
}

void LookupIndex::Insert(std::span<const int32_t> text, int64_t end) {
  int32_t& last = last_[Slot(text, end)];
  before_[end] = last;
  last = static_cast<int32_t>(end);
}

LookupIndex::Match LookupIndex::Find(std::span<const int32_t> text) {
  const auto count = static_cast<int64_t>(text.size());
  if (count < kLeast + 1) return {};
  // The pair at the end is the query and not indexed yet: nothing follows it.
  int64_t known = std::max<int64_t>(std::ssize(before_), kLeast);
  before_.resize(text.size(), kNone);
  if (2 * count > std::ssize(last_)) {
    size_t slots = std::max<size_t>(last_.size(), kFirstSlots);
    while (slots < 4 * text.size()) slots *= 2;
    last_.assign(slots, kNone);
    known = kLeast;
  }
  for (; known < count; ++known) Insert(text, known);

  Match best;
  int32_t at = last_[Slot(text, count)];
  for (int looks = 0; at != kNone && looks < kLooks && best.length < kMost; ++looks) {
    const int64_t most = std::min<int64_t>(kMost, at);
    int length = 0;
    while (length < most && text[at - 1 - length] == text[count - 1 - length]) ++length;
    if (length >= kLeast && length > best.length) best = {length, at};
    at = before_[at];
  }
  return best;
}

std::vector<int32_t> CopyFrom(std::span<const int32_t> text, int64_t next, int64_t count) {
  std::vector<int32_t> copy;
  copy.reserve(count);
  for (int64_t i = next; i < next + count; ++i) {
    const auto at = static_cast<size_t>(i);
    copy.push_back(at < text.size() ? text[at] : copy[at - text.size()]);
  }
  return copy;
}

}  // namespace celer
