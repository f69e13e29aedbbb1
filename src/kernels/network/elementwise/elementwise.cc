#include "kernels/network/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/shared/gemm/pointwise_reference.h"

namespace celer {
namespace {

constexpr Variant<const ElementwiseKernels*> kElementwise[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, &kElementwiseX86Avx512},
    {"x86_avx2", Isa::kAvx2, &kElementwiseX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kElementwisePortable},
    {"reference", Isa::kBaseline, &kElementwiseReference},
};

const ElementwiseKernels& Chosen() {
  static const ElementwiseKernels& chosen =
      *Pick<const ElementwiseKernels*>("elementwise", kElementwise)->run;
  return chosen;
}

constexpr int64_t kGrain = 16 << 10;  // elements: less is not worth waking a thread for
constexpr int64_t kPiece = 512;       // halves that are floats at a time, in the L1 cache

float Combine(Binary op, float a, float b) {
  switch (op) {
    case Binary::kAdd:
      return a + b;
    case Binary::kSub:
      return a - b;
    case Binary::kMul:
      return a * b;
    case Binary::kDiv:
      return a / b;
    case Binary::kMax:
      return a > b || a != a ? a : b;
    case Binary::kMin:
      return a < b || a != a ? a : b;
  }
  return 0;
}

}  // namespace

const ElementwiseKernels kElementwiseReference = {
    .unary =
        [](const Pointwise& f, const float* x, float* out, int64_t n) {
          for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(reference::Apply(f, x[i]));
        },
    .binary =
        [](Binary op, const Pointwise& f, const float* a, int a_step, const float* b, int b_step, float* out,
           int64_t n) {
          for (int64_t i = 0; i < n; ++i)
            out[i] = static_cast<float>(reference::Apply(f, Combine(op, a[i * a_step], b[i * b_step])));
        },
    .transpose =
        [](const float* in, int64_t rows, int64_t cols, int64_t in_stride, float* out, int64_t out_stride) {
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) out[c * out_stride + r] = in[r * in_stride + c];
        }};

std::span<const Variant<const ElementwiseKernels*>> ElementwiseVariants() {
  return kElementwise;
}

void UnaryRow(const Pointwise& f, const float* x, float* out, int64_t n) {
  Chosen().unary(f, x, out, n);
}

void BinaryRow(Binary op, const Pointwise& f, const float* a, int64_t a_step, const float* b, int64_t b_step,
               float* out, int64_t n) {
  Chosen().binary(op, f, a, static_cast<int>(a_step), b, static_cast<int>(b_step), out, n);
}

void BinaryRow(Binary op, const Pointwise& f, const F16* a, int64_t a_step, const F16* b, int64_t b_step,
               F16* out, int64_t n) {
  alignas(64) float x[kPiece], y[kPiece];
  if (a_step == 0) ToFloats(a, x, 1);
  if (b_step == 0) ToFloats(b, y, 1);
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = std::min(kPiece, n - i);
    if (a_step != 0) ToFloats(a + i, x, count);
    if (b_step != 0) ToFloats(b + i, y, count);
    // The result goes over an operand that is read again anyway.
    float* const to = a_step != 0 ? x : y;
    alignas(64) float both[kPiece];
    float* const result = a_step == 0 && b_step == 0 ? both : to;
    BinaryRow(op, f, x, a_step, y, b_step, result, count);
    ToF16(result, out + i, count);
  }
}

void TransposeBlock(const float* in, int64_t rows, int64_t cols, int64_t in_stride, float* out,
                    int64_t out_stride) {
  Chosen().transpose(in, rows, cols, in_stride, out, out_stride);
}

void ApplyPointwise(const Pointwise& f, const float* x, float* out, int64_t n, ThreadPool& pool) {
  pool.ParallelFor(
      n, kGrain, [&](int64_t begin, int64_t end) { Chosen().unary(f, x + begin, out + begin, end - begin); });
}

void ApplyPointwise(const Pointwise& f, const F16* x, F16* out, int64_t n, ThreadPool& pool) {
  pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    alignas(64) float piece[kPiece];
    for (int64_t i = begin; i < end; i += kPiece) {
      const int64_t count = std::min(kPiece, end - i);
      ToFloats(x + i, piece, count);
      Chosen().unary(f, piece, piece, count);
      ToF16(piece, out + i, count);
    }
  });
}

void ApplyBinary(const BinaryArgs& args) {
  CELER_CHECK(args.pool && args.rows >= 0 && args.cols >= 0);
  if (args.rows == 0 || args.cols == 0) return;
  CELER_CHECK(args.a.data && args.b.data && args.out);
  CELER_CHECK(args.a.col_stride == 0 || args.a.col_stride == 1);
  CELER_CHECK(args.b.col_stride == 0 || args.b.col_stride == 1);
  const auto run = [&](int64_t row, int64_t col, int64_t n) {
    const auto at = [&](const BinaryOperand& x) { return x.data + row * x.row_stride + col * x.col_stride; };
    Chosen().binary(args.op, args.f, at(args.a), static_cast<int>(args.a.col_stride), at(args.b),
                    static_cast<int>(args.b.col_stride), args.out + row * args.cols + col, n);
  };
  // Coalesced into one row where both operands are contiguous from row to row.
  const auto runs_on = [&](const BinaryOperand& x) {
    return args.rows == 1 || x.row_stride == x.col_stride * args.cols;
  };
  if (runs_on(args.a) && runs_on(args.b)) {
    args.pool->ParallelFor(args.rows * args.cols, kGrain,
                           [&](int64_t begin, int64_t end) { run(0, begin, end - begin); });
    return;
  }
  const int64_t grain = std::max<int64_t>(kGrain / args.cols, 1);
  args.pool->ParallelFor(args.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) run(row, 0, args.cols);
  });
}

void Transpose(const float* in, int64_t batch, int64_t rows, int64_t cols, float* out, ThreadPool& pool) {
  // Bands of rows: one is 32 rows of one matrix.
  constexpr int64_t kBand = 32;
  const int64_t bands = (rows + kBand - 1) / kBand;
  const int64_t grain = std::max<int64_t>(kGrain / (kBand * std::max<int64_t>(cols, 1)), 1);
  pool.ParallelFor(batch * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t p = i / bands, row = i % bands * kBand;
      Chosen().transpose(in + (p * rows + row) * cols, std::min(kBand, rows - row), cols, cols,
                         out + p * rows * cols + row, rows);
    }
  });
}

}  // namespace celer
