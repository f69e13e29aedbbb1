#include "quantize/llm/int_tensor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "formats/bfloat16.h"
#include "formats/block_io.h"
#include "formats/fit.h"

namespace celer {
namespace {

// To 7 significant bits, which bf16 holds; never to zero.
float RoundScale(float scale) {
  int exponent = 0;
  const float mantissa = std::frexp(scale, &exponent);
  const float rounded = std::ldexp(std::nearbyint(mantissa * 128.0f) / 128.0f, exponent);
  return Bf16ToFloat(FloatToBf16(rounded));
}

// Sum of importance * error^2, in 8 lanes that the compiler turns into vectors.
template <bool kImportance>
float GridError(const float* x, int64_t n, const IntGrid& grid, float levels, const float* importance) {
  constexpr int kLanes = 8;
  constexpr float kMagic = 0x1.8p23f;  // adding and subtracting it rounds to nearest
  const float inverse = ReciprocalOrZero(grid.scale), scale = grid.scale;
  const auto zero = static_cast<float>(grid.zero);
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      float q = x[i + l] * inverse + zero;
      q = q > 0 ? q : 0;
      q = q < levels ? q : levels;
      q = (q + kMagic) - kMagic;
      const float miss = x[i + l] - (q - zero) * scale;
      sums[l] += kImportance ? miss * miss * importance[i + l] : miss * miss;
    }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < n; ++i) {
    const float q = static_cast<float>(RoundToGrid(x[i], grid, static_cast<int>(levels)));
    const float miss = x[i] - (q - zero) * scale;
    sum += kImportance ? miss * miss * importance[i] : miss * miss;
  }
  return sum;
}

}  // namespace

int RoundToGrid(float x, const IntGrid& grid, int levels) {
  return RoundClamped(x * ReciprocalOrZero(grid.scale) + static_cast<float>(grid.zero), 0, levels);
}

IntGrid FitIntGrid(const float* x, int64_t n, const Target& target, const float* importance, int candidates) {
  const int levels = (1 << target.bits) - 1;
  float low = 0, high = 0;  // zero is always on the grid
  for (int64_t i = 0; i < n; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  if (target.symmetric) high = std::max(high, -low), low = -high;
  IntGrid best{1, target.symmetric ? (levels + 1) / 2 : 0};
  if (!(high - low > 0x1p-100f)) return best;  // all zeros
  float best_error = HUGE_VALF;
  for (int step = 0; step <= candidates; ++step) {
    const float shrink = 1.0f - 0.04f * static_cast<float>(step);
    IntGrid grid{RoundScale((high - low) * shrink / static_cast<float>(levels)), best.zero};
    if (!target.symmetric) {
      const float middle = 0.5f * (high + low) / grid.scale;
      grid.zero = RoundClamped(0.5f * static_cast<float>(levels) - middle, 0, levels);
    }
    const auto top = static_cast<float>(levels);
    const float error = importance ? GridError<true>(x, n, grid, top, importance)
                                   : GridError<false>(x, n, grid, top, nullptr);
    if (error < best_error) best_error = error, best = grid;
  }
  return best;
}

IntTensor::IntTensor(const Target& target, int64_t rows, int64_t cols)
    : target_(target), rows_(rows), cols_(cols), group_(target.group > 0 ? target.group : cols) {
  CELER_CHECK(target.kind == Target::Kind::kInt && target.Fits(cols));
  words_.resize(rows * cols * target.bits / 32);
  scales_.resize(rows * groups());
  if (!target.symmetric) zeros_.resize(scales_.size());
}

IntGrid IntTensor::grid(int64_t row, int64_t g) const {
  const auto at = static_cast<size_t>(row * groups() + g);
  return {Bf16ToFloat(scales_[at]), zeros_.empty() ? (levels() + 1) / 2 : zeros_[at]};
}

void IntTensor::SetGrid(int64_t row, int64_t g, const IntGrid& grid) {
  const auto at = static_cast<size_t>(row * groups() + g);
  scales_[at] = FloatToBf16(grid.scale);
  if (!zeros_.empty()) zeros_[at] = static_cast<uint8_t>(grid.zero);
}

int IntTensor::at(int64_t row, int64_t col) const {
  const int64_t bit = (row * cols_ + col) * target_.bits;
  return static_cast<int>(static_cast<uint32_t>(words_[bit / 32]) >> (bit % 32)) & levels();
}

void IntTensor::Set(int64_t row, int64_t col, int q) {
  const int64_t bit = (row * cols_ + col) * target_.bits;
  int32_t& word = words_[bit / 32];
  word = static_cast<int32_t>(static_cast<uint32_t>(word) | static_cast<uint32_t>(q) << (bit % 32));
}

void IntTensor::DecodeRow(int64_t row, float* out) const {
  for (int64_t g = 0; g < groups(); ++g) {
    const IntGrid grid = this->grid(row, g);
    for (int64_t c = g * group_; c < (g + 1) * group_; ++c)
      out[c] = static_cast<float>(at(row, c) - grid.zero) * grid.scale;
  }
}

void IntTensor::Decode(float* out, ThreadPool& pool) const {
  pool.ParallelFor(rows_, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) DecodeRow(r, out + r * cols_);
  });
}

