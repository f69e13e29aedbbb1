// QuantizeLinear, DequantizeLinear and their relatives.
#include <cmath>
#include <limits>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/quant/integer.h"
#include "graph/ops/quant/small_types.h"

namespace celer::graph {
namespace {

// The granularity of the scale: per tensor, per axis, or per block along the axis.
struct Scaling {
  int64_t outer, n, inner;  // x as [outer, n, inner]
  int64_t block;            // 0: one for all; else elements of the axis that share a scale
  int64_t scales;           // along the axis

  int64_t At(int64_t i) const {
    if (block == 0) return 0;
    const int64_t j = i % inner, k = i / inner % n, o = i / (inner * n);
    if (block_wise) return (o * scales + k / block) * inner + j;
    return k;
  }
  bool block_wise = false;
};
Result<Scaling> ScalingOf(const OpInputs& c) {
  const Shape &x = c.shape(0), &scale = c.shape(1);
  if (!kFloats.Has(c.dtype(1)) && c.dtype(1) != DType::kFp8E8M0)
    return Error::Invalid("a scale of ", Name(c.dtype(1)));
  if (c.has(2) && *c.shape(2).elements() != *scale.elements())
    return Error::Invalid("a scale of ", scale.ToString(), " and a zero point of ", c.shape(2).ToString());
  if (*scale.elements() == 1 && scale.rank() <= 1) return Scaling{1, *x.elements(), 1, 0, 1};
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 1), x.rank()));
  Scaling out{Product(x, 0, axis), x[axis], Product(x, axis + 1, x.rank()), 1, x[axis]};
  if (scale.rank() == 1) {
    if (scale[0] != x[axis])
      return Error::Invalid("a scale of ", scale.ToString(), " for axis ", axis, " of ", x.ToString());
    return out;
  }
  bool fits = scale.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == axis || scale[i] == x[i];
  if (!fits || scale[axis] < 1) return Error::Invalid("scales of ", scale.ToString(), " for ", x.ToString());
  out.block = c.node.Int("block_size", 0);
  if (out.block == 0) out.block = (x[axis] + scale[axis] - 1) / scale[axis];
  if (out.block < 1 || (x[axis] > 0 && (x[axis] - 1) / out.block >= scale[axis]))
    return Error::Invalid("blocks of ", out.block, " with scales of ", scale.ToString(), " for ",
                          x.ToString());
  out.scales = scale[axis];
  out.block_wise = true;
  return out;
}

constexpr DTypeSet kQuantized = {DType::kU8, DType::kI8, DType::kU16, DType::kI16, DType::kI32};
Status InferQuantize(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const Scaling scaling, ScalingOf(c));
  DType dtype = DType::kU8;
  if (c.has(2)) {
    dtype = c.dtype(2);
  } else {
    CELER_ASSIGN(dtype, TypeAttribute(c.node, "output_dtype", DType::kU8));
  }
  if (!(kQuantized | kSmallInts | kSmallFloats).Has(dtype))
    return Error::Unsupported("quantizing to ", Name(dtype));
  return c.Set(0, dtype, c.shape(0));
}
struct Range {
  double low, high;
};
Range IntegerRange(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return {0, 255};
    case DType::kI8:
      return {-128, 127};
    case DType::kU16:
      return {0, 65535};
    case DType::kI16:
      return {-32768, 32767};
    case DType::kU4:
      return {0, 15};
    case DType::kI4:
      return {-8, 7};
    case DType::kU2:
      return {0, 3};
    case DType::kI2:
      return {-2, 1};
    default:
      return {-2147483648.0, 2147483647.0};
  }
}
Status Quantize(KernelContext& c) {
  CELER_ASSIGN(const Scaling scaling, ScalingOf(c));
  const DType to = c.out(0).dtype;
  const bool saturate = c.node.Int("saturate", 1) != 0;
  const Range range = IntegerRange(to);
  const auto value = [&](int64_t i, int64_t at) {
    // f32 division, as ONNX defines it; f64 would round some halves otherwise.
    const auto x = static_cast<float>(ReadElement(c.in(0), i)),
               s = static_cast<float>(ReadElement(c.in(1), at));
    return x / s;
  };
  Parallel(c.pool, c.elements(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = scaling.At(i);
      const float x = value(i, at);
      if (kSmallFloats.Has(to)) {
        c.out(0).as<uint8_t>()[i] = FloatToSmall(to, x, saturate);
        continue;
      }
      const double zero = c.has(2) ? ReadElement(c.in(2), at) : 0;
      const double q = std::isnan(x)
                           ? 0
                           : std::clamp(std::nearbyint(static_cast<double>(x)) + zero, range.low, range.high);
      if (!DispatchOr(to, TypeList<uint8_t, int8_t, uint16_t, int16_t, int32_t>{},
                      [&]<class T>() { c.out(0).as<T>()[i] = static_cast<T>(q); }))
        c.out(0).as<uint8_t>()[i] = static_cast<uint8_t>(static_cast<int>(q));
    }
  });
  return {};
}

