// Tiles over f16 and int8 KV with f16 products accumulated in f32 (FMLAL): keys and values are not converted,
// and only queries and weights are rounded, to f16.
#include "kernels/llm/attention/cpu/attention_lanes.h"

namespace celer {
namespace {

template <PackFrom kFrom>
void Attend(const AttentionTile& tile) {
  if (tile.group > 4) return LanesTile<LongLoops<8>, kFrom>(tile).Run();
  LanesTile<LongLoops<4>, kFrom>(tile).Run();
}

}  // namespace

void arm::AttendTileFhm(const AttentionTile& tile) {
  if (tile.kind == KvKind::kF16) return Attend<PackFrom::kNothing>(tile);
  if (tile.kind == KvKind::kI8) return Attend<PackFrom::kInt8>(tile);
  AttendTileNeon(tile);
}

}  // namespace celer
