// Rows of any weight format to float and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace celer {

// What matrices of a GGUF file are written in, best first but for MXFP4, which is last: f32, f16, bf16, then the block
// formats.
std::span<const DType> WeightTypes();
std::span<const DType> BlockTypes();
// Block formats that celer reads and does not write.
std::span<const DType> ReadOnlyBlockTypes();

// True for f32, f16, bf16, f64, fp8, integers, bool and all GGUF blocks: everything a file can hold.
bool CanDecode(DType dtype);
// True for f32, f16, bf16, fp8 and BlockTypes().
bool CanEncode(DType dtype);

// Decodes `cols` elements; GGUF blocks bit for bit as the `gguf` Python package. `row` needs no alignment.
// cols must fill whole blocks.
void DecodeRow(DType dtype, const std::byte* row, int64_t cols, float* out);

// Rounds to nearest; the GGUF blocks Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 as the package's reference
// quantizer, the K formats by a least-squares fit per group. With `importance`, of one column each, all GGUF
// blocks of fewer than 8 bits are fitted so that the sum of importance * error^2 is small.
void EncodeRow(DType dtype, const float* row, int64_t cols, std::byte* out,
               const float* importance = nullptr);

// How the weights of a GGUF block lie: `group` columns share a scale and an offset, and a weight is scale * q
// + offset with a code q in 0..levels. No levels: the format has no such grid (IQ4_NL, MXFP4, floats).
struct BlockGrid {
  int group = 0, levels = 0;
};
BlockGrid GridOf(DType dtype);

// Replaces the codes of an encoded row, which keeps its scales and offsets.
void SetCodes(DType dtype, const uint8_t* codes, int64_t cols, std::byte* row);

}  // namespace celer
