// Tiles in f32. From three queries per kv head on, rows of queries lie in the lanes; fewer would leave too
// many of them empty in a decode step, and elements of keys do.
#include "kernels/llm/attention/cpu/attention_float.h"
#include "kernels/llm/attention/cpu/attention_lanes.h"

namespace celer {
namespace {

template <class Loops4, class Loops8, PackFrom kFrom = PackFrom::kNothing>
void AttendLanes(const AttentionTile& tile) {
  if (tile.group > Loops4::kRows) return LanesTile<Loops8, kFrom>(tile).Run();
  LanesTile<Loops4, kFrom>(tile).Run();
}

// Rows that are read once are converted during the products, others before, for all products.
template <RowKind kKind, PackFrom kFrom>
void AttendLanes(const AttentionTile& tile) {
  if (tile.tokens == 1) return AttendLanes<FloatLoops<4, kKind>, FloatLoops<8, kKind>>(tile);
  AttendLanes<FloatLoops<4, RowKind::kF32>, FloatLoops<8, RowKind::kF32>, kFrom>(tile);
}

}  // namespace

void arm::AttendTileNeon(const AttentionTile& tile) {
  if (tile.group <= 2) return AttendTileFloat(tile);
  switch (tile.kind) {
    case KvKind::kF32:
      return AttendLanes<FloatLoops<4, RowKind::kF32>, FloatLoops<8, RowKind::kF32>>(tile);
    case KvKind::kF16:
      return AttendLanes<RowKind::kF16, PackFrom::kF16>(tile);
    case KvKind::kBf16:
      return AttendLanes<RowKind::kBf16, PackFrom::kBf16>(tile);
    case KvKind::kI8:
      return AttendLanes<FloatLoops<4, RowKind::kF32>, FloatLoops<8, RowKind::kF32>, PackFrom::kInt8>(tile);
  }
}

}  // namespace celer
