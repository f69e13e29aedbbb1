#include "graph/ops/common.h"

namespace celer::graph {

Result<int> CheckAxis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank)
    return Error::Invalid("the axis ", axis, " is outside of ", rank, " dimensions");
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Result<std::vector<int>> CheckAxes(std::span<const int64_t> axes, int rank) {
  std::vector<int> out;
  for (const int64_t axis : axes) {
    CELER_ASSIGN(const int checked, CheckAxis(axis, rank));
    if (std::find(out.begin(), out.end(), checked) != out.end())
      return Error::Invalid("the axis ", axis, " is given twice");
    out.push_back(checked);
  }
  return out;
}

Result<Shape> Broadcast(std::span<const Shape> shapes) {
  int rank = 0;
  for (const Shape& shape : shapes) rank = std::max(rank, shape.rank());
  std::vector<int64_t> out(static_cast<size_t>(rank), 1);
  for (const Shape& shape : shapes)
    for (int i = 0; i < shape.rank(); ++i) {
      int64_t& dim = out[rank - shape.rank() + i];
      if (shape[i] == 1 || shape[i] == dim) continue;
      if (dim != 1)
        return Error::Invalid("the shapes ", shapes[0].ToString(), " and ", shape.ToString(),
                              " do not broadcast: ", dim, " against ", shape[i]);
      dim = shape[i];
    }
  return MakeShape(out);
}

Status InferSame(InferContext& c) {
  return c.Set(0, c.dtype(0), c.shape(0));
}

namespace {

Result<Shape> BroadcastInputs(const InferContext& c) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < c.inputs(); ++i)
    if (c.has(i)) shapes.push_back(c.shape(i));
  return Broadcast(shapes);
}

}  // namespace

Status InferBroadcast(InferContext& c) {
  for (size_t i = 1; i < c.inputs(); ++i) CELER_RETURN_IF_ERROR(CheckSameType(c, i));
  CELER_ASSIGN(const Shape shape, BroadcastInputs(c));
  return c.Set(0, c.dtype(0), shape);
}

Status InferBoolBroadcast(InferContext& c) {
  for (size_t i = 1; i < c.inputs(); ++i) CELER_RETURN_IF_ERROR(CheckSameType(c, i));
  CELER_ASSIGN(const Shape shape, BroadcastInputs(c));
  return c.Set(0, DType::kBool, shape);
}

int64_t Product(std::span<const int64_t> dims, size_t begin, size_t end) {
  int64_t out = 1;
  for (size_t i = begin; i < end; ++i) out *= dims[i];
  return out;
}

std::vector<int64_t> Dims(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

void MapPairs(ThreadPool& pool, const TensorView& a, const TensorView& b, const TensorView& out, RowFn row) {
  if (*out.shape.elements() == 0) return;
  const int64_t size_a = Info(a.dtype).block_bytes, size_b = Info(b.dtype).block_bytes,
                size_out = Info(out.dtype).block_bytes;
  ForRows<2>(pool, MakeWalk<2>(out.shape, {a.shape, b.shape}),
             [&](int64_t o, const std::array<int64_t, 2>& at, int64_t n, const std::array<int64_t, 2>& step) {
               row(a.data + at[0] * size_a, step[0], b.data + at[1] * size_b, step[1],
                   out.data + o * size_out, n);
             });
}

Status CheckSameType(const OpInputs& c, size_t i) {
  if (c.has(i) && c.dtype(i) != c.dtype(0))
    return Error::Invalid("its inputs are ", Name(c.dtype(0)), " and ", Name(c.dtype(i)),
                          "; they must have one type");
  return {};
}

void Repeat(ThreadPool& pool, const TensorView& in, const TensorView& out) {
  if (*out.shape.elements() == 0) return;
  const float* const x = in.as<float>();
  ForRows<1>(pool, MakeWalk<1>(out.shape, {in.shape}),
             [&](int64_t o, const std::array<int64_t, 1>& at, int64_t n, const std::array<int64_t, 1>& step) {
               for (int64_t i = 0; i < n; ++i) out.as<float>()[o + i] = x[at[0] + i * step[0]];
             });
}

}  // namespace celer::graph
