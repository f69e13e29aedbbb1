// Products of bytes: weights packed once, and the kernels of src/kernels/network/integer.
#include "graph/ops/quant/integer.h"
#include "graph/ops/common.h"
#include "graph/ops/window.h"

namespace celer::graph {
namespace {

// Packed words are kept as floats, whatever they are: 32 bits each.
using Words = AlignedVector<float>;

PackedIntegerConv ViewOf(const IntegerConvPlan& plan, const Words& words, int32_t x_zero, bool factors) {
  return UnpackIntegerConv(plan, reinterpret_cast<const int32_t*>(words.data()), x_zero, factors);
}

struct State {
  IntegerConvPlan plan;
  PackCache::Packed words;
  PackedIntegerConv packed;
};

std::vector<Multiplier> FactorsOf(const TensorView& factors) {
  const int64_t n = factors.shape[1];
  const int32_t* const rows = factors.as<int32_t>();
  std::vector<Multiplier> out;
  for (int64_t i = 0; i < n; ++i) out.push_back({rows[i], rows[n + i], rows[2 * n + i]});
  return out;
}

int32_t ZeroOf(const OpInputs& c) {
  return static_cast<int32_t>(c.node.Int("x_zero", 0));
}

Words Pack(const OpInputs& c, const IntegerConvPlan& plan) {
  const std::vector<Multiplier> factors = FactorsOf(c.in(2));
  Words words(static_cast<size_t>(PackedIntegerWords(plan)));
  PackIntegerConv(plan,
                  {.weights = c.in(1).as<int8_t>(),
                   .bias = c.has(3) ? c.in(3).as<int32_t>() : nullptr,
                   .x_zero = ZeroOf(c),
                   .factors = factors},
                  reinterpret_cast<int32_t*>(words.data()));
  return words;
}

Prepared PrepareShape(const InferContext& c, const ConvShape& shape, int threads, PackCache& packs) {
  const IntegerConvPlan plan = PlanIntegerConv(shape, c.dtype(0) == DType::kI8);
  // The same weights may stand behind several zero points and factors.
  const std::string how = "integer " + std::to_string(reinterpret_cast<uintptr_t>(c.in(2).data)) + " " +
                          std::to_string(c.node.Int("x_zero", 0)) + (plan.x_signed ? " signed" : "");
  auto state =
      std::make_shared<State>(State{plan, packs.Get(c.in(1).data, how, [&] { return Pack(c, plan); }), {}});
  state->packed = ViewOf(plan, *state->words, ZeroOf(c), true);
  return {std::move(state), IntegerConvWorkspaceBytes(plan, threads)};
}

Status RunShape(KernelContext& c, const IntegerConvPlan& plan, const PackedIntegerConv& packed,
                std::byte* workspace) {
  IntegerConv(plan, packed,
              {.x = c.in(0).as<uint8_t>(),
               .range = RangeOf(c.node),
               .out = c.out(0).as<uint8_t>(),
               .workspace = workspace,
               .pool = &c.pool});
  return {};
}

Status Reference(KernelContext& c, const ConvShape& shape) {
  if (c.out_elements(0) == 0) return {};
  CELER_RETURN_IF_ERROR(CheckFactors(c.in(2)));
  const IntegerConvPlan plan = PlanIntegerConv(shape, c.dtype(0) == DType::kI8, kIntegerPortable);
  AlignedVector<std::byte> workspace(static_cast<size_t>(IntegerConvWorkspaceBytes(plan, c.pool.size())));
  const Words words = Pack(c, plan);
  return RunShape(c, plan, ViewOf(plan, words, ZeroOf(c), true), workspace.data());
}

// That a core does per cycle: two instructions of 256 bits on one hand, of 512 on the other.
double FloatProducts() {
  return RunsHere(Isa::kAvx512) ? 32 : 16;
}
}  // namespace

ConvShape ProductShapeOf(const OpInputs& c) {
  const Shape& x = c.shape(0);
  const int64_t k = x[x.rank() - 1];
  return ProductShape(k > 0 ? c.elements(0) / k : 0, k, c.shape(1)[0]);
}

bool IntegersAreFast() {
  return ChosenInteger().byte_products > FloatProducts();
}

bool IntegersAreFaster(const ConvShape& s) {
  if (!IntegersAreFast()) return false;
  const IntegerKernels& kernels = ChosenInteger();
  const double floats = FloatProducts();
  const auto up = [](int64_t n, int64_t unit) { return static_cast<double>((n + unit - 1) / unit * unit); };
  const auto rows = static_cast<double>(s.batch * s.out_h() * s.out_w());
  const int64_t k = s.channels / s.groups * s.kernel_h * s.kernel_w, n = s.out_channels / s.groups;
  const double macs = s.flops() / 2;
  if (s.groups > 1 && s.groups == s.channels) return CanDoIntegerConv(s);  // measured: always
  // In cycles. Gathering and writing go by vectors; Winograd's algorithm needs less than half of the
  // products.
  const double bytes = static_cast<double>(s.groups) * rows *
                       (up(k, kIntegerStep) * up(n, kernels.cols) / kernels.byte_products +
                        static_cast<double>(k) / 16 + static_cast<double>(n) / 2);
  const bool winograd = s.groups == 1 && s.kernel_h == 3 && s.kernel_w == 3 && s.stride_h == 1 &&
                        s.stride_w == 1 && s.dilation_h == 1 && s.dilation_w == 1 && s.channels >= 16 &&
                        s.out_channels >= 16;
  // Floats must be made of the bytes around them, and turned to bytes again.
  const double turning = rows * static_cast<double>(s.out_channels) / 2 +
                         static_cast<double>(s.batch * s.in_h * s.in_w * s.channels) / 4;
  return bytes < macs / (winograd ? 2.25 * floats : floats) * 1.2 + turning;
}

namespace {

bool IntegerConvFits(const InferContext& c) {
  return c.known(1) && c.known(2) && (!c.has(3) || c.known(3)) && *c.output(0).shape.elements() > 0;
}
Prepared PrepareIntegerConv(const InferContext& c, int threads, PackCache& packs) {
  return PrepareShape(c, *IntegerConvShapeOf(c.node, c.shape(0), c.shape(1)), threads, packs);
}
Status RunIntegerConv(KernelContext& c) {
  const auto& state = *static_cast<const State*>(c.state);
  return RunShape(c, state.plan, state.packed, c.workspace);
}

bool IntegerMatMulFits(const InferContext& c) {
  return IntegerConvFits(c) && c.elements(0) > 0;
}
Prepared PrepareIntegerMatMul(const InferContext& c, int threads, PackCache& packs) {
  return PrepareShape(c, ProductShapeOf(c), threads, packs);
}
}  // namespace

constexpr FastKernel kFastIntegerConv[] = {{"bytes", IntegerConvFits, RunIntegerConv, PrepareIntegerConv}};
constexpr FastKernel kFastIntegerMatMul[] = {
    {"bytes", IntegerMatMulFits, RunIntegerConv, PrepareIntegerMatMul}};

Status ReferenceIntegerConv(KernelContext& c) {
  CELER_ASSIGN(const ConvShape shape, IntegerConvShapeOf(c.node, c.shape(0), c.shape(1)));
  return Reference(c, shape);
}
Status ReferenceIntegerMatMul(KernelContext& c) {
  return Reference(c, ProductShapeOf(c));
}

}  // namespace celer::graph
