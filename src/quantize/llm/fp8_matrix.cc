#include "quantize/llm/fp8_matrix.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/bfloat16.h"
#include "formats/fit.h"
#include "formats/float8.h"

namespace celer {
namespace {

float ScaleOf(const float* row, int64_t cols) {
  constexpr float kLargest = 448;
  const float top = AbsMax(row, cols);
  if (!(top > 0x1p-90f)) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(top / kLargest, &exponent);  // 0.5 to 1
  return std::ldexp(std::ceil(mantissa * 16) / 16, exponent);
}

}  // namespace

Fp8Matrix Fp8Matrix::Of(const float* w, int64_t rows, int64_t cols, ThreadPool& pool) {
  Fp8Matrix out{.rows = rows, .cols = cols, .values = {}, .scales = {}};
  out.values.resize(rows * cols);
  out.scales.resize(rows);
  pool.ParallelFor(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = w + r * cols;
      const float scale = ScaleOf(row, cols);
      for (int64_t c = 0; c < cols; ++c) out.values[r * cols + c] = FloatToFp8E4M3(row[c] / scale);
      out.scales[r] = FloatToBf16(scale);
    }
  });
  return out;
}

void Fp8Matrix::DecodeRow(int64_t row, float* out) const {
  const float scale = Bf16ToFloat(scales[row]);
  for (int64_t c = 0; c < cols; ++c) out[c] = Fp8E4M3ToFloat(values[row * cols + c]) * scale;
}

std::vector<std::byte> Fp8Matrix::ToBytes() const {
  std::vector<std::byte> out(values.size() + 2 * scales.size());
  std::memcpy(out.data(), values.data(), values.size());
  std::memcpy(out.data() + values.size(), scales.data(), 2 * scales.size());
  return out;
}

Fp8Matrix Fp8Matrix::FromBytes(int64_t rows, int64_t cols, std::span<const std::byte> bytes) {
  CELER_CHECK_EQ(bytes.size(), static_cast<size_t>(rows * cols + 2 * rows));
  Fp8Matrix out{.rows = rows, .cols = cols, .values = {}, .scales = {}};
  out.values.resize(rows * cols);
  out.scales.resize(rows);
  std::memcpy(out.values.data(), bytes.data(), out.values.size());
  std::memcpy(out.scales.data(), bytes.data() + out.values.size(), 2 * out.scales.size());
  return out;
}

}  // namespace celer
