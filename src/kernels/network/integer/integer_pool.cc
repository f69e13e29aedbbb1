#include "kernels/network/integer/integer_pool.h"

#include <algorithm>

namespace celer {
namespace {

// Work for the pool: pieces large enough to be worth a thread.
template <class Fn>
void Parallel(ThreadPool& pool, int64_t n, int64_t cost, const Fn& fn) {
  pool.ParallelFor(n, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, cost)), fn);
}

// Calls fn(first byte of the pixel) for every pixel of the image under a window.
template <class Fn>
void EachPixel(const BytePool& p, const uint8_t* image, int64_t oy, int64_t ox, const Fn& fn) {
  for (int64_t ky = 0; ky < p.kernel_h; ++ky) {
    const int64_t y = oy * p.stride_h + ky * p.dilation_h - p.pad_top;
    if (y < 0 || y >= p.in_h) continue;
    for (int64_t kx = 0; kx < p.kernel_w; ++kx) {
      const int64_t x = ox * p.stride_w + kx * p.dilation_w - p.pad_left;
      if (x >= 0 && x < p.in_w) fn(image + (y * p.in_w + x) * p.channels);
    }
  }
}

template <class Fn>
void EachOutput(const BytePool& p, const Fn& fn) {
  Parallel(*p.pool, p.batch * p.out_h, p.out_w * p.channels * p.kernel_h * p.kernel_w / 8,
           [&](int64_t begin, int64_t end) {
             for (int64_t r = begin; r < end; ++r)
               for (int64_t ox = 0; ox < p.out_w; ++ox)
                 fn(p.x + r / p.out_h * p.in_h * p.in_w * p.channels, r % p.out_h, ox,
                    p.out + (r * p.out_w + ox) * p.channels);
           });
}

template <class T>
void Largest(const BytePool& p) {
  EachOutput(p, [&](const uint8_t* image, int64_t oy, int64_t ox, uint8_t* to) {
    T* const out = reinterpret_cast<T*>(to);
    bool first = true;
    EachPixel(p, image, oy, ox, [&](const uint8_t* pixel) {
      const T* const x = reinterpret_cast<const T*>(pixel);
      if (first)
        std::copy_n(x, p.channels, out);
      else
        for (int64_t c = 0; c < p.channels; ++c) out[c] = std::max(out[c], x[c]);
      first = false;
    });
    if (first) std::fill_n(out, p.channels, static_cast<T>(std::is_signed_v<T> ? -128 : 0));
  });
}

template <class T>
void Average(const BytePool& p, const AverageBytes& a) {
  constexpr int64_t kBlock = 64;
  EachOutput(p, [&](const uint8_t* image, int64_t oy, int64_t ox, uint8_t* out) {
    for (int64_t c = 0; c < p.channels; c += kBlock) {
      const int64_t lanes = std::min(kBlock, p.channels - c);
      int32_t sum[kBlock] = {};
      int32_t pixels = 0;
      EachPixel(p, image, oy, ox, [&](const uint8_t* pixel) {
        const T* const x = reinterpret_cast<const T*>(pixel + c);
        for (int64_t i = 0; i < lanes; ++i) sum[i] += x[i];
        ++pixels;
      });
      for (int64_t i = 0; i < lanes; ++i)
        out[c + i] =
            ToByte(ScaleSum(sum[i] - pixels * a.x_zero, a.factor.multiplier, a.factor.left, a.factor.right),
                   a.range);
    }
  });
}

}  // namespace

void MaxPoolBytes(const BytePool& p) {
  if (p.x_signed)
    Largest<int8_t>(p);
  else
    Largest<uint8_t>(p);
}

void AveragePoolBytes(const BytePool& p, const AverageBytes& average) {
  if (p.x_signed)
    Average<int8_t>(p, average);
  else
    Average<uint8_t>(p, average);
}

void LookUpBytes(const uint8_t* x, const uint8_t* table, uint8_t* out, int64_t n, ThreadPool& pool) {
  pool.ParallelFor(n, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = table[x[i]];
  });
}

void MultiplyBytes(const MulBytes& m) {
  for (int64_t i = 0; i < m.n; ++i) {
    const uint8_t a = m.a[i * m.a_step], b = m.b[i * m.b_step];
    const int32_t x = (m.a_signed ? static_cast<int8_t>(a) : a) - m.a_zero;
    const int32_t y = (m.b_signed ? static_cast<int8_t>(b) : b) - m.b_zero;
    m.out[i] = ToByte(ScaleSum(x * y, m.factor.multiplier, m.factor.left, m.factor.right), m.range);
  }
}

}  // namespace celer
