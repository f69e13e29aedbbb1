#include "cli/graph/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/graph/layout.h"
#include "cli/graph/node_labels.h"
#include "io/file/printable.h"
#include "limits/quantity.h"
#include "report/chart.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr double kTitle = 12.5, kText = 11, kLine = 14.5, kPad = 9, kHead = 22;

struct Family {
  const char* color;
  std::vector<std::string_view> ops;
};

// By what an operator is for; dark enough for white letters.
const char* ColorOf(const graph::Node& node) {
  static const std::array<Family, 8> families = {{
      {"#1f6fb2", {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"}},
      {"#27489b",
       {"MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul", "Attention", "MultiHeadAttention",
        "LSTM", "GRU", "RNN"}},
      {"#b3541e",
       {"Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "PRelu", "Gelu", "Elu", "Clip",
        "Softmax", "LogSoftmax", "Mish", "Swish", "Softplus", "Erf", "Selu", "Celu"}},
      {"#2e7d4f",
       {"BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization",
        "LpNormalization", "RMSNormalization", "SkipLayerNormalization", "LRN", "MeanVarianceNormalization"}},
      {"#0f7b8a",
       {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "Resize", "Upsample"}},
      {"#6b4a94",
       {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Where", "Sqrt", "Exp", "Log", "Neg", "Abs"}},
      {"#9b2c40", {"If", "Loop", "Scan", "SequenceMap"}},
      {"#7a6a1d", {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"}},
  }};
  for (const Family& family : families)
    if (std::find(family.ops.begin(), family.ops.end(), node.op) != family.ops.end()) return family.color;
  return node.op.starts_with("Reduce") || node.op.starts_with("Arg") || node.op == "TopK" ? "#0f7b8a"
                                                                                          : "#5b6773";
}

// One box of the drawing: a node, an input or an output.
struct BoxText {
  std::string title;
  std::vector<std::string> lines = {};
  std::string shape = {};  // of what it makes; stands last
  std::string tip = {};
  const char* color = "#323f4b";
  bool port = false;
  std::string link = {};
};

double WidthOf(const BoxText& box) {
  double width = TextWidth(box.title, kTitle) * 1.08;
  for (const std::string& line : box.lines) width = std::max(width, TextWidth(line, kText));
  width = std::max(width, TextWidth(box.shape, kText) * 1.12);
  return std::max(width + 2 * kPad, 64.0);
}
double HeightOf(const BoxText& box) {
  const auto lines = static_cast<double>(box.lines.size() + (box.shape.empty() ? 0 : 1));
  return kHead + (lines > 0 ? lines * kLine + 7 : 0);
}

std::string BoxSvg(const BoxText& box, const LayoutBox& at) {
  const double left = at.x - at.width / 2, radius = box.port ? 11 : 5;
  const auto rect = [&](double y, double height, double rounded, const char* fill, const char* stroke) {
    return fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{}\" fill=\"{}\"{}/>", left,
        y, at.width, height, rounded, fill,
        stroke ? fmt::format(" stroke=\"{}\" stroke-width=\"1.2\"", stroke) : "");
  };
  std::string out = box.link.empty() ? "<g>" : fmt::format("<a href=\"#{}\">", XmlEscape(box.link));
  out += fmt::format("<title>{}</title>", XmlEscape(box.tip)) +
         rect(at.y, at.height, radius, "#fff", box.color) + rect(at.y, kHead, radius, box.color, nullptr);
  // The head's lower corners are square, unless it is all there is.
  if (at.height > kHead) out += rect(at.y + kHead - radius, radius, 0, box.color, nullptr);
  out += SvgText(at.x, at.y + 15.5, box.title, "middle", "#fff", kTitle, kBold);
  double y = at.y + kHead + 13.5;
  for (const std::string& line : box.lines) {
    out += SvgText(at.x, y, line, "middle", kMuted, kText);
    y += kLine;
  }
  if (!box.shape.empty()) out += SvgText(at.x, y, box.shape, "middle", kInk, kText, kBold);
  return out + (box.link.empty() ? "</g>\n" : "</a>\n");
}

std::string Tip(const graph::Graph& graph, const graph::Node& node, size_t index, const DrawingFacts& facts) {
  std::string out = node.Label();
  for (const auto& [key, value] : node.attributes)
    out += "\n" + Printable(key) + " = " + AttributeWords(value);
  for (const graph::ValueId id : node.inputs)
    if (id != graph::kNoValue) out += "\nin   " + Printable(graph.value(id).name) + "  " + facts.type(id);
  for (const graph::ValueId id : node.outputs)
    if (id != graph::kNoValue) out += "\nout  " + Printable(graph.value(id).name) + "  " + facts.type(id);
  if (const double flops = facts.flops(index); flops >= 0) out += "\n" + FormatNumber(flops / 1e6) + " MFLOP";
  return out;
}

}  // namespace

Drawing DrawGraph(const graph::Graph& graph, const DrawingFacts& facts, const std::string& anchor) {
  std::vector<BoxText> boxes;
  std::vector<int> maker(graph.values.size(), -1);
  Layout layout;
  const auto port = [&](graph::ValueId id, const char* kind) {
    BoxText box{
        .title = ShortName(graph.value(id).name, 28), .shape = TypeWords(facts.type(id)), .port = true};
    box.tip = std::string(kind) + " " + Printable(graph.value(id).name, 400) + "\n" + facts.type(id);
    boxes.push_back(std::move(box));
  };
  const auto join = [&](graph::ValueId id) {
    if (id != graph::kNoValue && maker[id] >= 0)
      layout.edges.push_back({static_cast<size_t>(maker[id]), boxes.size() - 1});
  };
  for (const graph::ValueId id : graph.inputs) {
    maker[id] = static_cast<int>(boxes.size());
    port(id, "input");
  }
  for (const graph::Capture& capture : graph.captures) {
    if (graph.value(capture.inner).constant) continue;
    maker[capture.inner] = static_cast<int>(boxes.size());
    port(capture.inner, "from outside:");
    boxes.back().color = "#7b8794";
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const graph::Node& node = graph.nodes[n];
    BoxText box{.title = Printable(node.op), .lines = NodeWords(graph, node), .color = ColorOf(node)};
    std::vector<std::string> shapes;
    for (const graph::ValueId id : node.outputs)
      if (id != graph::kNoValue) shapes.push_back(TypeWords(facts.type(id)));
    if (!shapes.empty())
      box.shape = shapes[0] + (shapes.size() > 1 ? fmt::format(" (of {})", shapes.size()) : "");
    box.tip = Tip(graph, node, n, facts);
    if (!anchor.empty()) box.link = fmt::format("{}-{}", anchor, n);
    boxes.push_back(std::move(box));
    for (const graph::ValueId id : graph.Reads(node)) join(id);
    for (const graph::ValueId id : node.outputs)
      if (id != graph::kNoValue) maker[id] = static_cast<int>(boxes.size() - 1);
  }
  for (const graph::ValueId id : graph.outputs) {
    port(id, "output");
    join(id);
  }
  for (const BoxText& box : boxes) layout.boxes.push_back({WidthOf(box), HeightOf(box)});
  Arrange(&layout, 1.5);
  Drawing out{layout.width, layout.height};
  out.body = "<g fill=\"none\" stroke=\"#9aa5b1\" stroke-width=\"1.4\">\n";
  for (const LayoutEdge& edge : layout.edges) out.body += fmt::format("<path d=\"{}\"/>\n", edge.path);
  out.body += "</g>\n<g fill=\"#7b8794\">\n";
  for (const LayoutEdge& edge : layout.edges) {  // arrow heads
    const LayoutBox& to = layout.boxes[edge.to];
    out.body += fmt::format("<path d=\"M{:.1f} {:.1f}l-3.6 -6.5h7.2z\"/>\n", to.x, to.y);
  }
  out.body += "</g>\n";
  for (size_t i = 0; i < boxes.size(); ++i) out.body += BoxSvg(boxes[i], layout.boxes[i]);
  return out;
}

Table AttributesTable(const graph::Graph& graph, const DrawingFacts& facts) {
  Table table{.title = "nodes",
              .header = {"node", "operator", "attributes", "reads", "makes", "MFLOP"},
              .all_words = true};
  const auto add = [](std::string* text, const std::string& line) {
    *text += (text->empty() ? "" : "\n") + line;
  };
  const auto list = [&](const std::vector<graph::ValueId>& ids) {
    std::string text;
    for (const graph::ValueId id : ids)
      if (id != graph::kNoValue) add(&text, Printable(graph.value(id).name, 60) + "  " + facts.type(id));
    return text;
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const graph::Node& node = graph.nodes[n];
    std::string attributes;
    for (const auto& [key, value] : node.attributes)
      add(&attributes, Printable(key) + " = " + AttributeWords(value));
    const double flops = facts.flops(n);
    table.rows.push_back({node.name.empty() ? std::to_string(n) : Printable(node.name, 60),
                          Printable(node.op), attributes, list(node.inputs), list(node.outputs),
                          flops >= 0 ? fmt::format("{:.2f}", flops / 1e6) : ""});
  }
  return table;
}

}  // namespace celer::cli
