#include "graph/load/load_onnx.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

#include "graph/ir/operator_table.h"
#include "graph/load/microsoft/expansion.h"
#include "graph/load/string_table.h"
#include "io/file/printable.h"
#include "io/onnx/onnx.h"

namespace celer::graph {
namespace {

// Functions may call functions: a small file could expand without end.
constexpr size_t kMaxNodes = 1'000'000;
constexpr int kMaxCalls = 16;

constexpr int32_t kOnnxString = 8;       // TensorProto.DataType
constexpr uint32_t kOnnxStringData = 6;  // the field of TensorProto

using Names = std::unordered_map<std::string_view, ValueId>;

// The call site that a function's body is inlined at.
struct Call {
  const OnnxFunction* function;
  const OnnxNode* node;
  const Call* outer;
  int depth;
};

// A scope of names. A function's body sees only its own names, a subgraph also those of the outer graph.
struct Scope {
  Graph* graph;
  Names names = {};
  Scope* outside = nullptr;
  const std::vector<OnnxOpset>* opsets = nullptr;
  const Call* call = nullptr;
  std::string prefix = {};  // of names made while expanding a function
};

class Loader {
 public:
  explicit Loader(std::shared_ptr<OnnxFile> file) : file_(std::move(file)), model_(file_->model()) {}

  Result<Network> Load() {
    Network out;
    out.source = file_->source();
    out.format = "ONNX";
    out.producer = Printable(model_.producer);
    for (const OnnxOpset& opset : model_.opsets)
      if (opset.domain.empty() || opset.domain == "ai.onnx") out.opset = ClampOpset(opset.version);
    if (out.opset > kNewestOpset)
      return Error::Unsupported(out.source, ": opset ", out.opset, "; up to ", kNewestOpset,
                                " is known, so export it with an older one");
    Scope scope{.graph = &out.graph, .opsets = &model_.opsets};
    CELER_RETURN_IF_ERROR(LoadGraph(model_.graph, scope, true));
    CELER_RETURN_IF_ERROR(out.graph.Sort());
    CELER_RETURN_IF_ERROR(Verify(out.graph));
    CELER_ASSIGN(out.texts, ResolveTexts(&out.graph, &texts_));
    CELER_RETURN_IF_ERROR(ExpandMicrosoft(&out.graph));
    CELER_RETURN_IF_ERROR(Verify(out.graph));
    out.file_bytes = file_->file_bytes();
    return out;
  }

 private:
  static int ClampOpset(int64_t version) {
    return static_cast<int>(std::clamp<int64_t>(version, 0, 1'000'000));
  }

  Result<Constant> ToConstant(const OnnxTensor& tensor) {
    if (tensor.data_type == kOnnxString) return ToTexts(tensor);
    CELER_ASSIGN(const OnnxElements elements, file_->Read(tensor));
    CELER_ASSIGN(const Shape shape, MakeShape(elements.shape.dims()));
    Constant out{elements.dtype, shape, elements.bytes, elements.owned};
    if (!out.owner) out.owner = file_;
    return out;
  }

  Result<Constant> ToTexts(const OnnxTensor& tensor) {
    const auto where = [&] { return "tensor '" + Printable(tensor.name) + "'"; };
    auto shape = MakeShape(tensor.dims);
    if (!shape) return shape.error().WithContext(where());
    std::vector<int64_t> ids;
    for (const WireField& field : tensor.typed)
      if (field.number == kOnnxStringData && field.kind == WireField::Kind::kBytes)
        ids.push_back(texts_.Id(field.text()));
    if (static_cast<int64_t>(ids.size()) != *shape->elements())
      return Error::Corrupt(file_->source(), ": ", where(), ": ", ids.size(), " strings for ",
                            shape->ToString());
    return texts_.Mark(Copy(DType::kI64, *shape, ids.data(), ids.size()));
  }

