// The tile kernels per instruction set; one definition each in the files with that suffix.
#pragma once

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {

// How far ahead of its use a stream of weights that is read once is prefetched into the L3 cache, line by
// line: from there the hardware fetches it by itself. Measured on Neoverse V1, four streams on each of two
// cores: 68 GB/s without, 89 with 8 or 16 kB, 59 with 4 kB; into L1 or L2 it hinders the hardware more than
// it helps.
constexpr int kStreamAhead = 8192;

#define CELER_ARM_INTEGER_TILES(suffix)       \
  void TileByte##suffix(const TileJob&);      \
  void TileByteMin##suffix(const TileJob&);   \
  void TileByteWide##suffix(const TileJob&);  \
  void TileNibble##suffix(const TileJob&);    \
  void TileNibbleMin##suffix(const TileJob&); \
  void TileLevels##suffix(const TileJob&);    \
  void TileLevelsIq4##suffix(const TileJob&); \
  void TileSuperQ2##suffix(const TileJob&);   \
  void TileSuperQ3##suffix(const TileJob&);   \
  void TileSuperQ4##suffix(const TileJob&);   \
  void TileSuperQ5##suffix(const TileJob&);   \
  void TileSuperQ6##suffix(const TileJob&);

CELER_ARM_INTEGER_TILES(Dotprod)
CELER_ARM_INTEGER_TILES(I8mm)
#undef CELER_ARM_INTEGER_TILES

void TileF32(const TileJob&);
void TileF16(const TileJob&);
void TileBf16Wide(const TileJob&);  // step 1, widened to f32
void TileBf16(const TileJob&);      // step 4, matrix instructions

}  // namespace celer::arm
