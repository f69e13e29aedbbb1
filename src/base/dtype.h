// Element types of tensors. Plain types have a size per element; the GGUF block types have a block of
// elements that share scales, and a size per block. src/formats knows what is inside a block; here only its
// extent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace celer {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kBool,
  kF64,
  kFp8E4M3,
  // GGUF blocks, stored row by row: a row holds cols / block elements.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,  // 32 elements
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,  // 256 elements
  // Of graphs alone. Types below a byte are one element per byte while a graph runs; its file packs them.
  kU16,
  kU32,
  kU64,
  kFp8E4M3Fnuz,
  kFp8E5M2,
  kFp8E5M2Fnuz,
  kFp8E8M0,
  kFp4E2M1,
  kI4,
  kU4,
  kI2,
  kU2,
  // One more GGUF block, of 32 elements.
  kIq4Nl,
  // Experts of gpt-oss, in GGUF: 32 elements, whose scale is a power of two (formats/fp4/mxfp4.h).
  kMxfp4,
  // More of GGUF: 256 elements; NVFP4 has 64. All but IQ4_XS are only read (formats/scaled_blocks.h).
  kIq4Xs,
  kIq3S,
  kIq3Xxs,
  kIq2S,
  kIq2Xs,
  kIq2Xxs,
  kIq1S,
  kIq1M,
  kTq1_0,
  kTq2_0,
  kNvfp4,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int block;        // elements that are stored together; 1 for plain types
  int block_bytes;  // bytes of one such block
  // Its numbers in a GGUF file, of a tensor and in general.file_type; -1: it has none.
  int gguf_type = -1, gguf_file_type = -1;
};

const DTypeInfo& Info(DType dtype);
std::span<const DTypeInfo> DTypes();  // all, in the order of the enum
inline std::string_view Name(DType dtype) {
  return Info(dtype).name;
}
inline bool IsBlockQuantized(DType dtype) {
  return Info(dtype).block > 1;
}
inline double BitsPerElement(DType dtype) {
  return 8.0 * Info(dtype).block_bytes / Info(dtype).block;
}

// Bytes of `elements` elements; nullopt when they do not fill whole blocks, are negative, or overflow.
std::optional<int64_t> BytesFor(DType dtype, int64_t elements);

// By the name that Name() gives ("f32", "bf16", "q4_k", ...), case-insensitive.
std::optional<DType> ParseDType(std::string_view name);

}  // namespace celer
