// One rank's place in a pipeline. The ranks of a group are numbered with those first that share the same layers: of 2 stages
// with 2 ranks each, 0 and 1 are one stage, 2 and 3 the other. The ranks from 0 on have the last layers and the output head,
// because rank 0 chooses tokens: so rows of the residual go from host to host, and no logits. The next ones have the first
// layers, and so on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "device/group/communicator.h"

namespace celer {

class StageLink {
 public:
  // Of a group of stages times as many ranks, which must outlive it. One stage is no pipeline.
  StageLink(Communicator& all, int stages);

  Communicator& all() { return all_; }
  int stages() const { return stages_; }
  int stage() const { return stage_; }
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  // The first rank with a stage's layers.
  int FirstRank(int stage) const { return (stage + 1) % stages_ * shares_; }
  // The ranks that share this stage's layers, and which of them this is.
  int share() const { return all_.rank() % shares_; }
  int shares() const { return shares_; }
  Communicator* sharers() { return shares_ == 1 ? nullptr : stages_ == 1 ? &all_ : part_.get(); }

  // What the last layer of the stage in front leaves: all ranks of a stage at once. Each gets a part of it over the
  // link, and the others' from its neighbours.
  Status Receive(std::span<float> x);
  // Does not wait for the stage behind.
  Status Send(std::span<const float> x);
  void ReportProgress() { all_.ReportProgress(behind_); }

 private:
  Communicator& all_;
  int stages_, shares_, stage_;
  int front_ = -1, behind_ = -1;  // ranks with the same share of those stages; -1: none
  std::unique_ptr<Communicator> part_;
};

}  // namespace celer
