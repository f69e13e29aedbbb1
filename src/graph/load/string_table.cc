#include "graph/load/string_table.h"

#include <algorithm>
#include <memory>

#include "io/file/printable.h"

namespace celer::graph {

int64_t Texts::Id(std::string_view text) {
  const auto [found, fresh] = ids_.try_emplace(std::string(text), static_cast<int64_t>(all_.size()));
  if (fresh) all_.emplace_back(text);
  return found->second;
}

namespace {

// Operators that move elements, and pass strings through like anything else: from input `first` on, `inputs`
// of them.
struct Mover {
  std::string_view op;
  size_t first = 0, inputs = 1;
};
constexpr size_t kAll = SIZE_MAX / 2;
constexpr Mover kMovers[] = {
    {"ArrayFeatureExtractor"},
    {"Compress"},
    {"Concat", 0, kAll},
    {"Expand"},
    {"Flatten"},
    {"Gather"},
    {"GatherElements"},
    {"GatherND"},
    {"Identity"},
    {"Reshape"},
    {"ScatterElements", 0, kAll},
    {"ScatterND", 0, kAll},
    {"Slice"},
    {"Split"},
    {"Squeeze"},
    {"Tile"},
    {"Transpose"},
    {"Unsqueeze"},
    {"Where", 1, 2},
};
// Operators that read strings and give something else.
constexpr std::string_view kReaders[] = {"LabelEncoder", "OneHotEncoder", "Shape", "Size"};

bool IsMl(const Node& node) {
  return node.domain == "ai.onnx.ml";
}

class TextResolver {
 public:
  TextResolver(Graph& graph, Texts& texts) : graph_(graph), texts_(texts) {
    const size_t values = graph_.values.size();
    text_.assign(values, false);
    open_.assign(values, false);
    classes_.resize(values);
    for (size_t v = 0; v < values; ++v)
      text_[v] = graph_.values[v].constant && texts_.Holds(*graph_.values[v].constant);
  }
  // Of the whole network, not of a subgraph.
  void MarkInputs() {
    for (const ValueId id : graph_.inputs)
      if (texts_.IsInput(id)) text_[id] = open_[id] = true;
  }
  TextPorts Ports() {
    TextPorts out;
    for (const ValueId id : graph_.inputs) out.inputs.push_back(IsText(id));
    for (const ValueId id : graph_.outputs) {
      out.outputs.push_back(IsText(id));
      out.classes.push_back(classes_[id]);
    }
    if (!texts_.all().empty() || std::find(out.inputs.begin(), out.inputs.end(), true) != out.inputs.end())
      out.all = std::make_shared<const std::vector<std::string>>(texts_.all());
    return out;
  }

  Status All() {
    for (Node& node : graph_.nodes) {
      for (const auto& subgraph : node.Subgraphs()) {
        for (const Capture& capture : subgraph->captures)
          if (IsText(capture.outer)) return Refused(node, "a subgraph reads strings");
        CELER_RETURN_IF_ERROR(TextResolver(*subgraph, texts_).All());
      }
      if (IsMl(node)) CELER_RETURN_IF_ERROR(ResolveAttributes(node));
      if (IsMl(node) && node.op == "ZipMap") {
        CELER_RETURN_IF_ERROR(NameColumns(node));
        continue;
      }
      CELER_RETURN_IF_ERROR(Follow(node));
    }
    return {};
  }

 private:
  Error Refused(const Node& node, const char* why) const {
    return Error::Unsupported(node.Label(), ": ", why,
                              "; strings can be moved, compared and looked up: do other text work before the "
                              "network");
  }
  bool IsText(ValueId id) const { return id != kNoValue && text_[id]; }
  void MarkOutput(const Node& node, size_t i) {
    if (i >= node.outputs.size() || node.outputs[i] == kNoValue) return;
    text_[node.outputs[i]] = true;
    graph_.value(node.outputs[i]).type.dtype = DType::kI64;
  }

  std::vector<int64_t> IdsOf(const std::vector<std::string>& texts) {
    std::vector<int64_t> ids;
    for (const std::string& text : texts) ids.push_back(texts_.Id(text));
    return ids;
  }
  void Put(Node& node, const std::string& key, Attribute value) {
    std::erase_if(node.attributes, [&](const auto& one) { return one.first == key; });
    node.attributes.emplace_back(key, std::move(value));
  }
  void Drop(Node& node, std::string_view key) {
    std::erase_if(node.attributes, [&](const auto& one) { return one.first == key; });
  }

  Status ResolveAttributes(Node& node) {
    if (node.op == "TreeEnsembleClassifier" || node.op == "LinearClassifier" || node.op == "SVMClassifier") {
      const std::vector<std::string> labels = node.Texts("classlabels_strings");
      if (labels.empty()) return {};
      Put(node, node.op == "TreeEnsembleClassifier" ? "classlabels_int64s" : "classlabels_ints",
          IdsOf(labels));
      Drop(node, "classlabels_strings");
      MarkOutput(node, 0);
      return {};
    }
    if (node.op == "OneHotEncoder" && !node.Texts("cats_strings").empty()) {
      Put(node, "cats_int64s", IdsOf(node.Texts("cats_strings")));
      Drop(node, "cats_strings");
    }
    if (node.op == "LabelEncoder" && node.Find("classes_strings")) OldEncoder(node, "classes_strings", "");
    if (node.op == "CategoryMapper") {
      OldEncoder(node, "cats_strings", "cats_int64s");
      node.op = "LabelEncoder";
    }
    if (node.op == "LabelEncoder") ResolveEncoder(node);
    return {};
  }

