#include "models/cuda/graphs.h"

#include <utility>

#include "device/cuda_status.h"

namespace celer {

DecodeGraphs::~DecodeGraphs() {
  ForgetAdapted();
  for (const auto& of_strategy : graphs_)
    for (const ByCount& by_count : of_strategy[0])
      for (cudaGraphExec_t graph : by_count)
        if (graph) cudaGraphExecDestroy(graph);
}

void DecodeGraphs::ForgetAdapted() {
  for (auto& of_strategy : graphs_)
    for (ByCount& by_count : of_strategy[1])
      for (cudaGraphExec_t& graph : by_count)
        if (cudaGraphExec_t old = std::exchange(graph, nullptr)) cudaGraphExecDestroy(old);
}

Status DecodeGraphs::Capture(const Stream& stream, FunctionRef<Status()> queue, cudaGraphExec_t* graph) {
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                                   "capturing a decode step"));
  const Status queued = queue();
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &captured);
  if (!queued && captured) cudaGraphDestroy(captured);
  CELER_RETURN_IF_ERROR(queued);
  CELER_RETURN_IF_ERROR(CudaStatus(ended, "capturing a decode step"));
  const cudaError_t made = cudaGraphInstantiate(graph, captured, 0);
  cudaGraphDestroy(captured);
  return CudaStatus(made, "making a graph of a decode step");
}

Status DecodeGraphs::Launch(const Kind& kind, const Stream& stream, FunctionRef<Status()> queue) {
  cudaGraphExec_t& graph = graphs_[static_cast<size_t>(kind.strategy)][kind.adapted][kind.sampled]
                                  [static_cast<size_t>(kind.sequences)];
  if (!graph) CELER_RETURN_IF_ERROR(Capture(stream, queue, &graph));
  return CudaStatus(cudaGraphLaunch(graph, stream.get()), "launching a decode step");
}

Status DecodeGraphs::LaunchOnce(const Stream& stream, FunctionRef<Status()> queue) {
  cudaGraphExec_t graph = nullptr;
  CELER_RETURN_IF_ERROR(Capture(stream, queue, &graph));
  const Status launched = CudaStatus(cudaGraphLaunch(graph, stream.get()), "launching a decode step");
  const Status ended = stream.Synchronize();
  cudaGraphExecDestroy(graph);
  return launched ? ended : launched;
}

}  // namespace celer
