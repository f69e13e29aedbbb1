// Types, reductions, comparisons and tensors made from numbers.
#include "graph/load/pnnx/modules.h"

namespace celer::graph {
namespace {

using L = Lowering;

std::optional<DType> TorchType(const std::string& name) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"torch.float", DType::kF32},     {"torch.float32", DType::kF32}, {"torch.double", DType::kF64},
      {"torch.float64", DType::kF64},   {"torch.half", DType::kF16},    {"torch.float16", DType::kF16},
      {"torch.bfloat16", DType::kBf16}, {"torch.long", DType::kI64},    {"torch.int64", DType::kI64},
      {"torch.int", DType::kI32},       {"torch.int32", DType::kI32},   {"torch.short", DType::kI16},
      {"torch.int16", DType::kI16},     {"torch.int8", DType::kI8},     {"torch.uint8", DType::kU8},
      {"torch.bool", DType::kBool}};
  for (const auto& [torch, dtype] : kNames)
    if (torch == name) return dtype;
  return std::nullopt;
}
void To(L& l) {
  const ValueId x = FirstInput(l);
  if (!l.Has("dtype")) {
    l.Output(0, x);
    return;
  }
  const auto type = TorchType(l.Text("dtype", ""));
  if (!type) l.Fail("the type ", l.Text("dtype", ""), " is not known");
  l.Output(0, l.Cast(x, type.value_or(DType::kF32)));
}
void TypeAs(L& l) {
  l.Output(0, l.Cast(l.Input(0), l.TypeOf(l.Input(1))));
}
template <const char* kNode>
void Reduce(L& l) {
  const ValueId x = FirstInput(l);
  const std::vector<int64_t> axes = l.Ints("dim");
  const L::Attributes attributes = {{"keepdims", l.Bool("keepdim", false) ? int64_t{1} : 0}};
  l.Output(0,
           axes.empty() ? l.Node(kNode, {x}, attributes) : l.Node(kNode, {x, l.Constants(axes)}, attributes));
}
constexpr char kReduceMean[] = "ReduceMean", kReduceSum[] = "ReduceSum", kReduceMax[] = "ReduceMax",
               kReduceMin[] = "ReduceMin", kReduceProd[] = "ReduceProd",
               kReduceLogSumExp[] = "ReduceLogSumExp", kReduceL2[] = "ReduceL2";
template <bool kMax>
void ArgBest(L& l) {
  ValueId x = FirstInput(l);
  if (!l.Has("dim")) x = l.Node("Reshape", {x, l.Constants({-1})});
  l.Output(0, l.Node(kMax ? "ArgMax" : "ArgMin", {x},
                     {{"axis", l.Int("dim", 0)}, {"keepdims", l.Bool("keepdim", false) ? int64_t{1} : 0}},
                     DType::kI64));
}
template <bool kMax>
void Best(L& l) {
  if (!l.Has("dim")) {
    if (l.inputs() == 2)
      l.Output(0, l.Node(kMax ? "Max" : "Min", {l.Input(0), l.Input(1)}));
    else
      l.Output(0, l.Node(kMax ? kReduceMax : kReduceMin, {FirstInput(l)}, {{"keepdims", int64_t{0}}}));
    return;
  }
  const ValueId x = FirstInput(l);
  const int64_t axis = l.Int("dim", 0), keep = l.Bool("keepdim", false) ? 1 : 0;
  l.Output(0, l.Node(kMax ? kReduceMax : kReduceMin, {x, l.Constants({axis})}, {{"keepdims", keep}}));
  if (l.op().outputs.size() > 1)
    l.Output(1, l.Node(kMax ? "ArgMax" : "ArgMin", {x}, {{"axis", axis}, {"keepdims", keep}}, DType::kI64));
}
void TopK(L& l) {
  const std::vector<ValueId> out = l.NodeOf("TopK", {FirstInput(l), l.Constants({l.Int("k", 1)})}, 2,
                                            {{"axis", l.Int("dim", -1)},
                                             {"largest", l.Bool("largest", true) ? int64_t{1} : 0},
                                             {"sorted", int64_t{1}}});
  l.graph().value(out[0]).type.dtype = l.TypeOf(FirstInput(l));
  l.graph().value(out[1]).type.dtype = DType::kI64;
  l.Output(0, out[0]);
  if (l.op().outputs.size() > 1) l.Output(1, out[1]);
}
void CumSum(L& l) {
  l.Output(0, l.Node("CumSum", {FirstInput(l), l.ConstantInt(l.Int("dim", 0))}));
}
void Where(L& l) {
  const ValueId condition = l.Argument("condition", 0);
  ValueId a = l.Argument("input", 1), b = l.Argument("other", 2);
  b = l.Cast(b, l.TypeOf(a));
  l.Output(0, l.Node("Where", {condition, a, b}, {}, l.TypeOf(a)));
}
template <const char* kNode>
void Compare(L& l) {
  const ValueId x = FirstInput(l);
  const ValueId other =
      l.Has("other") ? l.Cast(l.ConstantFloat(l.Float("other", 0)), l.TypeOf(x)) : l.Argument("other", 1);
  l.Output(0, l.Node(kNode, {x, l.Cast(other, l.TypeOf(x))}, {}, DType::kBool));
}
constexpr char kEqual[] = "Equal", kLess[] = "Less", kLessOrEqual[] = "LessOrEqual", kGreater[] = "Greater",
               kGreaterOrEqual[] = "GreaterOrEqual";
