// Fits of 32 weights to the levels of IQ4_NL, which IQ4_XS has too. Without importance all columns count equally.
#pragma once

namespace celer {

// The number of the level that is nearest to a weight over its scale.
int NearestIq4Level(float value);

// A scale of either sign, near the least sum of importance * error^2; 0 for weights of zero.
float FitIq4Scale(const float* x, const float* importance);

// With `scale`, and each weight at its nearest level: sums of importance times weight * level, level^2 and error^2.
struct Iq4Sums {
  float product, square, error;
};
Iq4Sums SumIq4(const float* x, float scale, const float* importance);

}  // namespace celer
