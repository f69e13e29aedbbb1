// Token masks: cheap ones are prepared between two steps, expensive ones by worker threads. When a mask is
// ready decides when its answer goes on, never which tokens it has.
#include <algorithm>

#include "engine/loop/engine_impl.h"

namespace celer {
namespace {

constexpr uint64_t kInlineMaskWork = 100'000;      // of one mask on the engine's thread
constexpr std::chrono::milliseconds kMaskWait{2};  // new requests are looked at as often

}  // namespace

Status Engine::Impl::PrepareMask(Sequence& sequence) {
  if (!sequence.sampler.awaits_mask() || sequence.mask_job) return {};
  // A sequence whose last mask took long is likely to need another such one.
  if (sequence.last_mask_work <= kInlineMaskWork && mask_work > 0) {
    const uint64_t most = std::min(mask_work, kInlineMaskWork);
    uint64_t left = most;
    CELER_ASSIGN(const bool ready, sequence.sampler.PrepareMask(&left));
    mask_work -= most - left;
    sequence.mask_work += most - left;
    if (ready) return {};
  }
  sequence.mask_job = mask_workers.Post(sequence.sampler.LendMask(), sequence.mask_work);
  mask_jobs.emplace_back(sequence.group->id, sequence.id);
  ++counts.deferred_masks;
  return {};
}

void Engine::Impl::PrepareMasks(std::vector<TokenEvent>* events) {
  mask_work = kMaskWorkPerStep;
  std::vector<std::pair<int64_t, Error>> failed;  // groups
  std::erase_if(mask_jobs, [&](const std::pair<int64_t, int64_t>& job) {
    const auto group = groups.find(job.first);
    if (group == groups.end()) return true;
    const auto& sequences = group->second->sequences;
    const auto at = std::find_if(sequences.begin(), sequences.end(),
                                 [&](const auto& sequence) { return sequence->id == job.second; });
    if (at == sequences.end()) return true;
    Sequence& sequence = **at;
    if (!sequence.mask_job->done.load(std::memory_order_acquire)) return false;
    const std::shared_ptr<MaskWorkers::Job> done = std::move(sequence.mask_job);
    sequence.mask_work += done->work;
    sequence.last_mask_work = done->work;
    if (done->error)
      failed.emplace_back(job.first, *done->error);
    else
      sequence.sampler.MaskIsReady();
    return true;
  });
  for (Sequence* const sequence : scheduler.running_sequences())
    if (const Status prepared = PrepareMask(*sequence); !prepared)
      failed.emplace_back(sequence->group->id, prepared.error());
  for (const auto& [id, error] : failed)
    if (const auto group = groups.find(id); group != groups.end())
      EndGroup(*group->second, FinishReason::kConstraint, error.message(), events);
}

void Engine::Impl::WaitForMask() {
  if (!mask_jobs.empty()) mask_workers.WaitForAny(kMaskWait);
}

}  // namespace celer
