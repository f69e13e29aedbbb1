// The x86 tile kernels, by instruction set; one definition each in the files with that suffix.
#pragma once

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::x86 {

#define CELER_X86_INTEGER_TILES(suffix)       \
  void TileByte##suffix(const TileJob&);      \
  void TileByteMin##suffix(const TileJob&);   \
  void TileByteWide##suffix(const TileJob&);  \
  void TileByteRow##suffix(const TileJob&);   \
  void TileNibble##suffix(const TileJob&);    \
  void TileNibbleMin##suffix(const TileJob&); \
  void TileLevels##suffix(const TileJob&);    \
  void TileLevelsIq4##suffix(const TileJob&); \
  void TileSuperQ2##suffix(const TileJob&);   \
  void TileSuperQ3##suffix(const TileJob&);   \
  void TileSuperQ4##suffix(const TileJob&);   \
  void TileSuperQ5##suffix(const TileJob&);   \
  void TileSuperQ6##suffix(const TileJob&);

CELER_X86_INTEGER_TILES(Avx2)
CELER_X86_INTEGER_TILES(AvxVnni)
CELER_X86_INTEGER_TILES(Vnni)
CELER_X86_INTEGER_TILES(Amx)
#undef CELER_X86_INTEGER_TILES

// From this many tokens on, TileByteRowAmx stores to TileJob::to.
constexpr int kAmxRowTokens = 5;

void TileF32Avx2(const TileJob&);
void TileF16Avx2(const TileJob&);
void TileBf16Avx2(const TileJob&);  // step 1, widened to f32
void TileF32Avx512(const TileJob&);
void TileF16Avx512(const TileJob&);
void TileBf16Avx512(const TileJob&);  // step 1, widened to f32
void TileBf16Amx(const TileJob&);     // step 2

// `tokens` rows of floats to one unit of activation_tile.h.
void PrepareXTileAvx2(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out);
void PrepareXTileAvx512(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out);

// One row x / rms(x) * weight.
void NormAvx2(const float* x, const float* weight, float eps, int64_t cols, float* out);
void NormAvx512(const float* x, const float* weight, float eps, int64_t cols, float* out);

}  // namespace celer::x86