void IntTensor::RoundRow(int64_t row, const float* x) {
  for (int64_t g = 0; g < groups(); ++g) {
    const IntGrid grid = this->grid(row, g);
    for (int64_t c = g * group_; c < (g + 1) * group_; ++c) Set(row, c, RoundToGrid(x[c], grid, levels()));
  }
}

void IntTensor::FitRow(int64_t row, const float* x, const float* importance, int candidates) {
  for (int64_t g = 0; g < groups(); ++g)
    SetGrid(row, g,
            FitIntGrid(x + g * group_, group_, target_, importance ? importance + g * group_ : nullptr,
                       candidates));
}

std::vector<int32_t> IntTensor::PackedZeros() const {
  // Packed along the rows: word [r / 8, g] holds rows r .. r + 7, as far as there are.
  const int64_t per_word = 32 / target_.bits, lines = (rows_ + per_word - 1) / per_word;
  std::vector<int32_t> out(static_cast<size_t>(lines * groups()));
  for (int64_t r = 0; r < rows_; ++r)
    for (int64_t g = 0; g < groups(); ++g) {
      int32_t& word = out[r / per_word * groups() + g];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | static_cast<uint32_t>(grid(r, g).zero)
                                                                    << (r % per_word * target_.bits));
    }
  return out;
}

std::vector<int8_t> IntTensor::Bytes() const {
  CELER_CHECK_EQ(target_.bits, 8);
  std::vector<int8_t> out(static_cast<size_t>(rows_ * cols_));
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t q = static_cast<uint32_t>(words_[i / 4]) >> (i % 4 * 8) & 255;
    out[i] = static_cast<int8_t>(static_cast<int>(q) - 128);
  }
  return out;
}

IntTensor IntTensor::From(const Target& target, int64_t rows, int64_t cols, std::vector<int32_t> words,
                          std::vector<uint16_t> scales, std::vector<uint8_t> zeros) {
  IntTensor out(target, rows, cols);
  CELER_CHECK_EQ(words.size(), out.words_.size());
  CELER_CHECK_EQ(scales.size(), out.scales_.size());
  CELER_CHECK_EQ(zeros.size(), out.zeros_.size());
  out.words_ = std::move(words);
  out.scales_ = std::move(scales);
  out.zeros_ = std::move(zeros);
  return out;
}

IntTensor RoundToNearest(const float* w, int64_t rows, int64_t cols, const Target& target,
                         const float* importance, int candidates, ThreadPool& pool) {
  IntTensor out(target, rows, cols);
  pool.ParallelForDynamic(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      out.FitRow(r, w + r * cols, importance, candidates);
      out.RoundRow(r, w + r * cols);
    }
  });
  return out;
}

}  // namespace celer
