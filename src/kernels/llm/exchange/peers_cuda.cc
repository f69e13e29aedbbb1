#include "kernels/llm/exchange/peers_cuda.h"

#include <atomic>
#include <string>

#include "device/cuda_status.h"

namespace celer::cuda {
namespace {

constexpr size_t kArrived = size_t{kMaxRanks} * kExchangeBlocks, kWords = kArrived + kExchangeBlocks + 1;

std::string NameOf(int device) {
  return "cuda:" + std::to_string(device);
}

}  // namespace

Result<std::unique_ptr<CudaPeers>> CudaPeers::Make(std::span<const int> devices,
                                                   std::chrono::milliseconds watchdog) {
  if (devices.empty() || devices.size() > kMaxRanks)
    return Error::Unsupported("`tensor_parallel_size` ", devices.size(), ": GPUs of one process are 1 to ",
                              kMaxRanks, " ranks");
  auto peers = std::unique_ptr<CudaPeers>(new CudaPeers(devices));
  CELER_RETURN_IF_ERROR(peers->Allocate(watchdog));
  return peers;
}

Status CudaPeers::AllowAccess(int from, int to) {
  int can = 0;
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceCanAccessPeer(&can, from, to), "asking whether GPUs reach each other"));
  if (can == 0)
    return Error::Unsupported(NameOf(from), " cannot read the memory of ", NameOf(to),
                              " (no NVLink, or PCIe without peer access): ranks on these GPUs are not "
                              "supported yet; use one of them");
  const CudaDeviceScope scope(from);
  const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // or the next launch would report it
    return {};
  }
  return CudaStatus(code, NameOf(from) + ": reaching the memory of " + NameOf(to));
}

Status CudaPeers::Allocate(std::chrono::milliseconds watchdog) {
  watchdog_ = watchdog;
  watchdog_ns_ = static_cast<uint64_t>(std::chrono::nanoseconds(watchdog).count());
  for (size_t a = 0; a < devices_.size(); ++a)
    for (size_t b = 0; b < devices_.size(); ++b) {
      if (a == b) continue;
      if (devices_[a] == devices_[b])
        shared_ = true;
      else
        CELER_RETURN_IF_ERROR(AllowAccess(devices_[a], devices_[b]));
    }
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaHostAlloc(reinterpret_cast<void**>(&host_), (1 + kMaxRanks) * sizeof(uint32_t),
                               cudaHostAllocPortable | cudaHostAllocMapped),
                 "memory where GPUs and the host meet"));
  std::fill_n(host_, 1 + kMaxRanks, 0u);
  for (size_t r = 0; r < devices_.size(); ++r) {
    const CudaDeviceScope scope(devices_[r]);
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(reinterpret_cast<void**>(&memory_[r]), kWords * sizeof(uint32_t)),
                   NameOf(devices_[r]) + ": memory where ranks meet"));
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaMemset(memory_[r], 0, kWords * sizeof(uint32_t)), "clearing memory where ranks meet"));
    CELER_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "clearing memory where ranks meet"));
  }
  return {};
}

CudaPeers::~CudaPeers() {
  for (size_t r = 0; r < devices_.size(); ++r) {
    const CudaDeviceScope scope(devices_[r]);
    cudaFree(memory_[r]);
  }
  cudaFreeHost(host_);
}

ExchangeGroup CudaPeers::GroupOf(int rank) const {
  uint32_t* const own = memory_[static_cast<size_t>(rank)];
  ExchangeGroup group{.rank = rank,
                      .ranks = ranks(),
                      .counts = own + kArrived,
                      .failed = own + kArrived + kExchangeBlocks,
                      .aborted = host_,
                      .missing = host_ + 1,
                      .watchdog_ns = watchdog_ns_,
                      .early = !shared_};
  for (size_t r = 0; r < devices_.size(); ++r) group.arrived[r] = memory_[r];
  return group;
}

void CudaPeers::Abort() {
  std::atomic_ref<uint32_t>(host_[0]).store(1, std::memory_order_seq_cst);
}

Status CudaPeers::status() const {
  for (int r = 0; r < ranks(); ++r) {
    const uint32_t missing = std::atomic_ref<uint32_t>(host_[1 + r]).load(std::memory_order_acquire);
    if (missing > 0)
      return Error::Device("rank ", missing - 1, " on ", NameOf(device(static_cast<int>(missing) - 1)),
                           " did not come to an exchange with rank ", r, " within ", watchdog_.count(),
                           " ms");
  }
  return {};
}

}  // namespace celer::cuda
