// Operators about shapes: the same elements under another shape, and tensors made from a shape.
#include <cmath>
#include <cstring>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"

namespace celer::graph {
namespace {

Status CopyThrough(KernelContext& c) {
  const auto bytes = static_cast<size_t>(*BytesFor(c.dtype(0), c.elements(0)));
  if (bytes > 0 && c.out(0).data != c.in(0).data) std::memcpy(c.out(0).data, c.in(0).data, bytes);
  return {};
}

Status InferIdentity(InferContext& c) {
  if (!c.has(0) || c.data(0).kind != Data::Kind::kTensor) return {};
  return InferSame(c);
}
Status Identity(KernelContext& c) {
  if (c.has(0) && c.data(0).kind == Data::Kind::kTensor) return CopyThrough(c);
  if (c.has(0)) c.Set(0, c.data(0));
  return {};
}

Status InferReshape(InferContext& c) {
  std::vector<int64_t> dims;
  if (c.has(1)) {
    const auto given = c.ints(1);
    if (!given) return {};
    dims = *given;
  } else {
    dims = c.node.Ints("shape");
  }
  const bool allow_zero = c.node.Int("allowzero", 0) != 0;
  const int64_t total = c.elements(0);
  int64_t rest = 1;
  int open = -1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !allow_zero) {
      if (i >= static_cast<size_t>(c.shape(0).rank()))
        return Error::Invalid("its shape keeps the dimension ", i, " of ", c.shape(0).ToString());
      dims[i] = c.shape(0)[static_cast<int>(i)];
    }
    if (dims[i] == -1) {
      if (open >= 0) return Error::Invalid("its shape leaves two dimensions open");
      open = static_cast<int>(i);
    } else if (dims[i] < 0) {
      return Error::Invalid("its shape has a dimension of ", dims[i]);
    } else if (__builtin_mul_overflow(rest, dims[i], &rest)) {
      return Error::Invalid("its shape has too many elements");
    }
  }
  if (open >= 0) {
    if (rest == 0 ? total != 0 : total % rest != 0)
      return Error::Invalid(total, " elements of ", c.shape(0).ToString(), " do not fill rows of ", rest);
    dims[open] = rest == 0 ? 0 : total / rest;
  } else if (rest != total) {
    return Error::Invalid(c.shape(0).ToString(), " has ", total, " elements, its new shape ", rest);
  }
  return c.Set(0, c.dtype(0), dims);
}

Status InferFlatten(InferContext& c) {
  const int rank = c.shape(0).rank();
  const int64_t given = c.node.Int("axis", 1);
  if (given < -rank || given > rank)
    return Error::Invalid("the axis ", given, " is outside of ", rank, " dimensions");
  const int axis = static_cast<int>(given < 0 ? given + rank : given);
  const int64_t dims[] = {Product(c.shape(0), 0, axis), Product(c.shape(0), axis, rank)};
  return c.Set(0, c.dtype(0), dims);
}

// The axes of Squeeze and Unsqueeze: an attribute until opset 12, an input from 13 on.
std::optional<std::vector<int64_t>> GivenAxes(const InferContext& c) {
  if (c.has(1)) return c.ints(1);
  return c.node.Ints("axes");
}

Status InferSqueeze(InferContext& c) {
  const auto given = GivenAxes(c);
  if (!given) return {};
  const Shape& shape = c.shape(0);
  CELER_ASSIGN(const std::vector<int> axes, CheckAxes(*given, shape.rank()));
  const bool all = !c.has(1) && !c.node.Find("axes");
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    const bool named = all ? shape[i] == 1 : std::find(axes.begin(), axes.end(), i) != axes.end();
    if (named && shape[i] != 1)
      return Error::Invalid("dimension ", i, " of ", shape.ToString(), " is not 1 and cannot be dropped");
    if (!named) dims.push_back(shape[i]);
  }
  return c.Set(0, c.dtype(0), dims);
}

Status InferUnsqueeze(InferContext& c) {
  const auto given = GivenAxes(c);
  if (!given) return {};
  const Shape& shape = c.shape(0);
  const int rank = shape.rank() + static_cast<int>(std::min<size_t>(given->size(), 100));
  CELER_ASSIGN(const std::vector<int> axes, CheckAxes(*given, rank));
  std::vector<int64_t> dims;
  for (int i = 0, from = 0; i < rank; ++i) {
    const bool added = std::find(axes.begin(), axes.end(), i) != axes.end();
    dims.push_back(added ? 1 : shape[from++]);
  }
  return c.Set(0, c.dtype(0), dims);
}

// The part of the shape that is wanted: [start, end).
std::pair<int, int> ShapeRange(const OpInputs& c) {
  const int rank = c.shape(0).rank();
  const auto clamp = [&](int64_t at) {
    return static_cast<int>(std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank));
  };
  const int start = clamp(c.node.Int("start", 0)), end = clamp(c.node.Int("end", rank));
  return {start, std::max(start, end)};
}
Status InferShape(InferContext& c) {
  const auto [start, end] = ShapeRange(c);
  return c.Set(0, DType::kI64, {int64_t{end} - start});
}
Status ShapeOf(KernelContext& c) {
  const auto [start, end] = ShapeRange(c);
  for (int i = start; i < end; ++i) c.out(0).as<int64_t>()[i - start] = c.shape(0)[i];
  return {};
}
Status InferScalar(InferContext& c) {
  return c.Set(0, DType::kI64, Shape{});
}
Status SizeOf(KernelContext& c) {
  *c.out(0).as<int64_t>() = c.elements(0);
  return {};
}

