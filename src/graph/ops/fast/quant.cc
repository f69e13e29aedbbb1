// Quantizing to bytes and back with one scale: what stands at the borders of integer operators.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/quant/integer.h"

namespace celer::graph {
namespace {

bool IsBytes(DType dtype) {
  return dtype == DType::kU8 || dtype == DType::kI8;
}

// One f32 scale for all.
bool OneScale(const InferContext& c) {
  return c.dtype(1) == DType::kF32 && c.elements(1) == 1 && c.shape(1).rank() <= 1;
}

int ZeroOf(const OpInputs& c, DType bytes) {
  if (!c.has(2)) return 0;
  return bytes == DType::kI8 ? *c.in(2).as<int8_t>() : *c.in(2).as<uint8_t>();
}

// As the reference has it: a division of floats, halves to even, and 0 for what is no number. Adding 1.5 *
// 2^23 leaves whole numbers, rounded so. True if some number is within 1e-4 of the middle between two.
template <class T, class Scaled>
bool RoundTo(const float* x, const Scaled& scaled, int zero, T* out, int64_t n) {
  constexpr float kWhole = 12582912.0f, kNear = 0.4999f;
  const float low = static_cast<float>(std::numeric_limits<T>::min() - zero),
              high = static_cast<float>(std::numeric_limits<T>::max() - zero);
  const float none = static_cast<float>(-zero);
  int near = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float y = scaled(x[i]);
    // Selections alone, so that it becomes vectors.
    float cut = y < low ? low : y;
    cut = cut > high ? high : cut;
    float whole = (cut + kWhole) - kWhole;
    near |= static_cast<int>(whole - cut > kNear) | static_cast<int>(cut - whole > kNear);
    whole = y == y ? whole : none;
    out[i] = static_cast<T>(static_cast<int>(whole) + zero);
  }
  return near != 0;
}

// Numbers of steps are at most 255 and a product with the inverse is within 2^-22 of the quotient, relative
// to it: both round alike but near a middle, and there the division decides.
template <class T>
void ToBytes(const float* x, float scale, int zero, T* out, int64_t n) {
  constexpr int64_t kPiece = 64;
  const float inverse = 1 / scale;
  const bool divide = !(std::abs(scale) > 1e-30f && std::abs(inverse) > 1e-30f);
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = std::min(kPiece, n - i);
    if (divide || RoundTo(
                      x + i, [=](float v) { return v * inverse; }, zero, out + i, count))
      RoundTo(
          x + i, [=](float v) { return v / scale; }, zero, out + i, count);
  }
}

template <class T>
void FromBytes(const T* x, float scale, int zero, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] - zero) * scale;
}

bool QuantizeFits(const InferContext& c) {
  return c.dtype(0) == DType::kF32 && OneScale(c) && IsBytes(c.output(0).dtype);
}
Status RunQuantize(KernelContext& c) {
  const float* const x = c.in(0).as<float>();
  const float scale = *c.in(1).as<float>();
  const bool is_signed = c.out(0).dtype == DType::kI8;
  const int zero = ZeroOf(c, c.out(0).dtype);
  c.pool.ParallelFor(c.elements(0), 16384, [&](int64_t begin, int64_t end) {
    if (is_signed)
      ToBytes(x + begin, scale, zero, c.out(0).as<int8_t>() + begin, end - begin);
    else
      ToBytes(x + begin, scale, zero, c.out(0).as<uint8_t>() + begin, end - begin);
  });
  return {};
}

bool DequantizeFits(const InferContext& c) {
  return IsBytes(c.dtype(0)) && OneScale(c) && c.output(0).dtype == DType::kF32;
}
Status RunDequantize(KernelContext& c) {
  const float scale = *c.in(1).as<float>();
  const int zero = ZeroOf(c, c.dtype(0));
  c.pool.ParallelFor(c.elements(0), 16384, [&](int64_t begin, int64_t end) {
    float* const out = c.out(0).as<float>() + begin;
    if (c.dtype(0) == DType::kI8)
      FromBytes(c.in(0).as<int8_t>() + begin, scale, zero, out, end - begin);
    else
      FromBytes(c.in(0).as<uint8_t>() + begin, scale, zero, out, end - begin);
  });
  return {};
}

}  // namespace

constexpr FastKernel kFastQuantize[] = {{"vectors", QuantizeFits, RunQuantize}};
constexpr FastKernel kFastDequantize[] = {{"vectors", DequantizeFits, RunDequantize}};

void QuantizeBytes(const float* x, float scale, int zero, uint8_t* out, int64_t n) {
  ToBytes(x, scale, zero, out, n);
}

}  // namespace celer::graph
