#include "graph/ops/quant/integer.h"

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/window.h"
#include "kernels/network/integer/integer_pool.h"

namespace celer::graph {
namespace {

constexpr DTypeSet kBytes = {DType::kU8, DType::kI8};

DType OutputType(const Node& node) {
  return node.Int("y_signed", 0) != 0 ? DType::kI8 : DType::kU8;
}

Multiplier FactorOf(const Node& node) {
  const std::vector<int64_t> factor = node.Ints("factor");
  if (factor.size() != 3) return {};
  return {static_cast<int32_t>(factor[0]), static_cast<int32_t>(factor[1]), static_cast<int32_t>(factor[2])};
}

bool IsMultiplier(int64_t multiplier, int64_t left, int64_t right) {
  return multiplier >= 0 && multiplier <= INT32_MAX && left >= 0 && left <= kMostLeft && right >= 1 &&
         right <= 31;
}

// Kernels shift by these numbers and trust them; a file may say anything.
Status CheckNumbers(const Node& node) {
  struct Limits {
    const char* key;
    int64_t low, high;
  };
  constexpr int64_t kFactor = 32767, kStart = int64_t{1} << 30;
  constexpr Limits kLimits[] = {
      {"zero", -128, 255},        {"low", -128, 255},    {"high", -128, 255},      {"x_zero", -128, 255},
      {"a_zero", -128, 255},      {"b_zero", -128, 255}, {"a_factor", 0, kFactor}, {"b_factor", 0, kFactor},
      {"start", -kStart, kStart}, {"shift", 1, 30}};
  for (const Limits& limits : kLimits)
    if (const int64_t number = node.Int(limits.key, limits.high); number < limits.low || number > limits.high)
      return Error::Invalid(limits.key, " is ", number, "; it may be ", limits.low, " to ", limits.high);
  const ByteRange range = RangeOf(node);
  if (range.low > range.high) return Error::Invalid("low is ", range.low, " and high ", range.high);
  const std::vector<int64_t> factor = node.Ints("factor");
  if (!factor.empty() && (factor.size() != 3 || !IsMultiplier(factor[0], factor[1], factor[2])))
    return Error::Invalid("its factor is no multiplier and two shifts");
  return {};
}

// The shape of an image as operators with the channels in front have it.
Result<Shape> ChannelsSecond(const Shape& x) {
  return MakeShape({x[0], x[3], x[1], x[2]});
}

Status CheckProduct(const InferContext& c, int64_t n) {
  if (c.dtype(1) != DType::kI8) return Error::Invalid("weights of ", Name(c.dtype(1)));
  if (c.dtype(2) != DType::kI32 || c.shape(2).rank() != 2 || c.shape(2)[0] != 3 || c.shape(2)[1] != n)
    return Error::Invalid("factors of ", c.shape(2).ToString(), " for ", n, " channels");
  if (c.known(2)) CELER_RETURN_IF_ERROR(CheckFactors(c.in(2)));
  CELER_RETURN_IF_ERROR(CheckNumbers(c.node));
  if (c.has(3) && (c.dtype(3) != DType::kI32 || c.elements(3) != n))
    return Error::Invalid("a bias of ", c.shape(3).ToString(), " for ", n, " channels");
  return {};
}

Status InferConv(InferContext& c) {
  CELER_ASSIGN(const ConvShape s, IntegerConvShapeOf(c.node, c.shape(0), c.shape(1)));
  CELER_RETURN_IF_ERROR(CheckProduct(c, s.out_channels));
  return c.Set(0, OutputType(c.node), std::array{s.batch, s.out_h(), s.out_w(), s.out_channels});
}
double ConvFlops(const InferContext& c) {
  const Shape& w = c.shape(1);
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(Product(w, 1, w.rank()));
}

Result<std::vector<int64_t>> ProductDims(const OpInputs& c) {
  const Shape &x = c.shape(0), &w = c.shape(1);
  if (x.rank() < 1 || w.rank() != 2 || x[x.rank() - 1] != w[1] || w[1] < 1)
    return Error::Invalid("a product of ", x.ToString(), " with weights of ", w.ToString());
  std::vector<int64_t> dims = Dims(x);
  dims.back() = w[0];
  return dims;
}
Status InferMatMul(InferContext& c) {
  CELER_ASSIGN(const std::vector<int64_t> dims, ProductDims(c));
  CELER_RETURN_IF_ERROR(CheckProduct(c, c.shape(1)[0]));
  return c.Set(0, OutputType(c.node), dims);
}
double MatMulFlops(const InferContext& c) {
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) * static_cast<double>(c.shape(1)[1]);
}
Status InferDynamic(InferContext& c) {
  CELER_ASSIGN(const std::vector<int64_t> dims, ProductDims(c));
  CELER_RETURN_IF_ERROR(CheckNumbers(c.node));
  const int64_t n = c.shape(1)[0];
  if (c.dtype(1) != DType::kI8 || c.dtype(2) != DType::kF32 || c.elements(2) != n)
    return Error::Invalid("weights of ", Name(c.dtype(1)), " with scales of ", c.shape(2).ToString());
  if (c.has(3) && (c.dtype(3) != DType::kF32 || c.elements(3) != n))
    return Error::Invalid("a bias of ", c.shape(3).ToString(), " for ", n, " columns");
  if (c.has(5) != c.has(6) ||
      (c.has(5) && (c.dtype(0) != DType::kU8 || c.dtype(5) != DType::kF32 || c.elements(5) != 1 ||
                    c.dtype(6) != DType::kU8 || c.elements(6) != 1)))
    return Error::Invalid("x of ", Name(c.dtype(0)), " with a scale and a zero of its own");
  if (!c.has(4)) return c.Set(0, DType::kF32, dims);
  if (c.dtype(4) != DType::kF32) return Error::Invalid("what is added is ", Name(c.dtype(4)));
  CELER_ASSIGN(const Shape product, MakeShape(dims));
  CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{product, c.shape(4)}));
  return c.Set(0, DType::kF32, together);
}

