#include "kernels/llm/matmul/cpu/outliers.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace celer {
namespace {

// The rounding error of a block is about the square of its largest value. Measured with SmolLM2 (mean KL from
// exact): none 0.0061, a tenth 0.0021, a twentieth 0.0017, always four 0.0016.
constexpr float kWorthwhile = 0.05f;

// Magnitudes compare as their bits do, and NaN is larger than all others.
uint32_t Magnitude(float v) {
  return std::bit_cast<uint32_t>(v) & 0x7FFFFFFF;
}
float Largest(const float* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kBlockCols; ++i) largest = std::max(largest, Magnitude(x[i]));
  return std::bit_cast<float>(largest);
}

}  // namespace

void SplitOutliers(const float* x, int64_t cols, float* rest, TokenOutliers* out) {
  static thread_local std::vector<float> largest;  // of each block of `rest`
  largest.resize(cols / kBlockCols);
  float error = 0;
  for (size_t b = 0; b < largest.size(); ++b) {
    largest[b] = Largest(x + b * kBlockCols);
    error += largest[b] * largest[b];
  }
  std::memcpy(rest, x, static_cast<size_t>(cols) * sizeof *x);
  for (out->count = 0; out->count < kOutliers; ++out->count) {
    const size_t b = static_cast<size_t>(std::max_element(largest.begin(), largest.end()) - largest.begin());
    const float top = largest[b];
    float* const block = rest + b * kBlockCols;
    float* const at =
        std::find_if(block, block + kBlockCols, [&](float v) { return Magnitude(v) == Magnitude(top); });
    const float value = *at;
    *at = 0;
    const float next = Largest(block), less = top * top - next * next;
    if (!(less > kWorthwhile * error)) {
      *at = value;
      return;
    }
    largest[b] = next;
    error -= less;
    out->col[out->count] = static_cast<int32_t>(at - rest);
    out->value[out->count] = value;
  }
}

void OutlierColumns::Find(uint64_t call, int64_t first_token, std::span<const TokenOutliers> tokens,
                          const PackedShape& shape, const PackGeometry& geometry, int64_t cols) {
  const Key key{call, first_token, shape.span, tokens.size(), shape.format};
  if (key == key_) return;
  key_ = key;
  columns_.clear();
  slots_.resize(tokens.size() * kOutliers);
  if (static_cast<int64_t>(slot_of_.size()) < cols) slot_of_.resize(cols, -1);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (int i = 0; i < tokens[t].count; ++i) {
      int32_t& slot = slot_of_[tokens[t].col[i]];
      if (slot < 0) {
        slot = static_cast<int32_t>(columns_.size());
        columns_.push_back(FindColumn(shape, geometry, tokens[t].col[i]));
      }
      slots_[t * kOutliers + static_cast<size_t>(i)] = static_cast<uint16_t>(slot);
    }
  for (const TokenOutliers& token : tokens)
    for (int i = 0; i < token.count; ++i) slot_of_[token.col[i]] = -1;
}

}  // namespace celer
