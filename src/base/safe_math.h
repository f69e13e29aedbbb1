// Arithmetic on sizes that come from files: nullopt instead of overflow.
#pragma once

#include <cstdint>
#include <optional>

namespace celer {

inline std::optional<int64_t> CheckedMul(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

inline std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// Smallest multiple of `unit` (a power of two) that is >= value.
constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) & ~(unit - 1);
}
// For a >= 0 and b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

}  // namespace celer
