#include "kernels/matmul/tile_arm.h"
#include "kernels/matmul/tile_integer_neon.h"

namespace celer::arm {

void TileByteDotprod(const TileJob& job) {
  Tile<Byte, XPairBlock>(job);
}
void TileByteMinDotprod(const TileJob& job) {
  Tile<ByteMin, XPairBlock>(job);
}
void TileByteWideDotprod(const TileJob& job) {
  Tile<ByteWide, XPairBlock>(job);
}
void TileNibbleDotprod(const TileJob& job) {
  Tile<Nibble, XPairBlock>(job);
}
void TileNibbleMinDotprod(const TileJob& job) {
  Tile<NibbleMin, XPairBlock>(job);
}
void TileSuperQ2Dotprod(const TileJob& job) {
  Tile<SuperQ2, XPairSuper>(job);
}
void TileSuperQ3Dotprod(const TileJob& job) {
  Tile<SuperQ3, XPairSuper>(job);
}
void TileSuperQ4Dotprod(const TileJob& job) {
  Tile<SuperQ4, XPairSuper>(job);
}
void TileSuperQ5Dotprod(const TileJob& job) {
  Tile<SuperQ5, XPairSuper>(job);
}
void TileSuperQ6Dotprod(const TileJob& job) {
  Tile<SuperQ6, XPairSuper>(job);
}

}  // namespace celer::arm
