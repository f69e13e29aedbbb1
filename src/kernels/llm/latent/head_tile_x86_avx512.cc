#include "kernels/llm/latent/head_tile_lanes.h"

namespace celer::x86 {

void HeadTileRowsAvx512(const HeadTile& tile) {
  HeadTileRowsLanes(tile);
}

}  // namespace celer::x86
