// celer/quantize.h for networks.
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "celer/quantize.h"
#include "graph/load/load_network.h"
#include "graph/load/write_onnx.h"
#include "graph/run/public_graph.h"
#include "quantize/network/islands.h"
#include "quantize/network/quantizer.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

Status CheckFiles(const fs::path& network, const fs::path& out, bool replace) {
  if (out.extension() != ".onnx")
    return Error::Invalid(out.string(), ": a network is written as ONNX; give a name that ends with .onnx");
  std::error_code error;
  if (fs::equivalent(out, network, error))
    return Error::Invalid(out.string(), ": is the network itself; give another name");
  if (fs::exists(out, error) && !replace)
    return Error::Invalid(out.string(), ": is there already; remove it or give another name");
  return {};
}

Result<NpyArray> Copy(const GraphPort& port, const GraphTensor& tensor) {
  CELER_ASSIGN(const graph::Data data, graph::ToData(port.name, tensor));
  const std::byte* const bytes = data.tensor.data;
  return NpyArray{.dtype = data.tensor.dtype,
                  .shape = data.tensor.shape,
                  .bytes = std::vector<std::byte>(bytes, bytes + tensor.bytes.size())};
}

ptq::Samples SamplesOf(const QuantizeNetworkOptions& options, const std::vector<GraphPort>& ports) {
  const auto get = [&options, &ports](int64_t index) -> Result<std::vector<NpyArray>> {
    CELER_ASSIGN(const auto inputs, options.samples(index));
    std::vector<NpyArray> out;
    for (const GraphPort& port : ports) {
      const auto found = inputs.find(port.name);
      if (found == inputs.end()) return Error::Invalid("sample ", index, " has no input '", port.name, "'");
      CELER_ASSIGN(NpyArray array, Copy(port, found->second));
      out.push_back(std::move(array));
    }
    return out;
  };
  return {
      .count = options.count, .get = get, .name = [](int64_t i) { return "sample " + std::to_string(i); }};
}

Result<ptq::NetworkOptions> ToOptions(const QuantizeNetworkOptions& options) {
  ptq::NetworkOptions out{.per_channel = options.per_channel, .dynamic = options.dynamic};
  CELER_ASSIGN(out.range.method, ptq::ParseRangeMethod(options.method));
  CELER_ASSIGN(out.range.type, ptq::ParseActivationType(options.activations));
  if (!options.dynamic && (!options.samples || options.count < 1))
    return Error::Invalid("samples is empty: ranges of values come from samples; without any, take dynamic");
  return out;
}

// Layers that would be slower as integers, unless all would be.
ptq::FloatLayers FloatsOf(const ptq::NetworkQuantizer& quantizer, bool skip_islands) {
  if (!skip_islands || quantizer.options().dynamic) return {};
  ptq::FloatLayers islands = ptq::FindIslands(quantizer.network().graph, quantizer.PlanWithout({}));
  return quantizer.PlanWithout(islands).empty() ? ptq::FloatLayers() : islands;
}

}  // namespace

Result<QuantizeReport> QuantizeNetwork(const fs::path& network, const fs::path& out,
                                       const QuantizeNetworkOptions& options) {
  CELER_ASSIGN(const ptq::NetworkOptions how, ToOptions(options));
  CELER_RETURN_IF_ERROR(CheckFiles(network, out, options.replace));
  CELER_ASSIGN(graph::Network loaded, graph::LoadNetwork(network));
  const std::vector<GraphPort> ports = graph::InputPorts(loaded);
  CELER_ASSIGN(ptq::NetworkQuantizer quantizer, ptq::NetworkQuantizer::Open(std::move(loaded), how));
  const ptq::FloatLayers floats = FloatsOf(quantizer, options.skip_islands);
  const ptq::Progress progress =
      options.progress ? options.progress : [](const char*, int64_t, int64_t) { return Status(); };
  if (!how.dynamic) CELER_RETURN_IF_ERROR(quantizer.Calibrate(SamplesOf(options, ports), progress));
  const ptq::QuantizerPlan plan = quantizer.PlanWithout(floats);
  CELER_ASSIGN(const ptq::Inserted built, quantizer.Build(plan));
  CELER_RETURN_IF_ERROR(graph::WriteOnnx(built.network, out));
  QuantizeReport report{.bytes_before = ptq::ConstantBytes(quantizer.original().graph),
                        .bytes_after = ptq::ConstantBytes(built.network.graph),
                        .candidates = plan.candidates};
  for (const ptq::Layer& layer : plan.layers) report.layers += layer.kind != ptq::Layer::Kind::kPassive;
  return report;
}

}  // namespace celer
