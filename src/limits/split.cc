#include "limits/split.h"

#include <algorithm>

#include "base/check.h"

namespace celer {

double CrossingSeconds(const Machine& gpu) {
  constexpr double kUsual = 10e-6;
  return gpu.crossing_s > 0 ? gpu.crossing_s : kUsual;
}

Machine TakingTurns(std::span<const MachineShare> parts, double waiting_s) {
  CELER_CHECK(!parts.empty());
  Machine all = parts[0].machine;
  if (parts.size() == 1) return all;
  double seconds = waiting_s;  // of reading a byte
  all.name.clear(), all.source.clear();
  all.memory_bytes = all.read_bytes_per_s_one = all.copy_bytes_per_s = 0;
  for (const MachineShare& part : parts) {
    const Machine& machine = part.machine;
    if (all.name.find(machine.name) == std::string::npos)
      all.name += (all.name.empty() ? "" : " + ") + machine.name;
    all.source += (all.source.empty() ? "" : "; ") + machine.source;
    all.memory_bytes += machine.memory_bytes;
    seconds += part.share / machine.read_bytes_per_s;
  }
  all.read_bytes_per_s = 1 / seconds;
  all.flops.clear();
  for (const auto& peak : parts[0].machine.flops) {
    const std::string& dtype = peak.first;
    double per_operation = 0;
    bool everywhere = true;
    for (const MachineShare& part : parts) {
      const auto found = part.machine.flops.find(dtype);
      everywhere = everywhere && found != part.machine.flops.end();
      if (everywhere) per_operation += part.share / found->second;
    }
    if (everywhere) all.flops[dtype] = 1 / per_operation;
  }
  return all;
}

std::optional<SplitLimit> SplitDecode(const LlmShape& shape, const Machine& gpu, const Machine& cpu,
                                      const LlmSetup& setup, const SplitQuery& query) {
  const LlmParams params = CountParams(shape);
  const double byte = setup.weight_bits / 8, layers = static_cast<double>(shape.layers);
  const auto batch = static_cast<double>(setup.batch);
  const double head = static_cast<double>(params.lm_head) * byte;
  const double embedding = static_cast<double>(params.embedding) * byte;
  // Of one layer: what it keeps, and what a step reads of it.
  const double kept = static_cast<double>(params.layers) * byte / layers;
  double expert = 0;
  for (const LayerKind& kind : KindsOf(shape))
    expert += static_cast<double>(kind.count) * kind.expert() * byte / layers;
  const double experts = expert * static_cast<double>(shape.experts);
  const double experts_read = expert * (shape.experts > 0 ? ExpectedExperts(shape, batch) : 0);
  const double read = kept - experts;
  const double kv = batch * static_cast<double>(query.context) * KvBytesPerToken(shape, setup) / layers;
  const auto on_cpu_experts = [&](int64_t gpu_layers) {  // of layers that the GPU has
    return static_cast<double>(
        std::clamp<int64_t>(query.cpu_experts - (shape.layers - gpu_layers), 0, gpu_layers));
  };
  const auto resident = [&](int64_t gpu_layers) {
    const auto count = static_cast<double>(gpu_layers);
    return head + (gpu_layers == shape.layers ? embedding : 0) + count * (kept + kv) -
           on_cpu_experts(gpu_layers) * experts;
  };
  int64_t gpu_layers = query.gpu_layers.value_or(shape.layers);
  if (!query.gpu_layers)
    while (gpu_layers > 0 && resident(gpu_layers) > gpu.memory_bytes) --gpu_layers;
  if (gpu_layers <= 0 || gpu_layers > shape.layers || resident(gpu_layers) > gpu.memory_bytes) return {};
  const auto count = static_cast<double>(gpu_layers), others = layers - count,
             moved = on_cpu_experts(gpu_layers);
  SplitLimit limit{.gpu_layers = gpu_layers,
                   .gpu_bytes = head + count * (read + kv) + (count - moved) * experts_read,
                   .cpu_bytes = others * (read + kv) + (others + moved) * experts_read,
                   .resident = resident(gpu_layers)};
  limit.gpu_s = limit.gpu_bytes / gpu.read_bytes_per_s;
  limit.cpu_s = limit.cpu_bytes / cpu.read_bytes_per_s;
  limit.crossing_s = ((others > 0 ? 1 : 0) + moved) * CrossingSeconds(gpu);
  return limit;
}

}  // namespace celer
