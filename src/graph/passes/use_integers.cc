// Fuses DequantizeLinear, an operator and QuantizeLinear into one integer operator, if it computes the same
// but for ties in rounding, and where the machine is faster at it. Integer operators on images are NHWC;
// transposes are inserted around each, and those between two of them cancel as they are made.
#include <algorithm>
#include <cmath>
#include <span>

#include "graph/ops/fast/fast.h"
#include "graph/ops/quant/integer.h"
#include "graph/ops/window.h"
#include "graph/passes/fusing.h"
#include "graph/passes/quantization.h"

namespace celer::graph {
namespace {

using Attributes = std::vector<std::pair<std::string, Attribute>>;

// A QuantizeLinear, and the node whose result it quantizes, perhaps through a clip, which saturation does for
// free.
struct Island {
  size_t n = 0;          // of the QuantizeLinear
  Quantization to = {};  // what comes out
  ByteRange range = {};
  Node core = {};
};

std::optional<Island> IslandAt(Rewriter& r, size_t n) {
  const Node& quantize = r.node(n);
  const auto to = QuantizationOf(r, quantize);
  if (!to) return std::nullopt;
  Island out{.n = n, .to = *to, .range = to->Range()};
  ValueId x = quantize.inputs[0];
  while (true) {
    const int maker = r.ProducerOf(x);
    if (maker < 0 || r.Readers(x) != 1) return std::nullopt;
    const Node& node = r.node(static_cast<size_t>(maker));
    const auto clip = ActivationOf(r, node);
    if (!clip || clip->name != "clip") {
      if (!node.domain.empty() || node.outputs.size() != 1) return std::nullopt;
      out.core = node;
      return out;
    }
    // Rounding is monotonic, so the bounds of a clip may be quantized instead.
    out.range.low = std::max(out.range.low, to->QuantizeValue(clip->a));
    out.range.high = std::min(out.range.high, to->QuantizeValue(clip->b));
    if (!(clip->a <= clip->b)) return std::nullopt;
    x = node.inputs[0];
  }
}

Attributes Ending(const Island& island) {
  return {{"y_signed", int64_t{island.to.is_signed}},
          {"zero", int64_t{island.range.zero}},
          {"low", int64_t{island.range.low}},
          {"high", int64_t{island.range.high}}};
}
void Append(Attributes& to, Attributes more) {
  for (auto& one : more) to.push_back(std::move(one));
}
Attribute Triple(const Multiplier& m) {
  return std::vector<int64_t>{m.multiplier, m.left, m.right};
}

// The island is replaced by this node; one on images transposes its result back to NCHW.
void Become(Rewriter& r, const Island& island, Node node, bool image) {
  node.domain = kCelerDomain;
  node.opset = 1;
  node.name = island.core.name;
  if (!image) {
    node.outputs = r.node(island.n).outputs;
    r.node(island.n) = std::move(node);
    r.Recount();
    return;
  }
  const std::string name = r.graph().value(r.node(island.n).outputs[0]).name + ".bytes";
  const ValueId made = r.Add(std::move(node), name).outputs[0];
  TransposeToNchw(r, island.n, made);
}

// ---- products ---------------------------------------------------------------------------------------------

struct Ready {
  ValueId bias = kNoValue, factors = kNoValue;
};
// Accumulators of one channel must fit 32 bits whatever the inputs are. Channels that hardly depend on their
// input are stored with a tiny scale and a bias near the end of 32 bits: theirs use larger units. Returns by
// how many bits; nothing where that would move a result by more than a twentieth of a step.
std::optional<int> BitsToDrop(std::span<const int8_t> w, double bias, double factor) {
  double size = 0;
  for (const int8_t value : w) size += std::abs(value);
  int bits = 0;
  while (std::abs(bias) + 512 * size > std::ldexp(1, 31 + bits) * 0.99 && bits < 30) ++bits;
  const double lost = factor * std::ldexp(0.5, bits) * (1 + 255 * static_cast<double>(w.size()));
  if (bits >= 30 || (bits > 0 && !(lost < 0.05))) return std::nullopt;
  return bits;
}

// Bias and requantization factors as integers; nothing where they, or the accumulators, do not fit. Weights
// are [channels, ...].
std::optional<Ready> ReadyFor(Rewriter& r, const Island& island, const ConvShape& shape,
                              const Quantization& x, IntegerWeights& w, ValueId bias) {
  const auto n = w.scales.size();
  const size_t k = w.values.size() / n;
  std::vector<double> reals(n, 0);
  if (bias != kNoValue) {
    const auto given = DequantizedConstant(r, bias);
    if (!given || given->size() != n) return std::nullopt;
    reals = *given;
  }
  std::vector<int32_t> whole, factors;
  std::vector<Multiplier> all;
  for (size_t i = 0; i < n; ++i) {
    double unit = x.scale * w.scales[i];
    const std::span<int8_t> values = std::span(w.values).subspan(i * k, k);
    const auto bits = BitsToDrop(values, reals[i] / unit, unit / island.to.scale);
    if (!bits) return std::nullopt;
    if (*bits > 0)
      for (int8_t& value : values) value = static_cast<int8_t>(std::nearbyint(std::ldexp(value, -*bits)));
    unit = std::ldexp(unit, *bits);
    const auto m = MultiplierOf(unit / island.to.scale);
    if (!m) return std::nullopt;
    all.push_back(*m);
    whole.push_back(static_cast<int32_t>(std::nearbyint(reals[i] / unit)));
  }
  if (!SumsFit(shape, {.weights = w.values.data(), .bias = whole.data(), .factors = {}})) return std::nullopt;
  for (const Multiplier& m : all) factors.push_back(m.multiplier);
  for (const Multiplier& m : all) factors.push_back(m.left);
  for (const Multiplier& m : all) factors.push_back(m.right);
  const auto count = static_cast<int64_t>(n);
  Ready out;
  if (bias != kNoValue) out.bias = AddInt32Constant(r, island.core.name + ".bias", {count}, whole);
  out.factors = AddInt32Constant(r, island.core.name + ".factors", {3, count}, factors);
  return out;
}

ValueId InputAt(const Node& node, size_t i) {
  return i < node.inputs.size() ? node.inputs[i] : kNoValue;
}

bool UseConv(Rewriter& r, const Island& island) {
  const Node& conv = island.core;
  if (conv.op != "Conv") return false;
  const auto x = DequantizedFrom(r, conv.inputs[0]);
  Node* const weights = r.ProducedBy(conv.inputs[1], "DequantizeLinear");
  const auto shape = weights ? r.SampleOf(conv.inputs[1]) : std::nullopt;
  if (!x || !shape || shape->rank() != 4) return false;
  auto w = WeightsFrom(r, conv.inputs[1], 0, (*shape)[0]);
  if (!w) return false;
  const int64_t groups = conv.Int("group", 1);
  if (groups < 1 || groups > (*shape)[0] || (*shape)[0] % groups != 0) return false;
  ConvShape product{.channels = (*shape)[1] * groups,
                    .in_h = (*shape)[2],
                    .in_w = (*shape)[3],
                    .out_channels = (*shape)[0],
                    .groups = groups,
                    .kernel_h = (*shape)[2],
                    .kernel_w = (*shape)[3]};
  if (!CanDoIntegerConv(product)) return false;
  if (!r.integers_anyway()) {
    // The image's size decides little; where it is not known, one window stands for it.
    const auto image = r.SampleOf(conv.inputs[0]);
    if (image && image->rank() == 4) {
      const auto last = MakeShape({(*image)[0], (*image)[2], (*image)[3], (*image)[1]});
      const auto real = last ? IntegerConvShapeOf(conv, *last, *shape) : last.error();
      if (!real) return false;
      product = *real;
    }
    if (!IntegersAreFaster(product)) return false;
  }
  const auto ready = ReadyFor(r, island, product, x->q, *w, InputAt(conv, 2));
  if (!ready) return false;
  const ValueId values = AddInt8Constant(r, conv.name + ".weight", DType::kI8,
                                         {shape->dims().begin(), shape->dims().end()}, w->values);
  Node node{.op = "IntegerConv", .attributes = conv.attributes};
  node.inputs = {ToNhwc(r, x->bytes), values, ready->factors};
  if (ready->bias != kNoValue) node.inputs.push_back(ready->bias);
  node.attributes.emplace_back("x_zero", int64_t{x->q.zero});
  Append(node.attributes, Ending(island));
  Become(r, island, std::move(node), true);
  return true;
}

bool UseMatMul(Rewriter& r, const Island& island) {
  auto product = ByteProductOf(r, island.core);
  if (!product || (!r.integers_anyway() && !IntegersAreFast())) return false;
  const auto ready =
      ReadyFor(r, island, ProductShape(1, product->k, product->n), product->x.q, product->w, product->bias);
  if (!ready) return false;
  Node made{.op = "IntegerMatMul"};
  made.inputs = {product->x.bytes,
                 AddInt8Constant(r, island.core.name + ".weight", DType::kI8, {product->n, product->k},
                                 product->w.values),
                 ready->factors};
  if (ready->bias != kNoValue) made.inputs.push_back(ready->bias);
  made.attributes = {{"x_zero", int64_t{product->x.q.zero}}};
  Append(made.attributes, Ending(island));
  Become(r, island, std::move(made), false);
  return true;
}

// ---- sums, products, joins of two or more -----------------------------------------------------------------

bool AreImages(Rewriter& r, const std::vector<ValueId>& values) {
  return std::all_of(values.begin(), values.end(), [&](ValueId id) { return r.RankOf(id) == 4; });
}

bool UsePair(Rewriter& r, const Island& island) {
  const Node& node = island.core;
  const bool add = node.op == "Add";
  if ((!add && node.op != "Mul") || node.inputs.size() != 2) return false;
  const auto a = DequantizedFrom(r, node.inputs[0]), b = DequantizedFrom(r, node.inputs[1]);
  if (!a || !b) return false;
  Node made{.op = add ? "IntegerAdd" : "IntegerMul"};
  if (add) {
    const auto f =
        AddOf(a->q.scale / island.to.scale, a->q.zero, b->q.scale / island.to.scale, b->q.zero, island.range);
    if (!f) return false;
    made.attributes = {{"a_factor", int64_t{f->a_factor}},
                       {"b_factor", int64_t{f->b_factor}},
                       {"start", int64_t{f->start}},
                       {"shift", int64_t{f->shift}}};
  } else {
    const auto f = MultiplierOf(a->q.scale * b->q.scale / island.to.scale);
    if (!f) return false;
    made.attributes = {
        {"a_zero", int64_t{a->q.zero}}, {"b_zero", int64_t{b->q.zero}}, {"factor", Triple(*f)}};
  }
  Append(made.attributes, Ending(island));
  const bool images = AreImages(r, node.inputs) && (IsNhwc(r, a->bytes) || IsNhwc(r, b->bytes));
  const ValueId left = images ? ToNhwc(r, a->bytes) : a->bytes;
  made.inputs = {left, images ? ToNhwc(r, b->bytes) : b->bytes};
  Become(r, island, std::move(made), images);
  return true;
}

// Requantizes from one scale to another.
ValueId Requantized(Rewriter& r, const Dequantized& from, const Island& island, ValueId bytes) {
  const bool same = from.q == island.to && island.range.low == island.to.Range().low &&
                    island.range.high == island.to.Range().high;
  if (same) return bytes;
  std::vector<int8_t> table;
  for (int i = 0; i < 256; ++i) {
    const int32_t byte =
        island.to.QuantizeValue(from.q.DequantizeValue(from.q.is_signed ? static_cast<int8_t>(i) : i));
    table.push_back(static_cast<int8_t>(std::clamp(byte, island.range.low, island.range.high)));
  }
  const std::string name =
      r.graph().value(bytes).name + ".as." + r.graph().value(r.node(island.n).outputs[0]).name;
  Node node{.op = "Table", .domain = std::string(kCelerDomain), .name = name, .opset = 1};
  node.inputs = {bytes, AddInt8Constant(r, name + ".table", DType::kU8, {256}, table)};
  node.attributes = {{"y_signed", int64_t{island.to.is_signed}}};
  return r.Add(std::move(node), name).outputs[0];
}

bool UseConcat(Rewriter& r, const Island& island) {
  const Node& node = island.core;
  if (node.op != "Concat" || node.inputs.size() < 2) return false;
  std::vector<Dequantized> parts;
  for (const ValueId id : node.inputs) {
    const auto part = DequantizedFrom(r, id);
    if (!part) return false;
    parts.push_back(*part);
  }
  int64_t axis = node.Int("axis", 1);
  const bool images =
      AreImages(r, node.inputs) &&
      std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return IsNhwc(r, part.bytes); });
  axis += axis < 0 && images ? 4 : 0;
  if (images && (axis < 0 || axis > 3)) return false;
  Node made = node;
  for (size_t i = 0; i < parts.size(); ++i)
    made.inputs[i] = Requantized(r, parts[i], island, images ? ToNhwc(r, parts[i].bytes) : parts[i].bytes);
  if (!images) {
    made.outputs = r.node(island.n).outputs;
    r.node(island.n) = std::move(made);
    r.Recount();
    return true;
  }
  constexpr int64_t kPlace[] = {0, 3, 1, 2};  // of an axis when the channels are last
  made.attributes = {{"axis", kPlace[axis]}};
  made.outputs.clear();
  const std::string name = r.graph().value(r.node(island.n).outputs[0]).name + ".bytes";
  TransposeToNchw(r, island.n, r.Add(std::move(made), name).outputs[0]);
  return true;
}

