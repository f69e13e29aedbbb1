#include "kernels/network/dense_attention/dense_attention.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/network/elementwise/elementwise.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer {
namespace {

constexpr int64_t kScoreFloats = 32 << 10;  // of one block of queries: a part of the L2 cache
constexpr int64_t kMostRows = 64;

int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Where things are in the workspace, and how queries are cut.
struct Layout {
  int64_t rows = 0;                      // of a block of queries
  int64_t score_stride = 0, k_step = 0;  //
  int64_t k_floats = 0, v_floats = 0;    // packed, of one head
  int64_t q_floats = 0, score_floats = 0, p_floats = 0;

  int64_t thread_floats() const { return q_floats + score_floats + p_floats; }
};

Layout LayoutFor(const AttentionShape& s, const GemmKernels& kernels) {
  Layout l;
  l.score_stride = RoundUp(s.tokens, 16);
  const int64_t most = std::min(kMostRows, kScoreFloats / std::max<int64_t>(l.score_stride, 1));
  const int64_t unit = kernels.mr, all = RoundUp(s.q_tokens, unit);
  l.rows = std::min(all, std::max(most / unit * unit, unit));
  // Of about equal size.
  const int64_t blocks = l.rows > 0 ? (all + l.rows - 1) / l.rows : 1;
  l.rows = RoundUp((all + blocks - 1) / blocks, unit);
  l.k_step = std::min(kernels.k_block, s.tokens);
  l.k_floats = GemmPackedBFloats(s.width, s.tokens, kernels);
  l.v_floats = GemmPackedBFloats(s.tokens, s.v_width, kernels);
  l.q_floats = GemmPackedAFloats(l.rows, s.width, kernels);
  l.score_floats = l.rows * l.score_stride;
  l.p_floats = GemmPackedAFloats(l.rows, l.k_step, kernels);
  return l;
}

struct Job {
  const DenseAttentionArgs& args;
  const GemmKernels& kernels;
  const Layout& l;

  const float* At(const AttentionOperand& x, int64_t head) const {
    return x.data + head / args.shape.inner * x.outer_stride + head % args.shape.inner * x.inner_stride;
  }
  float* PackedK(int64_t head) const { return args.workspace + head * (l.k_floats + l.v_floats); }
  float* PackedV(int64_t head) const { return PackedK(head) + l.k_floats; }

  void Pack(int64_t head) const {
    const AttentionShape& s = args.shape;
    GemmPackB({.data = At(args.k, head), .row_stride = args.k.row_stride, .col_stride = args.k.col_stride},
              s.width, s.tokens, PackedK(head), kernels);
    GemmPackB({.data = At(args.v, head), .row_stride = args.v.row_stride, .col_stride = args.v.col_stride},
              s.tokens, s.v_width, PackedV(head), kernels);
  }

  void Probabilities(int64_t head, int64_t first, int64_t rows, float* scores) const {
    const AttentionShape& s = args.shape;
    for (int64_t r = 0; r < rows; ++r) {
      float* const row = scores + r * l.score_stride;
      if (args.scale != 1) BinaryRow(Binary::kMul, {}, row, 1, &args.scale, 0, row, s.tokens);
      if (args.mask.data)
        BinaryRow(Binary::kAdd, {}, row, 1, At(args.mask, head) + (first + r) * args.mask.row_stride,
                  args.mask.col_stride, row, s.tokens);
      SoftmaxRow(row, row, s.tokens);
    }
  }

  void Block(int64_t head, int64_t first, float* scratch) const {
    const AttentionShape& s = args.shape;
    const int64_t rows = std::min(l.rows, s.q_tokens - first);
    float *const q = scratch, *const scores = q + l.q_floats, *const p = scores + l.score_floats;
    kernels.pack_a({.data = At(args.q, head) + first * args.q.row_stride,
                    .lane_stride = args.q.row_stride,
                    .k_stride = args.q.col_stride},
                   rows, s.width, q, s.width * kernels.mr);
    kernels.block({.m = rows,
                   .n = s.tokens,
                   .k = s.width,
                   .a = q,
                   .a_panel = s.width * kernels.mr,
                   .b = PackedK(head),
                   .b_panel = s.width * kernels.nr,
                   .out = scores,
                   .out_stride = l.score_stride,
                   .a_stays = true});
    Probabilities(head, first, rows, scores);
    float* const out = args.out + head / s.inner * args.out_outer_stride +
                       head % s.inner * args.out_inner_stride + first * args.out_row_stride;
    for (int64_t k = 0; k < s.tokens; k += l.k_step) {
      const int64_t steps = std::min(l.k_step, s.tokens - k);
      kernels.pack_a({.data = scores + k, .lane_stride = l.score_stride, .k_stride = 1}, rows, steps, p,
                     steps * kernels.mr);
      kernels.block({.m = rows,
                     .n = s.v_width,
                     .k = steps,
                     .a = p,
                     .a_panel = steps * kernels.mr,
                     .b = PackedV(head) + k * kernels.nr,
                     .b_panel = s.tokens * kernels.nr,
                     .out = out,
                     .out_stride = args.out_row_stride,
                     .accumulate = k > 0,
                     .finish = k + steps >= s.tokens,
                     .a_stays = true});
    }
  }
};

}  // namespace

int64_t DenseAttentionWorkspaceFloats(const AttentionShape& s, int threads) {
  const Layout l = LayoutFor(s, ChosenGemm());
  return s.outer * s.inner * (l.k_floats + l.v_floats) + threads * l.thread_floats();
}

void DenseAttention(const DenseAttentionArgs& args) {
  const AttentionShape& s = args.shape;
  const int64_t heads = s.outer * s.inner;
  CELER_CHECK(args.pool != nullptr);
  if (heads == 0 || s.q_tokens == 0 || s.v_width == 0) return;
  CELER_CHECK(s.tokens > 0 && s.width > 0);
  CELER_CHECK(args.q.data && args.k.data && args.v.data && args.out && args.workspace);
  CELER_CHECK(args.mask.col_stride == 0 || args.mask.col_stride == 1);
  const GemmKernels& kernels = ChosenGemm();
  const Layout l = LayoutFor(s, kernels);
  const Job job{args, kernels, l};
  args.pool->ParallelForDynamic(heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) job.Pack(head);
  });
  const int64_t blocks = (s.q_tokens + l.rows - 1) / l.rows, tasks = heads * blocks;
  float* const scratch = args.workspace + heads * (l.k_floats + l.v_floats);
  std::atomic<int64_t> next{0};
  args.pool->Run([&](int thread) {
    for (int64_t task = next++; task < tasks; task = next++)
      job.Block(task / blocks, task % blocks * l.rows, scratch + thread * l.thread_floats());
  });
}

}  // namespace celer
