#include "kernels/kv_row.h"

#include <cmath>
#include <cstring>

#include "core/variant.h"
#include "formats/decode.h"

namespace celer {

#if defined(__x86_64__)
namespace x86 {
void StoreHalvesAvx2(const float* row, int64_t n, uint16_t* out);
}
#endif

void StoreKvRow(const KvLayerView& kv, std::byte* part, int64_t block, int64_t head, int64_t slot,
                const float* row) {
  std::byte* out = part + kv.RowOffset(block, head, slot);
#if defined(__x86_64__)
  static const bool converts = RunsHere(Isa::kAvx2);
  if (converts && kv.dtype == DType::kF16 && kv.head_dim % 8 == 0)
    return x86::StoreHalvesAvx2(row, kv.head_dim, reinterpret_cast<uint16_t*>(out));
#endif
  if (kv.dtype != DType::kI8) return EncodeRow(kv.dtype, row, kv.head_dim, out);
  float top = 0;
  for (int64_t d = 0; d < kv.head_dim; ++d) top = std::fmax(top, std::fabs(row[d]));
  const float scale = top / 127;
  const float inverse = top > 0 ? 127 / top : 0;
  auto* q = reinterpret_cast<int8_t*>(out);
  // 127 / top may be infinite for a subnormal top: nothing but zeros is left of such a row.
  for (int64_t d = 0; d < kv.head_dim; ++d)
    q[d] = std::isfinite(inverse) ? static_cast<int8_t>(std::lrintf(row[d] * inverse)) : int8_t{0};
  std::memcpy(part + kv.ScaleOffset(block, head, slot), &scale, sizeof scale);
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