  // Pairs of strings and integers, in either direction: by what comes in.
  void OldEncoder(Node& node, const char* strings, std::string_view integers) {
    const std::vector<std::string> texts = node.Texts(strings);
    std::vector<int64_t> numbers = integers.empty() ? std::vector<int64_t>() : node.Ints(integers);
    if (integers.empty())
      for (size_t i = 0; i < texts.size(); ++i) numbers.push_back(static_cast<int64_t>(i));
    Drop(node, strings);
    if (!integers.empty()) Drop(node, integers);
    const bool from_text = !node.inputs.empty() && IsText(node.inputs[0]);
    Put(node, from_text ? "keys_strings" : "values_strings", texts);
    Put(node, from_text ? "values_int64s" : "keys_int64s", numbers);
  }

  void ResolveEncoder(Node& node) {
    if (const std::vector<std::string> keys = node.Texts("keys_strings"); !keys.empty()) {
      Put(node, "keys_int64s", IdsOf(keys));
      Drop(node, "keys_strings");
    }
    const auto* const tensor = node.Get<Constant>("values_tensor");
    const std::vector<std::string> values = node.Texts("values_strings");
    if (values.empty() && !(tensor && texts_.Holds(*tensor))) return;
    if (!values.empty()) {
      Put(node, "values_int64s", IdsOf(values));
      Drop(node, "values_strings");
    }
    Put(node, "default_int64", texts_.Id(node.Text("default_string", "_Unused")));
    MarkOutput(node, 0);
  }

  // Scores as maps from a class to its score: the scores as they are, and what their columns are called.
  Status NameColumns(Node& node) {
    if (node.inputs.size() != 1 || node.outputs.size() != 1 || node.inputs[0] == kNoValue ||
        node.outputs[0] == kNoValue)
      return Error::Corrupt(node.Label(), " has ", node.inputs.size(), " inputs and ", node.outputs.size(),
                            " outputs; it takes and gives one");
    std::vector<std::string>& names = classes_[node.outputs[0]];
    names = node.Texts("classlabels_strings");
    if (names.empty())
      for (const int64_t label : node.Ints("classlabels_int64s")) names.push_back(std::to_string(label));
    ValueType& type = graph_.value(node.outputs[0]).type;
    type = {};
    type.dtype = graph_.value(node.inputs[0]).type.dtype;
    node = {.op = "Identity", .name = node.name, .opset = 13, .inputs = node.inputs, .outputs = node.outputs};
    return {};
  }

  // What a node does with strings that it reads.
  Status Follow(Node& node) {
    if (std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return IsText(id); })) {
      // ONNX's own type of strings; a cast from numbers would have to print them.
      if (node.op == "Cast" && node.domain.empty() && node.Int("to", 0) == 8)
        return Refused(node, "it makes strings of numbers");
      return {};
    }
    if (node.op == "Cast" && node.domain.empty()) {
      if (node.Int("to", 0) != 8) return Refused(node, "it makes numbers of strings");
      node.op = "Identity";
      node.attributes.clear();
    }
    if (std::find(std::begin(kReaders), std::end(kReaders), node.op) != std::end(kReaders)) return {};
    if (node.op == "Equal") {
      if (std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return IsOpen(id); }))
        return Refused(node, "it compares strings that come in with each other");
      return {};
    }
    for (const Mover& mover : kMovers) {
      if (mover.op != node.op) continue;
      bool all = true, any = false;
      for (size_t i = mover.first; i < node.inputs.size() && i < mover.first + mover.inputs; ++i) {
        const bool text = IsText(node.inputs[i]);
        all = all && text, any = any || text;
      }
      // Indices of a scatter are integers among strings.
      const bool scatter = node.op.starts_with("Scatter");
      if (!any || (!all && !scatter)) return Refused(node, "it mixes strings with something else");
      const bool open =
          std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return IsOpen(id); });
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        MarkOutput(node, i);
        if (node.outputs[i] != kNoValue) open_[node.outputs[i]] = open;
      }
      return {};
    }
    return Refused(node, "it computes with strings");
  }

  bool IsOpen(ValueId id) const { return id != kNoValue && open_[id]; }

  Graph& graph_;
  Texts& texts_;
  // By value: holds strings; and may hold some that the network does not name, which are all one here.
  std::vector<bool> text_, open_;
  std::vector<std::vector<std::string>> classes_;  // by value: names of columns
};

}  // namespace

Result<TextPorts> ResolveTexts(Graph* graph, Texts* texts) {
  TextResolver resolver(*graph, *texts);
  resolver.MarkInputs();
  CELER_RETURN_IF_ERROR(resolver.All());
  return resolver.Ports();
}

}  // namespace celer::graph
