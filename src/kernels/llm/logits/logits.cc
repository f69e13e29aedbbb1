#include "kernels/llm/logits/logits.h"

#include "kernels/llm/low_rank/adapted.h"
#include "kernels/shared/tanh_lanes.h"

namespace celer {
namespace {

// Some logits of one row, from their products with the head; row is that of the head.
void FinishLogits(const LogitsArgs& args, const float* sums, int64_t row, int64_t n, float* out) {
  using S = Simd;
  const S::F scale = S::Set(args.scale), cap = S::Set(args.softcap), inverse = S::Set(1 / args.softcap);
  for (int64_t i = 0; i < n; i += S::kLanes) {
    const int64_t some = n - i < S::kLanes ? n - i : S::kLanes;
    S::F logit = LoadSome(sums + i, some);
    if (args.bias) logit = S::Add(logit, LoadSome(args.bias + row + i, some));
    logit = S::Mul(logit, scale);
    if (args.softcap != 0) logit = SoftCap(logit, cap, inverse);
    StoreSome(out + i, logit, some);
  }
}

}  // namespace

void Logits(const LogitsArgs& args) {
  Logits(args, {});
}

void Logits(const LogitsArgs& args, const LowRankBatch& added) {
  const int64_t stride = args.head.rows;
  MatmulArgs product = {.x = args.x,
                        .x_rows = args.rows.data(),
                        .tokens = static_cast<int64_t>(args.rows.size()),
                        .norm = args.norm,
                        .layer_norm = args.layer_norm,
                        .norm_bias = args.norm_bias,
                        .eps = args.eps,
                        .pool = args.pool};
  if (args.scale == 1 && args.softcap == 0)
    return Matmul(product, {.w = args.head, .bias = args.bias, .out = args.out, .out_stride = stride}, added);
  const auto each_tile = [&](const MatmulTile& tile) {
    for (int64_t t = tile.token_begin; t < tile.token_end; ++t)
      FinishLogits(args, tile.sums[0] + (t - tile.token_begin) * tile.strides[0], tile.row_begin,
                   tile.row_end - tile.row_begin, args.out + t * stride + tile.row_begin);
  };
  const MatmulArgs::Finish finish = each_tile;
  product.finish = &finish;
  Matmul(product, {.w = args.head, .out = args.out, .out_stride = stride}, added);
}

}  // namespace celer
