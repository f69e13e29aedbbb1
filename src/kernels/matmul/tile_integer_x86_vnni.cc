#include "kernels/matmul/tile_integer_x86.h"
#include "kernels/matmul/tile_x86.h"

namespace celer::x86 {

CELER_X86_DEFINE_TILES(Vnni, VectorTile)

}  // namespace celer::x86
