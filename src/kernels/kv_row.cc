#include "kernels/kv_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/variant.h"
#include "formats/bfloat16.h"
#include "formats/decode.h"
#include "formats/float16.h"

namespace celer {

#if defined(__x86_64__)
namespace x86 {
void StoreHalvesAvx2(const float* row, int64_t n, uint16_t* out);
}
#endif

namespace {

// The largest finite numbers of the types.
constexpr float kLargestF16 = 65504, kLargestBf16 = 0x1.fep127f;

// What is finite stays so; infinity and NaN stay what they are.
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

}  // namespace

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
    case DType::kI8: {
      float scale;
      StoreInt8(row, dim, reinterpret_cast<int8_t*>(out), scale);
      std::memcpy(part + kv.ScaleOffset(block, head, slot), &scale, sizeof scale);
      return;
    }
    default:
      return EncodeRow(kv.dtype, row, dim, out);
  }
}

void LoadKvRow(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
               float* row) {
  DecodeRow(kv.dtype, part + kv.RowOffset(block, head, slot), kv.head_dim, row);
  if (kv.dtype != DType::kI8) return;
  float scale;
  std::memcpy(&scale, part + kv.ScaleOffset(block, head, slot), sizeof scale);
  for (int64_t d = 0; d < kv.head_dim; ++d) row[d] *= scale;
}

}  // namespace celer
