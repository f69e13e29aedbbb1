// Quantizing to bytes and back with one scale: what stands at the borders of integer operators.
#include "graph/ops/common.h"
#include "graph/ops/integer.h"

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
// 2^23 leaves whole numbers, rounded so.
template <class T>
void ToBytes(const float* x, float scale, int zero, T* out, int64_t n) {
  constexpr float kWhole = 12582912.0f;
  const float low = static_cast<float>(std::numeric_limits<T>::min() - zero),
              high = static_cast<float>(std::numeric_limits<T>::max() - zero);
  const float none = static_cast<float>(-zero);
  for (int64_t i = 0; i < n; ++i) {
    const float y = x[i] / scale;
    // Selections alone, so that it becomes vectors.
    float whole = y < low ? low : y;
    whole = whole > high ? high : whole;
    whole = (whole + kWhole) - kWhole;
    whole = y == y ? whole : none;
    out[i] = static_cast<T>(static_cast<int>(whole) + zero);
  }
}

template <class T>
void FromBytes(const T* x, float scale, int zero, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] - zero) * scale;
}

}  // namespace

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

}  // namespace celer::graph