// ---- pools ------------------------------------------------------------------------------------------------

bool UseMaxPool(Rewriter& r, const Island& island) {
  const Node& node = island.core;
  if (node.op != "MaxPool" || r.RankOf(node.inputs[0]) != 4) return false;
  const auto x = DequantizedFrom(r, node.inputs[0]);
  if (!x) return false;
  Node made{.op = "IntegerMaxPool", .domain = std::string(kCelerDomain), .name = node.name, .opset = 1};
  made.inputs = {ToNhwc(r, x->bytes)};
  made.attributes = node.attributes;
  made.attributes.emplace_back("y_signed", int64_t{x->q.is_signed});
  const std::string name = r.graph().value(r.node(island.n).outputs[0]).name + ".bytes";
  const ValueId pooled = r.Add(std::move(made), name).outputs[0];
  TransposeToNchw(r, island.n, Requantized(r, *x, island, pooled));
  return true;
}

// How many elements a window always has, and how the operator is said; 0 where that depends on its place.
struct Mean {
  int64_t count = 0;
  Attributes attributes = {};
  bool keeps = true;
};
std::optional<Mean> MeanOf(Rewriter& r, const Node& node) {
  const auto shape = r.SampleOf(node.inputs[0]);
  if (!shape || shape->rank() != 4) return std::nullopt;
  Mean out;
  if (node.op == "AveragePool") {
    const std::vector<int64_t> kernel = node.Ints("kernel_shape"), pads = node.Ints("pads");
    const bool padded = std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad != 0; });
    if (kernel.size() != 2 || node.Int("ceil_mode", 0) != 0 || node.Text("auto_pad", "NOTSET") != "NOTSET" ||
        (padded && node.Int("count_include_pad", 0) == 0) || kernel[0] < 1 || kernel[1] < 1 ||
        kernel[0] > 4096 || kernel[1] > 4096)
      return std::nullopt;
    out.count = kernel[0] * kernel[1];
    out.attributes = node.attributes;
    return out;
  }
  if (node.op == "ReduceMean") {
    std::vector<int64_t> axes = node.Ints("axes");
    if (node.inputs.size() > 1) {
      const Constant* const given = r.ConstantOf(node.inputs[1]);
      if (!given) return std::nullopt;
      axes = ReadInts(given->view());
    }
    for (int64_t& axis : axes) axis += axis < 0 ? 4 : 0;
    std::sort(axes.begin(), axes.end());
    if (axes != std::vector<int64_t>{2, 3}) return std::nullopt;
    out.keeps = node.Int("keepdims", 1) != 0;
  } else if (node.op != "GlobalAveragePool") {
    return std::nullopt;
  }
  // The factor holds the size of the image, which must be known for sure.
  const auto& type = r.graph().value(node.inputs[0]).type.shape;
  const bool said = type && type->size() == 4 && (*type)[2].fixed() && (*type)[3].fixed();
  if (!said && !r.exact_shapes()) return std::nullopt;
  out.count = (*shape)[2] * (*shape)[3];
  out.attributes = {{"global", int64_t{1}}, {"keepdims", int64_t{out.keeps}}};
  return out;
}

