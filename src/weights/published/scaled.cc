#include "weights/published/scaled.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/block_io.h"
#include "formats/float8.h"
#include "formats/fp4/mxfp4.h"
#include "io/file/printable.h"

namespace celer::published {
namespace {

// Significant bits of a finite number: 1.5 has two.
int SignificantBits(float value) {
  const uint32_t mantissa = std::bit_cast<uint32_t>(value) & 0x7fffffu;
  return mantissa == 0 ? 1 : 24 - std::countr_zero(mantissa);
}

class Fp8Matrix final : public Matrix {
 public:
  Fp8Matrix(const TensorRecord& values, const ScaleTable& scales) : values_(values), scales_(scales) {
    rows = values.shape[0];
    cols = values.shape[1];
    parts = {&values, scales.record};
    // Four significant bits times the scale's; a power of two of usual size leaves bf16's eight enough.
    bool exact = true, small = true;
    ForEachScale([&](int64_t, int64_t, float scale) {
      const float size = std::fabs(scale);
      small &= size <= kFp8MostScale;
      exact &= SignificantBits(scale) <= 4 && (scale == 0 || (size > 0x1p-100f && size < 0x1p100f));
    });
    floats = exact ? DType::kBf16 : DType::kF32;
    // Larger ones no model has; those that are no numbers are refused.
    if (small) fp8_group = scales.block_cols;
    note = small ? "only CUDA multiplies with fp8 numbers" : "one of its scales is beyond 128";
  }

  void Floats(int64_t row, float* out) const override {
    for (int64_t c = 0; c < cols; ++c)
      out[c] = Fp8E4M3ToFloat(At<uint8_t>(values_, row * cols + c)) * scales_.At(row, c / scales_.block_cols);
  }

  void Codes(int64_t row, std::byte* codes, float* scales) const override {
    std::memcpy(codes, values_.bytes.data() + row * cols, static_cast<size_t>(cols));
    for (int64_t g = 0; g * scales_.block_cols < cols; ++g) scales[g] = scales_.At(row, g);
  }

  Status CheckScales(const std::string& path) const override {
    Status bad;
    ForEachScale([&](int64_t row, int64_t g, float scale) {
      if (bad && !std::isfinite(scale)) bad = BadScale(path, scales_.record->name, row, g, scale);
    });
    return bad;
  }

 private:
  template <class Visit>
  void ForEachScale(const Visit& visit) const {
    const int64_t groups = (cols + scales_.block_cols - 1) / scales_.block_cols;
    for (int64_t row = 0; row < rows; row += scales_.block_rows)
      for (int64_t g = 0; g < groups; ++g) visit(row, g, scales_.At(row, g));
  }

  const TensorRecord& values_;
  ScaleTable scales_;
};

class Int8Matrix final : public Matrix {
 public:
  Int8Matrix(const TensorRecord& values, const ScaleTable& scales, const TensorRecord* zeros)
      : values_(values), scales_(scales), zeros_(zeros) {
    rows = values.shape[0];
    cols = values.shape[1];
    group = scales.block_cols;
    low = -128;
    high = 127;
    parts = {&values, scales.record};
    if (zeros) parts.push_back(zeros);
  }

  void Integers(int64_t row, int16_t* q) const override {
    for (int64_t c = 0; c < cols; ++c) q[c] = At<int8_t>(values_, row * cols + c);
  }
  void Groups(int64_t row, float* scales, int16_t* zeros) const override {
    for (int64_t g = 0; g < groups(); ++g) {
      scales[g] = scales_.At(row, g);
      zeros[g] = zeros_ ? At<int8_t>(*zeros_, row / scales_.block_rows * scales_.per_line + g) : int16_t{0};
    }
  }

 private:
  const TensorRecord& values_;
  ScaleTable scales_;
  const TensorRecord* zeros_;
};

// Twice the numbers that E2M1 has.
constexpr std::array<int16_t, 16> kTwiceE2M1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

class Fp4Matrix final : public Matrix {
 public:
  Fp4Matrix(const TensorRecord& values, int64_t all_rows, int64_t columns, const TensorRecord& scales,
            int64_t columns_of_scale, const TensorRecord* global)
      : values_(values), scales_(scales), global_(global ? ScaleAt(*global, 0) : 1) {
    rows = all_rows;
    cols = columns;
    group = columns_of_scale;
    low = -12;
    high = 12;
    parts = {&values, &scales};
    if (global) parts.push_back(global);
    mxfp4 = scales.dtype == DType::kU8 && group == BlockMxfp4::kElements && cols % group == 0;
    note = "fp4 numbers are not evenly spaced; int8 holds twice each of them";
  }