  Result<ValueType> ToType(const OnnxType& type, std::string_view name, bool is_input) {
    ValueType out;
    const OnnxType* tensor = &type;
    using K = OnnxType::Kind;
    if (type.kind == K::kOptional || type.kind == K::kSequence) {
      out.kind = type.kind == K::kOptional ? ValueType::Kind::kOptional : ValueType::Kind::kSequence;
      if (!type.element.empty()) tensor = &type.element[0];
      if (type.kind == K::kOptional && tensor->kind == K::kSequence) {
        out.of_sequence = true;
        if (!tensor->element.empty()) tensor = &tensor->element[0];
      }
    }
    // Of maps, a ZipMap makes scores with names of their columns; nothing else makes them.
    if (tensor->kind == K::kMap && !is_input) return ValueType{};
    if (tensor->kind == K::kMap || tensor->kind == K::kSparse)
      return Error::Unsupported("the value '", Printable(name), "' is a ",
                                tensor->kind == K::kMap ? "map" : "sparse tensor",
                                "; tensors and sequences of them are supported");
    if (tensor->kind != K::kTensor) return out;
    if (tensor->data_type == kOnnxString) {
      out.dtype = DType::kI64;  // places in the list of strings
    } else if (tensor->data_type != 0) {
      out.dtype = OnnxDType(tensor->data_type);
      if (!out.dtype)
        return Error::Unsupported("the value '", Printable(name), "' holds ", OnnxTypeName(tensor->data_type),
                                  "; numbers and booleans are supported");
    }
    if (tensor->has_shape && out.kind == ValueType::Kind::kTensor) {
      out.shape.emplace();
      for (const OnnxType::Dim& dim : tensor->dims)
        out.shape->push_back(
            {dim.symbol.empty() && dim.value >= 0 ? dim.value : -1, std::string(dim.symbol)});
    }
    return out;
  }

  static bool HoldsStrings(const OnnxType& type) {
    return type.data_type == kOnnxString || (!type.element.empty() && HoldsStrings(type.element[0]));
  }

  // kNoValue for a name that is nowhere.
  ValueId Find(Scope& scope, std::string_view name) {
    if (const auto found = scope.names.find(name); found != scope.names.end()) return found->second;
    if (!scope.outside) return kNoValue;
    const ValueId outer = Find(*scope.outside, name);
    if (outer == kNoValue) return kNoValue;
    if (scope.graph == scope.outside->graph) return outer;
    const ValueId inner = scope.graph->AddValue(std::string(name), scope.outside->graph->value(outer).type);
    scope.graph->captures.push_back({outer, inner});
    scope.names.emplace(name, inner);
    return inner;
  }

  Status Define(Scope& scope, std::string_view name, ValueId id) {
    if (!scope.names.emplace(name, id).second)
      return Error::Corrupt(file_->source(), ": the value '", Printable(name), "' has two producers");
    return {};
  }

