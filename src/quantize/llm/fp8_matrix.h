// Weights as fp8 e4m3 with one scale to a row. Scales have four significant bits, so that value * scale is a
// bf16 number: dequantizing to bf16 is exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/thread_pool.h"

namespace celer {

struct Fp8Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> values;   // [rows, cols]
  std::vector<uint16_t> scales;  // bf16 [rows]

  // Rounds to nearest even; a row's largest magnitude becomes 448, the largest of the type, or a little less.
  static Fp8Matrix Of(const float* w, int64_t rows, int64_t cols, ThreadPool& pool);
  void DecodeRow(int64_t row, float* out) const;

  // All values, then all scales.
  std::vector<std::byte> ToBytes() const;
  static Fp8Matrix FromBytes(int64_t rows, int64_t cols, std::span<const std::byte> bytes);
};

}  // namespace celer
