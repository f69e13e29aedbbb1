// Several ranks that run one model on CPUs: rank 0 is a CpuRunner that tells the others, its followers, what to run.
// They are threads of this process, or processes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "device/group/communicator.h"
#include "engine/runners/group/cpu_rank.h"
#include "engine/runners/group/group_command.h"
#include "engine/runners/group/stage_link.h"
#include "engine/runners/runner.h"
#include "models/cpu/cpu_decoder.h"

namespace celer {

// The other ranks, seen from rank 0. They end with it.
class GroupLeader {
 public:
  explicit GroupLeader(std::unique_ptr<Communicator> communicator, std::vector<std::thread> followers = {},
                       int stages = 1)
      : communicator_(std::move(communicator)),
        link_(*communicator_, stages),
        followers_(std::move(followers)) {}
  ~GroupLeader();
  GroupLeader(const GroupLeader&) = delete;
  GroupLeader& operator=(const GroupLeader&) = delete;

  Communicator& communicator() { return *communicator_; }
  StageLink& link() { return link_; }
  // All ranks begin the step, in micro-batches that begin at `cuts`; this one must run it, too.
  Status Begin(const StepBatch& step, GroupCommand::Kind kind = GroupCommand::Kind::kStep,
               std::span<const int32_t> cuts = {}) {
    return SendMessage(*communicator_, EncodeStep(step, kind, cuts));
  }
  // An error is one of the next step as well.
  void Send(const GroupCommand& command);
  Status status() const { return communicator_->status(); }
  int size() const { return communicator_->size(); }

 private:
  std::unique_ptr<Communicator> communicator_;
  StageLink link_;
  std::vector<std::thread> followers_;
};

// What a follower does until rank 0 ends it; the error that ended the group, if one did.
Status Follow(CpuRank* rank, StageLink& link);

// A decoder of a rank's part works with the others: with those that share its layers, and with the stage in front.
void JoinGroup(StageLink& link, const Model& model, CpuDecoder* decoder);

// Rank 0 of options.parallel, with followers as threads of this process or with processes that join.
Result<std::unique_ptr<Runner>> MakeCpuGroupRunner(const EngineOptions& options, int64_t kv_host_blocks);

}  // namespace celer
