#include "graph/load/write_onnx.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "graph/load/unify_opsets.h"
#include "graph/ops/fast/fast.h"
#include "io/file/atomic_file.h"
#include "io/file/printable.h"
#include "io/onnx/onnx.h"
#include "io/onnx/onnx_wire.h"

namespace celer::graph {
namespace {

constexpr uint64_t kAlignment = 64;  // of weights in a file of their own, so that they can be used in place

// The first format whose opsets include this one.
int64_t IrVersion(int opset) {
  return opset <= 18 ? 8 : opset <= 20 ? 9 : opset <= 22 ? 10 : opset == 23 ? 11 : opset == 24 ? 12 : 13;
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Elements below a byte stand one in a byte; a file packs them, the first into the lowest bits.
std::string Packed(const Constant& constant, int bits) {
  const int per_byte = 8 / bits;
  const size_t count = constant.bytes.size();
  std::string out((count + static_cast<size_t>(per_byte) - 1) / static_cast<size_t>(per_byte), '\0');
  for (size_t i = 0; i < count; ++i) {
    const unsigned value = static_cast<unsigned>(constant.bytes[i]) & ((1u << bits) - 1);
    const size_t shift = i % static_cast<size_t>(per_byte) * static_cast<size_t>(bits);
    char& byte = out[i / static_cast<size_t>(per_byte)];
    byte = static_cast<char>(static_cast<unsigned char>(byte) | value << shift);
  }
  return out;
}

int PackedBits(DType dtype) {
  switch (dtype) {
    case DType::kI4:
    case DType::kU4:
    case DType::kFp4E2M1:
      return 4;
    case DType::kI2:
    case DType::kU2:
      return 2;
    default:
      return 0;
  }
}

class Writer {
 public:
  // `external`: the name of the file that weights go to; empty: they stay inside.
  explicit Writer(std::string external) : external_(std::move(external)) {}

  Result<std::string> Model(const Network& network, int opset) {
    opsets_[""] = opset;
    // Names of inputs and outputs are the network's face; what lies between gives way.
    for (const auto* list : {&network.graph.inputs, &network.graph.outputs})
      for (const ValueId id : *list) taken_.insert(network.graph.value(id).name);
    CELER_ASSIGN(const WireWriter graph, GraphMessage(network.graph, {}));
    WireWriter out;
    out.Int(1, IrVersion(opset));
    out.Bytes(2, "celer");
    out.Message(7, graph);
    for (const auto& [domain, version] : opsets_) {
      WireWriter import;
      if (!domain.empty()) import.Bytes(1, domain);
      import.Int(2, version);
      out.Message(8, import);
    }
    return out.Take();
  }

  // What goes into the second file, and where.
  const std::vector<std::pair<uint64_t, std::span<const std::byte>>>& external() const { return weights_; }

 private:
  // The names of a graph's values. A captured value has the name that it has outside.
  struct Names {
    const Graph* graph = nullptr;
    std::vector<std::string> of = {};
  };

  std::string Unique(const std::string& wanted) {
    const std::string base = wanted.empty() ? "value" : wanted;
    std::string name = base;
    for (int i = 1; !taken_.insert(name).second; ++i) name = base + "_" + std::to_string(i);
    return name;
  }

  // One module of PyTorch may be several nodes, and readers want a name once.
  std::string UniqueNode(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; !node_names_.insert(name).second; ++i) name = wanted + "_" + std::to_string(i);
    return name;
  }

  Names NamesOf(const Graph& graph, const Names& outside) {
    Names names{&graph, std::vector<std::string>(graph.values.size())};
    for (const Capture& capture : graph.captures) names.of[capture.inner] = outside.of[capture.outer];
    if (!outside.graph)
      for (const auto* list : {&graph.inputs, &graph.outputs})
        for (const ValueId id : *list) names.of[id] = graph.value(id).name;
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (names.of[v].empty()) names.of[v] = Unique(graph.values[v].name);
    return names;
  }

  Result<WireWriter> GraphMessage(const Graph& graph, const Names& outside) {
    const Names names = NamesOf(graph, outside);
    const auto name = [&](ValueId id) { return id == kNoValue ? std::string() : names.of[id]; };
    WireWriter out;
    std::vector<bool> used(graph.values.size(), false);
    for (const Node& node : graph.nodes) {
      CELER_ASSIGN(const WireWriter message, NodeMessage(node, names));
      out.Message(1, message);
      for (const ValueId id : graph.Reads(node)) used[id] = true;
    }
    // One name cannot be two outputs, and an input cannot be an output.
    std::vector<std::string> outputs;
    for (const ValueId id : graph.outputs) {
      used[id] = true;
      const bool passed = std::find(graph.inputs.begin(), graph.inputs.end(), id) != graph.inputs.end() ||
                          std::find(outputs.begin(), outputs.end(), name(id)) != outputs.end();
      outputs.push_back(passed ? Unique(name(id)) : name(id));
      if (passed) out.Message(1, PlainNode("Identity", name(id), outputs.back()));
    }
    out.Bytes(2, graph.name.empty() ? "graph" : graph.name);
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (graph.values[v].constant && used[v]) {
        CELER_ASSIGN(const WireWriter tensor, Tensor(*graph.values[v].constant, names.of[v], true));
        out.Message(5, tensor);
      }
    for (const ValueId id : graph.inputs) out.Message(11, ValueInfo(name(id), graph.value(id).type));
    for (size_t i = 0; i < outputs.size(); ++i)
      out.Message(12, ValueInfo(outputs[i], graph.value(graph.outputs[i]).type));
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const auto id = static_cast<ValueId>(v);
      const Value& value = graph.values[v];
      const bool port = std::find(graph.inputs.begin(), graph.inputs.end(), id) != graph.inputs.end() ||
                        std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end();
      if (!port && used[v] && !value.constant && value.type.dtype &&
          value.type.kind == ValueType::Kind::kTensor)
        out.Message(13, ValueInfo(names.of[v], value.type));
    }
    return out;
  }

