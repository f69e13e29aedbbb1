// Tiles over f16 and int8 KV in f16 arithmetic: eight products per instruction instead of four, and no
// conversion of keys and values.
//
// Accuracy: sums in f16 are short, 8 or 16 products of a score before sums of sums, kSpanKeys for weighted
// values, which are added up in f32 from there on; queries are brought to [0.5, 1) by a power of two, weights
// are at most 1. A score's error is then that of rounding its key to f16, once more, and of rounding the
// score; an output's is about 2^-11 of the largest value.
#include "kernels/attention/attention_float.h"
#include "kernels/attention/attention_half_lanes.h"
#include "kernels/attention/attention_half_quads.h"

namespace celer {
namespace {

template <bool kInt8>
void AttendTileHalf(const AttentionTile& tile) {
  if (tile.group > HalfQuadsTile<kInt8>::kQueries) return HalfLanesTile<kInt8>(tile).Run();
  HalfQuadsTile<kInt8>(tile).Run();
}

}  // namespace

void arm::AttendTileFp16(const AttentionTile& tile) {
  if (tile.kind == KvKind::kF16) return AttendTileHalf<false>(tile);
  if (tile.kind == KvKind::kI8) return AttendTileHalf<true>(tile);
  AttendTileFloat(tile);
}

}  // namespace celer
