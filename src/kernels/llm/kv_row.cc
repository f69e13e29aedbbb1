#include "kernels/llm/kv_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/variant.h"
#include "formats/bfloat16.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "formats/float8.h"
#include "formats/q4_1.h"

namespace celer {

#if defined(__x86_64__)
namespace x86 {
void StoreHalvesAvx2(const float* row, int64_t n, uint16_t* out);
}
#endif

namespace {

// The largest finite numbers of the types.
constexpr float kLargestF16 = 65504, kLargestBf16 = 0x1.fep127f;

// Finite values saturate; infinity and NaN stay what they are.
float Saturated(float value, float largest) {
  return std::isfinite(value) ? std::clamp(value, -largest, largest) : value;
}

void StoreInt8(const float* row, int64_t dim, int8_t* out, float& scale) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  float top = 0;
  bool finite = true;
  for (int64_t d = 0; d < dim; ++d) {
    top = std::fmax(top, std::fabs(row[d]));
    finite &= std::isfinite(row[d]);
  }
  if (!finite) {
    scale = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(out, dim, int8_t{0});
    return;
  }
  // In double, where neither 127 / top nor 127 * scale can leave the range.
  scale = static_cast<float>(top / 127.0);
  if (scale * 127.0 > kLargest) scale = std::nextafter(scale, 0.0f);
  const double inverse = top > 0 ? 127.0 / top : 0.0;
  for (int64_t d = 0; d < dim; ++d) out[d] = static_cast<int8_t>(std::lrint(row[d] * inverse));
}

// Scales of channel_keys: bf16, rounded up so that 127 of them reach `top`.
uint16_t ScaleUpTo(float top) {
  if (!std::isfinite(top)) return 0x7fc0;  // NaN
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(top / 127.0f) + 0xffff) >> 16);
}
int8_t ToSteps(float value, float scale) {  // zero where there is no scale, or it is NaN
  return scale > 0 ? static_cast<int8_t>(std::lrint(std::clamp(value / scale, -127.0f, 127.0f))) : int8_t{0};
}

// One more row of a block's keys; see kv_row.h.
void StoreChannelKeys(const float* row, int64_t dim, int64_t slot, int8_t* rows, uint16_t* scales) {
  for (int64_t d = 0; d < dim; ++d) {
    const float old = slot == 0 ? 0.0f : Bf16ToFloat(scales[d]);
    float scale = old;
    // With a scale of NaN, false: it stays.
    if (slot == 0 || std::fabs(row[d]) > 127.0f * old || !std::isfinite(row[d])) {
      scales[d] = ScaleUpTo(std::fabs(row[d]));
      scale = Bf16ToFloat(scales[d]);
      for (int64_t s = 0; s < slot; ++s)
        rows[s * dim + d] = ToSteps(static_cast<float>(rows[s * dim + d]) * old, scale);
    }
    rows[slot * dim + d] = ToSteps(row[d], scale);
  }
}

// Sixteen neighbours share a scale.
void StoreGroups(const float* row, int64_t dim, int8_t* out, uint16_t* scales) {
  for (int64_t begin = 0; begin < dim; begin += 16, ++scales) {
    const int64_t end = std::min(begin + 16, dim);
    float top = 0;
    for (int64_t d = begin; d < end; ++d)  // a NaN stays, too
      if (!(std::fabs(row[d]) <= top)) top = std::isnan(top) ? top : std::fabs(row[d]);
    *scales = ScaleUpTo(top);
    const float scale = Bf16ToFloat(*scales);
    for (int64_t d = begin; d < end; ++d) out[d] = ToSteps(row[d], scale);
  }
}

// Behind the rows of a block, at an even address.
uint16_t* ScalesOf(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot) {
  return reinterpret_cast<uint16_t*>(const_cast<std::byte*>(part) + kv.ScaleOffset(block, head, slot));
}

void StoreByChannel(const KvLayerView& kv, std::byte* part, int64_t block, int64_t head, int64_t slot,
                    const float* row) {
  if (part == kv.k)
    StoreChannelKeys(row, kv.head_dim, slot, reinterpret_cast<int8_t*>(part + kv.RowOffset(block, head, 0)),
                     ScalesOf(kv, part, block, head, 0));
  else
    StoreGroups(row, kv.head_dim, reinterpret_cast<int8_t*>(part + kv.RowOffset(block, head, slot)),
                ScalesOf(kv, part, block, head, slot));
}

