// Reference kernels of fused operators: the nodes one after the other.
#include <cmath>

#include "graph/ir/operator_table.h"
#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

// The first inputs, as the operator sees them that does the first part.
std::vector<const Data*> FirstInputs(const OpInputs& c, size_t count) {
  std::vector<const Data*> in;
  for (size_t i = 0; i < count && c.has(i); ++i) in.push_back(&c.data(i));
  return in;
}

// Weights stay f32 where the rest is f16; the operator that does the first part knows one type alone.
Result<Shape> ShapeFrom(const Operator& op, const Node& node, std::span<const Data* const> in) {
  std::vector<Data> typed;
  for (const Data* const data : in) {
    typed.push_back(*data);
    typed.back().tensor.dtype = in[0]->tensor.dtype;
  }
  std::vector<const Data*> same;
  for (const Data& data : typed) same.push_back(&data);
  std::vector<InferContext::Output> types(1);
  InferContext infer(node, same, types);
  CELER_RETURN_IF_ERROR(op.infer(infer));
  return types[0].shape;
}

// What is added may be larger than what it is added to.
Status InferAdded(InferContext& c, const Shape& first, size_t add) {
  if (!c.has(add)) return c.Set(0, c.dtype(0), first);
  CELER_RETURN_IF_ERROR(CheckSameType(c, add));
  CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{first, c.shape(add)}));
  return c.Set(0, c.dtype(0), together);
}

// The fallback where no fast kernel fits: every f16 operand as f32, and the result rounded.
Status RunInF32(KernelContext& c, KernelFn run) {
  std::vector<Data> wide;
  wide.reserve(c.inputs());
  std::vector<const Data*> in;
  for (size_t i = 0; i < c.inputs(); ++i) {
    if (!c.has(i) || c.dtype(i) != DType::kF16) {
      in.push_back(c.has(i) ? &c.data(i) : nullptr);
      continue;
    }
    CELER_ASSIGN(Data copy, NewTensor(DType::kF32, c.shape(i)));
    CastElements(c.pool, c.in(i), copy.tensor);
    wide.push_back(std::move(copy));
    in.push_back(&wide.back());
  }
  std::vector<Data> out(1);
  CELER_ASSIGN(out[0], NewTensor(DType::kF32, c.out(0).shape));
  KernelContext f32(c.node, in, out, c.pool, c.subgraphs);
  CELER_RETURN_IF_ERROR(run(f32));
  CastElements(c.pool, out[0].tensor, c.out(0));
  return {};
}

// The first part by `op`, then what follows it.
Status RunParts(KernelContext& c, const Operator& op, const Node& node, std::span<const Data* const> in,
                const Shape& shape) {
  std::vector<Data> out = {Data::Of(c.out(0))};
  const bool grows = !(shape == c.out(0).shape);
  if (grows) {
    CELER_ASSIGN(out[0], NewTensor(DType::kF32, shape));
  }
  KernelContext first(node, in, out, c.pool, c.subgraphs);
  CELER_RETURN_IF_ERROR(op.reference(first));
  if (grows) Repeat(c.pool, out[0].tensor, c.out(0));
  return {};
}

Status InferConv(InferContext& c) {
  CELER_ASSIGN(const Shape shape, ConvOutputShape(c));
  return InferAdded(c, shape, 3);
}
Status FusedConv(KernelContext& c) {
  if (c.dtype(0) == DType::kF16) return RunInF32(c, FusedConv);
  CELER_ASSIGN(const Shape shape, ConvOutputShape(c));
  const std::vector<const Data*> in = FirstInputs(c, 3);
  CELER_RETURN_IF_ERROR(RunParts(c, *FindOperator("", "Conv", 11), c.node, in, shape));
  FinishFused(c, c.out(0), 3);
  return {};
}
double ConvFlops(const InferContext& c) {
  const Shape& w = c.shape(1);
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(Product(w, 1, w.rank()));
}

// Transposed weights are those of a Gemm.
const Operator& ProductOperator(const Node& node) {
  return node.Int("transB", 0) != 0 ? *FindOperator("", "Gemm", 13) : *FindOperator("", "MatMul", 13);
}
Status InferMatMul(InferContext& c) {
  CELER_ASSIGN(const Shape shape, MatMulOutputShape(c));
  if (c.has(2) && (c.dtype(2) != DType::kF32 || c.elements(2) != shape[shape.rank() - 1]))
    return Error::Invalid("a bias of ", c.shape(2).ToString(), " for ", shape.ToString());
  return InferAdded(c, shape, 3);
}
Status FusedMatMul(KernelContext& c) {
  if (c.dtype(0) == DType::kF16) return RunInF32(c, FusedMatMul);
  CELER_ASSIGN(const Shape shape, MatMulOutputShape(c));
  const std::vector<const Data*> in = FirstInputs(c, 2);
  CELER_RETURN_IF_ERROR(RunParts(c, ProductOperator(c.node), c.node, in, shape));
  if (c.has(2)) {
    const int64_t n = c.elements(2);
    float* const y = c.out(0).as<float>();
    for (int64_t i = 0; i < c.out_elements(0); ++i) y[i] += c.in(2).as<float>()[i % n];
  }
  FinishFused(c, c.out(0), 3);
  return {};
}
double MatMulFlops(const InferContext& c) {
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(c.shape(0)[c.shape(0).rank() - 1]);
}

