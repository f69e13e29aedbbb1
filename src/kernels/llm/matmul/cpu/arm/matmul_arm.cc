// The aarch64 variants of matmul: which tile kernel serves which format.
#if defined(__aarch64__)
#include "device/variant.h"
#include "kernels/llm/matmul/cpu/arm/activations_neon.h"
#include "kernels/llm/matmul/cpu/arm/tile_arm.h"
#include "kernels/llm/matmul/cpu/tiles.h"

namespace celer {
namespace {

constexpr int kRounds = 64;

// Of the integer kernels, which take several rounds.
TileIsa WithRounds(TileIsa isa) {
  for (PackedFormat f :
       {PackedFormat::kByte, PackedFormat::kByteMin, PackedFormat::kByteWide, PackedFormat::kByteRow,
        PackedFormat::kNibble, PackedFormat::kNibbleMin, PackedFormat::kLevels, PackedFormat::kLevelsIq4,
        PackedFormat::kSuperQ2, PackedFormat::kSuperQ3, PackedFormat::kSuperQ4, PackedFormat::kSuperQ5,
        PackedFormat::kSuperQ6})
    isa[f].rounds = kRounds;
  return isa;
}

// Formats of floats, which both variants serve alike.
TileIsa WithFloats(TileIsa isa) {
  isa[PackedFormat::kF32] = {arm::TileF32, XKind::kFloat};
  isa[PackedFormat::kF16] = {arm::TileF16, XKind::kFloat};
  if (RunsHere(Isa::kArmBf16)) {
    isa.geometry.bf16_step = 4;
    isa[PackedFormat::kBf16] = {arm::TileBf16, XKind::kBf16};
  } else {
    isa[PackedFormat::kBf16] = {arm::TileBf16Wide, XKind::kFloat};
  }
  return isa;
}

const TileIsa& Dotprod() {
  static const TileIsa isa = [] {
    TileIsa out = WithFloats(
        TileIsa{.geometry = {.rows = 8, .step = 4, .bf16_step = 1, .halves = Halves::kMixed, .min_step = 4},
                // Neoverse N1: one stream without a prefetch reads 38 GB/s on two cores, four 30.
                .streams = 1,
                .x_tokens = kXUnitTokens,
                .x_bytes = XTokenBytes,
                .prepare = PrepareXToken,
                .columns = arm::kColumnsStep4});
    out[PackedFormat::kByte] = {arm::TileByteDotprod, XKind::kBlocks};
    out[PackedFormat::kByteMin] = {arm::TileByteMinDotprod, XKind::kBlocks};
    out[PackedFormat::kByteWide] = {arm::TileByteWideDotprod, XKind::kBlocks};
    out[PackedFormat::kByteRow] = {arm::TileByteWideDotprod, XKind::kBlocks};
    out[PackedFormat::kNibble] = {arm::TileNibbleDotprod, XKind::kNibbles};
    out[PackedFormat::kNibbleMin] = {arm::TileNibbleMinDotprod, XKind::kBlocks};
    out[PackedFormat::kLevels] = {arm::TileLevelsDotprod, XKind::kBlocks};
    out[PackedFormat::kLevelsIq4] = {arm::TileLevelsIq4Dotprod, XKind::kBlocks};
    out[PackedFormat::kSuperQ2] = {arm::TileSuperQ2Dotprod, XKind::kSupers};
    out[PackedFormat::kSuperQ3] = {arm::TileSuperQ3Dotprod, XKind::kSupers};
    out[PackedFormat::kSuperQ4] = {arm::TileSuperQ4Dotprod, XKind::kNibblesMin};
    out[PackedFormat::kSuperQ5] = {arm::TileSuperQ5Dotprod, XKind::kSupers};
    out[PackedFormat::kSuperQ6] = {arm::TileSuperQ6Dotprod, XKind::kSupers};
    return WithRounds(out);
  }();
  return isa;
}

const TileIsa& I8mm() {
  static const TileIsa isa = [] {
    TileIsa out = WithFloats(
        TileIsa{.geometry = {.rows = 8, .step = 8, .bf16_step = 1, .halves = Halves::kExcess, .gap = 128},
                .tile_groups = 3,  // 12 row pairs, which kernels take by threes
                .stream_tokens = 8,
                .few_groups = 3,
                .head_bytes = arm::kStreamAhead,
                .x_tokens = kXUnitTokens,
                .x_bytes = XPairBytes,
                .prepare = PrepareXPair,
                .columns = arm::kColumnsStep8});
    out[PackedFormat::kByte] = {arm::TileByteI8mm, XKind::kBlocks};
    out[PackedFormat::kByteMin] = {arm::TileByteMinI8mm, XKind::kBlocks};
    out[PackedFormat::kByteWide] = {arm::TileByteWideI8mm, XKind::kBlocks};
    out[PackedFormat::kByteRow] = {arm::TileByteWideI8mm, XKind::kBlocks};
    out[PackedFormat::kNibble] = {arm::TileNibbleI8mm, XKind::kNibbles};
    out[PackedFormat::kNibbleMin] = {arm::TileNibbleMinI8mm, XKind::kNibblesMin};
    out[PackedFormat::kLevels] = {arm::TileLevelsI8mm, XKind::kBlocks};
    out[PackedFormat::kLevelsIq4] = {arm::TileLevelsIq4I8mm, XKind::kBlocks};
    out[PackedFormat::kSuperQ2] = {arm::TileSuperQ2I8mm, XKind::kSupers};
    out[PackedFormat::kSuperQ3] = {arm::TileSuperQ3I8mm, XKind::kSupers};
    out[PackedFormat::kSuperQ4] = {arm::TileSuperQ4I8mm, XKind::kSupers};
    out[PackedFormat::kSuperQ5] = {arm::TileSuperQ5I8mm, XKind::kSupers};
    out[PackedFormat::kSuperQ6] = {arm::TileSuperQ6I8mm, XKind::kSupers};
    return WithRounds(out);
  }();
  return isa;
}

}  // namespace

const MatmulKernels kMatmulArmDotprod = MakeTileKernels<Dotprod, kMatmulArmDotprod>("arm_dotprod");
const MatmulKernels kMatmulArmI8mm = MakeTileKernels<I8mm, kMatmulArmI8mm>("arm_i8mm");

}  // namespace celer
#endif
