#include "kernels/qkv/qkv.h"

#include "core/check.h"
#include "kernels/kv_row.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

namespace celer {
namespace {

// qk-norm and rope on all heads of one token.
void FinishHeads(const QkvArgs& args, float* heads, int64_t count, const float* norm, int64_t token) {
  const int64_t dim = args.kv.head_dim;
  if (norm) RmsNorm({.x = heads, .weight = norm, .eps = args.eps, .rows = count, .cols = dim, .out = heads});
  const int64_t table = token * (args.rope_dim / 2);
  RotateHeads(heads, count, dim, args.rope_cos + table, args.rope_sin + table, args.rope_dim, args.layout);
}

void Append(const QkvArgs& args, int64_t seq, int64_t token, const float* k, const float* v) {
  const int64_t dim = args.kv.head_dim;
  const int64_t position = args.batch.positions[static_cast<size_t>(token)];
  const int64_t block =
      args.batch
          .block_table[static_cast<size_t>(seq * args.batch.max_blocks + position / args.kv.block_size)];
  const int64_t slot = position % args.kv.block_size;
  for (int64_t h = 0; h < args.kv.kv_heads; ++h) {
    StoreKvRow(args.kv, args.kv.k, block, h, slot, k + h * dim);
    StoreKvRow(args.kv, args.kv.v, block, h, slot, v + h * dim);
  }
}

}  // namespace

void Qkv(const QkvArgs& args) {
  const int64_t tokens = args.batch.token_count();
  const int64_t dim = args.kv.head_dim;
  CELER_CHECK_EQ(args.q.rows, args.heads * dim);
  CELER_CHECK_EQ(args.k.rows, args.kv.kv_heads * dim);
  CELER_CHECK_LE(args.rope_dim, dim);

  const MatmulOutput outputs[] = {
      {.w = args.q, .bias = args.q_bias, .out = args.q_out, .out_stride = args.q.rows},
      {.w = args.k, .bias = args.k_bias, .out = args.k_out, .out_stride = args.k.rows},
      {.w = args.v, .bias = args.v_bias, .out = args.v_out, .out_stride = args.v.rows}};
  Matmul({.x = args.x,
          .tokens = tokens,
          .norm = args.norm,
          .eps = args.eps,
          .outputs = outputs,
          .pool = args.pool});

  args.pool->ParallelFor(tokens, 8, [&](int64_t begin, int64_t end) {
    int64_t seq = 0;
    for (int64_t t = begin; t < end; ++t) {
      while (args.batch.seq_start[static_cast<size_t>(seq + 1)] <= t) ++seq;
      float* k = args.k_out + t * args.k.rows;
      FinishHeads(args, args.q_out + t * args.q.rows, args.heads, args.q_norm, t);
      FinishHeads(args, k, args.kv.kv_heads, args.k_norm, t);
      Append(args, seq, t, k, args.v_out + t * args.v.rows);
    }
  });
}

}  // namespace celer
