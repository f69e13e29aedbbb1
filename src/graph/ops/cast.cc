// Cast and its relatives.
#include "graph/ops/cast.h"

#include <cmath>
#include <cstring>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/quant/small_types.h"
#include "io/onnx/onnx.h"
#include "kernels/shared/f16.h"

namespace celer::graph {
namespace {

Status InferCast(InferContext& c) {
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "to", c.dtype(0)));
  return c.Set(0, dtype, c.shape(0));
}
Status InferCastLike(InferContext& c) {
  return c.Set(0, c.dtype(1), c.shape(0));
}
// E8M0 has powers of two only, so there is no tie to even: the attribute says how to round.
uint8_t RoundedPower(float value, const std::string& mode, bool saturate) {
  const uint8_t up = FloatToSmall(DType::kFp8E8M0, value, saturate);
  if (mode == "up" || up == 0 || up == 0xff) return up;
  const float above = SmallToFloat(DType::kFp8E8M0, up);
  if (above == std::abs(value)) return up;
  const float below = above / 2;
  if (mode == "down") return static_cast<uint8_t>(up - 1);
  return std::abs(value) - below < above - std::abs(value) ? static_cast<uint8_t>(up - 1) : up;
}
Status Cast(KernelContext& c) {
  const bool saturate = c.node.Int("saturate", 1) != 0;
  const std::string mode = c.node.Text("round_mode", "up");
  if (c.out(0).dtype == DType::kFp8E8M0 && c.dtype(0) != DType::kFp8E8M0) {
    for (int64_t i = 0; i < c.elements(0); ++i)
      c.out(0).as<uint8_t>()[i] = RoundedPower(static_cast<float>(ReadElement(c.in(0), i)), mode, saturate);
    return {};
  }
  CastElements(c.pool, c.in(0), c.out(0), saturate);
  return {};
}

Status InferBitCast(InferContext& c) {
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "to", c.dtype(0)));
  if (Info(dtype).block_bytes != Info(c.dtype(0)).block_bytes)
    return Error::Invalid(Name(c.dtype(0)), " and ", Name(dtype), " have different sizes");
  return c.Set(0, dtype, c.shape(0));
}
Status BitCast(KernelContext& c) {
  const auto bytes = static_cast<size_t>(*BytesFor(c.dtype(0), c.elements(0)));
  if (bytes > 0) std::memmove(c.out(0).data, c.in(0).data, bytes);
  if (c.out(0).dtype == DType::kBool)
    for (size_t i = 0; i < bytes; ++i) c.out(0).data[i] = std::byte{c.out(0).data[i] != std::byte{0}};
  return {};
}

constexpr Operator kRows[] = {
    {"BitCast", 26, {1, 1}, {1, 1}, kAnyType, InferBitCast, BitCast},
    {"Cast", 6, {1, 1}, {1, 1}, kAnyType, InferCast, Cast},
    {"CastLike", 15, {2, 2}, {1, 1}, kAnyType, InferCastLike, Cast},
};

}  // namespace

Result<DType> DTypeFromOnnx(int64_t number) {
  const auto dtype = number > 0 && number < 100 ? OnnxDType(static_cast<int32_t>(number)) : std::nullopt;
  if (!dtype)
    return Error::Unsupported("the element type ", OnnxTypeName(static_cast<int32_t>(number)),
                              "; numbers and booleans are supported");
  return *dtype;
}

Result<DType> TypeAttribute(const Node& node, const char* key, DType otherwise) {
  if (!node.Find(key)) return otherwise;
  return DTypeFromOnnx(node.Int(key, 0));
}

void CastElements(ThreadPool& pool, const TensorView& from, const TensorView& to, bool saturate) {
  const int64_t n = *from.shape.elements();
  if (from.dtype == to.dtype) {
    const auto bytes = static_cast<size_t>(*BytesFor(from.dtype, n));
    if (bytes > 0 && to.data != from.data) std::memcpy(to.data, from.data, bytes);
    return;
  }
  if (from.dtype == DType::kF32 && to.dtype == DType::kF16)
    return pool.ParallelFor(n, 16384, [&](int64_t begin, int64_t end) {
      ToF16(from.as<float>() + begin, to.as<F16>() + begin, end - begin);
    });
  if (from.dtype == DType::kF16 && to.dtype == DType::kF32)
    return pool.ParallelFor(n, 16384, [&](int64_t begin, int64_t end) {
      ToFloats(from.as<F16>() + begin, to.as<float>() + begin, end - begin);
    });
  const bool plain = DispatchOr(from.dtype, PlainTypes{}, [&]<class From>() {
    const bool plain_too = DispatchOr(to.dtype, PlainTypes{}, [&]<class To>() {
      MapElements(pool, from.as<From>(), to.as<To>(), n, [](From x) {
        if constexpr (kIsHalf<To>)
          return To(static_cast<float>(Wide(x)));
        else
          return ConvertTo<To>(Wide(x));
      });
    });
    if (!plain_too)
      MapElements(pool, from.as<From>(), to.as<uint8_t>(), n, [&](From x) {
        if constexpr (std::is_integral_v<From>)
          if (kSmallInts.Has(to.dtype))  // the low bits, as between other integers
            return FloatToSmall(to.dtype, static_cast<float>(static_cast<int64_t>(x) & 15), saturate);
        return FloatToSmall(to.dtype, static_cast<float>(Wide(x)), saturate);
      });
  });
  if (plain) return;
  const bool to_plain = DispatchOr(to.dtype, PlainTypes{}, [&]<class To>() {
    MapElements(pool, from.as<uint8_t>(), to.as<To>(), n, [&](uint8_t x) {
      const float value = SmallToFloat(from.dtype, x);
      if constexpr (kIsHalf<To>)
        return To(value);
      else
        return ConvertTo<To>(value);
    });
  });
  if (!to_plain)
    MapElements(pool, from.as<uint8_t>(), to.as<uint8_t>(), n,
                [&](uint8_t x) { return FloatToSmall(to.dtype, SmallToFloat(from.dtype, x), saturate); });
}

std::span<const Operator> CastOperators() {
  return kRows;
}

}  // namespace celer::graph