  Status LoadGraph(const OnnxGraph& from, Scope& scope, bool top) {
    Graph& graph = *scope.graph;
    graph.name = std::string(from.name);
    if (from.sparse_initializers > 0)
      return Error::Unsupported(file_->source(), ": has sparse weights; export it with dense ones");
    for (const OnnxTensor& tensor : from.initializers) {
      CELER_ASSIGN(Constant constant, ToConstant(tensor));
      CELER_RETURN_IF_ERROR(
          Define(scope, tensor.name, graph.AddConstant(std::string(tensor.name), std::move(constant))));
    }
    for (const OnnxValue& input : from.inputs) {
      if (scope.names.contains(input.name)) {
        // Files before IR version 4 list weights among the inputs, too.
        if (top) continue;
        return Error::Corrupt(file_->source(), ": '", Printable(input.name),
                              "' is an input of a subgraph and a weight in it");
      }
      CELER_ASSIGN(ValueType type, ToType(input.type, input.name, true));
      const ValueId id = graph.AddInput(std::string(input.name), std::move(type));
      if (HoldsStrings(input.type)) {
        if (!top || input.type.kind != OnnxType::Kind::kTensor)
          return Error::Unsupported(file_->source(), ": '", Printable(input.name),
                                    "' holds strings, and is no plain input of the network");
        texts_.MarkInput(id);
      }
      CELER_RETURN_IF_ERROR(Define(scope, input.name, id));
    }
    CELER_RETURN_IF_ERROR(DefineOutputs(from.nodes, scope));
    for (const auto* list : {&from.values, &from.outputs})
      for (const OnnxValue& value : *list) {
        const auto found = scope.names.find(value.name);
        if (found == scope.names.end() || graph.value(found->second).constant) continue;
        CELER_ASSIGN(ValueType type, ToType(value.type, value.name, false));
        if (type.dtype || type.kind != ValueType::Kind::kTensor)
          graph.value(found->second).type = std::move(type);
      }
    for (const OnnxNode& node : from.nodes) CELER_RETURN_IF_ERROR(LoadNode(node, scope));
    for (const OnnxValue& output : from.outputs) {
      const ValueId id = Find(scope, output.name);
      if (id == kNoValue)
        return Error::Corrupt(file_->source(), ": the output '", Printable(output.name), "' has no producer");
      graph.outputs.push_back(id);
    }
    return {};
  }

  // Names first, so that nodes may stand in any order.
  Status DefineOutputs(const std::vector<OnnxNode>& nodes, Scope& scope) {
    for (const OnnxNode& node : nodes)
      for (const std::string_view output : node.outputs) {
        if (output.empty() || (scope.call && scope.names.contains(output))) continue;
        CELER_RETURN_IF_ERROR(
            Define(scope, output, scope.graph->AddValue(scope.prefix + std::string(output))));
      }
    return {};
  }

  const OnnxFunction* FindFunction(const OnnxNode& node) const {
    for (const OnnxFunction& function : model_.functions)
      if (function.name == node.op && function.domain == node.domain) return &function;
    return nullptr;
  }

  Status LoadNode(const OnnxNode& from, Scope& scope) {
    if (++nodes_ > kMaxNodes)
      return Error::Unsupported(file_->source(), ": expands to more than ", kMaxNodes, " nodes");
    if (const OnnxFunction* const function = FindFunction(from)) return Expand(from, *function, scope);
    if ((from.op == "Constant") && (from.domain.empty() || from.domain == "ai.onnx"))
      return LoadConstant(from, scope);

    Node node{.op = std::string(from.op), .domain = std::string(from.domain), .name = std::string(from.name)};
    if (node.domain == "ai.onnx") node.domain.clear();
    for (const OnnxOpset& opset : *scope.opsets)
      if (opset.domain == from.domain || (node.domain.empty() && opset.domain == "ai.onnx"))
        node.opset = ClampOpset(opset.version);
    if (node.opset == 0 && scope.opsets != &model_.opsets)
      for (const OnnxOpset& opset : model_.opsets)
        if (opset.domain == from.domain) node.opset = ClampOpset(opset.version);
    if (node.opset == 0) node.opset = 1;

    for (const std::string_view input : from.inputs) {
      if (input.empty()) {
        node.inputs.push_back(kNoValue);
        continue;
      }
      const ValueId id = Find(scope, input);
      // An input of the function that the call does not give.
      const bool absent = scope.call && id == kNoValue && scope.names.contains(input);
      if (id == kNoValue && !absent)
        return Error::Corrupt(file_->source(), ": ", node.Label(), " reads '", Printable(input),
                              "', which nothing makes");
      node.inputs.push_back(id);
    }
    while (!node.inputs.empty() && node.inputs.back() == kNoValue) node.inputs.pop_back();
    for (const std::string_view output : from.outputs)
      node.outputs.push_back(output.empty() ? kNoValue : scope.names.at(output));
    for (const OnnxAttribute& attribute : from.attributes)
      CELER_RETURN_IF_ERROR(LoadAttribute(attribute, scope, node));
    scope.graph->nodes.push_back(std::move(node));
    return {};
  }