Status InferExpand(InferContext& c) {
  const auto dims = c.ints(1);
  if (!dims) return {};
  CELER_ASSIGN(const Shape target, MakeShape(*dims));
  CELER_ASSIGN(const Shape shape, Broadcast(std::vector<Shape>{c.shape(0), target}));
  return c.Set(0, c.dtype(0), shape);
}
constexpr auto kFirst = [](auto x, auto) { return x; };
Status Expand(KernelContext& c) {
  DispatchSize(c.dtype(0),
               [&]<class T>() { MapPairs(c.pool, c.in(0), c.in(0), c.out(0), PairRow<T, T, T, kFirst>); });
  return {};
}

Status InferConstantOfShape(InferContext& c) {
  const auto dims = c.ints(0);
  if (!dims) return {};
  const auto* const value = c.node.Get<Constant>("value");
  if (value && *value->shape.elements() != 1) return Error::Invalid("its value must have one element");
  return c.Set(0, value ? value->dtype : DType::kF32, *dims);
}
Status ConstantOfShape(KernelContext& c) {
  const auto* const value = c.node.Get<Constant>("value");
  DispatchSize(c.out(0).dtype, [&]<class T>() {
    T element = 0;
    if (value) std::memcpy(&element, value->bytes.data(), sizeof(T));
    std::fill_n(c.out(0).as<T>(), c.out_elements(0), element);
  });
  return {};
}

Status InferRange(InferContext& c) {
  for (size_t i = 0; i < 3; ++i) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, i));
    if (c.elements(i) != 1) return Error::Invalid("its start, limit and step must be scalars");
    if (!c.known(i)) return {};
  }
  const double start = ReadScalar(c.in(0)), limit = ReadScalar(c.in(1)), step = ReadScalar(c.in(2));
  if (!(step != 0) || !std::isfinite(start) || !std::isfinite(limit) || !std::isfinite(step))
    return Error::Invalid("a range from ", start, " to ", limit, " in steps of ", step, " has no end");
  const double count = std::max(0.0, std::ceil((limit - start) / step));
  if (count > 1e12) return Error::Invalid("a range of ", count, " elements");
  return c.Set(0, c.dtype(0), {static_cast<int64_t>(count)});
}
Status Range(KernelContext& c) {
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    using W = Compute<T>;
    const W start = Wide(*c.in(0).as<T>()), step = Wide(*c.in(2).as<T>());
    for (int64_t i = 0; i < c.out_elements(0); ++i)
      c.out(0).as<T>()[i] = static_cast<T>(WrapAdd<W>(start, WrapMul<W>(static_cast<W>(i), step)));
  });
  return {};
}

Status InferEyeLike(InferContext& c) {
  if (c.shape(0).rank() != 2)
    return Error::Invalid("its input has ", c.shape(0).rank(), " dimensions, not 2");
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "dtype", c.dtype(0)));
  if (!(kNumbers | kBools).Has(dtype)) return Error::Unsupported("a matrix of ", Name(dtype));
  return c.Set(0, dtype, c.shape(0));
}
Status EyeLike(KernelContext& c) {
  const int64_t k = c.node.Int("k", 0), rows = c.shape(0)[0], cols = c.shape(0)[1];
  DispatchOr(c.out(0).dtype, PlainTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) c.out(0).as<T>()[i * cols + j] = static_cast<T>(j - i == k);
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr DTypeSet kRanges = kFloats | DTypeSet{DType::kI16, DType::kI32, DType::kI64};
constexpr Operator kRows[] = {
    {"ConstantOfShape", 9, kOne, kOne, {DType::kI64}, InferConstantOfShape, ConstantOfShape},
    {"Expand", 8, {2, 2}, kOne, kAnyType, InferExpand, Expand},
    {"EyeLike", 9, kOne, kOne, kNumbers | kBools, InferEyeLike, EyeLike},
    {"Flatten", 1, kOne, kOne, kAnyType, InferFlatten, CopyThrough, Operator::kView},
    {"Identity", 1, kOne, kOne, kAnyType, InferIdentity, Identity, Operator::kView | Operator::kAnyKind},
    {"Range", 11, {3, 3}, kOne, kRanges, InferRange, Range},
    {"Reshape", 5, {1, 2}, kOne, kAnyType, InferReshape, CopyThrough, Operator::kView},
    {"Shape", 1, kOne, kOne, kAnyType, InferShape, ShapeOf, Operator::kShapeOnly},
    {"Size", 1, kOne, kOne, kAnyType, InferScalar, SizeOf, Operator::kShapeOnly},
    {"Squeeze", 1, {1, 2}, kOne, kAnyType, InferSqueeze, CopyThrough, Operator::kView},
    {"Unsqueeze", 1, {1, 2}, kOne, kAnyType, InferUnsqueeze, CopyThrough, Operator::kView},
};

}  // namespace

std::span<const Operator> ShapeOperators() {
  return kRows;
}

}  // namespace celer::graph
