// Several ranks that run one model on GPUs: threads of this process with one GPU each, or sharing one. Rank 0 is a CudaRunner
// that tells the others, its followers, what to run; in the middle of a step they exchange what they have on the GPUs
// (kernels/llm/exchange).
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "celer/options.h"
#include "engine/runners/group/cpu_group.h"
#include "kernels/llm/exchange/peers_cuda.h"

namespace celer {

// The other ranks, seen from rank 0. They end with it.
class CudaGroup {
 public:
  CudaGroup(std::unique_ptr<cuda::CudaPeers> peers, std::unique_ptr<GroupLeader> leader)
      : peers_(std::move(peers)), leader_(std::move(leader)) {}

  int size() const { return leader_->size(); }
  Communicator& communicator() { return leader_->communicator(); }
  std::string Describe(const std::string& gpu) const;  // "cuda:0 (NVIDIA H200, 2 ranks to cuda:1)"
  // All ranks begin the step; this one must run it, too.
  Status Begin(const StepBatch& step, GroupCommand::Kind kind) { return leader_->Begin(step, kind); }
  void Send(const GroupCommand& command) { leader_->Send(command); }
  void End() { leader_.reset(); }  // once rank 0's GPU is idle; waits until all others are
  // `own`, or an error of another rank; with an error the group ends.
  Status Combine(Status own);

 private:
  std::unique_ptr<cuda::CudaPeers> peers_;
  std::unique_ptr<GroupLeader> leader_;  // its followers use the peers
};

// Rank 0 of options.parallel on the GPUs from `first` on. With CELER_RANKS_SHARE_GPU=1 all ranks are on that one.
Result<std::unique_ptr<Runner>> MakeCudaGroupRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                                    int first);

}  // namespace celer