// ---- element by element -----------------------------------------------------------------------------------

Status InferPair(InferContext& c) {
  if (!kBytes.Has(c.dtype(1))) return Error::Invalid("its second input is ", Name(c.dtype(1)));
  CELER_RETURN_IF_ERROR(CheckNumbers(c.node));
  CELER_ASSIGN(const Shape shape, Broadcast(std::vector<Shape>{c.shape(0), c.shape(1)}));
  return c.Set(0, OutputType(c.node), shape);
}

// Calls fn(a, step of a, b, step of b, out, n) for each row.
template <class Fn>
void Pairs(KernelContext& c, const Fn& fn) {
  if (c.out_elements(0) == 0) return;
  ForRows<2>(c.pool, MakeWalk<2>(c.out(0).shape, {c.shape(0), c.shape(1)}),
             [&](int64_t o, const std::array<int64_t, 2>& at, int64_t n, const std::array<int64_t, 2>& step) {
               fn(c.in(0).as<uint8_t>() + at[0], step[0], c.in(1).as<uint8_t>() + at[1], step[1],
                  c.out(0).as<uint8_t>() + o, n);
             });
}

Status AddBy(KernelContext& c, const IntegerKernels& kernels) {
  const AddBytes add{.a_signed = c.dtype(0) == DType::kI8,
                     .b_signed = c.dtype(1) == DType::kI8,
                     .a_factor = static_cast<int32_t>(c.node.Int("a_factor", 0)),
                     .b_factor = static_cast<int32_t>(c.node.Int("b_factor", 0)),
                     .start = static_cast<int32_t>(c.node.Int("start", 0)),
                     .shift = static_cast<int32_t>(c.node.Int("shift", 1)),
                     .range = RangeOf(c.node)};
  Pairs(c, [&](const uint8_t* a, int64_t step_a, const uint8_t* b, int64_t step_b, uint8_t* out, int64_t n) {
    AddBytes row = add;
    if (step_a == 1 && step_b == 1) {
      row.a = a, row.b = b, row.out = out, row.n = n;
      return kernels.add(row);
    }
    row.n = 1;
    for (int64_t i = 0; i < n; ++i) {
      row.a = a + i * step_a, row.b = b + i * step_b, row.out = out + i;
      kernels.add(row);
    }
  });
  return {};
}
Status ReferenceAdd(KernelContext& c) {
  return AddBy(c, kIntegerPortable);
}
Status FastAdd(KernelContext& c) {
  return AddBy(c, ChosenInteger());
}
bool Always(const InferContext&) {
  return true;
}
constexpr FastKernel kFastAdd[] = {{"bytes", Always, FastAdd}};

