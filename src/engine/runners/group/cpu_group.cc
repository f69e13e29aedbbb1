#include "engine/runners/group/cpu_group.h"

#include <algorithm>
#include <utility>

#include "device/group/socket_group.h"
#include "device/group/thread_group.h"
#include "engine/cost/step_budget.h"
#include "engine/runners/cpu_runner.h"
#include "engine/runners/group/follow.h"
#include "engine/runners/group/guarded.h"
#include "engine/runners/group/processes.h"

namespace celer {
namespace {

// Of `threads` in all, those of one rank.
int ThreadsOfRank(int threads, int rank, int ranks) {
  return std::max(1, threads / ranks + (rank < threads % ranks ? 1 : 0));
}

Status LoadAndFollow(const EngineOptions& options, int64_t kv_host_blocks, int threads, int64_t ranks_here,
                     Communicator& group) {
  return Guarded(group, [&]() -> Status {
    StageLink link(group, static_cast<int>(options.parallel.pipeline_parallel_size));
    auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads});
    auto rank = LoadCpuRank(options, kv_host_blocks, std::move(pool), {&link, ranks_here});
    if (!rank) return rank.error();
    return Follow(&*rank, link);
  });
}

Result<std::unique_ptr<Runner>> Lead(const EngineOptions& options, int64_t kv_host_blocks, int threads,
                                     int64_t ranks_here, std::unique_ptr<GroupLeader> leader) {
  CpuRank rank;
  CELER_RETURN_IF_ERROR(Guarded(leader->communicator(), [&]() -> Status {
    auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads});
    CELER_ASSIGN(rank, LoadCpuRank(options, kv_host_blocks, std::move(pool), {&leader->link(), ranks_here}));
    return {};
  }));
  auto runner = std::make_unique<CpuRunner>(std::move(rank), std::move(leader));
  runner->set_micro_batch(options.parallel.micro_batch > 0 ? options.parallel.micro_batch
                                                           : MixedChunk(*runner, options.chunk));
  return std::unique_ptr<Runner>(std::move(runner));
}

int Stages(const EngineOptions& options) {
  return static_cast<int>(options.parallel.pipeline_parallel_size);
}

Result<std::unique_ptr<Runner>> LeadThreads(const EngineOptions& options, int64_t kv_host_blocks) {
  const auto ranks = static_cast<int>(options.parallel.ranks());
  int threads = options.threads;
  if (threads == 0) {
    CELER_ASSIGN(threads, ThreadsFromEnvironment());
  }
  int in_all = 0;
  for (int r = 0; r < ranks; ++r) in_all += ThreadsOfRank(threads, r, ranks);
  ThreadGroupOptions group{.ranks = ranks,
                           .watchdog = std::chrono::seconds(options.parallel.watchdog_seconds)};
  if (in_all > UsableCpus()) group.spin = {};
  std::vector<std::unique_ptr<Communicator>> communicators = MakeThreadGroup(group);
  std::vector<std::thread> followers;
  for (int r = 1; r < ranks; ++r)
    followers.emplace_back([options, kv_host_blocks, ranks, threads = ThreadsOfRank(threads, r, ranks),
                            own = std::move(communicators[static_cast<size_t>(r)])] {
      // Rank 0 gets the error from its own calls.
      [[maybe_unused]] const Status ended = LoadAndFollow(options, kv_host_blocks, threads, ranks, *own);
    });
  auto leader =
      std::make_unique<GroupLeader>(std::move(communicators[0]), std::move(followers), Stages(options));
  return Lead(options, kv_host_blocks, ThreadsOfRank(threads, 0, ranks), ranks, std::move(leader));
}

// Of a process whose machine runs several.
Result<int> ThreadsOfProcess(const EngineOptions& options) {
  if (options.threads > 0) return options.threads;
  CELER_ASSIGN(const int all, ThreadsFromEnvironment());
  return std::max(1, all / static_cast<int>(options.parallel.ranks_here));
}

// The part of a rank that is not rank 0.
Status RunStep(const GroupCommand& command, const CpuRank& rank, StageLink& link, CpuDecoder* decoder) {
  for (const StepBatch& part : command.step.Cut(command.cuts)) {
    RaggedBatch batch = part.View();
    if (!link.last()) batch.logit_rows = {};
    decoder->Forward(batch, rank.kv.layers(), nullptr);
    CELER_RETURN_IF_ERROR(link.all().status());
    if (!link.last()) CELER_RETURN_IF_ERROR(link.Send(decoder->residual(batch.token_count())));
  }
  return {};
}

}  // namespace

