// What the readers of this folder make of a quantized matrix: affine integers (a grid), or floats.
// ChooseFormat() then finds the smallest of celer's formats that holds exactly these numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/coded_tensor.h"

namespace celer::published {

class Matrix : public CodedTensor {
 public:
  // A grid: w = (q - zero) * scale with low <= q <= high, where `group` columns share scale and zero (the
  // last group may have fewer). Or, with group == 0, floats that `floats` can hold without rounding.
  int64_t group = 0;
  int low = 0, high = 0;
  // Of a grid in act-order: the group of each column. Else empty: column c is in group c / group.
  std::vector<int32_t> order = {};
  DType floats = DType::kF32;
  // Of a grid that is fp4 numbers whose 32 share a power of two: Blocks() gives it in GGUF's form.
  bool mxfp4 = false;
  // Of floats that are fp8 numbers times a scale: the columns that share one. Else 0.
  int64_t fp8_group = 0;

  int64_t groups() const { return (cols + group - 1) / group; }

  // One row of a grid: cols integers; groups() scales and zeros.
  virtual void Integers(int64_t row, int16_t* q) const;
  virtual void Groups(int64_t row, float* scales, int16_t* zeros) const;
  // One row of anything, as the writer's own package would decode it in f32.
  virtual void Floats(int64_t row, float* out) const;
  // One row of MXFP4.
  virtual void Blocks(int64_t row, std::byte* out) const;
  // One row of fp8: cols codes; a scale for each fp8_group of them, the last of which may be smaller.
  virtual void Codes(int64_t row, std::byte* codes, float* scales) const;
  // Of floats: an error about the first scale that is not finite. `path` is the file.
  virtual Status CheckScales(const std::string& path) const;

  void Row(int64_t row, std::byte* values, void* scales) const final;

  // Sets `format` and `note`; fp8 stays fp8 if `keep_fp8`, else it becomes floats. MXFP4 stays MXFP4, but for single
  // matrices with `keep_fp8`, which is for a device: its products of such matrices take int8. An error: a scale is not a
  // finite number.
  Status ChooseFormat(const std::string& path, bool keep_fp8);

 protected:
  Error BadScale(const std::string& path, std::string_view part, int64_t row, int64_t group_index,
                 float value) const;

 private:
  void GridRow(int64_t row, std::byte* values, void* scales) const;
  void Fp8Row(int64_t row, std::byte* values, float* scales) const;
};

using Matrices = std::vector<std::unique_ptr<Matrix>>;

}  // namespace celer::published
