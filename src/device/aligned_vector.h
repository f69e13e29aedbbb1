// A vector aligned to a cache line, or to a huge page where it is that large: rows of activations that
// several cores write share no cache line (no false sharing), and walking over rows causes few TLB misses.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace celer {

template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr size_t kLine = 64, kHugePage = size_t{2} << 20;

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // as containers want it

  T* allocate(size_t n) {
    const size_t unit = n * sizeof(T) >= kHugePage ? kHugePage : kLine;
    const size_t bytes = (n * sizeof(T) + unit - 1) / unit * unit;
    void* const p = std::aligned_alloc(unit, bytes);
    if (!p) throw std::bad_alloc();
    if (unit == kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // a hint
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t) { std::free(p); }
  template <class U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace celer
