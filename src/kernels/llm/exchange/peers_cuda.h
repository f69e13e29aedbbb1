// The memory through which the GPUs of a group, ranks of one process, meet (exchange_cuda.h).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/llm/exchange/exchange_cuda.h"

namespace celer::cuda {

class CudaPeers {
 public:
  // devices[r] is the GPU of rank r; several ranks may have the same one. An error if two of them cannot read each other's
  // memory.
  static Result<std::unique_ptr<CudaPeers>> Make(std::span<const int> devices,
                                                 std::chrono::milliseconds watchdog);
  ~CudaPeers();  // nothing of any rank may be running any more
  CudaPeers(const CudaPeers&) = delete;
  CudaPeers& operator=(const CudaPeers&) = delete;

  int ranks() const { return static_cast<int>(devices_.size()); }
  int device(int rank) const { return devices_[static_cast<size_t>(rank)]; }
  bool shared() const { return shared_; }  // whether ranks share a GPU
  ExchangeGroup GroupOf(int rank) const;

  // What rank `rank` lets the others read. All ranks publish, and meet on the host, before the first exchange.
  struct Window {
    float* parts = nullptr;   // slots of partial sums
    float* logits = nullptr;  // [rows, its part of the vocabulary]
    int logits_width = 0;
    int32_t* lists = nullptr;  // of rank 0: as in ShareListsArgs
  };
  void Publish(int rank, const Window& window) { windows_[static_cast<size_t>(rank)] = window; }
  const Window& window(int rank) const { return windows_[static_cast<size_t>(rank)]; }

  // Ends what waits on a GPU, and all that will: what is computed from there on is of no use.
  void Abort();
  // The rank that another one waited for in vain, if one did.
  Status status() const;

 private:
  explicit CudaPeers(std::span<const int> devices) : devices_(devices.begin(), devices.end()) {}
  Status Allocate(std::chrono::milliseconds watchdog);
  Status AllowAccess(int from, int to);

  std::vector<int> devices_;
  std::array<Window, kMaxRanks> windows_ = {};
  std::array<uint32_t*, kMaxRanks> memory_ = {};  // of each rank: arrived, counts, failed
  uint32_t* host_ = nullptr;                      // aborted, missing
  uint64_t watchdog_ns_ = 0;
  std::chrono::milliseconds watchdog_{0};
  bool shared_ = false;
};

}  // namespace celer::cuda