  static WireWriter PlainNode(const char* op, const std::string& input, const std::string& output) {
    WireWriter out;
    out.Bytes(1, input);
    out.Bytes(2, output);
    out.Bytes(4, op);
    return out;
  }

  Result<WireWriter> NodeMessage(const Node& node, const Names& names) {
    if (node.domain == kCelerDomain)
      return Error::Unsupported(node.Label(), " is celer's own, and no other program knows it");
    if (!node.domain.empty()) {
      const auto [at, first] = opsets_.emplace(node.domain, node.opset);
      if (!first && at->second != node.opset)
        return Error::Unsupported(node.Label(), " is of version ", node.opset, " of the domain '",
                                  Printable(node.domain), "', and others are of version ", at->second);
    }
    WireWriter out;
    const auto name = [&](ValueId id) { return id == kNoValue ? std::string() : names.of[id]; };
    for (const ValueId id : node.inputs) out.Bytes(1, name(id));
    for (const ValueId id : node.outputs) out.Bytes(2, name(id));
    if (!node.name.empty()) out.Bytes(3, UniqueNode(node.name));
    out.Bytes(4, node.op);
    for (const auto& [key, value] : node.attributes) {
      CELER_ASSIGN(const WireWriter attribute, AttributeMessage(key, value, names));
      out.Message(5, attribute);
    }
    if (!node.domain.empty()) out.Bytes(7, node.domain);
    return out;
  }