void NotEqual(L& l) {
  const ValueId x = FirstInput(l);
  const ValueId other =
      l.Has("other") ? l.Cast(l.ConstantFloat(l.Float("other", 0)), l.TypeOf(x)) : l.Argument("other", 1);
  l.Output(0, l.Node("Not", {l.Node("Equal", {x, l.Cast(other, l.TypeOf(x))}, {}, DType::kBool)}, {},
                     DType::kBool));
}
void Norm(L& l) {
  if (l.Float("p", 2) != 2) l.Fail("a norm of order ", l.Float("p", 2), " is not known");
  Reduce<kReduceL2>(l);
}
void FillLike(L& l) {
  const ValueId x = FirstInput(l);
  const double value = l.op().type.starts_with("torch.ones")    ? 1
                       : l.op().type.starts_with("torch.zeros") ? 0
                                                                : l.Float("fill_value", 0);
  const DType type = TorchType(l.Text("dtype", "")).value_or(l.TypeOf(x));
  l.Output(0, l.Node("Expand", {l.Cast(l.ConstantFloat(value), type), l.ShapeOf(x)}));
}
void Fill(L& l) {
  const double value = l.op().type == "torch.ones"    ? 1
                       : l.op().type == "torch.zeros" ? 0
                                                      : l.Float("fill_value", 0);
  const DType type = TorchType(l.Text("dtype", "")).value_or(DType::kF32);
  const ValueId size = !l.Has("size") && l.inputs() > 0 ? l.Input(0) : l.Constants(l.Ints("size"));
  l.Output(0, l.Node("Expand", {l.Cast(l.ConstantFloat(value), type), size}));
}
void Arange(L& l) {
  const auto bound = [&](const char* key, int64_t otherwise) {
    return l.HasArgument(key) ? l.Argument(key, 0) : l.ConstantInt(l.Int(key, otherwise));
  };
  const ValueId range =
      l.Node("Range", {bound("start", 0), bound("end", 0), bound("step", 1)}, {}, DType::kI64);
  l.Output(0, l.Cast(range, TorchType(l.Text("dtype", "")).value_or(DType::kI64)));
}

constexpr PnnxRow kRows[] = {
    {"Tensor.to", To},
    {"Tensor.type_as", TypeAs},
    {"torch.mean", Reduce<kReduceMean>},
    {"torch.sum", Reduce<kReduceSum>},
    {"torch.prod", Reduce<kReduceProd>},
    {"torch.amax", Reduce<kReduceMax>},
    {"torch.amin", Reduce<kReduceMin>},
    {"torch.logsumexp", Reduce<kReduceLogSumExp>},
    {"torch.norm", Norm},
    {"torch.argmax", ArgBest<true>},
    {"torch.argmin", ArgBest<false>},
    {"torch.max", Best<true>},
    {"torch.min", Best<false>},
    {"torch.topk", TopK},
    {"torch.cumsum", CumSum},
    {"torch.eq", Compare<kEqual>},
    {"torch.lt", Compare<kLess>},
    {"torch.le", Compare<kLessOrEqual>},
    {"torch.gt", Compare<kGreater>},
    {"torch.ge", Compare<kGreaterOrEqual>},
    {"torch.ne", NotEqual},
    {"torch.where", Where},
    {"torch.zeros_like", FillLike},
    {"torch.ones_like", FillLike},
    {"torch.full_like", FillLike},
    {"torch.zeros", Fill},
    {"torch.ones", Fill},
    {"torch.full", Fill},
    {"torch.arange", Arange},
};

}  // namespace

std::span<const PnnxRow> PnnxReductions() {
  return kRows;
}

}  // namespace celer::graph
