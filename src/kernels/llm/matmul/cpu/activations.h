// The activations of a product, prepared for its tile kernels: normed, without outliers, quantized to int8 or
// as floats, interleaved in units of a few tokens.
#pragma once

#include <cstdint>
#include <span>

#include "device/aligned_vector.h"
#include "kernels/llm/matmul/cpu/column.h"
#include "kernels/llm/matmul/cpu/tiles.h"
#include "kernels/llm/matmul/matmul.h"

namespace celer {

// Of one call, in every kind that some output needs, one after the other in memory of the caller's.
class Activations {
 public:
  Activations(const TileIsa& isa, const MatmulArgs& args, const bool (&needed)[kXKinds]);

  int64_t bytes() const { return total_; }
  int64_t unit_bytes(XKind kind) const { return unit_bytes_[static_cast<int>(kind)]; }
  const uint8_t* At(const uint8_t* base, XKind kind, int64_t token) const {
    return base + begin_[static_cast<int>(kind)] + token / isa_.x_tokens * unit_bytes(kind);
  }
  // Of `tokens` tokens; none for a kind that has all values.
  std::span<const TokenOutliers> Outliers(const uint8_t* base, XKind kind, int64_t token,
                                          int64_t tokens) const;

  // Work that threads can share: portions of some tokens, [begin, end) of portions().
  int64_t portions() const { return (args_.tokens + portion_ - 1) / portion_; }
  void Prepare(int64_t begin, int64_t end, uint8_t* base) const;

 private:
  const TileIsa& isa_;
  const MatmulArgs& args_;
  int64_t cols_;
  int64_t portion_ = 1;  // tokens
  int64_t begin_[kXKinds] = {}, unit_bytes_[kXKinds] = {};
  bool splits_ = false;         // outliers from the rest
  int64_t outliers_begin_ = 0;  // TokenOutliers[tokens]
  int64_t total_ = 0;
};

// Room in a thread's own buffer.
inline uint8_t* Room(AlignedVector<uint8_t>& buffer, int64_t bytes) {
  const auto needed = static_cast<size_t>(bytes);
  if (buffer.size() < needed) buffer.resize(needed);  // shrinking would mean to clear it again and again
  return buffer.data();
}

}  // namespace celer
