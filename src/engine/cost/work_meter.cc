#include "engine/cost/work_meter.h"

#include "limits/roofline.h"

namespace celer {

WorkMeter::WorkMeter(const Runner& runner)
    : cost_(runner.info().config, [&runner](const StepShape& shape) { return runner.Work(shape); }) {}

void WorkMeter::set_machine(const Machine& machine) {
  machine_.reset();
  if (machine.read_bytes_per_s > 0) machine_ = machine;
}

void WorkMeter::Count(std::span<const Slice> slices, EngineStats* stats) {
  int64_t tokens = 0, rows = 0;
  shapes_.clear();
  for (const Slice& slice : slices) {
    tokens += slice.count();
    rows += slice.row_count();
    shapes_.push_back({.position = slice.position, .tokens = slice.count(), .rows = slice.row_count()});
  }
  const auto [dense, is_new] = dense_.try_emplace(tokens);
  if (is_new) dense->second = Sum(cost_.Dense(tokens));
  OperatorWork work = dense->second;
  work += cost_.Attention(shapes_);
  work += cost_.Logits(rows);
  stats->work_bytes += work.bytes;
  for (const auto& [type, flops] : work.flops) stats->work_flops += flops;
  if (machine_) stats->limit_seconds += LimitOf(work, *machine_).seconds();
}

}  // namespace celer