bool UseAverage(Rewriter& r, const Island& island) {
  const Node& node = island.core;
  if (node.inputs.empty()) return false;
  const auto x = DequantizedFrom(r, node.inputs[0]);
  auto mean = x ? MeanOf(r, node) : std::nullopt;
  if (!mean || mean->count < 1 || mean->count > 1 << 22) return false;
  const auto factor = MultiplierOf(x->q.scale / island.to.scale / static_cast<double>(mean->count));
  if (!factor) return false;
  Node made{.op = "IntegerAveragePool", .attributes = std::move(mean->attributes)};
  made.inputs = {ToNhwc(r, x->bytes)};
  made.attributes.emplace_back("x_zero", int64_t{x->q.zero});
  made.attributes.emplace_back("factor", Triple(*factor));
  Append(made.attributes, Ending(island));
  Become(r, island, std::move(made), mean->keeps);
  return true;
}

// ---- functions --------------------------------------------------------------------------------------------

bool UseTable(Rewriter& r, size_t n, std::string* label) {
  const Node quantize = r.node(n);
  const Node* const undone = r.ProducedBy(quantize.inputs[0], "DequantizeLinear");
  if (undone && QuantizationOf(r, *undone) == QuantizationOf(r, quantize))
    return false;  // nothing is computed
  const auto table = FindTable(r, quantize);
  if (!table) return false;
  *label = table->label;
  const std::string name = r.graph().value(quantize.outputs[0]).name;
  const bool images = IsNhwc(r, table->from.bytes);
  Node node{.op = "Table", .domain = std::string(kCelerDomain), .name = quantize.name, .opset = 1};
  node.inputs = {images ? ToNhwc(r, table->from.bytes) : table->from.bytes,
                 AddInt8Constant(r, name + ".table", DType::kU8, {256}, table->bytes)};
  node.attributes = {{"y_signed", int64_t{QuantizationOf(r, quantize)->is_signed}}};
  if (images) {
    TransposeToNchw(r, n, r.Add(std::move(node), name + ".bytes").outputs[0]);
  } else {
    node.outputs = quantize.outputs;
    r.node(n) = std::move(node);
    r.Recount();
  }
  return true;
}

}  // namespace

Result<int> UseIntegers(Rewriter& r, const std::function<void(std::string)>& explain) {
  constexpr bool (*kRules[])(Rewriter&, const Island&) = {UseConv,   UseMatMul,  UsePair,
                                                          UseConcat, UseMaxPool, UseAverage};
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || !r.node(n).domain.empty() || r.node(n).op != "QuantizeLinear") continue;
    std::string label;
    if (const auto island = IslandAt(r, n))
      for (const auto rule : kRules)
        if (label.empty() && rule(r, *island)) label = island->core.Label();
    if (label.empty() && !UseTable(r, n, &label)) continue;
    explain(label + " is an integer operator");
    ++changes;
  }
  if (changes > 0) CELER_RETURN_IF_ERROR(r.Finish());  // what was replaced is no product any more
  return changes + UseFloatResultProducts(r, explain) + UseDynamicProducts(r, explain);
}

}  // namespace celer::graph
