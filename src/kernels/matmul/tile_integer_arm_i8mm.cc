#include "kernels/matmul/tile_arm.h"
#include "kernels/matmul/tile_integer_neon.h"

namespace celer::arm {

void TileByteI8mm(const TileJob& job) {
  Tile<Byte, XPairBlock>(job);
}
void TileByteMinI8mm(const TileJob& job) {
  Tile<ByteMin, XPairBlock>(job);
}
void TileByteWideI8mm(const TileJob& job) {
  Tile<ByteWide, XPairBlock>(job);
}
void TileNibbleI8mm(const TileJob& job) {
  Tile<Nibble, XPairBlock>(job);
}
void TileNibbleMinI8mm(const TileJob& job) {
  Tile<NibbleMin, XPairBlock>(job);
}
void TileSuperQ2I8mm(const TileJob& job) {
  Tile<SuperQ2, XPairSuper>(job);
}
void TileSuperQ3I8mm(const TileJob& job) {
  Tile<SuperQ3, XPairSuper>(job);
}
void TileSuperQ4I8mm(const TileJob& job) {
  Tile<SuperQ4, XPairSuper>(job);
}
void TileSuperQ5I8mm(const TileJob& job) {
  Tile<SuperQ5, XPairSuper>(job);
}
void TileSuperQ6I8mm(const TileJob& job) {
  Tile<SuperQ6, XPairSuper>(job);
}

}  // namespace celer::arm
