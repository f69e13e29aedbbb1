// A hash map from 64-bit keys to small values: open addressing, no removal. Built once, read by many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace celer {

template <class Value>
class FlatMap {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};  // not a key

  void Reserve(size_t entries) {
    size_t slots = 16;
    while (slots < entries * 2) slots *= 2;
    if (slots > slots_.size()) Rehash(slots);
  }

  // The value of the key; made with Value{} if it was not there.
  Value& operator[](uint64_t key) {
    if ((size_ + 1) * 2 > slots_.size()) Rehash(slots_.empty() ? 16 : slots_.size() * 2);
    Slot& slot = slots_[Place(key)];
    if (slot.key == kNone) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

  const Value* Find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[Place(key)];
    return slot.key == kNone ? nullptr : &slot.value;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = kNone;
    Value value{};
  };

  size_t Place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t i = (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (slots_[i].key != kNone && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }

  void Rehash(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (Slot& slot : old)
      if (slot.key != kNone) slots_[Place(slot.key)] = slot;
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace celer