  Result<WireWriter> AttributeMessage(const std::string& key, const Attribute& value, const Names& names) {
    using T = OnnxAttribute::Type;
    WireWriter out;
    out.Bytes(1, key);
    T type = T::kUndefined;
    if (const auto* number = std::get_if<int64_t>(&value)) {
      type = T::kInt;
      out.Int(3, *number);
    } else if (const auto* real = std::get_if<float>(&value)) {
      type = T::kFloat;
      out.Float(2, *real);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      type = T::kString;
      out.Bytes(4, *text);
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      type = T::kInts;
      for (const int64_t i : *ints) out.Int(8, i);
    } else if (const auto* reals = std::get_if<std::vector<float>>(&value)) {
      type = T::kFloats;
      for (const float f : *reals) out.Float(7, f);
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      type = T::kStrings;
      for (const std::string& s : *texts) out.Bytes(9, s);
    } else if (const auto* constant = std::get_if<Constant>(&value)) {
      type = T::kTensor;
      CELER_ASSIGN(const WireWriter tensor, Tensor(*constant, "", false));
      out.Message(5, tensor);
    } else if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&value)) {
      type = T::kGraph;
      CELER_ASSIGN(const WireWriter inner, GraphMessage(**graph, names));
      out.Message(6, inner);
    }
    out.Int(20, static_cast<int64_t>(type));
    return out;
  }

  Result<WireWriter> Tensor(const Constant& constant, const std::string& name, bool may_be_outside) {
    const int32_t type = OnnxDataType(constant.dtype);
    if (type == 0)
      return Error::Unsupported("the constant '", Printable(name), "' is ", celer::Name(constant.dtype),
                                ", which ONNX does not have");
    WireWriter out;
    for (const int64_t dim : constant.shape.dims()) out.Int(1, dim);
    out.Int(2, type);
    if (!name.empty()) out.Bytes(8, name);
    const int bits = PackedBits(constant.dtype);
    if (may_be_outside && !external_.empty() && bits == 0 && constant.bytes.size() >= 1024) {
      const uint64_t at = (end_ + kAlignment - 1) / kAlignment * kAlignment;
      weights_.emplace_back(at, constant.bytes);
      end_ = at + constant.bytes.size();
      for (const auto& [key, value] : {std::pair<const char*, std::string>("location", external_),
                                       {"offset", std::to_string(at)},
                                       {"length", std::to_string(constant.bytes.size())}}) {
        WireWriter entry;
        entry.Bytes(1, key);
        entry.Bytes(2, value);
        out.Message(13, entry);
      }
      out.Int(14, 1);
    } else {
      out.Bytes(9, bits > 0 ? std::string_view(Packed(constant, bits)) : Text(constant.bytes));
    }
    return out;
  }

  static WireWriter ValueInfo(const std::string& name, const ValueType& type) {
    WireWriter tensor;
    if (type.dtype) tensor.Int(1, OnnxDataType(*type.dtype));
    if (type.shape) {
      WireWriter shape;
      for (const Dim& dim : *type.shape) {
        WireWriter message;
        if (dim.fixed())
          message.Int(1, dim.size);
        else if (!dim.symbol.empty())
          message.Bytes(2, dim.symbol);
        shape.Message(1, message);
      }
      tensor.Message(2, shape);
    }
    WireWriter kind;
    kind.Message(1, tensor);
    const auto wrap = [&](uint32_t field) {
      WireWriter element, outer;
      element.Message(1, kind);
      outer.Message(field, element);
      kind = std::move(outer);
    };
    if (type.kind == ValueType::Kind::kSequence || type.of_sequence) wrap(4);
    if (type.kind == ValueType::Kind::kOptional) wrap(9);
    WireWriter out;
    out.Bytes(1, name);
    if (type.dtype || type.shape || type.kind != ValueType::Kind::kTensor) out.Message(2, kind);
    return out;
  }

  std::string external_;
  std::map<std::string, int> opsets_;
  std::set<std::string> taken_, node_names_;
  std::vector<std::pair<uint64_t, std::span<const std::byte>>> weights_;
  uint64_t end_ = 0;
};

int64_t WeightBytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const Value& value : graph.values)
    if (value.constant) bytes += static_cast<int64_t>(value.constant->bytes.size());
  for (const Node& node : graph.nodes)
    for (const auto& subgraph : node.Subgraphs()) bytes += WeightBytes(*subgraph);
  return bytes;
}

Result<std::string> Make(Writer& writer, const Network& network) {
  // Strings were replaced by places in a list when the network was loaded.
  if (network.texts.all)
    return Error::Unsupported("the network names strings ('",
                              Printable(network.texts.all->empty() ? "" : network.texts.all->front()),
                              "'); such networks run, and are not written");
  Network copy = network;
  // Subgraphs are shared by copies of a node, and are changed below.
  const auto own = [](Graph& graph, const auto& again) -> void {
    for (Node& node : graph.nodes)
      for (auto& [key, value] : node.attributes)
        if (auto* subgraph = std::get_if<std::shared_ptr<Graph>>(&value)) {
          *subgraph = std::make_shared<Graph>(**subgraph);
          again(**subgraph, again);
        }
  };
  own(copy.graph, own);
  CELER_ASSIGN(const int opset, UnifyOpsets(&copy.graph, network.opset));
  return writer.Model(copy, opset);
}

Status WriteWeights(const Writer& writer, const std::filesystem::path& path) {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  uint64_t at = 0;
  for (const auto& [offset, bytes] : writer.external()) {
    CELER_RETURN_IF_ERROR(file.Write(std::string(static_cast<size_t>(offset - at), '\0')));
    CELER_RETURN_IF_ERROR(file.Write(bytes));
    at = offset + bytes.size();
  }
  return file.Commit();
}

}  // namespace

Result<std::string> ToOnnx(const Network& network) {
  Writer writer{std::string()};
  return Make(writer, network);
}

Status WriteOnnx(const Network& network, const std::filesystem::path& path, const OnnxWriteOptions& options) {
  const bool outside = WeightBytes(network.graph) > options.external_above;
  std::filesystem::path data = path;
  data += ".data";
  Writer writer(outside ? data.filename().string() : std::string());
  CELER_ASSIGN(const std::string bytes, Make(writer, network));
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  if (outside && !file.whole())
    return Error::Invalid(path.string(),
                          ": the weights are too large for one file, and a pipe or device has "
                          "no second one beside it; give the name of a file");
  if (outside) CELER_RETURN_IF_ERROR(WriteWeights(writer, data));
  CELER_RETURN_IF_ERROR(file.Write(bytes));
  return file.Commit();
}

}  // namespace celer::graph