// q [..., tokens, width], k [..., width, keys], v [..., keys, v width], and a mask that broadcasts to
// [..., tokens, keys].
Status InferAttention(InferContext& c) {
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  const int rank = q.rank();
  bool fits = rank >= 2 && k.rank() == rank && v.rank() == rank;
  for (int i = 0; fits && i < rank - 2; ++i) fits = q[i] == k[i] && q[i] == v[i];
  fits = fits && q[rank - 1] == k[rank - 2] && k[rank - 1] == v[rank - 2];
  if (!fits)
    return Error::Invalid("queries of ", q.ToString(), ", keys of ", k.ToString(), " and values of ",
                          v.ToString());
  for (size_t i = 1; i < 4; ++i) CELER_RETURN_IF_ERROR(CheckSameType(c, i));
  std::vector<int64_t> dims = Dims(q);
  if (c.has(3)) {
    dims[rank - 1] = k[rank - 1];
    CELER_ASSIGN(const Shape scores, MakeShape(dims));
    CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{scores, c.shape(3)}));
    if (!(together == scores))
      return Error::Invalid("a mask of ", c.shape(3).ToString(), " for scores of ", scores.ToString());
  }
  dims[rank - 1] = v[rank - 1];
  return c.Set(0, c.dtype(0), dims);
}
Status FusedAttention(KernelContext& c) {
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  const int rank = q.rank();
  const int64_t heads = Product(q, 0, rank - 2), tokens = q[rank - 2], width = q[rank - 1],
                keys = k[rank - 1], v_width = v[rank - 1];
  const float scale = c.node.Float("scale", 1);
  std::vector<int64_t> dims = Dims(q);
  dims[rank - 1] = keys;
  CELER_ASSIGN(const Shape scores, MakeShape(dims));
  CELER_ASSIGN(const Data mask, NewTensor(DType::kF32, scores));
  if (c.has(3))
    Repeat(c.pool, c.in(3), mask.tensor);
  else
    std::fill_n(mask.tensor.as<float>(), heads * tokens * keys, 0.0f);
  Parallel(c.pool, heads * tokens, keys * (width + v_width), [&](int64_t begin, int64_t end) {
    std::vector<double> p(static_cast<size_t>(keys));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t head = row / tokens;
      const float *const x = c.in(0).as<float>() + row * width,
                         *const y = c.in(1).as<float>() + head * width * keys,
                         *const z = c.in(2).as<float>() + head * keys * v_width;
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double score = 0;
        for (int64_t d = 0; d < width; ++d) score += static_cast<double>(x[d]) * y[d * keys + j];
        p[j] = score * scale + static_cast<double>(mask.tensor.as<float>()[row * keys + j]);
        most = std::max(most, p[j]);
      }
      for (double& e : p) sum += e = std::exp(e - most);
      for (int64_t d = 0; d < v_width; ++d) {
        double total = 0;
        for (int64_t j = 0; j < keys; ++j) total += p[j] * z[j * v_width + d];
        c.out(0).as<float>()[row * v_width + d] = static_cast<float>(total / sum);
      }
    }
  });
  return {};
}
double AttentionFlops(const InferContext& c) {
  const Shape &q = c.shape(0), &v = c.shape(2);
  return 2.0 * static_cast<double>(Product(q, 0, q.rank() - 1)) * static_cast<double>(v[v.rank() - 2]) *
         static_cast<double>(q[q.rank() - 1] + v[v.rank() - 1]);
}

constexpr DTypeSet kF32 = {DType::kF32};
constexpr DTypeSet kF32OrF16 = {DType::kF32, DType::kF16};
constexpr Operator kRows[] = {
    {"Attention", 1, Arity(3, 4), Arity(1, 1), kF32, InferAttention, FusedAttention, Operator::kPlain,
     AttentionFlops, kFastAttention, kCelerDomain},
    {"Conv", 1, Arity(2, 4), Arity(1, 1), kF32OrF16, InferConv, FusedConv, Operator::kPlain, ConvFlops,
     kFastConv, kCelerDomain},
    {"MatMul", 1, Arity(2, 4), Arity(1, 1), kF32OrF16, InferMatMul, FusedMatMul, Operator::kPlain,
     MatMulFlops, kFastFusedMatMul, kCelerDomain},
};

}  // namespace

std::span<const Operator> FusedOperators() {
  return kRows;
}

Result<Shape> ConvOutputShape(const OpInputs& c) {
  return ShapeFrom(*FindOperator("", "Conv", 11), c.node, FirstInputs(c, 3));
}

Result<Shape> MatMulOutputShape(const OpInputs& c) {
  return ShapeFrom(ProductOperator(c.node), c.node, FirstInputs(c, 2));
}

}  // namespace celer::graph