Status Mul(KernelContext& c) {
  const MulBytes mul{.a_signed = c.dtype(0) == DType::kI8,
                     .b_signed = c.dtype(1) == DType::kI8,
                     .a_zero = static_cast<int32_t>(c.node.Int("a_zero", 0)),
                     .b_zero = static_cast<int32_t>(c.node.Int("b_zero", 0)),
                     .factor = FactorOf(c.node),
                     .range = RangeOf(c.node)};
  Pairs(c, [&](const uint8_t* a, int64_t step_a, const uint8_t* b, int64_t step_b, uint8_t* out, int64_t n) {
    MulBytes row = mul;
    row.a = a, row.b = b, row.a_step = step_a, row.b_step = step_b, row.out = out, row.n = n;
    MultiplyBytes(row);
  });
  return {};
}

Status InferTable(InferContext& c) {
  if (c.dtype(1) != DType::kU8 || c.elements(1) != 256)
    return Error::Invalid("a table of ", c.shape(1).ToString(), "; it must have 256 bytes");
  return c.Set(0, OutputType(c.node), c.shape(0));
}
Status Table(KernelContext& c) {
  LookUpBytes(c.in(0).as<uint8_t>(), c.in(1).as<uint8_t>(), c.out(0).as<uint8_t>(), c.elements(0), c.pool);
  return {};
}

// ---- pools ------------------------------------------------------------------------------------------------

Result<BytePool> PoolOf(const OpInputs& c) {
  if (c.shape(0).rank() != 4) return Error::Invalid("an image of ", c.shape(0).ToString());
  CELER_RETURN_IF_ERROR(CheckNumbers(c.node));
  CELER_ASSIGN(const Shape x, ChannelsSecond(c.shape(0)));
  BytePool p{
      .x_signed = c.dtype(0) == DType::kI8, .batch = x[0], .in_h = x[2], .in_w = x[3], .channels = x[1]};
  if (c.node.Int("global", 0) != 0) {
    p.kernel_h = p.in_h;
    p.kernel_w = p.in_w;
    return p;
  }
  CELER_ASSIGN(const Window w, SlidingWindow(c.node, x, c.node.Ints("kernel_shape")));
  if (!w.Modest()) return Error::Unsupported("a window far beyond an image of ", c.shape(0).ToString());
  p.kernel_h = w.kernel[1], p.kernel_w = w.kernel[2];
  p.stride_h = w.stride[1], p.stride_w = w.stride[2];
  p.dilation_h = w.dilation[1], p.dilation_w = w.dilation[2];
  p.pad_top = w.before[1], p.pad_left = w.before[2];
  p.out_h = w.out[1], p.out_w = w.out[2];
  return p;
}
Status InferPool(InferContext& c) {
  CELER_ASSIGN(const BytePool p, PoolOf(c));
  if (c.node.Int("keepdims", 1) == 0) return c.Set(0, OutputType(c.node), std::array{p.batch, p.channels});
  return c.Set(0, OutputType(c.node), std::array{p.batch, p.out_h, p.out_w, p.channels});
}
Result<BytePool> BoundPool(KernelContext& c) {
  CELER_ASSIGN(BytePool p, PoolOf(c));
  p.x = c.in(0).as<uint8_t>();
  p.out = c.out(0).as<uint8_t>();
  p.pool = &c.pool;
  return p;
}
Status MaxPool(KernelContext& c) {
  CELER_ASSIGN(const BytePool p, BoundPool(c));
  MaxPoolBytes(p);
  return {};
}
Status AveragePool(KernelContext& c) {
  CELER_ASSIGN(const BytePool p, BoundPool(c));
  AveragePoolBytes(p, {.x_zero = static_cast<int32_t>(c.node.Int("x_zero", 0)),
                       .factor = FactorOf(c.node),
                       .range = RangeOf(c.node)});
  return {};
}
double PoolFlops(const InferContext& c) {
  const auto p = PoolOf(c);
  if (!p) return 0;
  return static_cast<double>(*c.output(0).shape.elements()) * static_cast<double>(p->kernel_h * p->kernel_w);
}

