// The C interface to celer/graph.h.
#include "celer/graph.h"

#include <map>
#include <memory>
#include <vector>

#include "c_api/guard.h"

struct celer_graph {
  celer::GraphModel model;
  celer::GraphSession session;
  std::vector<celer::GraphTensor> outputs;  // of the last run
};

namespace celer::c_api {
namespace {

const celer_graph_options kDefaults = {
    .struct_size = sizeof(celer_graph_options), .optimize = 1, .threads = 0, .integers = 0};

Status Load(const char* path, const celer_graph_options* given, celer_graph** graph) {
  CELER_RETURN_IF_ERROR(Need(path, "path"));
  CELER_RETURN_IF_ERROR(Need(graph, "graph"));
  *graph = nullptr;
  CELER_RETURN_IF_ERROR(NoteThreads());
  celer_graph_options options = kDefaults;
  if (given) CELER_RETURN_IF_ERROR(Read(given, "celer_graph_options", &options));
  if (options.threads < 0 || options.threads > 1024)
    return Error::Invalid("threads is ", options.threads, ", expected 0 to 1024");
  CELER_ASSIGN(GraphModel model, GraphModel::Load(path, {.optimize = options.optimize != 0,
                                                         .integers = options.integers != 0}));
  GraphSession session(model, options.threads);
  *graph = new celer_graph{std::move(model), std::move(session), {}};
  return {};
}

Status Port(const std::vector<GraphPort>& ports, size_t at, celer_tensor* out) {
  if (at >= ports.size()) return Error::Invalid("there are ", ports.size(), " of them, so none at ", at);
  const GraphPort& port = ports[at];
  if (!port.is_tensor) return Error::Unsupported("'", port.name, "' is not a tensor");
  const celer_tensor tensor = {.struct_size = sizeof(celer_tensor),
                               .name = port.name.c_str(),
                               .dtype = port.dtype.c_str(),
                               .shape = port.shape.data(),
                               .rank = port.shape.size(),
                               .bytes = nullptr,
                               .byte_count = 0};
  return Write(tensor, "celer_tensor", out);
}

constexpr size_t kMaxRank = 64;  // no network has as many

Result<GraphTensor> ReadInput(const celer_tensor* given, std::string* name) {
  celer_tensor input = {};
  CELER_RETURN_IF_ERROR(Read(given, "celer_tensor", &input));
  if (!input.name) return Error::Invalid("an input has no name");
  *name = input.name;
  if (!input.dtype || (!input.shape && input.rank > 0) || (!input.bytes && input.byte_count > 0))
    return Error::Invalid("the input '", *name, "' has a null dtype, shape or bytes");
  if (input.rank > kMaxRank)
    return Error::Invalid("the input '", *name, "' has the rank ", input.rank, ", expected at most ",
                          kMaxRank);
  return GraphTensor{input.dtype,
                     {input.shape, input.shape + input.rank},
                     {static_cast<const std::byte*>(input.bytes), input.byte_count}};
}

// The array's elements are as far apart as the caller's header says.
template <class T>
T* At(T* array, size_t i, size_t struct_size) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(array) + i * struct_size);
}

Status Run(celer_graph* graph, const celer_tensor* inputs, size_t input_count, celer_tensor* outputs) {
  CELER_RETURN_IF_ERROR(Need(graph, "graph"));
  if (input_count > 0) CELER_RETURN_IF_ERROR(Need(inputs, "inputs"));
  const std::vector<GraphPort>& ports = graph->model.outputs();
  if (!ports.empty()) {
    celer_tensor first = {};
    CELER_RETURN_IF_ERROR(Read(outputs, "outputs[0]", &first));  // before anything is computed
  }
  std::map<std::string, GraphTensor> feed;
  for (size_t i = 0; i < input_count; ++i) {
    std::string name;
    CELER_ASSIGN(GraphTensor tensor, ReadInput(At(inputs, i, inputs->struct_size), &name));
    if (!feed.emplace(name, std::move(tensor)).second)
      return Error::Invalid("the input '", name, "' is given twice");
  }
  graph->outputs.clear();
  CELER_ASSIGN(graph->outputs, graph->session.Run(feed));
  const size_t size = ports.empty() ? 0 : outputs->struct_size;
  for (size_t i = 0; i < graph->outputs.size(); ++i) {
    const GraphTensor& made = graph->outputs[i];
    celer_tensor* const out = At(outputs, i, size);
    out->struct_size = size;
    const celer_tensor tensor = {.struct_size = sizeof(celer_tensor),
                                 .name = ports[i].name.c_str(),
                                 .dtype = made.dtype.c_str(),
                                 .shape = made.shape.data(),
                                 .rank = made.shape.size(),
                                 .bytes = made.bytes.data(),
                                 .byte_count = made.bytes.size()};
    CELER_RETURN_IF_ERROR(Write(tensor, "celer_tensor", out));
  }
  return {};
}

}  // namespace
}  // namespace celer::c_api

using celer::c_api::Guard;

void celer_graph_options_init(celer_graph_options* options, size_t struct_size) {
  celer::c_api::Init(celer::c_api::kDefaults, struct_size, options);
}

celer_code celer_graph_load(const char* path, const celer_graph_options* options, celer_graph** graph) {
  return Guard([&] { return celer::c_api::Load(path, options, graph); });
}

void celer_graph_free(celer_graph* graph) {
  if (!celer::IsOrphaned()) delete graph;
}

size_t celer_graph_input_count(const celer_graph* graph) {
  return graph ? graph->model.inputs().size() : 0;
}

size_t celer_graph_output_count(const celer_graph* graph) {
  return graph ? graph->model.outputs().size() : 0;
}

celer_code celer_graph_input(const celer_graph* graph, size_t at, celer_tensor* port) {
  return Guard([&]() -> celer::Status {
    CELER_RETURN_IF_ERROR(celer::c_api::Need(graph, "graph"));
    return celer::c_api::Port(graph->model.inputs(), at, port);
  });
}

celer_code celer_graph_output(const celer_graph* graph, size_t at, celer_tensor* port) {
  return Guard([&]() -> celer::Status {
    CELER_RETURN_IF_ERROR(celer::c_api::Need(graph, "graph"));
    return celer::c_api::Port(graph->model.outputs(), at, port);
  });
}

celer_code celer_graph_run(celer_graph* graph, const celer_tensor* inputs, size_t input_count,
                           celer_tensor* outputs) {
  return Guard([&] { return celer::c_api::Run(graph, inputs, input_count, outputs); });
}
