#include "kernels/weight_view.h"

#include "core/check.h"
#include "formats/decode.h"
#include "formats/int8.h"
#include "kernels/matmul/matmul.h"

namespace celer {

int64_t WeightView::bytes() const {
  const auto shared = static_cast<int64_t>(kind == Kind::kInt8   ? sizeof(float)
                                           : kind == Kind::kInt4 ? sizeof(Int4Group)
                                                                 : 0);
  return rows * (row_bytes + groups_per_row() * shared);
}

std::string WeightView::FormatName() const {
  if (kind == Kind::kStored) return std::string(Name(dtype));
  const std::string base = kind == Kind::kInt8 ? "int8" : "int4";
  return group == cols ? base : base + "-g" + std::to_string(group);
}

WeightView WeightView::Slice(int64_t begin, int64_t count) const {
  CELER_CHECK(data);
  CELER_CHECK_LE(begin + count, rows);
  WeightView out = *this;
  out.rows = count;
  out.packed = nullptr;
  out.data += begin * row_bytes;
  if (scales) out.scales += begin * groups_per_row();
  if (params) out.params += begin * groups_per_row();
  return out;
}

void DecodeWeightRow(const WeightView& weight, int64_t row, float* out) {
  if (!weight.data) return ChosenMatmul().decode_row(weight, row, out);
  switch (weight.kind) {
    case WeightView::Kind::kStored:
      return DecodeRow(weight.dtype, weight.Row(row), weight.cols, out);
    case WeightView::Kind::kInt8:
      return DecodeInt8Row({weight.rows, weight.cols, weight.group},
                           reinterpret_cast<const int8_t*>(weight.Row(row)),
                           weight.scales + row * weight.groups_per_row(), out);
    case WeightView::Kind::kInt4:
      return DecodeInt4Row({weight.rows, weight.cols, weight.group},
                           reinterpret_cast<const uint8_t*>(weight.Row(row)),
                           weight.params + row * weight.groups_per_row(), out);
  }
}

}  // namespace celer
