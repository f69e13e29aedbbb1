#include "kernels/rope/rotate.h"

#include "kernels/simd.h"

namespace celer {
namespace {

using S = Simd;

// (a, b) <- (a cos - b sin, b cos + a sin)
CELER_INLINE void RotatePair(S::F& a, S::F& b, S::F cos, S::F sin) {
  const S::F x = a, y = b;
  a = S::Fnma(y, sin, S::Mul(x, cos));
  b = S::Fma(x, sin, S::Mul(y, cos));
}

void RotateHalf(float* head, const float* cos, const float* sin, int64_t half) {
  constexpr int kL = S::kLanes;
  int64_t i = 0;
  for (; i + kL <= half; i += kL) {
    S::F a = S::Load(head + i), b = S::Load(head + half + i);
    RotatePair(a, b, S::Load(cos + i), S::Load(sin + i));
    S::Store(head + i, a);
    S::Store(head + half + i, b);
  }
  if (i < half) {
    const int64_t some = half - i;
    S::F a = LoadSome(head + i, some), b = LoadSome(head + half + i, some);
    RotatePair(a, b, LoadSome(cos + i, some), LoadSome(sin + i, some));
    StoreSome(head + i, a, some);
    StoreSome(head + half + i, b, some);
  }
}

void RotateInterleaved(float* head, const float* cos, const float* sin, int64_t half) {
  constexpr int kL = S::kLanes;
  for (int64_t i = 0; i < half; i += kL) {
    const int64_t some = half - i < kL ? half - i : kL;
    float a_lanes[kL] = {}, b_lanes[kL] = {};
    for (int64_t j = 0; j < some; ++j) {
      a_lanes[j] = head[2 * (i + j)];
      b_lanes[j] = head[2 * (i + j) + 1];
    }
    S::F a = S::Load(a_lanes), b = S::Load(b_lanes);
    RotatePair(a, b, LoadSome(cos + i, some), LoadSome(sin + i, some));
    S::Store(a_lanes, a);
    S::Store(b_lanes, b);
    for (int64_t j = 0; j < some; ++j) {
      head[2 * (i + j)] = a_lanes[j];
      head[2 * (i + j) + 1] = b_lanes[j];
    }
  }
}

}  // namespace

void RotateHeads(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                 int64_t rope_dim, RopeLayout layout) {
  const auto rotate = layout == RopeLayout::kHalf ? RotateHalf : RotateInterleaved;
  for (int64_t h = 0; h < count; ++h) rotate(heads + h * head_dim, cos, sin, rope_dim / 2);
}

}  // namespace celer