GroupLeader::~GroupLeader() {
  Send({.kind = GroupCommand::Kind::kEnd});
  // Followers in other processes leave together: one that is still being told would take another's end for a fault.
  [[maybe_unused]] const Status left = communicator_->Barrier();
  for (std::thread& follower : followers_) follower.join();
}

void GroupLeader::Send(const GroupCommand& command) {
  [[maybe_unused]] const Status sent = SendMessage(*communicator_, command.Encode());
}

void JoinGroup(StageLink& link, const Model& model, CpuDecoder* decoder) {
  if (Communicator* const sharers = link.sharers())
    decoder->set_group({.communicator = sharers, .vocab_parts = model.vocab_parts()});
  if (link.first()) return;
  decoder->set_input([&link, hidden = model.config().hidden](const RaggedBatch& batch, float* x) {
    // The step's end looks at the group's status.
    [[maybe_unused]] const Status received =
        link.Receive({x, static_cast<size_t>(batch.token_count() * hidden)});
  });
}

Status Follow(CpuRank* rank, StageLink& link) {
  Communicator& group = link.all();
  CpuDecoder decoder(*rank->model, *rank->pool);
  JoinGroup(link, *rank->model, &decoder);
  // Who waits for the rows of this stage learns that they are on their way.
  if (!link.last()) decoder.set_watch([&link](int64_t, std::span<const float>) { link.ReportProgress(); });
  const GroupCommand::Limits limits = {.vocab = rank->model->whole_config().vocab,
                                       .kv_blocks = rank->kv.blocks(),
                                       .host_blocks = rank->kv.host_blocks(),
                                       .context = rank->model->config().max_positions + kKvBlockTokens};
  for (;;) {
    CELER_ASSIGN(const std::vector<std::byte> message, ReceiveMessage(group, 0, Communicator::Wait::kIdle));
    CELER_ASSIGN(const GroupCommand command, GroupCommand::Decode(message, limits));
    switch (command.kind) {
      case GroupCommand::Kind::kStep:
        CELER_RETURN_IF_ERROR(RunStep(command, *rank, link, &decoder));
        break;
      case GroupCommand::Kind::kDecode:
      case GroupCommand::Kind::kDecodeOn:
        return Error::Device("rank 0 sent a step that only GPUs know");
      case GroupCommand::Kind::kCopy:
        rank->kv.Copy(command.copies);
        break;
      case GroupCommand::Kind::kSwapOut:
        rank->kv.SwapOut(command.copies);
        break;
      case GroupCommand::Kind::kSwapIn:
        rank->kv.SwapIn(command.copies);
        break;
      case GroupCommand::Kind::kClear:
        rank->kv.Clear(command.blocks);
        break;
      case GroupCommand::Kind::kDiscard:
        rank->kv.Discard();
        rank->model->DropPages();
        break;
      case GroupCommand::Kind::kEnd:
        [[maybe_unused]] const Status left = group.Barrier();
        return {};
    }
  }
}

Status FollowOtherProcess(const EngineOptions& options, bool* joined) {
  *joined = false;
  CELER_ASSIGN(const std::unique_ptr<Communicator> group, JoinProcesses(options));
  *joined = true;
  CELER_ASSIGN(const int threads, ThreadsOfProcess(options));
  return LoadAndFollow(options, /*kv_host_blocks=*/0, threads, options.parallel.ranks_here, *group);
}

Result<std::unique_ptr<Runner>> MakeCpuGroupRunner(const EngineOptions& options, int64_t kv_host_blocks) {
  if (options.parallel.rank < 0) return LeadThreads(options, kv_host_blocks);
  if (options.parallel.rank > 0)
    return Error::Invalid("rank ", options.parallel.rank, " of ", options.parallel.ranks(),
                          " answers no requests; only rank 0 does");
  CELER_ASSIGN(std::unique_ptr<Communicator> group, JoinProcesses(options));
  CELER_ASSIGN(const int threads, ThreadsOfProcess(options));
  return Lead(options, kv_host_blocks, threads, options.parallel.ranks_here,
              std::make_unique<GroupLeader>(std::move(group), std::vector<std::thread>(), Stages(options)));
}

}  // namespace celer
