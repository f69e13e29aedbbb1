#include "kernels/llm/qkv/qkv.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/llm/kv_row.h"
#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/network/rows/rows.h"

namespace celer {
namespace {

using NormSpan = QkNormForm::Span;

// The qk-norm of queries or keys.
struct QkNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

void NormRows(const QkvArgs& args, float* x, const QkNorm& norm, int64_t rows, int64_t cols) {
  if (args.norm_form.layer_norm)
    LayerNorm({.x = x,
               .scale = norm.weight,
               .shift = norm.bias,
               .eps = args.eps,
               .out = x,
               .rows = rows,
               .cols = cols});
  else
    RmsNorm({.x = x, .weight = norm.weight, .eps = args.eps, .rows = rows, .cols = cols, .out = x});
}

// qk-norm of heads [head, head + count), which may have been done for the whole row already.
void NormHeads(const QkvArgs& args, float* heads, int64_t head, int64_t count, const QkNorm& norm) {
  const int64_t dim = args.kv.head_dim;
  if (!norm.weight || args.norm_form.span == NormSpan::kRow) return;
  if (args.norm_form.span == NormSpan::kHead) return NormRows(args, heads, norm, count, dim);
  for (int64_t h = 0; h < count; ++h)
    NormRows(args, heads + h * dim, {.weight = norm.weight + (head + h) * dim}, 1, dim);
}

// qk-norm and rope on some heads of one token, `heads` being the first of them.
void FinishHeads(const QkvArgs& args, float* heads, int64_t head, int64_t count, const QkNorm& norm,
                 int64_t token) {
  if (!args.norm_form.after_rope) NormHeads(args, heads, head, count, norm);
  if (args.rope_cos) {
    const int64_t table = token * (args.rope_dim / 2);
    RotateHeads(heads, count, args.kv.head_dim, args.rope_cos + table, args.rope_sin + table, args.rope_dim,
                args.layout);
  }
  if (args.norm_form.after_rope) NormHeads(args, heads, head, count, norm);
}

void Clip(float* x, int64_t n, float most) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < -most ? -most : x[i] > most ? most : x[i];  // NaN stays
}

// The queries of heads [head, head + count) from among their gates.
void TakeQueries(const QkvArgs& args, int64_t token, int64_t head, int64_t count) {
  const int64_t dim = args.kv.head_dim, first = token * args.heads + head;
  for (int64_t h = first; h < first + count; ++h)
    std::copy_n(args.gated_out + 2 * h * dim, dim, args.q_out + h * dim);
}

// qk-norm over all heads of a token together.
void NormRow(const QkvArgs& args, int64_t token) {
  const int64_t q_cols = args.heads * args.kv.head_dim;
  if (args.q_norm) NormRows(args, args.q_out + token * q_cols, {args.q_norm, args.q_norm_bias}, 1, q_cols);
  if (args.k_norm && args.k)
    NormRows(args, args.k_out + token * args.k.rows, {args.k_norm, args.k_norm_bias}, 1, args.k.rows);
}

void Append(const QkvArgs& args, int64_t seq, int64_t token, int64_t head_begin, int64_t head_end) {
  const int64_t dim = args.kv.head_dim;
  const int64_t position = args.batch.positions[token];
  const int64_t block = args.batch.block_table[seq * args.batch.max_blocks + position / args.kv.block_size];
  const int64_t slot = position % args.kv.block_size;
  for (int64_t h = head_begin; h < head_end; ++h) {
    StoreKvRow(args.kv, args.kv.k, block, h, slot, args.k_out + token * args.k.rows + h * dim);
    StoreKvRow(args.kv, args.kv.v, block, h, slot, args.v_out + token * args.k.rows + h * dim);
  }
}

// The values of some heads of one token, before their keys are changed.
void FinishValues(const QkvArgs& args, int64_t token, int64_t head_begin, int64_t heads) {
  const int64_t dim = args.kv.head_dim, at = token * args.k.rows + head_begin * dim;
  float* const v = args.v_out + at;
  if (!args.v) std::copy_n(args.k_out + at, heads * dim, v);
  if (args.v_norm)
    RmsNorm({.x = v, .weight = args.v_norm, .eps = args.eps, .rows = heads, .cols = dim, .out = v});
}

// Prefetches the first keys and values of a sequence, with which attention to it begins: those that follow
// are prefetched while it works.
void PrefetchFirstKeys(const QkvArgs& args, int64_t seq, int64_t token, int64_t head_begin,
                       int64_t head_end) {
  constexpr int64_t kKeys = 64, kLine = 64;
  const KvLayerView& kv = args.kv;
  const int64_t keys = std::min<int64_t>(args.batch.positions[token] + 1, kKeys);
  for (int64_t h = head_begin; h < head_end; ++h)
    for (int64_t key = 0; key < keys; key += kv.block_size) {
      const int64_t block = args.batch.block_table[seq * args.batch.max_blocks + key / kv.block_size];
      const int64_t at = kv.RowOffset(block, h, 0),
                    bytes = std::min(keys - key, kv.block_size) * kv.RowBytes();
      for (int64_t i = 0; i < bytes; i += kLine) {
        __builtin_prefetch(kv.k + at + i);
        __builtin_prefetch(kv.v + at + i);
      }
    }
  asm volatile("");  // else g++ takes this for a function without effect and removes the call
}

// What is left to do for the tokens of [begin, end), for some kv heads and their queries.
void Finish(const QkvArgs& args, int64_t begin, int64_t end, int64_t head_begin, int64_t head_end) {
  const int64_t dim = args.kv.head_dim, group = args.heads / args.kv.kv_heads, heads = head_end - head_begin;
  int64_t seq = 0;
  for (int64_t t = begin; t < end; ++t) {
    while (args.batch.seq_start[seq + 1] <= t) ++seq;
    if (end - begin == 1) PrefetchFirstKeys(args, seq, t, head_begin, head_end);
    float* const q = args.q_out + (t * args.heads + head_begin * group) * dim;
    if (args.gated_out) TakeQueries(args, t, head_begin * group, heads * group);
    if (args.clip > 0) {
      Clip(q, heads * group * dim, args.clip);
      Clip(args.k_out + t * args.k.rows + head_begin * dim, heads * dim, args.clip);
      Clip(args.v_out + t * args.v.rows + head_begin * dim, heads * dim, args.clip);
    }
    FinishHeads(args, q, head_begin * group, heads * group, {args.q_norm, args.q_norm_bias}, t);
    if (args.q_scale)
      for (int64_t i = 0; i < heads * group * dim; ++i) q[i] *= args.q_scale[t];
    if (!args.k) continue;
    FinishValues(args, t, head_begin, heads);
    FinishHeads(args, args.k_out + t * args.k.rows + head_begin * dim, head_begin, heads,
                {args.k_norm, args.k_norm_bias}, t);
    Append(args, seq, t, head_begin, head_end);
  }
}

}  // namespace

