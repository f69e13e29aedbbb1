#include "kernels/qkv/qkv.h"

#include "core/check.h"
#include "formats/decode.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

namespace celer {
namespace {

void Rotate(float* head, const float* cos, const float* sin, int64_t dim, RopeLayout layout) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& a = layout == RopeLayout::kHalf ? head[i] : head[2 * i];
    float& b = layout == RopeLayout::kHalf ? head[i + half] : head[2 * i + 1];
    const float x = a, y = b;
    a = x * cos[i] - y * sin[i];
    b = y * cos[i] + x * sin[i];
  }
}

// qk-norm and rope on all heads of one token.
void FinishHeads(const QkvArgs& args, float* heads, int64_t count, const float* norm, int64_t token) {
  const int64_t dim = args.kv.head_dim;
  if (norm) RmsNorm({.x = heads, .weight = norm, .eps = args.eps, .rows = count, .cols = dim, .out = heads});
  const int64_t table = token * (args.rope_dim / 2);
  for (int64_t h = 0; h < count; ++h)
    Rotate(heads + h * dim, args.rope_cos + table, args.rope_sin + table, args.rope_dim, args.layout);
}

void Append(const QkvArgs& args, int64_t seq, int64_t token, const float* k, const float* v) {
  const int64_t dim = args.kv.head_dim;
  const int64_t position = args.batch.positions[static_cast<size_t>(token)];
  const int64_t block =
      args.batch
          .block_table[static_cast<size_t>(seq * args.batch.max_blocks + position / args.kv.block_size)];
  for (int64_t h = 0; h < args.kv.kv_heads; ++h) {
    const int64_t offset =
        args.kv.Row(block, h, position % args.kv.block_size) * Info(args.kv.dtype).block_bytes;
    EncodeRow(args.kv.dtype, k + h * dim, dim, args.kv.k + offset);
    EncodeRow(args.kv.dtype, v + h * dim, dim, args.kv.v + offset);
  }
}

}  // namespace

void Qkv(const QkvArgs& args) {
  const int64_t tokens = args.batch.token_count();
  const int64_t hidden = args.q.cols;
  const int64_t dim = args.kv.head_dim;
  CELER_CHECK_EQ(args.q.rows, args.heads * dim);
  CELER_CHECK_EQ(args.k.rows, args.kv.kv_heads * dim);
  CELER_CHECK_LE(args.rope_dim, dim);

  RmsNorm({.x = args.x,
           .weight = args.norm,
           .eps = args.eps,
           .rows = tokens,
           .cols = hidden,
           .out = args.normed});
  const auto project = [&](const WeightView& w, const float* bias, float* out) {
    Matmul({.x = args.normed,
            .tokens = tokens,
            .w = w,
            .bias = bias,
            .out = out,
            .out_stride = w.rows,
            .pool = args.pool});
  };
  project(args.q, args.q_bias, args.q_out);
  project(args.k, args.k_bias, args.k_out);
  project(args.v, args.v_bias, args.v_out);

  for (int64_t s = 0; s < args.batch.seqs(); ++s) {
    const int64_t begin = args.batch.seq_start[static_cast<size_t>(s)];
    const int64_t end = args.batch.seq_start[static_cast<size_t>(s + 1)];
    args.pool->ParallelFor(end - begin, 8, [&](int64_t from, int64_t to) {
      for (int64_t t = begin + from; t < begin + to; ++t) {
        float* k = args.k_out + t * args.k.rows;
        FinishHeads(args, args.q_out + t * args.q.rows, args.heads, args.q_norm, t);
        FinishHeads(args, k, args.kv.kv_heads, args.k_norm, t);
        Append(args, s, t, k, args.v_out + t * args.v.rows);
      }
    });
  }
}

}  // namespace celer