Status InferDequantize(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const Scaling scaling, ScalingOf(c));
  if (c.has(2) && c.dtype(2) != c.dtype(0))
    return Error::Invalid("a zero point of ", Name(c.dtype(2)), " for ", Name(c.dtype(0)));
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "output_dtype", c.dtype(1)));
  if (!kFloats.Has(dtype)) return Error::Unsupported("dequantizing to ", Name(dtype));
  return c.Set(0, dtype, c.shape(0));
}
Status Dequantize(KernelContext& c) {
  CELER_ASSIGN(const Scaling scaling, ScalingOf(c));
  DispatchOr(c.out(0).dtype, FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, c.elements(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = scaling.At(i);
        const double zero = c.has(2) ? ReadElement(c.in(2), at) : 0;
        c.out(0).as<T>()[i] = static_cast<T>(
            static_cast<Compute<T>>((ReadElement(c.in(0), i) - zero) * ReadElement(c.in(1), at)));
      }
    });
  });
  return {};
}

Status InferDynamic(InferContext& c) {
  CELER_RETURN_IF_ERROR(c.Set(0, DType::kU8, c.shape(0)));
  CELER_RETURN_IF_ERROR(c.Set(1, DType::kF32, Shape{}));
  return c.Set(2, DType::kU8, Shape{});
}
Status DynamicQuantize(KernelContext& c) {
  const float* const x = c.in(0).as<float>();
  float low = 0, high = 0;
  for (int64_t i = 0; i < c.elements(0); ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float scale = (high - low) / 255.0f;
  const float zero = DynamicZero(low, scale);
  if (c.wants(1)) *c.out(1).as<float>() = scale;
  if (c.wants(2)) *c.out(2).as<uint8_t>() = static_cast<uint8_t>(zero);
  if (c.wants(0))
    MapElements(c.pool, x, c.out(0).as<uint8_t>(), c.elements(0), [=](float v) {
      const float q = scale == 0 ? zero : std::nearbyint(v / scale) + zero;
      return static_cast<uint8_t>(q > 0 ? std::min(q, 255.0f) : 0.0f);
    });
  return {};
}

constexpr DTypeSet kStored = kQuantized | kSmallInts | kSmallFloats;
constexpr Operator kRows[] = {
    {"DequantizeLinear", 10, Arity(2, 3), Arity(1, 1), kStored, InferDequantize, Dequantize, Operator::kPlain,
     nullptr, kFastDequantize},
    {"DynamicQuantizeLinear", 11, Arity(1, 1), Arity(1, 3), DTypeSet{DType::kF32}, InferDynamic,
     DynamicQuantize, Operator::kPlain, nullptr, kFastDynamicQuantize},
    {"QuantizeLinear", 10, Arity(2, 3), Arity(1, 1), kFloats | DTypeSet{DType::kI32}, InferQuantize, Quantize,
     Operator::kPlain, nullptr, kFastQuantize},
};

}  // namespace

std::span<const Operator> QuantOperators() {
  return kRows;
}

}  // namespace celer::graph