  // An attribute of a function's body may stand for one of the call's.
  const OnnxAttribute* Resolve(const OnnxAttribute& attribute, const Call* call) const {
    if (attribute.reference.empty()) return &attribute;
    if (!call) return nullptr;
    for (const OnnxAttribute& given : call->node->attributes)
      if (given.name == attribute.reference) return Resolve(given, call->outer);
    for (const OnnxAttribute& given : call->function->defaults)
      if (given.name == attribute.reference) return &given;
    return nullptr;
  }

  Status LoadAttribute(const OnnxAttribute& named, Scope& scope, Node& node) {
    const OnnxAttribute* const from = Resolve(named, scope.call);
    if (!from) return {};
    const std::string name(named.name);
    const auto put = [&](Attribute value) { node.attributes.emplace_back(name, std::move(value)); };
    using T = OnnxAttribute::Type;
    switch (from->type) {
      case T::kFloat:
        put(from->f);
        return {};
      case T::kInt:
        put(from->i);
        return {};
      case T::kString:
        put(std::string(from->s));
        return {};
      case T::kFloats:
        put(from->floats);
        return {};
      case T::kInts:
        put(from->ints);
        return {};
      case T::kStrings:
        put(std::vector<std::string>(from->strings.begin(), from->strings.end()));
        return {};
      case T::kTensor: {
        if (from->tensors.empty()) break;
        if (!OnnxDType(from->tensors[0].data_type) && from->tensors[0].data_type != kOnnxString)
          return {};  // its operator will be refused
        CELER_ASSIGN(Constant constant, ToConstant(from->tensors[0]));
        put(std::move(constant));
        return {};
      }
      case T::kGraph: {
        if (from->graphs.empty()) break;
        auto graph = std::make_shared<Graph>();
        Scope inner{.graph = graph.get(), .outside = &scope, .opsets = scope.opsets, .call = scope.call};
        CELER_RETURN_IF_ERROR(LoadGraph(from->graphs[0], inner, false));
        put(std::move(graph));
        return {};
      }
      default:
        return {};
    }
    return Error::Corrupt(file_->source(), ": ", node.Label(), ": the attribute '", Printable(name),
                          "' has a type and no value");
  }

  Status LoadConstant(const OnnxNode& from, Scope& scope) {
    if (from.outputs.size() != 1 || from.outputs[0].empty())
      return Error::Corrupt(file_->source(), ": a Constant with ", from.outputs.size(), " outputs");
    Value& value = scope.graph->value(scope.names.at(from.outputs[0]));
    for (const OnnxAttribute& named : from.attributes) {
      const OnnxAttribute* const attribute = Resolve(named, scope.call);
      if (!attribute) continue;
      if (named.name == "value" && !attribute->tensors.empty()) {
        CELER_ASSIGN(value.constant, ToConstant(attribute->tensors[0]));
      } else if (named.name == "value_int") {
        value.constant = Copy(DType::kI64, Shape{}, &attribute->i, 1);
      } else if (named.name == "value_float") {
        value.constant = Copy(DType::kF32, Shape{}, &attribute->f, 1);
      } else if (named.name == "value_ints") {
        value.constant = Copy(DType::kI64, ListShape(attribute->ints.size()), attribute->ints.data(),
                              attribute->ints.size());
      } else if (named.name == "value_floats") {
        value.constant = Copy(DType::kF32, ListShape(attribute->floats.size()), attribute->floats.data(),
                              attribute->floats.size());
      } else if (named.name == "value_string") {
        const int64_t id = texts_.Id(attribute->s);
        value.constant = texts_.Mark(Copy(DType::kI64, Shape{}, &id, 1));
      } else if (named.name == "value_strings") {
        std::vector<int64_t> ids;
        for (const std::string_view text : attribute->strings) ids.push_back(texts_.Id(text));
        value.constant = texts_.Mark(Copy(DType::kI64, ListShape(ids.size()), ids.data(), ids.size()));
      } else {
        return Error::Unsupported(file_->source(), ": the Constant '", Printable(from.outputs[0]),
                                  "' is given by '", Printable(named.name),
                                  "'; tensors and numbers are supported");
      }
    }
    if (!value.constant)
      return Error::Corrupt(file_->source(), ": the Constant '", Printable(from.outputs[0]),
                            "' has no value");
    value.type = {.dtype = value.constant->dtype, .shape = std::vector<Dim>()};
    for (const int64_t dim : value.constant->shape.dims()) value.type.shape->push_back({dim, {}});
    return {};
  }

