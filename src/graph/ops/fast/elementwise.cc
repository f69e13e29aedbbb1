// Elementwise operators on vectors: functions of one tensor, and of two with broadcasting.
#include "kernels/network/elementwise/elementwise.h"

#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

using K = Pointwise::Kind;

struct PairState {
  Binary op;
  Walk<2> walk;
};

std::optional<Binary> BinaryOf(const Node& node) {
  constexpr std::pair<std::string_view, Binary> kNames[] = {
      {"Add", Binary::kAdd}, {"Sub", Binary::kSub}, {"Mul", Binary::kMul}, {"Div", Binary::kDiv},
      {"Max", Binary::kMax}, {"Min", Binary::kMin}, {"Sum", Binary::kAdd}};
  for (const auto& [name, op] : kNames)
    if (node.op == name) return op;
  return std::nullopt;
}

std::optional<Pointwise> ClipOf(const OpInputs& c) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Pointwise f = Pointwise::Clip(-kInfinity, kInfinity);
  if (c.node.opset < 11) {
    f.a = c.node.Float("min", std::numeric_limits<float>::lowest());
    f.b = c.node.Float("max", std::numeric_limits<float>::max());
  }
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (!c.has(i)) continue;
    if (!c.known(i) || c.elements(i) != 1) return std::nullopt;
    (i == 1 ? f.a : f.b) = static_cast<float>(ReadScalar(c.in(i)));
  }
  // A bound that is no number makes everything NaN; the kernels would take it for none.
  if (f.a != f.a || f.b != f.b) return std::nullopt;
  return f;
}

template <class T>
bool BinaryFits(const InferContext& c) {
  return c.inputs() == 2 && c.dtype(0) == kDTypeOf<T> && c.dtype(1) == kDTypeOf<T> && BinaryOf(c.node) &&
         c.node.opset >= 7 && c.output(0).set && *c.output(0).shape.elements() > 0;
}

Prepared PrepareBinary(const InferContext& c, int, PackCache&) {
  return {std::make_shared<PairState>(
              PairState{*BinaryOf(c.node), MakeWalk<2>(c.output(0).shape, {c.shape(0), c.shape(1)})}),
          0};
}
template <class T>
Status RunBinary(KernelContext& c) {
  const auto& state = *static_cast<const PairState*>(c.state);
  const T *const a = c.in(0).as<T>(), *const b = c.in(1).as<T>();
  T* const out = c.out(0).as<T>();
  ForRows<2>(c.pool, state.walk,
             [&](int64_t o, const std::array<int64_t, 2>& at, int64_t n, const std::array<int64_t, 2>& step) {
               BinaryRow(state.op, {}, a + at[0], step[0], b + at[1], step[1], out + o, n);
             });
  return {};
}

template <class T>
bool UnaryFits(const InferContext& c) {
  return c.dtype(0) == kDTypeOf<T> && PointwiseOf(c).has_value();
}
Prepared PrepareUnary(const InferContext& c, int, PackCache&) {
  return {std::make_shared<Pointwise>(*PointwiseOf(c)), 0};
}
template <class T>
Status RunUnary(KernelContext& c) {
  ApplyPointwise(*static_cast<const Pointwise*>(c.state), c.in(0).as<T>(), c.out(0).as<T>(), c.elements(0),
                 c.pool);
  return {};
}

bool SquareFits(const InferContext& c) {
  return c.dtype(0) == DType::kF32 && c.known(1) && c.elements(1) == 1 && ReadScalar(c.in(1)) == 2 &&
         c.output(0).set && c.output(0).shape == c.shape(0) && c.elements(0) > 0;
}
Status RunSquare(KernelContext& c) {
  const float* const x = c.in(0).as<float>();
  ApplyBinary({.op = Binary::kMul,
               .a = {.data = x},
               .b = {.data = x},
               .rows = 1,
               .cols = c.elements(0),
               .out = c.out(0).as<float>(),
               .pool = &c.pool});
  return {};
}

}  // namespace

Pointwise ActivationOf(const Node& node) {
  constexpr std::pair<std::string_view, K> kNames[] = {
      {"clip", K::kClip},
      {"leaky_relu", K::kLeakyRelu},
      {"sigmoid", K::kSigmoid},
      {"silu", K::kSilu},
      {"tanh", K::kTanh},
      {"hard_sigmoid", K::kHardSigmoid},
      {"hard_swish", K::kHardSwish},
      {"gelu", K::kGelu},
      {"gelu_tanh", K::kGeluTanh},
  };
  const std::string name = node.Text("activation", "");
  for (const auto& [text, kind] : kNames)
    if (text == name) return {kind, node.Float("a", 0), node.Float("b", 0)};
  return {};
}

std::optional<Pointwise> PointwiseOf(const OpInputs& c) {
  const std::string& op = c.node.op;
  if (op == "Relu") return Pointwise::Relu();
  if (op == "Clip") return ClipOf(c);
  if (op == "Sigmoid") return Pointwise{K::kSigmoid};
  if (op == "Tanh") return Pointwise{K::kTanh};
  if (op == "Erf") return Pointwise{K::kErf};
  if (op == "Exp") return Pointwise{K::kExp};
  if (op == "HardSwish") return Pointwise{K::kHardSwish};
  if (op == "LeakyRelu") return Pointwise{K::kLeakyRelu, c.node.Float("alpha", 0.01f)};
  if (op == "HardSigmoid")
    return Pointwise{K::kHardSigmoid, c.node.Float("alpha", 0.2f), c.node.Float("beta", 0.5f)};
  if (op == "Gelu") return Pointwise{c.node.Text("approximate", "none") == "tanh" ? K::kGeluTanh : K::kGelu};
  if (op == "Swish" && c.node.Float("alpha", 1) == 1) return Pointwise{K::kSilu};
  return std::nullopt;
}

void FinishFused(const KernelContext& c, const TensorView& y, size_t add) {
  float* const out = y.as<float>();
  const int64_t n = *y.shape.elements();
  if (c.has(add) && n > 0)
    ForRows<2>(
        c.pool, MakeWalk<2>(y.shape, {y.shape, c.shape(add)}),
        [&](int64_t o, const std::array<int64_t, 2>& at, int64_t count, const std::array<int64_t, 2>& step) {
          BinaryRow(Binary::kAdd, {}, out + at[0], step[0], c.in(add).as<float>() + at[1], step[1], out + o,
                    count);
        });
  const Pointwise f = ActivationOf(c.node);
  if (f.kind != K::kNone) ApplyPointwise(f, out, out, n, c.pool);
}

constexpr FastKernel kFastUnary[] = {{"vectors", UnaryFits<float>, RunUnary<float>, PrepareUnary},
                                     {"vectors f16", UnaryFits<F16>, RunUnary<F16>, PrepareUnary}};
constexpr FastKernel kFastBinary[] = {{"vectors", BinaryFits<float>, RunBinary<float>, PrepareBinary},
                                      {"vectors f16", BinaryFits<F16>, RunBinary<F16>, PrepareBinary}};
constexpr FastKernel kFastPow[] = {{"square", SquareFits, RunSquare}};

}  // namespace celer::graph
