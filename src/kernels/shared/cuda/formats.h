// The weight formats that the kernels of a GPU read, and the element types of its KV cache.
//
// This is the one list of them. From it come the enum below, the switches over formats (WithFormat), and the
// files that the build compiles: CMakeLists.txt reads the lines of these two lists and makes one .cu file per
// line from each *.cu.in file. So a new line here is all that a new format needs outside the kernels
// themselves.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "base/dtype.h"

namespace celer::cuda {

// X(name, bits of a weight, bytes of a scale, whether a decode step is one kernel: decode_step/)
// Fp8 is e4m3, Mxfp4 e2m1. A scale is: Int8 and Fp8, float; Int4, {f16 scale, f16 min}; Int4F32, {float scale,
// float min}; Mxfp4, the exponent of a power of two as a float has it.
#define CELER_CUDA_FORMATS(X) \
  X(F32, 32, 0, false)        \
  X(F16, 16, 0, false)        \
  X(Bf16, 16, 0, true)        \
  X(Int8, 8, 4, true)         \
  X(Fp8, 8, 4, false)         \
  X(Int4, 4, 4, true)         \
  X(Int4F32, 4, 8, false)     \
  X(Mxfp4, 4, 1, false)

// K(name): a value of DType.
#define CELER_CUDA_KV_TYPES(K) \
  K(F16)                       \
  K(Bf16)                      \
  K(I8)                        \
  K(Fp8E4M3)

#define CELER_NAME(name, ...) k##name,
enum class Format : uint8_t { CELER_CUDA_FORMATS(CELER_NAME) };
#undef CELER_NAME

// Calls run.operator()<Format>() with the format as a template argument.
template <class Run>
auto WithFormat(Format format, const Run& run) {
  switch (format) {
#define CELER_CASE(name, ...) \
  case Format::k##name:       \
    return run.template operator()<Format::k##name>();
    CELER_CUDA_FORMATS(CELER_CASE)
#undef CELER_CASE
  }
  std::abort();
}

// As above for a type of the KV; `other` is what comes back for a type that a KV cannot have.
template <class Run, class Other>
Other WithKvType(DType dtype, Other other, const Run& run) {
  switch (dtype) {
#define CELER_CASE(name) \
  case DType::k##name:   \
    return run.template operator()<DType::k##name>();
    CELER_CUDA_KV_TYPES(CELER_CASE)
#undef CELER_CASE
    default:
      return other;
  }
}

// The columns of the list. Switches, because device code cannot index a constant array of the host.
#define CELER_CASE(name, bits, ...) \
  case Format::k##name:             \
    return bits;
constexpr int BitsOf(Format format) {
  switch (format) { CELER_CUDA_FORMATS(CELER_CASE) }
  return 0;
}
#undef CELER_CASE
#define CELER_CASE(name, bits, scale_bytes, ...) \
  case Format::k##name:                          \
    return scale_bytes;
constexpr int ScaleBytesOf(Format format) {
  switch (format) { CELER_CUDA_FORMATS(CELER_CASE) }
  return 0;
}
#undef CELER_CASE
constexpr bool HasScales(Format format) {
  return ScaleBytesOf(format) > 0;
}
// What GGUF blocks become (formats/codec.h): the integers as they are, in groups of as many columns. f16
// cannot hold the scales of super-blocks; five bits and more with a minimum have no such format and are
// rounded to f16.
constexpr Format FormatOfBlocks(int bits, bool has_min, bool super) {
  if (bits <= 4 && (has_min || !super)) return super ? Format::kInt4F32 : Format::kInt4;
  return has_min ? Format::kF16 : Format::kInt8;
}
#define CELER_CASE(name, bits, scale_bytes, has_decode_step) \
  case Format::k##name:                                      \
    return has_decode_step;
constexpr bool HasDecodeStep(Format format) {
  switch (format) { CELER_CUDA_FORMATS(CELER_CASE) }
  return false;
}
#undef CELER_CASE

}  // namespace celer::cuda
