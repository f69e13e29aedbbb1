// out[t, r] = norm(x[t, :]) . w[r, :] (+ bias[r]) (+ residual[t, r]): every projection of the decoder, for
// one matrix or for several that share their input.
//
// A row of `out` depends on its own row of `x` alone, bit for bit: any chunking of a prompt and any
// batch gives the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/function_ref.h"
#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct MatmulOutput {
  WeightView w = {};
  const float* bias = nullptr;      // [w.rows], or none
  const float* residual = nullptr;  // [tokens, w.rows], or none; may be out
  float* out = nullptr;             // [tokens, out_stride]
  int64_t out_stride = 0;           // >= w.rows
};

// Tokens [token_begin, token_end) times rows [row_begin, row_end) of every output, which may lie anywhere.
struct MatmulTile {
  int64_t token_begin = 0, token_end = 0, row_begin = 0, row_end = 0;
  static constexpr int kOutputs = 2;
  const float* sums[kOutputs] = {};  // of each output, from token_begin and row_begin on
  int64_t strides[kOutputs] = {};    // from one token to the next
};

struct MatmulArgs {
  const float* x = nullptr;         // [any, cols]
  const int32_t* x_rows = nullptr;  // token t is row x_rows[t] of x; none: row t
  int64_t tokens = 0;
  const float* norm = nullptr;  // [cols]: x is divided by its root mean square and multiplied with this first
  bool layer_norm = false;      // LayerNorm: of x less its mean
  const float* norm_bias = nullptr;  // [cols], of LayerNorm; may be none
  float eps = 1e-5f;
  std::span<const MatmulOutput> outputs = {};  // all with the same number of columns
  // Called once for each tile of tokens and rows as soon as every output has it, in parallel. Only for up to
  // MatmulTile::kOutputs outputs with the same number of rows and nothing to add. What is in their `out`
  // afterwards is undefined: tiles may never get there.
  using Finish = FunctionRef<void(const MatmulTile& tile)>;
  const Finish* finish = nullptr;
  ThreadPool* pool = nullptr;
};

// The granularity of a packed matrix: where slices of it can begin, and where they then are.
struct PackedGrid {
  int64_t rows = 1, cols = 1;  // parts begin at multiples of these
  int64_t group_bytes = 0;     // from `rows` rows to the next
  int64_t step_bytes = 0;      // from `cols` columns to the next, within those rows

  int64_t Offset(int64_t row, int64_t col) const {
    return row / rows * group_bytes + col / cols * step_bytes;
  }
};

// A variant: how it wants its weights, and how it runs. A variant without packed_bytes packs nothing.
struct MatmulKernels {
  std::string_view name = {};
  // Bytes of the matrix in this variant's own order; 0 when it reads this one as stored.
  int64_t (*packed_bytes)(const WeightView& w) = nullptr;
  void (*pack)(const WeightView& w, ThreadPool& pool, std::byte* out) = nullptr;
  PackedGrid (*grid)(const WeightView& w) = nullptr;
  void (*decode_row)(const WeightView& w, int64_t row, float* out) = nullptr;  // of a packed matrix
  void (*run)(const MatmulArgs& args) = nullptr;
};
using MatmulVariant = Variant<const MatmulKernels*>;

// By the variant that the matrices are packed for, which must be one; if none is packed, by the chosen one.
void Matmul(const MatmulArgs& args);
void Matmul(MatmulArgs args, const MatmulOutput& output);  // of one matrix
std::span<const MatmulVariant> MatmulVariants();
const MatmulKernels& ChosenMatmul();  // for whom to pack

// The matrix with the packed form that kernels.pack() wrote there.
WeightView PackedView(WeightView w, const MatmulKernels& kernels, const std::byte* packed);

// A tile that is where the outputs are.
inline MatmulTile StoredTile(std::span<const MatmulOutput> outputs, int64_t token_begin, int64_t token_end,
                             int64_t row_begin, int64_t row_end) {
  MatmulTile tile{token_begin, token_end, row_begin, row_end};
  for (size_t i = 0; i < outputs.size(); ++i) {
    tile.sums[i] = outputs[i].out + token_begin * outputs[i].out_stride + row_begin;
    tile.strides[i] = outputs[i].out_stride;
  }
  return tile;
}

// The epilogue of every variant: bias and residual added to a tile [tokens, stride] of sums, for rows from
// `row` and tokens from `token` on.
inline void StoreTile(const MatmulOutput& to, int64_t row, int64_t rows, int64_t token, int64_t tokens,
                      const float* tile, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t at = (token + t) * to.out_stride + row;
    float* out = to.out + at;
    const float* sum = tile + t * stride;
    if (to.bias && to.residual)
      for (int64_t r = 0; r < rows; ++r) out[r] = sum[r] + to.bias[row + r] + to.residual[at + r];
    else if (to.bias)
      for (int64_t r = 0; r < rows; ++r) out[r] = sum[r] + to.bias[row + r];
    else if (to.residual)
      for (int64_t r = 0; r < rows; ++r) out[r] = sum[r] + to.residual[at + r];
    else
      for (int64_t r = 0; r < rows; ++r) out[r] = sum[r];
  }
}

// One row of x normed as args.norm says, which must be there.
void NormInputRow(const MatmulArgs& args, const float* x, float* out);
// The input of a variant that reads floats: rows gathered and normed into `scratch`, or x where it lies.
const float* PlainInput(const MatmulArgs& args, std::span<float> scratch);

// One output by the portable kernel, from x [tokens, cols] as PlainInput gives it. Any format, unpacked.
void PortableProduct(const MatmulOutput& to, const float* x, int64_t tokens, ThreadPool& pool);

extern const MatmulKernels kMatmulReference, kMatmulPortable;
#if defined(__aarch64__)
extern const MatmulKernels kMatmulArmDotprod, kMatmulArmI8mm;
#elif defined(__x86_64__)
extern const MatmulKernels kMatmulX86Avx2, kMatmulX86AvxVnni, kMatmulX86Vnni, kMatmulX86Amx;
#endif

}  // namespace celer
