#include "kernels/llm/weight_view.h"

#include "base/check.h"
#include "kernels/llm/matmul/matmul.h"

namespace celer {
namespace {

// Whether [begin, end) of `all` begins and ends at a multiple of `step`; the matrix may end anywhere.
bool Aligned(int64_t begin, int64_t end, int64_t all, int64_t step) {
  return begin % step == 0 && (end % step == 0 || end == all);
}

Error CannotCut(const WeightView& w, const char* what, int64_t begin, int64_t end, int64_t step,
                const std::string& form) {
  return Error::Invalid("tensor '", w.name, "': ", what, " ", begin, " to ", end, " of ", w.rows, " x ",
                        w.cols, " cannot be cut out of ", form, ", which can be cut at multiples of ", step);
}

std::string PackedName(const WeightView& w) {
  return w.FormatName() + " packed for " + std::string(w.packed_for->name);
}

}  // namespace

const void* WeightView::RowScales(int64_t row) const {
  if (!scales) return nullptr;
  const int64_t stride = scale_row_bytes > 0 ? scale_row_bytes : format().ScaleBytes(cols);
  return static_cast<const std::byte*>(scales) + row * stride;
}

bool WeightView::contiguous() const {
  const WeightFormatSpec spec = format();
  return row_bytes == spec.RowBytes(cols) &&
         (scale_row_bytes == 0 || scale_row_bytes == spec.ScaleBytes(cols));
}

int64_t WeightView::bytes() const {
  const WeightFormatSpec spec = format();
  return rows * (spec.RowBytes(cols) + spec.ScaleBytes(cols));
}

Result<WeightView> WeightView::SliceRows(int64_t begin, int64_t count) const {
  CELER_CHECK(begin >= 0 && count >= 0);
  CELER_CHECK_LE(begin + count, rows);
  WeightView out = *this;
  out.rows = count;
  if (data) {
    out.data = Row(begin);
    out.scales = RowScales(begin);
  }
  if (packed) {
    const PackedGrid grid = packed_for->grid(*this);
    if (begin % grid.rows == 0) {  // a last group with more rows than the slice is computed and not stored
      out.packed += grid.Offset(begin, 0);
    } else if (data) {
      out.packed = nullptr;
    } else {
      return CannotCut(*this, "rows", begin, begin + count, grid.rows, PackedName(*this));
    }
  }
  return out;
}

Result<WeightView> WeightView::SliceColumns(int64_t begin, int64_t count) const {
  CELER_CHECK(begin >= 0 && count >= 0);
  CELER_CHECK_LE(begin + count, cols);
  const WeightFormatSpec spec = format();
  const int64_t end = begin + count, step = spec.ColumnStep();
  if (!Aligned(begin, end, cols, step)) return CannotCut(*this, "columns", begin, end, step, spec.Name());
  WeightView out = *this;
  out.cols = count;
  if (spec.group == 0 && !spec.stored()) out.group = count;  // still the whole row's scale
  if (data) {
    out.data += spec.RowBytes(begin);
    if (scales) {
      out.scale_row_bytes = scale_row_bytes > 0 ? scale_row_bytes : spec.ScaleBytes(cols);
      if (spec.group > 0) out.scales = static_cast<const std::byte*>(scales) + spec.ScaleBytes(begin);
    }
  }
  if (packed) {
    const PackedGrid grid = packed_for->grid(*this);
    if (Aligned(begin, end, cols, grid.cols)) {
      out.packed += grid.Offset(0, begin);
    } else if (data) {
      out.packed = nullptr;
    } else {
      return CannotCut(*this, "columns", begin, end, grid.cols, PackedName(*this));
    }
  }
  return out;
}

void DecodeWeightRow(const WeightView& weight, int64_t row, float* out) {
  if (!weight.data) {
    CELER_CHECK(weight.packed && weight.packed_for);
    return weight.packed_for->decode_row(weight, row, out);
  }
  weight.format().Decode(weight.Row(row), weight.RowScales(row), weight.cols, out);
}

}  // namespace celer
