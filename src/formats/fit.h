// Least-squares fits of scale and minimum to a group of weights: what the encoders of the K formats and of
// int4 share.
#pragma once

#include <cstdint>

namespace celer {

// `n` is a multiple of 8 here. NaN is ignored where there is a choice.
struct Range {
  float low;
  float high;
};
Range RangeOf(const float* x, int64_t n);
// The largest absolute value. Any n; NaN wins, so that a broken weight shows.
float AbsMax(const float* x, int64_t n);

// x ~ scale * q + min with q in 0..levels: near the least squared error, and never worse than the plain grid
// from the smallest to the largest value. With `importance` [n] each square is multiplied by it.
struct AffineFit {
  float scale;
  float min;
};
AffineFit FitAffine(const float* x, int64_t n, int levels, const float* importance = nullptr);
// The same with min <= 0, as the K formats store it.
AffineFit FitAffineNonPositive(const float* x, int64_t n, int levels, const float* importance = nullptr);

// The best min if the scale is this one, for the q that (scale, fit.min) gives.
float FitMin(const float* x, int64_t n, int levels, float scale, float min, const float* importance);

// x ~ scale * q with q in -half..half-1; the scale's sign lets the value farthest from zero take -half.
float FitSymmetric(const float* x, int64_t n, int half, const float* importance = nullptr);

}  // namespace celer