  void Integers(int64_t row, int16_t* q) const override {
    for (int64_t c = 0; c < cols; c += 2) {
      const auto pair = At<uint8_t>(values_, (row * cols + c) / 2);
      q[c] = kTwiceE2M1[pair & 15];
      q[c + 1] = kTwiceE2M1[pair >> 4];
    }
  }
  void Blocks(int64_t row, std::byte* out) const override {
    const auto code = [&](int64_t column) {
      const auto pair = At<uint8_t>(values_, (row * cols + column) / 2);
      return column % 2 == 0 ? pair & 15 : pair >> 4;
    };
    for (int64_t g = 0; g < groups(); ++g) {
      BlockMxfp4 block = {.e = At<uint8_t>(scales_, row * groups() + g), .qs = {}};
      for (int64_t j = 0; j < 16; ++j)
        block.qs[j] = static_cast<uint8_t>(code(g * 32 + j) | code(g * 32 + j + 16) << 4);
      StoreBlock(block, g, out);
    }
  }
  void Groups(int64_t row, float* scales, int16_t* zeros) const override {
    for (int64_t g = 0; g < groups(); ++g) {
      const int64_t at = row * groups() + g;
      const float scale =
          scales_.dtype == DType::kU8 ? PowerOfTwo(At<uint8_t>(scales_, at)) : ScaleAt(scales_, at) / global_;
      scales[g] = 0.5f * scale;
      zeros[g] = 0;
    }
  }

 private:
  const TensorRecord &values_, &scales_;
  float global_;
};

}  // namespace

Result<ScaleTable> ReadScaleTable(const Parts& parts, const TensorRecord& scales, int64_t rows, int64_t cols,
                                  int64_t block_rows, int64_t block_cols) {
  const auto elements = scales.shape.elements().value_or(0);
  const int rank = scales.shape.rank();
  if (block_rows > 0 && block_cols > 0) {
    const Shape expected = {(rows + block_rows - 1) / block_rows, (cols + block_cols - 1) / block_cols};
    if (scales.shape == expected) return ScaleTable{&scales, block_rows, block_cols, expected[1]};
    return Error::Corrupt(parts.path(), ": tensor '", Printable(scales.name), "' has shape ",
                          scales.shape.ToString(), ", expected ", expected.ToString(), ": blocks of ",
                          block_rows, " x ", block_cols, " in ", rows, " x ", cols);
  }
  if (elements == 1) return ScaleTable{&scales, rows, cols, 1};
  if (rank >= 1 && rank <= 2 && scales.shape[0] == rows) {
    const int64_t groups = rank == 2 ? scales.shape[1] : 1;
    const int64_t group = groups < 1 ? 0 : block_cols > 0 ? block_cols : (cols + groups - 1) / groups;
    if (group > 0 && (cols + group - 1) / group == groups) return ScaleTable{&scales, 1, group, groups};
  }
  std::string expected = fmt::format("[1] or [{}, 1]", rows);
  if (block_cols > 0) expected = fmt::format("[{}, {}]", rows, (cols + block_cols - 1) / block_cols);
  return Error::Corrupt(parts.path(), ": tensor '", Printable(scales.name), "' has shape ",
                        scales.shape.ToString(), ", expected ", expected, " for a matrix of ", rows, " x ",
                        cols, block_cols > 0 ? fmt::format(" in groups of {}", block_cols) : "");
}

std::unique_ptr<Matrix> MakeFp8(const Parts& parts, const ScaleTable& scales) {
  return std::make_unique<Fp8Matrix>(parts.first(), scales);
}

std::unique_ptr<Matrix> MakeInt8(const Parts& parts, const ScaleTable& scales, const TensorRecord* zeros) {
  return std::make_unique<Int8Matrix>(parts.first(), scales, zeros);
}

std::unique_ptr<Matrix> MakeFp4(const Parts& parts, int64_t rows, int64_t cols, const TensorRecord& scales,
                                int64_t group, const TensorRecord* global) {
  return std::make_unique<Fp4Matrix>(parts.first(), rows, cols, scales, group, global);
}

}  // namespace celer::published