  template <class T>
  static Constant Copy(DType dtype, const Shape& shape, const T* data, size_t count) {
    auto owned = std::shared_ptr<std::byte[]>(new std::byte[std::max<size_t>(count * sizeof(T), 1)]);
    if (count > 0) std::memcpy(owned.get(), data, count * sizeof(T));
    Constant out{dtype, shape, {owned.get(), count * sizeof(T)}, owned};
    return out;
  }

  Status Expand(const OnnxNode& from, const OnnxFunction& function, Scope& scope) {
    const Call call{&function, &from, scope.call, scope.call ? scope.call->depth + 1 : 1};
    if (call.depth > kMaxCalls)
      return Error::Corrupt(file_->source(), ": the function '", Printable(function.name),
                            "' calls functions ", kMaxCalls, " deep, perhaps itself");
    Scope body{.graph = scope.graph, .opsets = &function.opsets, .call = &call};
    body.prefix = scope.prefix + std::string(from.name.empty() ? function.name : from.name) + "#" +
                  std::to_string(nodes_) + "/";
    for (size_t i = 0; i < function.inputs.size(); ++i) {
      ValueId id = kNoValue;
      if (i < from.inputs.size() && !from.inputs[i].empty()) {
        id = Find(scope, from.inputs[i]);
        if (id == kNoValue && !(scope.call && scope.names.contains(from.inputs[i])))
          return Error::Corrupt(file_->source(), ": a call of '", Printable(function.name), "' reads '",
                                Printable(from.inputs[i]), "', which nothing makes");
      }
      CELER_RETURN_IF_ERROR(Define(body, function.inputs[i], id));
    }
    // An output of the body is the output of the call, unless it is an input passed through.
    std::vector<std::pair<ValueId, ValueId>> passed;
    for (size_t i = 0; i < function.outputs.size() && i < from.outputs.size(); ++i) {
      if (from.outputs[i].empty()) continue;
      const ValueId target = scope.names.at(from.outputs[i]);
      if (const auto found = body.names.find(function.outputs[i]); found != body.names.end())
        passed.emplace_back(found->second, target);
      else
        body.names.emplace(function.outputs[i], target);
    }
    CELER_RETURN_IF_ERROR(DefineOutputs(function.nodes, body));
    for (const OnnxNode& node : function.nodes) CELER_RETURN_IF_ERROR(LoadNode(node, body));
    for (const auto& [source, target] : passed)
      scope.graph->nodes.push_back({.op = "Identity", .opset = 13, .inputs = {source}, .outputs = {target}});
    return {};
  }

  std::shared_ptr<OnnxFile> file_;
  const OnnxModel& model_;
  Texts texts_;
  size_t nodes_ = 0;
};

Result<Network> Load(Result<OnnxFile> file) {
  if (!file) return file.error();
  auto shared = std::make_shared<OnnxFile>(std::move(*file));
  const std::string source = shared->source();
  Result<Network> network = Loader(std::move(shared)).Load();
  if (network || network.error().message().starts_with(source)) return network;
  return network.error().WithContext(source);
}

}  // namespace

Result<Network> LoadOnnx(const std::filesystem::path& path) {
  return Load(OnnxFile::Open(path));
}

Result<Network> LoadOnnx(std::span<const std::byte> bytes, const std::string& source) {
  return Load(OnnxFile::FromBytes(bytes, source));
}

}  // namespace celer::graph
