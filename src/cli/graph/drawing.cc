#include "cli/graph/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/graph/layout.h"
#include "cli/graph/words.h"
#include "io/file/printable.h"
#include "limits/quantity.h"
#include "report/chart.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr double kTitle = 12.5, kText = 11, kLine = 14.5, kPad = 9, kHead = 22;
constexpr const char* kFont = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

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
  const char* color = "#1f2933";
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
  const double left = at.x - at.width / 2;
  std::string out = box.link.empty() ? "<g>" : fmt::format("<a href=\"#{}\">", XmlEscape(box.link));
  out += fmt::format("<title>{}</title>", XmlEscape(box.tip));
  const double radius = box.port ? 11 : 5;
  out += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{}\" fill=\"#fff\" "
      "stroke=\"{}\" "
      "stroke-width=\"1.2\"/>",
      left, at.y, at.width, at.height, radius, box.color);
  const bool bare = box.lines.empty() && box.shape.empty();
  // The head's lower corners are square, unless it is all there is.
  if (bare)
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{}\" fill=\"{}\"/>", left,
        at.y, at.width, at.height, radius, box.color);
  else
    out += fmt::format(
        "<path d=\"M{:.1f} {:.1f}v-{:.1f}a{r} {r} 0 0 1 {r} -{r}h{:.1f}a{r} {r} 0 0 1 {r} {r}v{:.1f}z\" "
        "fill=\"{}\"/>",
        left, at.y + kHead, kHead - radius, at.width - 2 * radius, kHead - radius, box.color,
        fmt::arg("r", radius));
  out += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#fff\" font-size=\"{}\" "
      "font-weight=\"600\">{}</text>",
      at.x, at.y + 15.5, kTitle, XmlEscape(box.title));
  double y = at.y + kHead + 13.5;
  for (const std::string& line : box.lines) {
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#52606d\" font-size=\"{}\">{}</text>",
        at.x, y, kText, XmlEscape(line));
    y += kLine;
  }
  if (!box.shape.empty())
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#1f2933\" font-size=\"{}\" "
        "font-weight=\"600\">{}</text>",
        at.x, y, kText, XmlEscape(box.shape));
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
    if (id != graph::kNoValue && maker[static_cast<size_t>(id)] >= 0)
      layout.edges.push_back({static_cast<size_t>(maker[static_cast<size_t>(id)]), boxes.size() - 1});
  };
  for (const graph::ValueId id : graph.inputs) {
    maker[static_cast<size_t>(id)] = static_cast<int>(boxes.size());
    port(id, "input");
  }
  for (const graph::Capture& capture : graph.captures) {
    if (graph.value(capture.inner).constant) continue;
    maker[static_cast<size_t>(capture.inner)] = static_cast<int>(boxes.size());
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
      if (id != graph::kNoValue) maker[static_cast<size_t>(id)] = static_cast<int>(boxes.size() - 1);
  }
  for (const graph::ValueId id : graph.outputs) {
    port(id, "output");
    join(id);
  }
  for (const BoxText& box : boxes) layout.boxes.push_back({WidthOf(box), HeightOf(box)});
  Arrange(&layout, 1.5);
  Drawing out{.width = layout.width, .height = layout.height};
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

std::string DrawingSvg(const Drawing& drawing, const std::string& title) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 "
             "{0:.0f} "
             "{1:.0f}\" font-family=\"{2}\">\n<title>{3}</title>\n<rect width=\"100%\" height=\"100%\" "
             "fill=\"#fff\"/>\n",
             drawing.width, drawing.height, kFont, XmlEscape(title)) +
         drawing.body + "</svg>\n";
}

std::string NodesHtml(const graph::Graph& graph, const DrawingFacts& facts, const std::string& anchor) {
  std::string out =
      "<table class=\"nodes\"><thead><tr><th>node</th><th class=\"words\">operator</th><th "
      "class=\"words\">attributes</th><th class=\"words\">reads</th><th "
      "class=\"words\">makes</th><th>MFLOP</th></tr></"
      "thead><tbody>\n";
  const auto list = [&](const std::vector<graph::ValueId>& ids) {
    std::string text;
    for (const graph::ValueId id : ids)
      if (id != graph::kNoValue)
        text += (text.empty() ? "" : "<br>") + XmlEscape(Printable(graph.value(id).name, 60)) + " <i>" +
                XmlEscape(facts.type(id)) + "</i>";
    return text;
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const graph::Node& node = graph.nodes[n];
    std::string attributes;
    for (const auto& [key, value] : node.attributes)
      attributes +=
          (attributes.empty() ? "" : "<br>") + XmlEscape(Printable(key) + " = " + AttributeWords(value));
    const double flops = facts.flops(n);
    out += fmt::format(
        "<tr id=\"{}-{}\"><td>{}</td><td class=\"words\">{}</td><td class=\"words\">{}</td><td "
        "class=\"words\">{}</td><td class=\"words\">{}</td><td>{}</td></tr>\n",
        XmlEscape(anchor), n, XmlEscape(node.name.empty() ? std::to_string(n) : Printable(node.name, 60)),
        XmlEscape(Printable(node.op)), attributes, list(node.inputs), list(node.outputs),
        flops >= 0 ? fmt::format("{:.2f}", flops / 1e6) : "");
  }
  return out + "</tbody></table>\n";
}

}  // namespace celer::cli
