// See simd.h for why all of it is in an unnamed namespace.
#pragma once

#include "kernels/network/elementwise/elementwise_kernels.h"
#include "kernels/shared/gemm/epilogue_lanes.h"
#include "kernels/shared/gemm/strided_load.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

inline void UnaryLanes(const Pointwise& f, const float* x, float* out, int64_t n) {
  FinishRow(f, x, nullptr, false, out, n);
}

template <class Op, class F>
CELER_INLINE void BinaryAs(Op op, F f, const float* a, int a_step, const float* b, int b_step, float* out,
                           int64_t n) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  const S::F a_same = S::Set(a[0]), b_same = S::Set(b[0]);
  int64_t i = 0;
  for (; i + 2 * kL <= n; i += 2 * kL) {
    S::F v[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j)
      v[j] = op(a_step ? S::Load(a + i + j * kL) : a_same, b_step ? S::Load(b + i + j * kL) : b_same);
    f(v);
    S::Store(out + i, v[0]);
    S::Store(out + i + kL, v[1]);
  }
  for (; i < n; i += kL) {
    const int64_t some = n - i < kL ? n - i : kL;
    S::F v[1] = {op(a_step ? LoadSome(a + i, some) : a_same, b_step ? LoadSome(b + i, some) : b_same)};
    f(v);
    StoreSome(out + i, v[0], some);
  }
}

// NaN propagates, whichever side it is on, as in ONNX and torch. Arm's own maximum does that; x86 gives its
// second operand where either is NaN, so that only a NaN of the first one is lost.
CELER_INLINE Simd::F MaxOrNan(Simd::F x, Simd::F y) {
  using S = Simd;
#if defined(__ARM_NEON)
  return S::Max(x, y);
#else
  // Beyond what is less than infinity x is infinity or NaN, and so is the sum.
  const S::F most = S::Max(x, y);
  return S::IfLess(x, S::Set(__builtin_inff()), most, S::Add(x, most));
#endif
}
CELER_INLINE Simd::F MinOrNan(Simd::F x, Simd::F y) {
  using S = Simd;
#if defined(__ARM_NEON)
  return S::Min(x, y);
#else
  const S::F least = S::Min(x, y);
  return S::IfLess(S::Set(-__builtin_inff()), x, least, S::Add(x, least));
#endif
}

inline void BinaryLanes(Binary kind, const Pointwise& f, const float* a, int a_step, const float* b,
                        int b_step, float* out, int64_t n) {
  using S = Simd;
  if (n == 0) return;
  const auto with = [&](auto op) {
    // Functions that take long are rare here: they go over the row once more.
    if (f.kind == Pointwise::Kind::kClip) {
      const S::F low = S::Set(f.a), high = S::Set(f.b);
      BinaryAs(op, EachOf{[=](S::F x) { return ClampTo(x, low, high); }}, a, a_step, b, b_step, out, n);
    } else {
      BinaryAs(op, EachOf{[](S::F x) { return x; }}, a, a_step, b, b_step, out, n);
      if (f.kind != Pointwise::Kind::kNone) UnaryLanes(f, out, out, n);
    }
  };
  switch (kind) {
    case Binary::kAdd:
      return with([](S::F x, S::F y) { return S::Add(x, y); });
    case Binary::kSub:
      return with([](S::F x, S::F y) { return S::Sub(x, y); });
    case Binary::kMul:
      return with([](S::F x, S::F y) { return S::Mul(x, y); });
    case Binary::kDiv:
      return with([](S::F x, S::F y) { return S::Div(x, y); });
    case Binary::kMax:
      return with([](S::F x, S::F y) { return MaxOrNan(x, y); });
    case Binary::kMin:
      return with([](S::F x, S::F y) { return MinOrNan(x, y); });
  }
}

// A blocked transpose: 4 x 4 in registers, in blocks of 32 x 32 so that the lines of both sides stay in the
// L1 cache.
inline void TransposeLanes(const float* in, int64_t rows, int64_t cols, int64_t in_stride, float* out,
                           int64_t out_stride) {
  constexpr int64_t kBlock = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (int64_t c0 = 0; c0 < cols; c0 += kBlock) {
      const int64_t r1 = r0 + kBlock < rows ? r0 + kBlock : rows,
                    c1 = c0 + kBlock < cols ? c0 + kBlock : cols;
      int64_t r = r0;
      for (; r + 4 <= r1; r += 4) {
        int64_t c = c0;
        for (; c + 4 <= c1; c += 4)
          Transpose4x4(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
        for (; c < c1; ++c)
          for (int i = 0; i < 4; ++i) out[c * out_stride + r + i] = in[(r + i) * in_stride + c];
      }
      for (; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c) out[c * out_stride + r] = in[r * in_stride + c];
    }
}

}  // namespace
}  // namespace celer
