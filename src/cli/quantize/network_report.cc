#include "cli/quantize/network_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/quantize/network_speed.h"
#include "graph/passes/pass.h"
#include "io/file/printable.h"
#include "limits/quantity.h"
#include "report/page.h"

namespace celer::cli {
namespace {

using ptq::Layer;
using ptq::LayerError;

// Worst first: by what a layer does alone, where that is known.
std::vector<const LayerError*> Ordered(const std::vector<LayerError>& layers) {
  std::vector<const LayerError*> out;
  for (const LayerError& layer : layers) out.push_back(&layer);
  const auto badness = [](const LayerError* layer) {
    return layer->layerwise ? *layer->layerwise : layer->graphwise.nsr();
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const LayerError* a, const LayerError* b) { return badness(a) > badness(b); });
  return out;
}

std::string Shorter(const std::string& name, size_t most = 40) {
  const std::string shown = Printable(name);
  return shown.size() <= most ? shown : "..." + shown.substr(shown.size() - most + 3);
}

// Weights rounded alone: how much of their power is lost.
double WeightNoise(const ptq::NetworkQuantizer& quantizer, const Layer& layer) {
  const graph::Graph& graph = quantizer.network().graph;
  const ptq::Product product = *ptq::MatchProduct(graph, graph.nodes[layer.node]);
  const graph::Constant& weight = *graph.value(product.weight).constant;
  const std::vector<float> numbers = graph::FloatsOf(weight);
  const ptq::ChannelLayout layout = ptq::WeightLayout(weight, product, quantizer.options().per_channel);
  const ptq::QuantizedWeights rounded =
      quantizer.options().dynamic
          ? ptq::FitWeights(numbers, layout)
          : ptq::QuantizeWeights(numbers, layout, quantizer.options().range.power_of_two, {});
  std::vector<float> back;
  for (size_t i = 0; i < numbers.size(); ++i)
    back.push_back(static_cast<float>(rounded.q[i]) *
                   rounded.scale[static_cast<size_t>(layout.channel(static_cast<int64_t>(i)))]);
  ptq::Noise noise;
  noise.Add(numbers, back);
  return noise.nsr();
}

Chart ErrorChart(const NetworkReport& report) {
  double low = 1, high = 1e-12;
  std::vector<ChartMark> marks;
  const auto add = [&](size_t layer, double y, const char* color, Marker marker) {
    if (!(y > 0)) return;
    low = std::min(low, y), high = std::max(high, y);
    marks.push_back({.x = static_cast<double>(layer) + 1,
                     .y = y,
                     .color = color,
                     .marker = marker,
                     .radius = 4,
                     .tip = Shorter(report.layers[layer].name) + fmt::format(": {:.2e}", y)});
  };
  for (size_t i = 0; i < report.layers.size(); ++i) {
    add(i, report.layers[i].graphwise.nsr(), kLineColors[0], Marker::kDot);
    add(i, report.layers[i].layerwise.value_or(0), kLineColors[1], Marker::kSquare);
  }
  if (low > high) low = 1e-6, high = 1;
  const auto worst = Ordered(report.layers);
  for (size_t i = 0; i < worst.size() && i < 5; ++i) {
    const double y = worst[i]->layerwise ? *worst[i]->layerwise : worst[i]->graphwise.nsr();
    if (y > 0)
      marks.push_back({.x = static_cast<double>(worst[i] - report.layers.data()) + 1,
                       .y = y,
                       .radius = 0,
                       .label = Shorter(worst[i]->name, 30)});
  }
  return {.x = {.low = 0, .high = static_cast<double>(report.layers.size()) + 1, .label = "layer"},
          .y = {.low = low / 2, .high = high * 2, .log = true, .label = "noise / signal"},
          .marks = marks,
          .height = 464};
}

std::string Number(double value) {
  return fmt::format("{:.2e}", value);
}

}  // namespace

