#include "kernels/llm/latent/head_product.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "formats/decode.h"
#include "kernels/llm/latent/head_tile_lanes.h"

namespace celer {
namespace {

constexpr Variant<HeadTileFn> kHeadTile[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, x86::HeadTileRowsAvx512},
    {"x86_avx2", Isa::kAvx2, x86::HeadTileRowsAvx2},
#endif
    {"portable", Isa::kBaseline, portable::HeadTileRows},
    {"reference", Isa::kBaseline, reference::HeadTileRows},
};

DType TypeOf(HeadWeights kind) {
  return kind == HeadWeights::kF32 ? DType::kF32 : kind == HeadWeights::kF16 ? DType::kF16 : DType::kBf16;
}

HeadWeights KindOf(const WeightView& w) {
  CELER_CHECK(w.kind == WeightKind::kStored && IsHeadWeight(w.dtype) && w.data);
  return w.dtype == DType::kF32   ? HeadWeights::kF32
         : w.dtype == DType::kF16 ? HeadWeights::kF16
                                  : HeadWeights::kBf16;
}

}  // namespace

void portable::HeadTileRows(const HeadTile& tile) {
  HeadTileRowsLanes(tile);
}

void reference::HeadTileRows(const HeadTile& tile) {
  std::vector<float> w(static_cast<size_t>(tile.cols));
  for (int64_t r = 0; r < tile.rows; ++r) {
    DecodeRow(TypeOf(tile.kind), reinterpret_cast<const std::byte*>(tile.w + r * tile.row_bytes), tile.cols,
              w.data());
    for (int64_t t = 0; t < tile.tokens; ++t) {
      double sum = 0;
      for (int64_t d = 0; d < tile.cols; ++d) sum += double{w[d]} * tile.x[t * tile.x_stride + d];
      tile.out[t * tile.out_stride + r] = static_cast<float>(sum);
    }
  }
}

std::span<const Variant<HeadTileFn>> HeadTileVariants() {
  return kHeadTile;
}

bool IsHeadWeight(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

void HeadProduct(const HeadProductArgs& args) {
  static const HeadTileFn run = Pick<HeadTileFn>("head_product", kHeadTile)->run;
  HeadProduct(args, run);
}

void HeadProduct(const HeadProductArgs& args, HeadTileFn run) {
  constexpr int64_t kRowsAtOnce = 128;  // of weights, which stay in a cache for all tokens
  const HeadWeights kind = KindOf(args.w);
  CELER_CHECK(args.pool && args.heads > 0);
  CELER_CHECK_EQ(args.w.rows % args.heads, 0);
  const int64_t rows = args.w.rows / args.heads, parts = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  args.pool->ParallelFor(args.heads * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / parts, row = i % parts * kRowsAtOnce;
      run({.kind = kind,
           .w = reinterpret_cast<const uint8_t*>(args.w.Row(head * rows + row)),
           .row_bytes = args.w.row_bytes,
           .rows = std::min(kRowsAtOnce, rows - row),
           .cols = args.w.cols,
           .x = args.x + head * args.x_head,
           .x_stride = args.x_token,
           .tokens = args.tokens,
           .out = args.out + head * args.out_head + row,
           .out_stride = args.out_token});
    }
  });
}

}  // namespace celer
