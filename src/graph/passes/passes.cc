#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/suggest.h"
#include "graph/ir/operator_table.h"
#include "graph/load/microsoft/expansion.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

constexpr Pass kPasses[] = {
    {"expand-qlinear", "rewrite QLinearConv and QLinearMatMul in QDQ form, for use-integers", ExpandQLinear,
     false},
    {"use-integers", "use integer kernels between DequantizeLinear and QuantizeLinear, where they are faster",
     UseIntegers, false},
    {"fold-constants", "constant folding", FoldConstants},
    {"remove-identities", "remove Identity, Dropout, and casts, moves and pads that change nothing",
     RemoveIdentities},
    {"cancel-moves", "merge consecutive transposes, and consecutive reshapes", CancelMoves},
    {"fuse-batch-norm", "fold a batch norm into a convolution's weights", FuseBatchNorm},
    {"fuse-scale", "fold constant factors and terms around a convolution into its weights", FuseScale},
    {"fuse-pad", "fold a Pad into a convolution", FusePad},
    {"cancel-quantize", "cancel QuantizeLinear after DequantizeLinear with the same scale", CancelQuantize},
    {"recover-swish", "recognize SiLU, hard-swish and hard-sigmoid likewise", RecoverSwish, false},
    {"recover-gelu", "recognize GELU in the arithmetic that exporters write for it", RecoverGelu},
    {"recover-layer-norm", "recognize layer normalization likewise", RecoverLayerNorm},
    {"recover-attention", "recognize attention, softmax(q k + mask) v, whose scores then stay in cache",
     RecoverAttention, false},
    {"fuse-activation", "fuse residuals and activations into a convolution", FuseActivation, false},
    {"fuse-product", "fuse biases, residuals and activations into a matrix product", FuseProduct, false},
    {"merge-equal", "common-subexpression elimination", MergeEqual},
};
constexpr int kMostRounds = 20;

}  // namespace

std::span<const Pass> Passes() {
  return kPasses;
}

Result<std::vector<PassReport>> Optimize(Graph* graph, const OptimizeOptions& options) {
  std::vector<std::string> names;
  for (const Pass& pass : kPasses) names.emplace_back(pass.name);
  for (const std::string& name : options.without)
    if (std::find(names.begin(), names.end(), name) == names.end())
      return Error::Invalid("there is no pass '", name, "'", DidYouMean(name, names));
  // Rules look at the inputs that an operator must have.
  for (const Node& node : graph->nodes) CELER_RETURN_IF_ERROR(CheckArity(node));
  std::vector<PassReport> reports;
  for (const Pass& pass : kPasses) reports.push_back({.name = pass.name});
  const SampleShapes shapes = SampleShapesOf(*graph);
  bool changed = true;
  for (int round = 0; changed && round < kMostRounds; ++round) {
    changed = false;
    for (size_t i = 0; i < std::size(kPasses); ++i) {
      if (std::find(options.without.begin(), options.without.end(), kPasses[i].name) != options.without.end())
        continue;
      if (options.portable && !kPasses[i].portable) continue;
      const auto begin = std::chrono::steady_clock::now();
      Rewriter rewriter(graph, &shapes, options.integers_anyway);
      PassReport& report = reports[i];
      CELER_ASSIGN(const int changes, kPasses[i].run(rewriter, [&](std::string note) {
        report.notes.push_back(std::move(note));
      }));
      if (changes > 0) {
        CELER_RETURN_IF_ERROR(rewriter.Finish());
        if (const Status sound = Verify(*graph); !sound)
          return sound.error().WithContext("after the pass " + std::string(kPasses[i].name));
      }
      report.changes += changes;
      report.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      changed |= changes > 0;
    }
  }
  return reports;
}

Rewriter::Rewriter(Graph* graph, const SampleShapes* shapes, bool integers)
    : graph_(*graph), shapes_(shapes), integers_anyway_(integers) {
  Recount();
}

void Rewriter::Recount() {
  maker_.assign(graph_.values.size(), -1);
  readers_.assign(graph_.values.size(), 0);
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (removed(n)) continue;
    for (const ValueId id : graph_.nodes[n].outputs)
      if (id != kNoValue) maker_[id] = static_cast<int>(n);
    CountReads(graph_.nodes[n]);
  }
  for (const ValueId id : graph_.outputs) ++readers_[id];
}

// A node counts once for each value, however often it reads it. Without a list of its own for nodes that have
// no subgraphs: this runs for every node after every change.
void Rewriter::CountReads(const Node& one) {
  if (std::any_of(one.attributes.begin(), one.attributes.end(), [](const auto& attribute) {
        return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
      })) {
    for (const ValueId id : graph_.Reads(one)) ++readers_[id];
    return;
  }
  for (auto at = one.inputs.begin(); at != one.inputs.end(); ++at)
    if (*at != kNoValue && std::find(one.inputs.begin(), at, *at) == at) ++readers_[*at];
}

Node* Rewriter::ProducedBy(ValueId value, std::string_view op) {
  const int maker = ProducerOf(value);
  if (maker < 0) return nullptr;
  Node& made = graph_.nodes[maker];
  return made.op == op && made.domain.empty() ? &made : nullptr;
}

Node* Rewriter::SingleUseProducer(ValueId value, std::string_view op) {
  return Readers(value) == 1 ? ProducedBy(value, op) : nullptr;
}

const Constant* Rewriter::ConstantOf(ValueId value) const {
  if (value == kNoValue || !graph_.value(value).constant) return nullptr;
  return &*graph_.value(value).constant;
}

