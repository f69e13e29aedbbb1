#include "graph/run/public_graph.h"

#include <algorithm>
#include <utility>

#include "base/suggest.h"
#include "device/thread_pool.h"
#include "graph/ir/operator_table.h"
#include "graph/load/load_network.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"
#include "io/file/printable.h"

namespace celer {

namespace graph {

namespace {

GraphPort PortOf(const Value& value, bool text, const TextPorts& texts) {
  GraphPort port;
  port.name = value.name;
  if (value.type.dtype) port.dtype = Name(*value.type.dtype);
  port.is_tensor = value.type.kind == ValueType::Kind::kTensor;
  if (text) port.texts = texts.all;
  if (value.type.shape)
    for (const Dim& dim : *value.type.shape) {
      port.shape.push_back(dim.size);
      port.dim_names.push_back(dim.symbol);
    }
  return port;
}

}  // namespace

std::vector<GraphPort> InputPorts(const Network& network) {
  std::vector<GraphPort> out;
  const std::vector<bool>& text = network.texts.inputs;
  for (const ValueId id : network.graph.inputs)
    out.push_back(
        PortOf(network.graph.value(id), out.size() < text.size() && text[out.size()], network.texts));
  return out;
}

std::vector<GraphPort> OutputPorts(const Network& network) {
  std::vector<GraphPort> out;
  const std::vector<bool>& text = network.texts.outputs;
  for (const ValueId id : network.graph.outputs) {
    const size_t at = out.size();
    out.push_back(PortOf(network.graph.value(id), at < text.size() && text[at], network.texts));
    if (at < network.texts.classes.size()) out.back().classes = network.texts.classes[at];
  }
  return out;
}

Result<Data> ToData(const std::string& name, const GraphTensor& tensor) {
  const auto dtype = ParseDType(tensor.dtype);
  if (!dtype || IsBlockQuantized(*dtype))
    return Error::Invalid("the input '", Printable(name), "': '", Printable(tensor.dtype),
                          "' is no element type");
  auto shape = MakeShape(tensor.shape);
  if (!shape) return shape.error().WithContext("the input '" + Printable(name) + "'");
  const auto bytes = BytesFor(*dtype, *shape->elements());
  if (!bytes || static_cast<size_t>(*bytes) != tensor.bytes.size())
    return Error::Invalid("the input '", Printable(name), "': ", tensor.bytes.size(), " bytes for ",
                          shape->ToString(), " of ", Name(*dtype));
  const bool aligned =
      reinterpret_cast<uintptr_t>(tensor.bytes.data()) % static_cast<uintptr_t>(Info(*dtype).block_bytes) ==
      0;
  if (aligned && *dtype != DType::kBool)
    return Data::Of(
        TensorView::Contiguous(const_cast<std::byte*>(tensor.bytes.data()), *dtype, Device::Cpu(), *shape));
  CELER_ASSIGN(Data copy, NewTensor(*dtype, *shape));
  for (size_t i = 0; i < tensor.bytes.size(); ++i)
    copy.tensor.data[i] =
        *dtype == DType::kBool ? std::byte{tensor.bytes[i] != std::byte{0}} : tensor.bytes[i];
  return copy;
}

}  // namespace graph

struct GraphModel::Impl {
  std::shared_ptr<const graph::Program> program;
};

Result<GraphModel> GraphModel::Load(const std::filesystem::path& path, const GraphOptions& options) {
  CELER_ASSIGN(graph::Network network, graph::LoadNetwork(path));
  if (const Status supported = graph::CheckSupported(network.graph); !supported)
    return supported.error().WithContext(path.string());
  if (options.optimize)
    if (const auto passes = graph::Optimize(&network.graph, {.integers_anyway = options.integers}); !passes)
      return passes.error().WithContext(path.string());
  if (options.precision == GraphPrecision::kF16)
    if (const auto lowered = graph::LowerToF16(&network.graph); !lowered) return lowered.error();
  GraphModel out;
  out.inputs_ = graph::InputPorts(network);
  out.outputs_ = graph::OutputPorts(network);
  CELER_ASSIGN(auto program, graph::Program::Make(std::move(network)));
  const graph::Graph& graph = program->graph();
  for (const graph::Value& value : graph.values)
    if (value.constant) out.parameters_ += *value.constant->shape.elements();
  out.impl_ = std::make_shared<const Impl>(Impl{std::move(program)});
  return out;
}

struct GraphSession::Impl {
  std::unique_ptr<ThreadPool> pool;  // null: the shared one
  graph::Session session;
  std::vector<graph::Data> kept;  // the last outputs

  Impl(std::shared_ptr<const graph::Program> program, std::unique_ptr<ThreadPool> own)
      : pool(std::move(own)), session(std::move(program), pool ? *pool : DefaultThreadPool()) {}
};

GraphSession::GraphSession(const GraphModel& model, int threads)
    : impl_(std::make_unique<Impl>(
          model.impl_->program,
          threads > 0 ? std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads}) : nullptr)) {}
GraphSession::~GraphSession() = default;
GraphSession::GraphSession(GraphSession&&) noexcept = default;
GraphSession& GraphSession::operator=(GraphSession&&) noexcept = default;

Result<std::vector<GraphTensor>> GraphSession::Run(const std::map<std::string, GraphTensor>& inputs) {
  const graph::Graph& graph = impl_->session.program().graph();
  std::vector<std::string> names;
  for (const graph::ValueId id : graph.inputs) names.push_back(graph.value(id).name);
  for (const auto& [name, tensor] : inputs)
    if (std::find(names.begin(), names.end(), name) == names.end())
      return Error::Invalid("the network has no input '", Printable(name), "'", DidYouMean(name, names));
  std::vector<graph::Data> data;
  for (const std::string& name : names) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) return Error::Invalid("the input '", Printable(name), "' is not given");
    CELER_ASSIGN(graph::Data value, graph::ToData(name, found->second));
    data.push_back(std::move(value));
  }
  impl_->kept.clear();
  CELER_ASSIGN(impl_->kept, impl_->session.Run(std::move(data)));
  std::vector<GraphTensor> out;
  for (size_t i = 0; i < impl_->kept.size(); ++i) {
    const graph::Data& value = impl_->kept[i];
    if (value.kind != graph::Data::Kind::kTensor)
      return Error::Unsupported("the output '", Printable(graph.value(graph.outputs[i]).name),
                                "' is not a tensor");
    const TensorView& tensor = value.tensor;
    const auto dims = tensor.shape.dims();
    out.push_back({std::string(Name(tensor.dtype)),
                   {dims.begin(), dims.end()},
                   {tensor.data, static_cast<size_t>(*BytesFor(tensor.dtype, *tensor.shape.elements()))}});
  }
  return out;
}

}  // namespace celer
