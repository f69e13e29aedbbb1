// Dequantizes four weight rows at a time and multiplies them with four tokens at a time: each weight is used
// for every token while it is in the L1 cache, and sixteen accumulators stay in registers.
#include <algorithm>
#include <vector>

#include "kernels/llm/matmul/matmul.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

constexpr int kRows = 4;
constexpr int kTokens = 4;

// out[t][r] = x_t . w_r over cols. Each sum runs over four lanes in the order of the columns, whatever kT and
// kR are.
template <int kR, int kT>
void Tile(const float* const* w, const float* x, int64_t cols, float out[kTokens][kRows]) {
  vec::F32x4 sum[kT][kR] = {};
  int64_t c = 0;
  for (; c + 4 <= cols; c += 4) {
    vec::F32x4 wv[kR];
    for (int r = 0; r < kR; ++r) wv[r] = vec::Load(w[r] + c);
    for (int t = 0; t < kT; ++t) {
      const vec::F32x4 xv = vec::Load(x + t * cols + c);
      for (int r = 0; r < kR; ++r) sum[t][r] += xv * wv[r];
    }
  }
  for (int t = 0; t < kT; ++t) {
    for (int r = 0; r < kR; ++r) {
      float total = vec::Sum(sum[t][r]);
      for (int64_t i = c; i < cols; ++i) total += x[t * cols + i] * w[r][i];
      out[t][r] = total;
    }
  }
}

template <int kR>
void TileTokens(const float* const* w, const float* x, int64_t cols, int64_t tokens,
                float out[kTokens][kRows]) {
  switch (tokens) {
    case 1:
      return Tile<kR, 1>(w, x, cols, out);
    case 2:
      return Tile<kR, 2>(w, x, cols, out);
    case 3:
      return Tile<kR, 3>(w, x, cols, out);
    default:
      return Tile<kR, 4>(w, x, cols, out);
  }
}

void Run(const MatmulArgs& args) {
  std::vector<float> scratch(args.tokens * args.outputs[0].w.cols);
  const float* x = PlainInput(args, scratch);
  for (const MatmulOutput& to : args.outputs) PortableProduct(to, x, args.tokens, *args.pool);
  if (args.finish)
    args.pool->ParallelFor(args.tokens, 1, [&](int64_t begin, int64_t end) {
      (*args.finish)(StoredTile(args.outputs, begin, end, 0, args.outputs[0].w.rows));
    });
}

}  // namespace

void NormInputRow(const MatmulArgs& args, const float* x, float* out) {
  const int64_t cols = args.outputs[0].w.cols;
  if (args.layer_norm)
    LayerNorm({.x = x,
               .scale = args.norm,
               .shift = args.norm_bias,
               .eps = args.eps,
               .out = out,
               .rows = 1,
               .cols = cols});
  else
    RmsNorm({.x = x, .weight = args.norm, .eps = args.eps, .rows = 1, .cols = cols, .out = out});
}

const float* PlainInput(const MatmulArgs& args, std::span<float> scratch) {
  if (!args.norm && !args.x_rows) return args.x;
  const int64_t cols = args.outputs[0].w.cols;
  args.pool->ParallelFor(args.tokens, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* row = args.x + (args.x_rows ? args.x_rows[t] : t) * cols;
      float* out = scratch.data() + t * cols;
      if (args.norm)
        NormInputRow(args, row, out);
      else
        std::copy_n(row, cols, out);
    }
  });
  return scratch.data();
}

void PortableProduct(const MatmulOutput& to, const float* x, int64_t tokens_all, ThreadPool& pool) {
  const int64_t cols = to.w.cols;
  // f32 rows are multiplied in place when that is allowed by their alignment; everything else is dequantized.
  const bool in_place = to.w.kind == WeightView::Kind::kStored && to.w.dtype == DType::kF32 &&
                        reinterpret_cast<uintptr_t>(to.w.data) % alignof(float) == 0;
  pool.ParallelFor(to.w.rows, kRows, [&](int64_t begin, int64_t end) {
    std::vector<float> panel(in_place ? 0 : static_cast<size_t>(kRows * cols));
    for (int64_t r = begin; r < end; r += kRows) {
      const int64_t rows = std::min<int64_t>(kRows, end - r);
      const float* w[kRows];
      for (int64_t i = 0; i < rows; ++i) {
        if (in_place) {
          w[i] = reinterpret_cast<const float*>(to.w.Row(r + i));
        } else {
          DecodeWeightRow(to.w, r + i, panel.data() + i * cols);
          w[i] = panel.data() + i * cols;
        }
      }
      for (int64_t t = 0; t < tokens_all; t += kTokens) {
        const int64_t tokens = std::min<int64_t>(kTokens, tokens_all - t);
        float tile[kTokens][kRows];
        if (rows == kRows) {
          TileTokens<kRows>(w, x + t * cols, cols, tokens, tile);
        } else {
          for (int64_t i = 0; i < rows; ++i) {
            float column[kTokens][kRows];
            TileTokens<1>(w + i, x + t * cols, cols, tokens, column);
            for (int64_t j = 0; j < tokens; ++j) tile[j][i] = column[j][0];
          }
        }
        StoreTile(to, r, rows, t, tokens, &tile[0][0], kRows);
      }
    }
  });
}

const MatmulKernels kMatmulPortable{.name = "portable", .run = Run};

}  // namespace celer