constexpr Arity kOne = {1, 1}, kTwo = {2, 2};
constexpr unsigned kPlain = Operator::kPlain, kInPlace = Operator::kInPlace;
constexpr DTypeSet kQuantizedOrReal = {DType::kF32, DType::kU8, DType::kI8};
constexpr Operator kRows[] = {
    {"DynamicMatMul", 1, Arity(3, 7), kOne, kQuantizedOrReal, InferDynamic, ReferenceDynamicMatMul, kPlain,
     MatMulFlops, kFastDynamicMatMul, kCelerDomain},
    {"IntegerAdd", 1, kTwo, kOne, kBytes, InferPair, ReferenceAdd, kInPlace, nullptr, kFastAdd, kCelerDomain},
    {"IntegerAveragePool", 1, kOne, kOne, kBytes, InferPool, AveragePool, kPlain, PoolFlops, kNoFastKernels,
     kCelerDomain},
    {"IntegerConv", 1, Arity(3, 4), kOne, kBytes, InferConv, ReferenceIntegerConv, kPlain, ConvFlops,
     kFastIntegerConv, kCelerDomain},
    {"IntegerMatMul", 1, Arity(3, 4), kOne, kBytes, InferMatMul, ReferenceIntegerMatMul, kPlain, MatMulFlops,
     kFastIntegerMatMul, kCelerDomain},
    {"IntegerMaxPool", 1, kOne, kOne, kBytes, InferPool, MaxPool, kPlain, PoolFlops, {}, kCelerDomain},
    {"IntegerMul", 1, kTwo, kOne, kBytes, InferPair, Mul, kInPlace, nullptr, {}, kCelerDomain},
    {"Table", 1, kTwo, kOne, kBytes, InferTable, Table, kInPlace, nullptr, {}, kCelerDomain},
};

}  // namespace

std::span<const Operator> IntegerOperators() {
  return kRows;
}

ByteRange RangeOf(const Node& node) {
  const bool is_signed = node.Int("y_signed", 0) != 0;
  return {static_cast<int32_t>(node.Int("zero", 0)),
          static_cast<int32_t>(node.Int("low", is_signed ? -128 : 0)),
          static_cast<int32_t>(node.Int("high", is_signed ? 127 : 255))};
}

Status CheckFactors(const TensorView& factors) {
  const int64_t n = factors.shape[1];
  const int32_t* const rows = factors.as<int32_t>();
  for (int64_t i = 0; i < n; ++i)
    if (!IsMultiplier(rows[i], rows[n + i], rows[2 * n + i]))
      return Error::Invalid("the factor of channel ", i, " is ", rows[i], " shifted by ", rows[n + i],
                            " and ", rows[2 * n + i], ": no multiplier and two shifts");
  return {};
}

Result<ConvShape> IntegerConvShapeOf(const Node& node, const Shape& x, const Shape& w) {
  if (x.rank() != 4 || w.rank() != 4)
    return Error::Invalid("images of ", x.ToString(), " with weights of ", w.ToString());
  const std::vector<int64_t> kernel(w.dims().begin() + 2, w.dims().end());
  CELER_ASSIGN(const Shape image, ChannelsSecond(x));
  CELER_ASSIGN(const Window window, SlidingWindow(node, image, kernel));
  const int64_t groups = node.Int("group", 1);
  if (groups < 1 || groups > x[3] || x[3] % groups != 0 || !window.Modest())
    return Error::Invalid("images of ", x.ToString(), " with weights of ", w.ToString(), " in ", groups,
                          " groups, or pads far beyond them");
  const ConvShape s = ConvShapeOf(window, x[0], x[3], w[0], groups);
  if (s.groups < 1 || s.channels < 1 || s.out_channels < 1 || s.channels != w[1] * s.groups ||
      s.out_channels % s.groups != 0 || s.out_h() < 1 || s.out_w() < 1 || !CanDoIntegerConv(s))
    return Error::Invalid("images of ", x.ToString(), " with weights of ", w.ToString(), " in ", s.groups,
                          " groups");
  return s;
}

}  // namespace celer::graph
