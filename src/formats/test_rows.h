// For tests: rows of any type of a file, of the block types that celer does not write, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/codec.h"
#include "formats/decode.h"
#include "formats/float16.h"

namespace celer {

// Of a block type that is only read: random codes, and scales for weights of up to `most` or less.
inline void RandomReadOnlyRow(DType dtype, int64_t cols, uint32_t seed, float most, std::byte* out) {
  std::mt19937 random(seed);
  const DTypeInfo& info = Info(dtype);
  const int64_t bytes = *BytesFor(dtype, cols);
  for (int64_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(random() >> 13);
  for (std::byte* block = out; block < out + bytes; block += info.block_bytes) {
    if (dtype == DType::kNvfp4) {  // exponents of up to most / 6
      const int exponent = std::clamp(std::ilogb(most / 6) + 6, 1, 14);
      for (int i = 0; i < 4; ++i)
        block[i] = static_cast<std::byte>(std::max(1, exponent - i) << 3 | (random() & 7));
      continue;
    }
    const uint16_t d =
        FloatToF16((random() & 1 ? most : -most) / static_cast<float>(FindCodec(dtype)->reach));
    if (dtype == DType::kIq1M) {
      for (int i = 0; i < 4; ++i)
        block[49 + 2 * i] =
            (block[49 + 2 * i] & std::byte{15}) | static_cast<std::byte>((d >> 4 * i & 15) << 4);
      continue;
    }
    const bool last = dtype == DType::kTq1_0 || dtype == DType::kTq2_0;
    std::memcpy(last ? block + info.block_bytes - 2 : block, &d, 2);
  }
}

// Of any type: weights of up to `most`.
inline std::vector<std::byte> RandomWeightRow(DType dtype, int64_t cols, uint32_t seed, float most = 1) {
  std::vector<std::byte> out(static_cast<size_t>(*BytesFor(dtype, cols)));
  if (std::ranges::find(ReadOnlyBlockTypes(), dtype) != ReadOnlyBlockTypes().end()) {
    RandomReadOnlyRow(dtype, cols, seed, most, out.data());
    return out;
  }
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(cols));
  for (float& v : values) v = most * (static_cast<float>(random()) / 2147483648.0f - 1.0f);
  EncodeRow(dtype, values.data(), cols, out.data());
  return out;
}

// All block types of GGUF, those that are only read last.
inline std::vector<DType> AllBlockTypes() {
  std::vector<DType> out(BlockTypes().begin(), BlockTypes().end());
  out.insert(out.end(), ReadOnlyBlockTypes().begin(), ReadOnlyBlockTypes().end());
  return out;
}

}  // namespace celer
