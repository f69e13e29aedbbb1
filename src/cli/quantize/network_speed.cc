#include "cli/quantize/network_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/graph/inspect.h"
#include "cli/graph/work.h"
#include "device/thread_pool.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "limits/roofline.h"

namespace celer::cli {
namespace {

struct ExpectedSpeed {
  double before = 0, after = 0;  // seconds
  std::vector<std::string> assumed;
};

Result<ExpectedSpeed> Predict(const ptq::NetworkQuantizer& quantizer, const ptq::QuantizerPlan& plan,
                              const Machine& machine) {
  CELER_ASSIGN(const Roof floats, RoofOf(machine, "f32"));
  CELER_ASSIGN(const Roof bytes, RoofOf(machine, "int8"));
  ExpectedSpeed out;
  CELER_ASSIGN(const auto program, graph::Program::Make(quantizer.network()));
  CELER_ASSIGN(std::vector<graph::Data> inputs, InputShapes(program->graph(), {}, &out.assumed));
  CELER_ASSIGN(const graph::MemoryPlan memory,
               graph::PlanMemory(program->main(), std::move(inputs), DefaultThreadPool(), program->packs()));
  // By what they make. What follows a product in one kernel costs nothing, before and after.
  const graph::Graph& graph = quantizer.network().graph;
  std::set<graph::ValueId> integers, followers, reals;
  std::map<graph::ValueId, double> weights;  // bytes, of dynamic products
  for (const ptq::Layer& layer : plan.layers) {
    integers.insert(graph.nodes[layer.node].outputs[0]);
    for (const size_t node : layer.followers) followers.insert(graph.nodes[node].outputs[0]);
    if (!layer.quantize_output) reals.insert(graph.nodes[layer.node].outputs[0]);
    if (quantizer.options().dynamic)
      weights[graph.nodes[layer.node].outputs[0]] =
          static_cast<double>(graph.value(graph.nodes[layer.node].inputs[1]).constant->bytes.size());
  }
  const auto& nodes = program->main().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const graph::Node& node = *nodes[n].node;
    if (node.outputs.empty() || followers.contains(node.outputs[0])) continue;
    Work work = NodeWork(nodes[n], memory.nodes[n], memory.node_flops[n], memory.frame);
    if (work.bytes() == 0) continue;
    const double seconds = LimitOf(work, floats).seconds();
    out.before += seconds;
    if (!integers.contains(node.outputs[0])) {
      out.after += seconds;
      continue;
    }
    if (const auto weight = weights.find(node.outputs[0]); weight != weights.end())
      work.read_bytes -= weight->second * 3 / 4;  // x is read as reals
    else
      work.read_bytes /= 4;
    if (!reals.contains(node.outputs[0])) work.write_bytes /= 4;
    out.after += LimitOf(work, bytes).seconds();
  }
  return out;
}

}  // namespace

std::string PredictedSpeed(const ptq::NetworkQuantizer& quantizer, const ptq::QuantizerPlan& plan) {
  const auto machine = LoadOrMeasureThisMachine(false, Device::Cpu());
  if (!machine) return "predicted speed: celer probe measures this machine; then it stands here\n";
  const auto speed = Predict(quantizer, plan, *machine);
  if (!speed) return fmt::format("predicted speed: not known; {}\n", speed.error().message());
  std::string out = fmt::format(
      "predicted speed: at least {}, was {} ({:.1f} x), by the limits of this machine with {} thread{}\n",
      FormatSeconds(speed->after), FormatSeconds(speed->before),
      speed->before / std::max(speed->after, 1e-12), DefaultThreadPool().size(),
      DefaultThreadPool().size() == 1 ? "" : "s");
  if (!speed->assumed.empty())
    out += fmt::format("  with open dimensions taken as 1: {}\n", fmt::join(speed->assumed, ", "));
  return out;
}

}  // namespace celer::cli