std::optional<double> Rewriter::Scalar(ValueId value) const {
  const Constant* const constant = ConstantOf(value);
  if (!constant || constant->shape.elements() != 1) return std::nullopt;
  if (constant->dtype == DType::kF32) {
    float number;
    std::memcpy(&number, constant->bytes.data(), sizeof(number));
    return double{number};
  }
  if (constant->dtype == DType::kF64) {
    double number;
    std::memcpy(&number, constant->bytes.data(), sizeof(number));
    return number;
  }
  if (constant->dtype == DType::kI64) {
    int64_t number;
    std::memcpy(&number, constant->bytes.data(), sizeof(number));
    return static_cast<double>(number);
  }
  return std::nullopt;
}

std::optional<int64_t> Rewriter::RankOf(ValueId value) const {
  if (value == kNoValue) return std::nullopt;
  if (graph_.value(value).type.shape) return static_cast<int64_t>(graph_.value(value).type.shape->size());
  const auto sample = shapes_ && shapes_->exact_ranks ? SampleOf(value) : std::nullopt;
  return sample ? std::optional<int64_t>(sample->rank()) : std::nullopt;
}

std::optional<Shape> Rewriter::SampleOf(ValueId value) const {
  if (value == kNoValue) return std::nullopt;
  if (const Constant* const constant = ConstantOf(value)) return constant->shape;
  const auto v = static_cast<size_t>(value);
  return shapes_ && v < shapes_->of.size() ? shapes_->of[v] : std::nullopt;
}

std::optional<DType> Rewriter::TypeOf(ValueId value) const {
  if (value == kNoValue) return std::nullopt;
  if (const Constant* const constant = ConstantOf(value)) return constant->dtype;
  if (graph_.value(value).type.dtype) return graph_.value(value).type.dtype;
  const auto v = static_cast<size_t>(value);
  return shapes_ && v < shapes_->types.size() ? shapes_->types[v] : std::nullopt;
}

bool Rewriter::LikelySameShape(ValueId a, ValueId b) const {
  if (const auto p = SampleOf(a), q = SampleOf(b); p && q) return *p == *q;
  const auto &x = graph_.value(a).type.shape, &y = graph_.value(b).type.shape;
  if (!x || !y || x->size() != y->size()) return false;
  for (size_t i = 0; i < x->size(); ++i) {
    const Dim &p = (*x)[i], &q = (*y)[i];
    const bool same = p.fixed() ? p.size == q.size : !p.symbol.empty() && p.symbol == q.symbol;
    if (!same) return false;
  }
  return true;
}

void Rewriter::Replace(ValueId from, ValueId to) {
  if (from == kNoValue) return;  // an output that nobody wants; inputs that are left out stay so
  for (Node& one : graph_.nodes) {
    for (ValueId& id : one.inputs)
      if (id == from) id = to;
    for (const auto& subgraph : one.Subgraphs())
      for (Capture& capture : subgraph->captures)
        if (capture.outer == from) capture.outer = to;
  }
  for (ValueId& id : graph_.outputs)
    if (id == from) id = to;
  Recount();
}

void Rewriter::Remove(Node& one) {
  one = {};
  Recount();
}

ValueId Rewriter::AddConstant(std::string name, Constant constant) {
  const ValueId id = graph_.AddConstant(std::move(name), std::move(constant));
  maker_.resize(graph_.values.size(), -1);
  readers_.resize(graph_.values.size(), 0);
  return id;
}

ValueId Rewriter::AddFloats(std::string name, const std::vector<int64_t>& dims,
                            const std::vector<float>& numbers) {
  auto copy = std::make_shared<std::vector<float>>(numbers);
  const auto bytes = std::as_bytes(std::span<const float>(*copy));
  // shape: of numbers that are in memory
  return AddConstant(std::move(name), {DType::kF32, Shape(dims), bytes, std::move(copy)});
}

ValueId Rewriter::AddInts(std::string name, const std::vector<int64_t>& numbers) {
  auto copy = std::make_shared<std::vector<int64_t>>(numbers);
  const auto bytes = std::as_bytes(std::span<const int64_t>(*copy));
  return AddConstant(std::move(name), {DType::kI64, ListShape(numbers.size()), bytes, std::move(copy)});
}

Node& Rewriter::Add(Node one, const std::string& output) {
  Node& added = graph_.AddNode(std::move(one), std::span(&output, 1));
  Recount();
  return added;
}

Status Rewriter::Finish() {
  // Dead-code elimination: readers come behind producers once sorted, so one walk from the end finds all that
  // is dead.
  std::erase_if(graph_.nodes, [](const Node& one) { return one.op.empty(); });
  CELER_RETURN_IF_ERROR(graph_.Sort());
  std::vector<int> reads(graph_.values.size(), 0);
  for (const ValueId id : graph_.outputs) ++reads[id];
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    Node& one = graph_.nodes[n];
    bool wanted = false;
    for (const ValueId id : one.outputs) wanted |= id != kNoValue && reads[id] > 0;
    if (wanted)
      for (const ValueId id : graph_.Reads(one)) ++reads[id];
    else
      one.op.clear();
  }
  std::erase_if(graph_.nodes, [](const Node& one) { return one.op.empty(); });
  Recount();
  return {};
}

std::vector<float> FloatsOf(const Constant& constant) {
  if (constant.dtype != DType::kF32) return {};
  std::vector<float> out(constant.bytes.size() / sizeof(float));
  std::memcpy(out.data(), constant.bytes.data(), out.size() * sizeof(float));
  return out;
}

}  // namespace celer::graph
