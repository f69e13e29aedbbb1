#include "cuda_exchange.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "device/cuda_status.h"
#include "device/stream.h"
#include "kernels/llm/exchange/peers_cuda.h"

namespace {

using celer::CudaStatus;
using celer::Status;

constexpr int kOfGraph = 200, kGraphs = 10;

bool SharesGpu() {
  const char* const value = std::getenv("CELER_RANKS_SHARE_GPU");
  return value && std::string_view(value) == "1";
}

// One rank's memory: two parts that take turns, and the sum.
class Floats {
 public:
  Status Make(int64_t count) {
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&data_, static_cast<size_t>(3 * count) * sizeof(float)), "memory of a rank"));
    return CudaStatus(cudaMemset(data_, 0, static_cast<size_t>(3 * count) * sizeof(float)), "clearing it");
  }
  Floats() = default;
  Floats(const Floats&) = delete;
  ~Floats() { cudaFree(data_); }
  float* get() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
};

struct Work {
  const celer::cuda::CudaPeers* peers;
  std::vector<Floats>* memory;
  int64_t count;
  std::barrier<>* meeting;
};

Status Capture(const Work& work, int rank, const celer::Stream& stream, cudaGraphExec_t* graph) {
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capturing"));
  cudaError_t launched = cudaSuccess;
  for (int i = 0; i < kOfGraph; ++i) {
    celer::cuda::AllReduceArgs args{.group = work.peers->GroupOf(rank),
                                    .out = (*work.memory)[static_cast<size_t>(rank)].get() + 2 * work.count,
                                    .count = work.count,
                                    .add = true};
    for (size_t r = 0; r < work.memory->size(); ++r)
      args.parts[r] = (*work.memory)[r].get() + i % 2 * work.count;
    if (launched == cudaSuccess) launched = LaunchAllReduce(args, stream.get());
  }
  cudaGraph_t captured = nullptr;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(stream.get(), &captured), "capturing"));
  CELER_RETURN_IF_ERROR(CudaStatus(launched, "launching an all-reduce"));
  const cudaError_t made = cudaGraphInstantiate(graph, captured, 0);
  cudaGraphDestroy(captured);
  return CudaStatus(made, "making a graph");
}

// Microseconds of one all-reduce. All ranks arrive at the meeting as often, whatever fails.
Status Time(const Work& work, int rank, double* microseconds) {
  const celer::CudaDeviceScope scope(work.peers->device(rank));
  auto stream = celer::Stream::Create(work.peers->device(rank));
  cudaGraphExec_t graph = nullptr;
  Status status = stream ? Capture(work, rank, *stream, &graph) : stream.error();
  const auto launch = [&] {
    if (status) status = CudaStatus(cudaGraphLaunch(graph, stream->get()), "launching");
  };
  work.meeting->arrive_and_wait();
  launch();
  if (status) status = stream->Synchronize();
  work.meeting->arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kGraphs; ++i) launch();
  if (status) status = stream->Synchronize();
  *microseconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e6 /
                  (kOfGraph * kGraphs);
  if (graph) cudaGraphExecDestroy(graph);
  return status;
}

}  // namespace

void PrepareRanks() {
  if (!SharesGpu()) return;
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

Status BenchAllReduce(int ranks) {
  std::vector<int> devices;
  for (int r = 0; r < ranks; ++r) devices.push_back(SharesGpu() ? 0 : r);
  for (const int64_t kib : {8, 16, 32, 64, 256, 8192}) {
    const int64_t count = kib * 1024 / static_cast<int64_t>(sizeof(float));
    CELER_ASSIGN(const auto peers, celer::cuda::CudaPeers::Make(devices, std::chrono::seconds(10)));
    std::vector<Floats> memory(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
      const celer::CudaDeviceScope scope(devices[static_cast<size_t>(r)]);
      CELER_RETURN_IF_ERROR(memory[static_cast<size_t>(r)].Make(count));
      CELER_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "clearing it"));
    }
    std::barrier meeting(ranks);
    const Work work{peers.get(), &memory, count, &meeting};
    std::vector<double> took(static_cast<size_t>(ranks));
    std::vector<Status> ended(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto me = static_cast<size_t>(r);
        ended[me] = Time(work, r, &took[me]);
      });
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : ended) CELER_RETURN_IF_ERROR(status);
    CELER_RETURN_IF_ERROR(peers->status());
    fmt::print("all-reduce of {} KiB between {} ranks{}: {:.2f} us\n", kib, ranks,
               peers->shared() ? " on one GPU" : "", *std::max_element(took.begin(), took.end()));
  }
  return {};
}
