#include "cli/graph/node_labels.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/ir/operator.h"
#include "io/file/printable.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr size_t kColumns = 30, kLines = 3;

std::string Times(const std::vector<int64_t>& numbers) {
  return fmt::format("{}", fmt::join(numbers, "×"));
}
bool All(const std::vector<int64_t>& numbers, int64_t value) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == value; });
}
std::string OneOrMany(const std::vector<int64_t>& numbers) {
  return numbers.empty() ? "" : All(numbers, numbers[0]) ? std::to_string(numbers[0]) : Times(numbers);
}

// Empty for what goes without saying.
std::string Short(const graph::Node& node, const std::string& key, const graph::Attribute& value) {
  const auto* const ints = std::get_if<std::vector<int64_t>>(&value);
  const auto* const number = std::get_if<int64_t>(&value);
  if (key == "kernel_shape" && ints) return Times(*ints);
  if (key == "strides" && ints) return All(*ints, 1) ? "" : "stride " + OneOrMany(*ints);
  if (key == "pads" && ints) return All(*ints, 0) ? "" : "pad " + OneOrMany(*ints);
  if (key == "dilations" && ints) return All(*ints, 1) ? "" : "dilation " + OneOrMany(*ints);
  if (key == "group" && number) return *number == 1 ? "" : "group " + std::to_string(*number);
  if (key == "perm" && ints) return fmt::format("{}", fmt::join(*ints, " "));
  if (key == "auto_pad" && node.Text("auto_pad", "") == "NOTSET") return "";
  if (number && *number == 0 &&
      (key == "ceil_mode" || key == "allowzero" || key == "keepdims" || key == "exclude_outside"))
    return "";
  if (key == "cubic_coeff_a") return "";
  if (const auto* graph = std::get_if<std::shared_ptr<graph::Graph>>(&value))
    return fmt::format("{}: {} nodes", Printable(key), (*graph)->nodes.size());
  return Printable(key) + " " + AttributeWords(value);
}

// A constant that a node reads: its number or numbers if they are few, else its shape.
std::string ConstantWords(const graph::Constant& constant) {
  const auto elements = constant.shape.elements().value_or(0);
  const bool whole = constant.dtype == DType::kI64 || constant.dtype == DType::kI32;
  if (whole && elements <= 6) return fmt::format("[{}]", fmt::join(graph::ReadInts(constant.view()), ", "));
  if (elements == 1) return fmt::format("{:.4g}", graph::ReadScalar(constant.view()));
  const auto dims = constant.shape.dims();
  return Times({dims.begin(), dims.end()});
}

}  // namespace

std::string ShortName(const std::string& name, size_t most) {
  const std::string shown = Printable(name, 400);
  if (Columns(shown) <= most) return shown;
  size_t at = shown.size() - most + 1;
  while (at < shown.size() && (static_cast<unsigned char>(shown[at]) & 0xC0) == 0x80)
    ++at;  // inside a letter
  return "…" + shown.substr(at);
}

std::string TypeWords(const std::string& type) {
  const size_t open = type.find('['), close = type.rfind(']');
  if (open == std::string::npos || close == std::string::npos) return type;
  std::string dims = type.substr(open + 1, close - open - 1);
  for (size_t at = 0; (at = dims.find(", ", at)) != std::string::npos;) dims.replace(at, 2, "×");
  const std::string dtype = type.substr(0, open);
  if (dims.empty()) dims = "scalar";
  return dtype == "f32" ? dims : dtype + " " + dims;
}

std::string AttributeWords(const graph::Attribute& attribute) {
  const auto list = [](const auto& numbers) {
    std::string out = "[";
    for (size_t i = 0; i < numbers.size() && i < 12; ++i)
      out += (i ? ", " : "") + fmt::format("{}", numbers[i]);
    return out + (numbers.size() > 12 ? ", …]" : "]");
  };
  struct Visit {
    const decltype(list)& as_list;
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(float v) const { return fmt::format("{:.6g}", v); }
    std::string operator()(const std::string& v) const { return Printable(v, 60); }
    std::string operator()(const std::vector<int64_t>& v) const { return as_list(v); }
    std::string operator()(const std::vector<float>& v) const { return as_list(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      std::vector<std::string> shown;
      for (const std::string& text : v) shown.push_back(Printable(text, 40));
      return as_list(shown);
    }
    std::string operator()(const graph::Constant& v) const {
      return std::string(Name(v.dtype)) + v.shape.ToString();
    }
    std::string operator()(const std::shared_ptr<graph::Graph>& v) const {
      return fmt::format("a graph of {} nodes", v->nodes.size());
    }
  };
  return std::visit(Visit{list}, attribute);
}

std::vector<std::string> NodeWords(const graph::Graph& graph, const graph::Node& node) {
  std::vector<std::string> words;
  // The kernel first, if it is one.
  for (const bool kernel : {true, false})
    for (const auto& [key, value] : node.attributes)
      if ((key == "kernel_shape") == kernel)
        if (std::string text = Short(node, key, value); !text.empty()) words.push_back(std::move(text));
  std::vector<std::string> weights;
  for (const graph::ValueId id : node.inputs)
    if (id != graph::kNoValue && graph.value(id).constant)
      weights.push_back(ConstantWords(*graph.value(id).constant));
  std::vector<std::string> lines;
  const auto add = [&](const std::vector<std::string>& parts, const std::string& before) {
    std::string line;
    for (const std::string& part : parts) {
      const std::string next = line.empty() ? before + part : line + ", " + part;
      if (!line.empty() && Columns(next) > kColumns) {
        lines.push_back(line);
        line = part;
      } else {
        line = next;
      }
    }
    if (!line.empty()) lines.push_back(line);
  };
  add(words, "");
  if (lines.size() > kLines - 1) lines.resize(kLines - 1), lines.back() += " …";
  const size_t attributes = lines.size();
  add(weights, "with ");
  if (lines.size() > std::max(kLines, attributes + 1)) {
    lines.resize(std::max(kLines, attributes + 1));
    lines.back() += " …";
  }
  return lines;
}

}  // namespace celer::cli
