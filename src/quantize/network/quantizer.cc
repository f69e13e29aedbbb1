#include "quantize/network/quantizer.h"

#include "graph/ir/operator_table.h"
#include "graph/passes/pass.h"
#include "io/file/printable.h"

namespace celer::ptq {

Result<NetworkQuantizer> NetworkQuantizer::Open(graph::Network network, const NetworkOptions& options) {
  const std::string source = Printable(network.source);
  for (const graph::Node& node : network.graph.nodes)
    if (node.op == "QuantizeLinear" || node.op == "DequantizeLinear" || node.op == "DynamicQuantizeLinear")
      return Error::Invalid(source, ": is quantized already, by ", node.Label(),
                            "; give the float network that it was made from");
  CELER_RETURN_IF_ERROR(graph::CheckSupported(network.graph));
  if (const auto passes = graph::Optimize(&network.graph, {.portable = true}); !passes)
    return passes.error().WithContext(source);
  NetworkQuantizer out;
  out.options_ = options;
  out.original_ = std::move(network);
  out.network_ = out.original_;
  out.facts_ = FindValueFacts(out.network_.graph);
  if (out.PlanWithout({}).empty())
    return Error::Invalid(source, ": has nothing to quantize: no ", options.dynamic ? "" : "Conv, ",
                          "Gemm or MatMul with constant f32 weights",
                          options.dynamic ? " and at least 16 columns" : "");
  return out;
}

Status NetworkQuantizer::Calibrate(const Samples& samples, const Progress& progress) {
  ChannelPeaks peaks;
  if (options_.equalize) {
    CELER_ASSIGN(peaks, FindPeaks(original_, NodesWithPeaks(original_), samples, progress));
    CELER_RETURN_IF_ERROR(Equalize(peaks));
  }
  CELER_ASSIGN(calibration_, ptq::Calibrate(network_, facts_, samples, options_.range, progress));
  calibration_.peaks = std::move(peaks);
  return {};
}

Status NetworkQuantizer::Use(Calibration calibration) {
  if (options_.equalize) CELER_RETURN_IF_ERROR(Equalize(calibration.peaks));
  calibration_ = std::move(calibration);
  return {};
}

Status NetworkQuantizer::Equalize(const ChannelPeaks& peaks) {
  network_ = original_;
  CELER_ASSIGN(equalized_, ptq::Equalize(&network_, peaks));
  facts_ = FindValueFacts(network_.graph);
  return {};
}

PlanOptions NetworkQuantizer::BasePlan() const {
  return {.align_add = options_.align_add,
          .quantize_outputs = options_.quantize_outputs,
          .dynamic = options_.dynamic};
}

QuantizerPlan NetworkQuantizer::PlanWithout(const FloatLayers& floats) const {
  PlanOptions options = BasePlan();
  for (const auto& [name, why] : floats) options.floats.insert(name);
  return MakePlan(network_.graph, facts_, options);
}

QuantizerPlan NetworkQuantizer::PlanOnly(const std::string& layer) const {
  PlanOptions options = BasePlan();
  options.only = layer;
  return MakePlan(network_.graph, facts_, options);
}

Result<Grids> NetworkQuantizer::GridsFor(const QuantizerPlan& plan) const {
  std::map<ValueId, Range> groups;
  for (const auto& [group, roots] : plan.roots)
    for (const ValueId id : roots) {
      const auto range = calibration_.ranges.find(id);
      if (range == calibration_.ranges.end())
        return Error::Invalid("no range is known for the value '", Printable(network_.graph.value(id).name),
                              "': no calibration sample reached it");
      groups[group] = groups[group].With(range->second);
    }
  Grids out;
  for (const ValueId id : plan.values)
    out[id] = GridFor(groups[plan.group.at(id)], options_.range.type, options_.range.power_of_two);
  return out;
}

Result<Inserted> NetworkQuantizer::Build(const QuantizerPlan& plan) const {
  if (options_.dynamic) return InsertDynamic(network_, plan, options_.per_channel);
  CELER_ASSIGN(const Grids grids, GridsFor(plan));
  return InsertQuantizers(network_, plan, grids,
                          {.per_channel = options_.per_channel,
                           .power_of_two = options_.range.power_of_two,
                           .means = options_.correct_bias ? &calibration_.means : nullptr});
}

int64_t ConstantBytes(const graph::Graph& graph) {
  int64_t bytes = 0;
  std::vector<bool> used(graph.values.size(), false);
  for (const graph::Node& node : graph.nodes)
    for (const graph::ValueId id : graph.Reads(node)) used[id] = true;
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (used[v] && graph.values[v].constant)
      bytes += static_cast<int64_t>(graph.values[v].constant->bytes.size());
  return bytes;
}

}  // namespace celer::ptq