void Qkv(const QkvArgs& args) {
  Qkv(args, {});
}

void Qkv(const QkvArgs& args, const LowRankBatch& added) {
  const int64_t tokens = args.batch.token_count();
  const int64_t dim = args.kv.head_dim;
  CELER_CHECK_EQ(args.q.rows, args.heads * dim * (args.gated_out ? 2 : 1));
  CELER_CHECK_EQ(args.k.rows, args.k ? args.kv.kv_heads * dim : 0);
  CELER_CHECK_EQ(args.v.rows, args.v ? args.k.rows : 0);
  CELER_CHECK_LE(args.rope_dim, dim);

  const MatmulOutput outputs[] = {
      {.w = args.q,
       .bias = args.q_bias,
       .out = args.gated_out ? args.gated_out : args.q_out,
       .out_stride = args.q.rows},
      {.w = args.k, .bias = args.k_bias, .out = args.k_out, .out_stride = args.k.rows},
      {.w = args.v, .bias = args.v_bias, .out = args.v_out, .out_stride = args.v.rows}};
  const size_t count = !args.k ? 1 : args.v ? 3 : 2;
  Matmul({.x = args.x,
          .tokens = tokens,
          .norm = args.norm,
          .layer_norm = args.layer_norm,
          .norm_bias = args.norm_bias,
          .eps = args.eps,
          .outputs = std::span(outputs).first(count),
          .pool = args.pool},
         added);

  // Few tokens on few threads: each takes some heads, mostly those whose rows it has just computed. More
  // threads would take longer to join than one does for all. With channel_keys each takes the tokens of a block
  // in their order.
  constexpr int64_t kGrain = 8;
  constexpr int kThreads = 4;
  const int64_t heads = args.kv.kv_heads;
  const bool whole_rows = args.norm_form.span == NormSpan::kRow;
  if (args.kv.channel_keys || (tokens <= kGrain && args.pool->size() <= kThreads)) {
    for (int64_t t = 0; whole_rows && t < tokens; ++t) NormRow(args, t);
    return args.pool->ParallelFor(heads, 1,
                                  [&](int64_t begin, int64_t end) { Finish(args, 0, tokens, begin, end); });
  }
  args.pool->ParallelFor(tokens, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; whole_rows && t < end; ++t) NormRow(args, t);
    Finish(args, begin, end, 0, heads);
  });
}

}  // namespace celer
