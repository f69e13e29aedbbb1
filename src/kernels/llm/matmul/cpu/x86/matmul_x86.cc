// The x86-64 variants of matmul: which tile kernel serves which format.
#if defined(__x86_64__)
#include "kernels/llm/matmul/cpu/tiles.h"
#include "kernels/llm/matmul/cpu/x86/activation_tile.h"
#include "kernels/llm/matmul/cpu/x86/tile_x86.h"

namespace celer {
namespace {

TileIsa Common() {
  TileIsa isa{.geometry = {.rows = 16, .step = 4, .bf16_step = 1},
              .tile_groups = 4,
              .x_tokens = x86::kXTokens,
              .x_bytes = x86::XTileBytes,
              .prepare_tokens = 4,
              .columns = x86::kColumnsAvx2,
              .max_row_cols = x86::kMaxRowCols};
  return isa;
}

#define CELER_X86_INTEGER_ROWS(isa, suffix)                                     \
  isa[PackedFormat::kByte] = {x86::TileByte##suffix, XKind::kBlocks};           \
  isa[PackedFormat::kByteMin] = {x86::TileByteMin##suffix, XKind::kBlocks};     \
  isa[PackedFormat::kByteWide] = {x86::TileByteWide##suffix, XKind::kBlocks};   \
  isa[PackedFormat::kByteRow] = {x86::TileByteRow##suffix, XKind::kRow};        \
  isa[PackedFormat::kNibble] = {x86::TileNibble##suffix, XKind::kBlocks};       \
  isa[PackedFormat::kNibbleMin] = {x86::TileNibbleMin##suffix, XKind::kBlocks}; \
  isa[PackedFormat::kLevels] = {x86::TileLevels##suffix, XKind::kBlocks};       \
  isa[PackedFormat::kLevelsIq4] = {x86::TileLevelsIq4##suffix, XKind::kBlocks}; \
  isa[PackedFormat::kSuperQ2] = {x86::TileSuperQ2##suffix, XKind::kSupers};     \
  isa[PackedFormat::kSuperQ3] = {x86::TileSuperQ3##suffix, XKind::kSupers};     \
  isa[PackedFormat::kSuperQ4] = {x86::TileSuperQ4##suffix, XKind::kSupers};     \
  isa[PackedFormat::kSuperQ5] = {x86::TileSuperQ5##suffix, XKind::kSupers};     \
  isa[PackedFormat::kSuperQ6] = {x86::TileSuperQ6##suffix, XKind::kSupers};

TileIsa Avx512() {
  TileIsa isa = Common();
  isa.prepare = x86::PrepareXTileAvx512;
  isa.norm = x86::NormAvx512;
  isa[PackedFormat::kF32] = {x86::TileF32Avx512, XKind::kFloat};
  isa[PackedFormat::kF16] = {x86::TileF16Avx512, XKind::kFloat};
  isa[PackedFormat::kBf16] = {x86::TileBf16Avx512, XKind::kFloat};
  return isa;
}

TileIsa Avx256() {
  TileIsa isa = Common();
  isa.prepare = x86::PrepareXTileAvx2;
  isa.norm = x86::NormAvx2;
  isa[PackedFormat::kF32] = {x86::TileF32Avx2, XKind::kFloat};
  isa[PackedFormat::kF16] = {x86::TileF16Avx2, XKind::kFloat};
  isa[PackedFormat::kBf16] = {x86::TileBf16Avx2, XKind::kFloat};
  return isa;
}

const TileIsa& Avx2() {
  static const TileIsa isa = [] {
    TileIsa out = Avx256();
    CELER_X86_INTEGER_ROWS(out, Avx2)
    return out;
  }();
  return isa;
}

const TileIsa& AvxVnni() {
  static const TileIsa isa = [] {
    TileIsa out = Avx256();
    CELER_X86_INTEGER_ROWS(out, AvxVnni)
    return out;
  }();
  return isa;
}

const TileIsa& Vnni() {
  static const TileIsa isa = [] {
    TileIsa out = Avx512();
    CELER_X86_INTEGER_ROWS(out, Vnni)
    return out;
  }();
  return isa;
}

const TileIsa& Amx() {
  static const TileIsa isa = [] {
    TileIsa out = Avx512();
    CELER_X86_INTEGER_ROWS(out, Amx)
    out[PackedFormat::kByteRow].direct_tokens = x86::kAmxRowTokens;
    out[PackedFormat::kByteRow].job_tokens = 256;
    out[PackedFormat::kByteRow].job_groups = 2;
    out.walk_tokens = 256;
    out.geometry.bf16_step = 2;
    out[PackedFormat::kBf16] = {x86::TileBf16Amx, XKind::kBf16};
    return out;
  }();
  return isa;
}

#undef CELER_X86_INTEGER_ROWS

}  // namespace

const MatmulKernels kMatmulX86Avx2 = MakeTileKernels<Avx2, kMatmulX86Avx2>("x86_avx2");
const MatmulKernels kMatmulX86AvxVnni = MakeTileKernels<AvxVnni, kMatmulX86AvxVnni>("x86_avxvnni");
const MatmulKernels kMatmulX86Vnni = MakeTileKernels<Vnni, kMatmulX86Vnni>("x86_vnni");
const MatmulKernels kMatmulX86Amx = MakeTileKernels<Amx, kMatmulX86Amx>("x86_amx");

}  // namespace celer
#endif
