#include "graph/ops/fourier.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace celer::graph {
namespace {

size_t At(int64_t i) {
  return static_cast<size_t>(2 * i);
}

void Multiply(double* a, const double* b) {
  const double re = a[0] * b[0] - a[1] * b[1], im = a[0] * b[1] + a[1] * b[0];
  a[0] = re;
  a[1] = im;
}

// Radix-2 FFT, in place, of n = 2^k numbers, forwards; `turns` are the twiddle factors exp(-2 pi i j / n) for
// j below n / 2.
void Radix2Fft(std::vector<double>& x, int64_t n, const std::vector<double>& turns) {
  for (int64_t i = 1, j = 0; i < n; ++i) {  // by reversed bits
    int64_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      std::swap(x[At(i)], x[At(j)]);
      std::swap(x[At(i) + 1], x[At(j) + 1]);
    }
  }
  for (int64_t half = 1; half < n; half *= 2) {
    const int64_t step = n / (2 * half);
    for (int64_t first = 0; first < n; first += 2 * half)
      for (int64_t k = 0; k < half; ++k) {
        double *const a = &x[At(first + k)], *const b = &x[At(first + k + half)];
        Multiply(b, &turns[At(k * step)]);
        const double re = b[0], im = b[1];
        b[0] = a[0] - re;
        b[1] = a[1] - im;
        a[0] += re;
        a[1] += im;
      }
  }
}

void PutAngle(std::vector<double>& to, int64_t i, double angle) {
  to[At(i)] = std::cos(angle);
  to[At(i) + 1] = std::sin(angle);
}

}  // namespace

// Bluestein: jk = (j^2 + k^2 - (k - j)^2) / 2 makes the transform a convolution with a chirp, and that is a
// product of transforms whose length is a power of two.
Fourier::Fourier(int64_t length, bool inverse) : length_(length), inverse_(inverse), padded_(1) {
  const bool power = (length & (length - 1)) == 0;
  while (padded_ < (power ? length : 2 * length)) padded_ *= 2;
  turns_.resize(At(padded_ / 2 + 1));
  for (int64_t i = 0; i < padded_ / 2; ++i)
    PutAngle(turns_, i, -2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(padded_));
  if (power) return;
  chirp_.resize(At(length));
  filter_.resize(At(padded_));
  for (int64_t i = 0; i < length; ++i) {
    // i^2 modulo 2n keeps the angle exact; i is below 2^24, so that the square fits.
    const double angle =
        std::numbers::pi * static_cast<double>(i * i % (2 * length)) / static_cast<double>(length);
    PutAngle(chirp_, i, -angle);
    PutAngle(filter_, i, angle);
    if (i > 0) PutAngle(filter_, padded_ - i, angle);
  }
  Radix2Fft(filter_, padded_, turns_);
}

void Fourier::Transform(const std::vector<double>& in, std::vector<double>& out) const {
  // The inverse is the transform with the imaginary parts' signs turned before and after.
  const double sign = inverse_ ? -1 : 1, scale = inverse_ ? 1 / static_cast<double>(length_) : 1;
  std::vector<double> x(At(padded_), 0.0);
  for (int64_t i = 0; i < length_; ++i) {
    x[At(i)] = in[At(i)];
    x[At(i) + 1] = sign * in[At(i) + 1];
    if (!chirp_.empty()) Multiply(&x[At(i)], &chirp_[At(i)]);
  }
  Radix2Fft(x, padded_, turns_);
  if (!chirp_.empty()) {
    // Back again: a transform of the conjugate, and the conjugate of that.
    for (int64_t i = 0; i < padded_; ++i) {
      Multiply(&x[At(i)], &filter_[At(i)]);
      x[At(i) + 1] = -x[At(i) + 1];
    }
    Radix2Fft(x, padded_, turns_);
    for (int64_t i = 0; i < length_; ++i) {
      x[At(i)] /= static_cast<double>(padded_);
      x[At(i) + 1] /= -static_cast<double>(padded_);
      Multiply(&x[At(i)], &chirp_[At(i)]);
    }
  }
  for (int64_t i = 0; i < length_; ++i) {
    out[At(i)] = scale * x[At(i)];
    out[At(i) + 1] = sign * scale * x[At(i) + 1];
  }
}

}  // namespace celer::graph
