// A matrix as integers in groups: value = (q - zero) * scale, with q in 0 .. 2^bits - 1 and one scale and one
// zero point for each group of columns of a row. Symmetric: the zero point is 2^(bits - 1) everywhere.
//
// Scales have 7 significant bits (of bf16's 8), so that zero * scale is exact in f16 too: kernels that keep
// the product instead of the zero point lose nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "device/thread_pool.h"
#include "quantize/llm/target.h"

namespace celer {

struct IntGrid {
  float scale = 0;
  int zero = 0;
};

// The grid of one group with a small sum of importance * error^2; nullptr: all columns count the same.
// `candidates` clipped grids are tried beside the plain one, which spans the smallest to the largest value.
IntGrid FitIntGrid(const float* x, int64_t n, const Target& target, const float* importance, int candidates);
int RoundToGrid(float x, const IntGrid& grid, int levels);
inline constexpr int kGridCandidates = 9;  // what the result deserves; searches take fewer

class IntTensor {
 public:
  IntTensor() = default;
  IntTensor(const Target& target, int64_t rows, int64_t cols);

  const Target& target() const { return target_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t group() const { return group_; }  // columns of one
  int64_t groups() const { return cols_ / group_; }
  int levels() const { return (1 << target_.bits) - 1; }

  IntGrid grid(int64_t row, int64_t g) const;
  void SetGrid(int64_t row, int64_t g, const IntGrid& grid);
  int at(int64_t row, int64_t col) const;
  void Set(int64_t row, int64_t col, int q);  // once, on a matrix of zeros
  void DecodeRow(int64_t row, float* out) const;
  void Decode(float* out, ThreadPool& pool) const;  // all rows

  // Round to nearest, with the grids that are set, or with grids that are fitted first.
  void RoundRow(int64_t row, const float* x);
  void FitRow(int64_t row, const float* x, const float* importance, int candidates);

  // Of eight bits as signed bytes [rows, cols], which is how compressed-tensors stores it beside activations
  // of eight bits.
  std::vector<int8_t> Bytes() const;
  // As compressed-tensors packs it: 32 / bits values to a word, the first in its lowest bits.
  const std::vector<int32_t>& words() const { return words_; }     // [rows, cols * bits / 32]
  const std::vector<uint16_t>& scales() const { return scales_; }  // bf16 [rows, groups]
  std::vector<int32_t> PackedZeros() const;                        // [rows * bits / 32, groups]
  const std::vector<uint8_t>& zeros() const { return zeros_; }     // [rows, groups]; empty if symmetric

  // From what words(), scales() and zeros() gave, which have the sizes that the target asks for.
  static IntTensor From(const Target& target, int64_t rows, int64_t cols, std::vector<int32_t> words,
                        std::vector<uint16_t> scales, std::vector<uint8_t> zeros);

 private:
  Target target_;
  int64_t rows_ = 0, cols_ = 0, group_ = 1;
  std::vector<int32_t> words_;
  std::vector<uint16_t> scales_;
  std::vector<uint8_t> zeros_;  // [rows, groups]; empty if symmetric
};

// All rows, in parallel.
IntTensor RoundToNearest(const float* w, int64_t rows, int64_t cols, const Target& target,
                         const float* importance, int candidates, ThreadPool& pool);

}  // namespace celer
