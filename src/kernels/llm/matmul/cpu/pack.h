// From a weight matrix as stored to the interleaved form of packed.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/llm/matmul/cpu/column.h"
#include "kernels/llm/matmul/cpu/packed.h"
#include "kernels/llm/weight_view.h"

namespace celer {

// The packed form of a matrix: kNone when its format or its number of columns has none.
struct PackedShape {
  PackedFormat format = PackedFormat::kNone;
  int64_t groups = 0;       // of rows
  int64_t group_bytes = 0;  // from one group to the next
  int64_t span = kBlockCols;
  int64_t step = 1;        // columns: a matrix can be cut at multiples of them
  int64_t step_bytes = 0;  // of this many columns of a group

  int64_t bytes() const { return groups * group_bytes; }
};
PackedShape PackedShapeOf(const WeightView& w, const PackGeometry& geometry);
// Of a matrix that is packed: it may be some columns of a larger one, whose groups lie further apart.
PackedShape ShapeInMemory(const WeightView& w, const PackGeometry& geometry);

// Packs row groups [begin, end) to out + begin * group_bytes.
void PackGroups(const WeightView& w, const PackGeometry& geometry, const PackedShape& shape, int64_t begin,
                int64_t end, std::byte* out);

// One row of a packed matrix of celer's own formats (int8, int4) as floats; these may exist in packed form
// alone.
void DecodePackedRow(const WeightView& w, const PackGeometry& geometry, int64_t row, float* out);

// Where column `col` of an integer format stands.
PackedColumn FindColumn(const PackedShape& shape, const PackGeometry& geometry, int64_t col);
// A ReadColumnFn for any geometry, the reference of the others.
void ReadColumnPlain(const PackedColumn& column, const PackGeometry& geometry, const uint8_t* group,
                     float* out);

}  // namespace celer