std::string ExplainNetwork(const ptq::NetworkQuantizer& quantizer, const ptq::QuantizerPlan& plan,
                           const ptq::FloatLayers& floats) {
  const graph::Graph& graph = quantizer.network().graph;
  Table table;
  table.title = "Layers that become integers";
  table.header = {"layer", "operator", "with it", "weights", "lost of weights", "output"};
  int64_t saved = 0, passive = 0;
  double lost_in_all = 0;
  const bool dynamic = quantizer.options().dynamic;
  std::set<graph::ValueId> inputs;
  for (const Layer& layer : plan.layers) {
    if (layer.kind == Layer::Kind::kPassive) {
      ++passive;
      continue;
    }
    std::vector<std::string> with;
    for (const size_t node : layer.followers) with.push_back(graph.nodes[node].op);
    std::string weights = "-", lost = "-";
    if (layer.kind == Layer::Kind::kProduct) {
      const ptq::Product product = *ptq::MatchProduct(graph, graph.nodes[layer.node]);
      const graph::Constant& weight = *graph.value(product.weight).constant;
      weights = weight.shape.ToString();
      const double noise = WeightNoise(quantizer, layer);
      lost = Number(noise);
      lost_in_all += noise;
      inputs.insert(graph.nodes[layer.node].inputs[0]);
      saved += static_cast<int64_t>(weight.bytes.size()) / 4 * 3;
    }
    table.rows.push_back({Shorter(layer.name), graph.nodes[layer.node].op,
                          with.empty() ? "-" : fmt::format("{}", fmt::join(with, ", ")), weights, lost,
                          layer.quantize_output ? Name(quantizer.options().range.type) : "f32"});
  }
  const int64_t before = ptq::ConstantBytes(graph);
  std::string out = TableText(table).substr(1);
  if (dynamic)
    out += fmt::format("\n{} of {} layers; {} inputs of theirs are rounded as they come\n", table.rows.size(),
                       plan.candidates, inputs.size());
  else
    out += fmt::format(
        "\n{} of {} layers; {} operators pass integers on unchanged; {} values are rounded, on {} grids\n",
        table.rows.size(), plan.candidates, passive, plan.values.size(), plan.roots.size());
  out += fmt::format("constants: {}, was {}\n", FormatBytes(static_cast<double>(before - saved)),
                     FormatBytes(static_cast<double>(before)));
  out += PredictedSpeed(quantizer, plan);
  out += fmt::format(
      "expected error: noise to signal of about {:.1e} from rounding weights, if each layer hands on what "
      "the ones before it lost; activations add theirs, which samples tell: {} with --report\n",
      lost_in_all, dynamic ? "--evaluate" : "--calibrate");
  for (const auto& [name, why] : floats) out += fmt::format("{} stays float: {}\n", Shorter(name), why);
  return out;
}

Table LayerTable(const NetworkReport& report, size_t most) {
  Table table;
  const auto ordered = Ordered(report.layers);
  const bool alone = !report.layers.empty() && report.layers[0].layerwise.has_value();
  table.title = ordered.size() > most ? fmt::format("The {} worst of {} layers", most, ordered.size())
                                      : std::string("Layers, the worst first");
  table.header = {"layer", "operator", "SNR", "cosine", "MSE"};
  if (alone) table.header.push_back("alone, at the outputs");
  for (size_t i = 0; i < ordered.size() && i < most; ++i) {
    const LayerError& layer = *ordered[i];
    table.rows.push_back({Shorter(layer.name), layer.op, fmt::format("{:.1f} dB", layer.graphwise.snr_db()),
                          fmt::format("{:.5f}", layer.graphwise.cosine()), Number(layer.graphwise.mse())});
    if (alone) table.rows.back().push_back(Number(layer.layerwise.value_or(0)));
  }
  table.notes = {"SNR, cosine and MSE are at the layer's output with all layers rounded."};
  if (alone)
    table.notes.push_back("Alone: noise to signal at the network's outputs with only this layer rounded.");
  return table;
}

std::string ScoresText(const ptq::Scores& scores, int64_t samples) {
  std::string out =
      fmt::format("{} sample{}: noise to signal {:.4f}", samples, samples == 1 ? "" : "s", scores.nsr());
  double cosine = 1;
  for (const ptq::Noise& output : scores.outputs) cosine = std::min(cosine, output.cosine());
  out += fmt::format(", cosine {:.5f}", cosine);
  if (scores.rows > 0) out += fmt::format(", the same best class in {:.2f} %", 100 - scores.disagreement());
  if (scores.labelled > 0)
    out +=
        fmt::format("; right: {:.2f} %, float {:.2f} %",
                    100.0 * static_cast<double>(scores.right) / static_cast<double>(scores.labelled),
                    100.0 * static_cast<double>(scores.right_exact) / static_cast<double>(scores.labelled));
  return out;
}

std::string NetworkReportHtml(const NetworkReport& report) {
  Facts facts = {{"constants", fmt::format("{}, was {}", FormatBytes(static_cast<double>(report.bytes_after)),
                                           FormatBytes(static_cast<double>(report.bytes_before)))}};
  if (report.scores) facts.emplace_back("outputs", ScoresText(*report.scores, report.samples));
  if (report.evaluated)
    facts.emplace_back("evaluated", ScoresText(*report.evaluated, report.evaluated_samples));
  for (const auto& [name, why] : report.floats) facts.emplace_back("float", Printable(name) + ": " + why);
  Page page("Rounding of " + report.path, "What rounding costs " + report.path, facts);
  page.Section("Noise to signal, layer by layer");
  page.Add(Draw(ErrorChart(report)), "Noise to signal, layer by layer");
  page.Add(
      "In the order of the network. Dots: at the layer's output while all layers are rounded, so that errors "
      "of earlier layers are in it. Squares: at the network's outputs while this layer alone is rounded; the "
      "highest squares are the layers to leave float first.");
  const Table table = LayerTable(report, report.layers.size());
  page.Section(table.title);
  page.Add(table);
  return page.Html(nullptr);
}

}  // namespace celer::cli
