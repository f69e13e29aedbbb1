#include <fmt/format.h>

#include <map>

#include "engine/loop/engine_impl.h"
#include "engine/loop/engine_internals.h"

namespace celer {

std::string EngineInternals::CheckInvariants(const Engine& engine) {
  const Engine::Impl& impl = engine.impl();
  std::map<int32_t, int> users, host_users;
  int64_t running = 0, waiting = 0;
  for (const auto& [id, group] : impl.groups) {
    if (group->sequences.empty()) return fmt::format("request {} has no sequence left and is still here", id);
    for (const auto& sequence : group->sequences)
      if (group->together() && sequence->running != group->sequences[0]->running)
        return fmt::format("some beams of request {} run and some wait", id);
    for (const auto& sequence : group->sequences) {
      const Sequence& s = *sequence;
      (s.running ? running : waiting) += 1;
      for (const int32_t block : s.block_table) ++users[block];
      for (const int32_t block : s.host_table) ++host_users[block];
      const auto blocks = static_cast<int64_t>(s.block_table.size());
      if (s.running && blocks < KvBlocksFor(s.computed))
        return fmt::format("sequence {} has {} blocks for {} computed tokens", s.id, blocks, s.computed);
      if (!s.running && blocks > 0)
        return fmt::format("sequence {} waits, and holds {} blocks", s.id, blocks);
      const bool is_first = &s == group->sequences[0].get();
      const int64_t elsewhere = group->together() && !is_first ? group->common_blocks : 0;
      if (!s.running && s.computed > 0 &&
          elsewhere + static_cast<int64_t>(s.host_table.size()) < KvBlocksFor(s.computed))
        return fmt::format("sequence {} waits with {} tokens computed that are nowhere", s.id, s.computed);
      if (s.computed > s.count() || s.published * kKvBlockTokens > s.computed)
        return fmt::format("sequence {}: {} tokens, {} computed, {} blocks published", s.id, s.count(),
                           s.computed, s.published);
    }
  }
  if (running != impl.scheduler.running() || waiting != impl.scheduler.waiting())
    return fmt::format("{} sequences run and {} wait, the scheduler has {} and {}", running, waiting,
                       impl.scheduler.running(), impl.scheduler.waiting());
  // A request's sequences stand side by side in the order, which is the one in which they run.
  const auto order = [](const Sequence* s) { return std::pair(s->group->order, s->answer); };
  const auto in_order = impl.scheduler.running_sequences();
  for (size_t i = 1; i < in_order.size(); ++i)
    if (order(in_order[i - 1]) >= order(in_order[i]))
      return fmt::format("sequence {} runs before {}, which goes first", in_order[i - 1]->id,
                         in_order[i]->id);
  for (const BlockTable* const held : impl.blocks.holds())
    for (const int32_t block : *held) ++users[block];
  for (const auto& [block, count] : users)
    if (impl.blocks.ref_count(block) != count)
      return fmt::format("block {} is in {} tables and counts {}", block, count,
                         impl.blocks.ref_count(block));
  if (impl.states.any()) {
    std::map<int32_t, int> owners;
    for (const auto& [id, group] : impl.groups)
      for (const auto& sequence : group->sequences) {
        if (sequence->state != StateSlots::kNone) ++owners[sequence->state];
        if ((sequence->running || sequence->computed > 0) && sequence->state == StateSlots::kNone)
          return fmt::format("sequence {} has {} tokens computed and no state", sequence->id,
                             sequence->computed);
      }
    for (const auto& [slot, count] : owners)
      if (count != 1) return fmt::format("state {} has {} owners", slot, count);
    const int64_t taken = impl.states.slots() - impl.states.free();
    if (taken != std::ssize(owners))
      return fmt::format("{} states belong to sequences and {} count as taken", owners.size(), taken);
  }
  const int64_t used = impl.blocks.blocks() - impl.blocks.free_blocks();
  if (used != static_cast<int64_t>(users.size()))
    return fmt::format("{} blocks are in tables and {} count as used", users.size(), used);
  for (const auto& [block, count] : host_users)
    if (count != 1) return fmt::format("host block {} has {} owners", block, count);
  const int64_t host_used = impl.blocks.host_blocks() - impl.blocks.free_host_blocks();
  if (host_used != static_cast<int64_t>(host_users.size()))
    return fmt::format("{} host blocks are in tables and {} count as used", host_users.size(), host_used);
  return "";
}

void EngineInternals::Trace(Engine& engine, StepTrace& to) {
  engine.impl().StartTrace(to);
}

void EngineInternals::SetStarvationSteps(Engine& engine, int64_t steps) {
  engine.impl().scheduler.set_starvation_steps(steps);
}

void EngineInternals::ExpireDeadlines(Engine& engine, std::chrono::steady_clock::time_point now) {
  engine.impl().ExpireDeadlines(now);
}

}  // namespace celer
