#include "quantize/network/run.h"

#include "graph/passes/pass.h"

namespace celer::ptq {

Result<Runner> Runner::Make(graph::Network network, bool optimize) {
  if (optimize)
    if (const auto passes = graph::Optimize(&network.graph); !passes) return passes.error();
  CELER_ASSIGN(std::shared_ptr<const graph::Program> program, graph::Program::Make(std::move(network)));
  Runner out;
  out.session_ = std::make_unique<graph::Session>(std::move(program));
  return out;
}

Result<std::vector<graph::Data>> Runner::Run(const std::vector<NpyArray>& sample) {
  std::vector<graph::Data> inputs;
  for (const NpyArray& array : sample)
    inputs.push_back(graph::Data::Of(TensorView::Contiguous(const_cast<std::byte*>(array.bytes.data()),
                                                            array.dtype, Device::Cpu(), array.shape)));
  return session_->Run(std::move(inputs));
}

std::span<const float> FloatsIn(const graph::Data* data) {
  if (!data || data->kind != graph::Data::Kind::kTensor || data->tensor.dtype != DType::kF32) return {};
  return {data->tensor.as<float>(), static_cast<size_t>(*data->tensor.shape.elements())};
}

}  // namespace celer::ptq
