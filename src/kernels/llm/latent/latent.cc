#include "kernels/llm/latent/latent.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/llm/kv_row.h"
#include "kernels/llm/latent/head_product.h"
#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/llm/rope/rotate.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

// Norm and rope of the rows of some tokens, and the append to the paged KV.
void AppendRows(const LatentQkvArgs& args, int64_t begin, int64_t end) {
  const RaggedBatch& batch = args.batch;
  const int64_t width = args.kv_rank + args.rope_dim, half = args.rope_dim / 2;
  int64_t seq = 0;
  for (int64_t t = begin; t < end; ++t) {
    while (batch.seq_start[seq + 1] <= t) ++seq;
    float* const row = args.kv_row + t * width;
    RmsNorm({.x = row,
             .weight = args.kv_a_norm,
             .eps = args.latent_eps,
             .rows = 1,
             .cols = args.kv_rank,
             .out = row});
    RotateHeads(row + args.kv_rank, 1, args.rope_dim, args.rope_cos + t * half, args.rope_sin + t * half,
                args.rope_dim, args.layout);
    const int64_t position = batch.positions[t];
    const int64_t block = batch.block_table[seq * batch.max_blocks + position / args.kv.block_size];
    StoreKvRow(args.kv, args.kv.k, block, 0, position % args.kv.block_size, row);
  }
}

// The rotated part of some tokens' queries, behind where their latent part goes.
void RotateQueries(const LatentQkvArgs& args, int64_t begin, int64_t end) {
  const int64_t from_dim = args.nope_dim + args.rope_dim, to_dim = args.kv_rank + args.rope_dim,
                half = args.rope_dim / 2;
  for (int64_t t = begin; t < end; ++t) {
    const float* from = args.q_heads + t * args.heads * from_dim + args.nope_dim;
    float* const to = args.q_out + t * args.heads * to_dim + args.kv_rank;
    for (int64_t h = 0; h < args.heads; ++h) std::copy_n(from + h * from_dim, args.rope_dim, to + h * to_dim);
    RotateHeads(to, args.heads, to_dim, args.rope_cos + t * half, args.rope_sin + t * half, args.rope_dim,
                args.layout);
  }
}

// What terms add to a product of heads. b is [rank, heads * rows] of a head's own; `turned`, the product is by W', so
// that it reads what b gives and gives what a reads.
void AddHeads(const HeadProductArgs& args, const LowRankBatch& added, bool turned) {
  if (!added.Touches(args.w)) return;
  const int64_t latent = turned ? args.w.rows / args.heads : args.w.cols,
                rows = turned ? args.w.cols : args.w.rows / args.heads;
  args.pool->ParallelFor(args.tokens, /*grain=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (const LowRankUse& use : added.Of(t)) {
        const LowRankTerm* const term = use.terms->Find(args.w);
        for (int64_t i = 0; term && i < args.heads * term->rank; ++i) {
          const int64_t h = i / term->rank, r = i % term->rank;
          const float* const x = args.x + t * args.x_token + h * args.x_head;
          float* const out = args.out + t * args.out_token + h * args.out_head;
          const float *const a = term->a + r * latent, *const b = term->b + (r * args.heads + h) * rows;
          if (turned)
            vec::Axpy(use.scale * vec::Dot(b, x, rows), a, out, latent);
          else
            vec::Axpy(use.scale * vec::Dot(a, x, latent), b, out, rows);
        }
      }
  });
}

void Project(const LatentQkvArgs& args, const LowRankBatch& added) {
  const MatmulOutput kv = {
      .w = args.kv_a, .bias = args.kv_a_bias, .out = args.kv_row, .out_stride = args.kv_a.rows};
  const MatmulOutput q = {.w = args.q_b, .out = args.q_heads, .out_stride = args.q_b.rows};
  const MatmulOutput first =
      args.q_a
          ? MatmulOutput{.w = args.q_a, .bias = args.q_a_bias, .out = args.q_low, .out_stride = args.q_a.rows}
          : q;
  const MatmulOutput outputs[] = {first, kv};
  const int64_t tokens = args.batch.token_count();
  Matmul({.x = args.x,
          .tokens = tokens,
          .norm = args.norm,
          .eps = args.eps,
          .outputs = outputs,
          .pool = args.pool},
         added);
  if (!args.q_a) return;
  Matmul(
      {.x = args.q_low, .tokens = tokens, .norm = args.q_a_norm, .eps = args.latent_eps, .pool = args.pool},
      q, added);
}

}  // namespace

void LatentQkv(const LatentQkvArgs& args) {
  LatentQkv(args, {});
}

void LatentQkv(const LatentQkvArgs& args, const LowRankBatch& added) {
  const int64_t tokens = args.batch.token_count(), head = args.nope_dim + args.rope_dim,
                width = args.kv_rank + args.rope_dim;
  CELER_CHECK_EQ(args.q_b.rows, args.heads * head);
  CELER_CHECK_EQ(args.kv_a.rows, width);
  CELER_CHECK_EQ(args.k_b.rows, args.heads * args.kv_rank);
  CELER_CHECK_EQ(args.kv.head_dim, width);
  CELER_CHECK_EQ(args.kv.kv_heads, 1);
  Project(args, added);

  constexpr int64_t kGrain = 8;
  // With channel_keys the tokens of a block come in their order.
  if (args.kv.channel_keys)
    AppendRows(args, 0, tokens);
  else
    args.pool->ParallelFor(tokens, kGrain, [&](int64_t begin, int64_t end) { AppendRows(args, begin, end); });
  args.pool->ParallelFor(tokens, kGrain,
                         [&](int64_t begin, int64_t end) { RotateQueries(args, begin, end); });
  const HeadProductArgs keys = {.w = args.k_b,
                                .heads = args.heads,
                                .tokens = tokens,
                                .x = args.q_heads,
                                .x_token = args.heads * head,
                                .x_head = head,
                                .out = args.q_out,
                                .out_token = args.heads * width,
                                .out_head = width,
                                .pool = args.pool};
  HeadProduct(keys);
  AddHeads(keys, added, /*turned=*/true);
}

void LatentValues(const LatentValuesArgs& args) {
  LatentValues(args, {});
}

void LatentValues(const LatentValuesArgs& args, const LowRankBatch& added) {
  CELER_CHECK_EQ(args.v_b.rows % args.heads, 0);
  const int64_t dim = args.v_b.rows / args.heads;
  const HeadProductArgs values = {.w = args.v_b,
                                  .heads = args.heads,
                                  .tokens = args.tokens,
                                  .x = args.attention,
                                  .x_token = args.heads * args.row,
                                  .x_head = args.row,
                                  .out = args.out,
                                  .out_token = args.heads * dim,
                                  .out_head = dim,
                                  .pool = args.pool};
  HeadProduct(values);
  AddHeads(values, added, /*turned=*/false);
}

}  // namespace celer