void LoadByChannel(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
                   float* row) {
  const auto* q = reinterpret_cast<const int8_t*>(part + kv.RowOffset(block, head, slot));
  if (part == kv.k) {
    const uint16_t* scales = ScalesOf(kv, part, block, head, 0);
    for (int64_t d = 0; d < kv.head_dim; ++d) row[d] = static_cast<float>(q[d]) * Bf16ToFloat(scales[d]);
    return;
  }
  const uint16_t* scales = ScalesOf(kv, part, block, head, slot);
  for (int64_t d = 0; d < kv.head_dim; ++d) row[d] = static_cast<float>(q[d]) * Bf16ToFloat(scales[d / 16]);
}

void StoreFourBits(const float* row, int64_t dim, std::byte* out) {
  static thread_local std::vector<float> rotated;
  rotated.assign(row, row + dim);
  RotateKvRow(rotated.data(), dim);
  bool finite = true;
  for (float& value : rotated) {
    finite &= std::isfinite(value);
    value = Saturated(value, kLargestF16);
  }
  if (!finite) std::fill(rotated.begin(), rotated.end(), 0.0f);
  EncodeRow(DType::kQ4_1, rotated.data(), dim, out);
  if (finite) return;
  for (int64_t b = 0; b < dim / BlockQ4_1::kElements; ++b) {
    constexpr uint16_t kNan = 0x7e00;
    std::memcpy(out + b * static_cast<int64_t>(sizeof(BlockQ4_1)), &kNan, sizeof kNan);
  }
}

}  // namespace

void RotateKvRow(float* row, int64_t dim) {
  const int64_t size = dim & -dim;
  const float norm = 1.0f / std::sqrt(static_cast<float>(size));
  for (float* end = row + dim; row < end; row += size) {
    for (int64_t half = 1; half < size; half *= 2)
      for (int64_t i = 0; i < size; i += 2 * half)
        for (int64_t j = i; j < i + half; ++j) {
          const float a = row[j], b = row[j + half];
          row[j] = a + b;
          row[j + half] = a - b;
        }
    for (int64_t i = 0; i < size; ++i) row[i] *= norm;
  }
}

void StoreKvRow(const KvLayerView& kv, std::byte* part, int64_t block, int64_t head, int64_t slot,
                const float* row) {
  std::byte* out = part + kv.RowOffset(block, head, slot);
  const int64_t dim = kv.head_dim;
  switch (kv.dtype) {
    case DType::kF16: {
      auto* to = reinterpret_cast<uint16_t*>(out);
#if defined(__x86_64__)
      static const bool converts = RunsHere(Isa::kAvx2);
      if (converts && dim % 8 == 0) return x86::StoreHalvesAvx2(row, dim, to);
#endif
      for (int64_t d = 0; d < dim; ++d) to[d] = FloatToF16(Saturated(row[d], kLargestF16));
      return;
    }
    case DType::kBf16: {
      auto* to = reinterpret_cast<uint16_t*>(out);
      for (int64_t d = 0; d < dim; ++d) to[d] = FloatToBf16(Saturated(row[d], kLargestBf16));
      return;
    }
    case DType::kQ4_1:
      return StoreFourBits(row, dim, out);
    case DType::kFp8E4M3: {
      auto* to = reinterpret_cast<uint8_t*>(out);
      constexpr uint8_t kNan = 0x7f;
      for (int64_t d = 0; d < dim; ++d) to[d] = std::isfinite(row[d]) ? FloatToFp8E4M3(row[d]) : kNan;
      return;
    }
    case DType::kI8: {
      if (kv.channel_keys) return StoreByChannel(kv, part, block, head, slot, row);
      float scale;
      StoreInt8(row, dim, reinterpret_cast<int8_t*>(out), scale);
      std::memcpy(part + kv.ScaleOffset(block, head, slot), &scale, sizeof scale);
      return;
    }
    default:
      return EncodeRow(kv.dtype, row, dim, out);
  }
}

void LoadStoredKvRow(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
                     float* row) {
  if (kv.channel_keys) return LoadByChannel(kv, part, block, head, slot, row);
  DecodeRow(kv.dtype, part + kv.RowOffset(block, head, slot), kv.head_dim, row);
  if (kv.dtype != DType::kI8) return;
  float scale;
  std::memcpy(&scale, part + kv.ScaleOffset(block, head, slot), sizeof scale);
  for (int64_t d = 0; d < kv.head_dim; ++d) row[d] *= scale;
}

void LoadKvRow(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
               float* row) {
  LoadStoredKvRow(kv, part, block, head, slot, row);
  if (RotatesKv(kv.dtype)) RotateKvRow(row, kv.head_dim);
}

}  // namespace celer
