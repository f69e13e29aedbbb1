#include "engine/runners/place/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "device/allocator.h"

namespace celer {
namespace {

std::string Size(int64_t bytes) {
  return FormatBytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0)));
}

int64_t LayersOf(const PlacementFacts& facts) {
  return std::ssize(facts.layers);
}

bool HasExperts(const PlacementFacts& facts) {
  return std::any_of(facts.layers.begin(), facts.layers.end(),
                     [](const PlacementFacts::Layer& layer) { return layer.experts > 0; });
}

// Of which layers of the model the experts are on the CPU.
using CpuExpertLayers = std::vector<bool>;

CpuExpertLayers FirstLayers(const PlacementFacts& facts, int64_t count) {
  CpuExpertLayers experts(facts.layers.size());
  std::fill_n(experts.begin(), count, true);
  return experts;
}

// With what the device must hold.
Placement::Stage StageOf(const PlacementFacts& facts, Device device, LayerRange range,
                         const CpuExpertLayers& experts) {
  Placement::Stage stage{.device = device, .layers = range};
  const bool gpu = !device.is_cpu();
  for (int64_t i = range.first; i < range.end(); ++i) {
    const PlacementFacts::Layer& layer = facts.layers[static_cast<size_t>(i)];
    stage.kv += layer.kv_block * facts.kv_blocks;
    if (gpu) stage.weights += layer.weights - (experts[static_cast<size_t>(i)] ? layer.experts : 0);
  }
  if (!gpu) return stage;
  const auto first = experts.begin() + range.first, last = first + range.count;
  if (std::find(first, last, true) != last) stage.cpu_experts.assign(first, last);
  const bool embeds = range.first == 0, heads = range.end() == LayersOf(facts);
  if (embeds) stage.weights += facts.embedding;
  if (heads && !(facts.tied && embeds)) stage.weights += facts.head;
  return stage;
}

// The last `count` layers on the GPUs, in proportion to their room, and the others on the CPU.
Placement Fill(const PlacementFacts& facts, int64_t count, const CpuExpertLayers& experts,
               const std::vector<double>& split) {
  Placement placement;
  const int64_t layers = LayersOf(facts), on_cpu = layers - count;
  if (on_cpu > 0) placement.stages.push_back(StageOf(facts, Device::Cpu(), {0, on_cpu}, experts));
  if (count == 0) return placement;
  std::vector<double> shares = split;
  std::vector<PlacementFacts::Gpu> gpus = facts.gpus;
  // Fewer layers than GPUs: the last ones have them.
  if (count < std::ssize(gpus)) gpus.erase(gpus.begin(), gpus.end() - count);
  if (std::ssize(shares) != std::ssize(gpus)) {
    shares.clear();
    for (const PlacementFacts::Gpu& gpu : gpus)
      shares.push_back(static_cast<double>(std::max<int64_t>(gpu.room, 1)));
  }
  const std::vector<int64_t> parts = Portions(count, shares);
  int64_t first = on_cpu;
  for (size_t i = 0; i < gpus.size(); first += parts[i], ++i) {
    placement.stages.push_back(StageOf(facts, Device::Cuda(gpus[i].index), {first, parts[i]}, experts));
    placement.stages.back().memory = gpus[i].memory;
  }
  return placement;
}

// The first stage that its GPU has no room for.
std::optional<size_t> TooLarge(const Placement& placement, const PlacementFacts& facts) {
  size_t gpu = facts.gpus.size() - static_cast<size_t>(std::count_if(
                                       placement.stages.begin(), placement.stages.end(),
                                       [](const Placement::Stage& s) { return !s.device.is_cpu(); }));
  for (size_t i = 0; i < placement.stages.size(); ++i) {
    const Placement::Stage& stage = placement.stages[i];
    if (stage.device.is_cpu()) continue;
    if (stage.weights + stage.kv > facts.gpus[gpu++].room) return i;
  }
  return {};
}

// As many layers as fit.
int64_t MostLayers(const PlacementFacts& facts, const CpuExpertLayers& experts,
                   const std::vector<double>& split) {
  int64_t count = LayersOf(facts);
  while (count > 0 && TooLarge(Fill(facts, count, experts, split), facts)) --count;
  return count;
}

Error NoRoom(const Placement& placement, const PlacementFacts& facts, const CpuExpertLayers& experts,
             const std::vector<double>& split) {
  const Placement::Stage& stage = placement.stages[*TooLarge(placement, facts)];
  const int64_t fit = MostLayers(facts, experts, split);
  std::string remedy = fit > 0 ? fmt::format("`gpu_layers` {} fits", fit) : "no layer fits; use `device` cpu";
  const CpuExpertLayers all = FirstLayers(facts, LayersOf(facts));
  if (HasExperts(facts) && experts != all && !TooLarge(Fill(facts, LayersOf(facts), all, split), facts))
    remedy += ", or all of them with `cpu_experts` all";
  return Error::OutOfMemory(stage.device.ToString(), ": layers ", stage.layers.first, " to ",
                            stage.layers.end() - 1, " need ", Size(stage.weights), " for weights and ",
                            Size(stage.kv), " for keys and values, and too little is free; ", remedy);
}

// Devices as the user has listed them, with a CPU among them.
Result<Placement> AsListed(const PlacementOptions& asked, const PlacementFacts& facts,
                           const CpuExpertLayers& experts) {
  const int64_t layers = LayersOf(facts);
  if (std::ssize(asked.devices) > layers)
    return Error::Invalid("`device` names ", asked.devices.size(), " devices, and the model has ", layers,
                          " layers");
  std::vector<double> shares = asked.split;
  if (shares.empty()) shares.assign(asked.devices.size(), 1.0);
  const std::vector<int64_t> parts = Portions(layers, shares);
  Placement placement;
  int64_t first = 0;
  size_t gpu = 0;
  for (size_t i = 0; i < parts.size(); first += parts[i], ++i) {
    const LayerRange range{first, parts[i]};
    if (asked.devices[i].kind == DeviceOptions::Kind::kCpu) {
      placement.stages.push_back(StageOf(facts, Device::Cpu(), range, experts));
      continue;
    }
    const PlacementFacts::Gpu& on = facts.gpus[gpu++];
    placement.stages.push_back(StageOf(facts, Device::Cuda(on.index), range, experts));
    Placement::Stage& stage = placement.stages.back();
    stage.memory = on.memory;
    if (stage.weights + stage.kv > on.room)
      return Error::OutOfMemory(stage.device.ToString(), ": layers ", first, " to ", stage.layers.end() - 1,
                                " need ", Size(stage.weights), " for weights and ", Size(stage.kv),
                                " for keys and values, and too little is free; give it less by `",
                                asked.place.empty() ? "split" : "place", "`");
  }
  return placement;
}

}  // namespace

std::vector<int64_t> Portions(int64_t total, const std::vector<double>& shares) {
  const auto count = std::ssize(shares);
  CELER_CHECK(count > 0 && total >= count);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<int64_t> parts;
  double before = 0;
  int64_t given = 0;
  for (int64_t i = 0; i < count; ++i) {
    before += shares[static_cast<size_t>(i)];
    const auto until = static_cast<int64_t>(std::llround(static_cast<double>(total) * before / sum));
    const int64_t left_for_others = count - 1 - i;
    parts.push_back(i == count - 1 ? total - given
                                   : std::clamp<int64_t>(until - given, 1, total - given - left_for_others));
    given += parts.back();
  }
  return parts;
}

Result<PlacementOptions> WithPlacedLayers(PlacementOptions asked, const PlacedTensors& placed) {
  if (placed.layers.empty()) return asked;
  if (asked.gpu_layers || !asked.split.empty() || !asked.devices.empty())
    return Error::Invalid("`place` puts layers on devices, and `",
                          asked.gpu_layers      ? "gpu_layers"
                          : asked.split.empty() ? "device"
                                                : "split",
                          "` does, too; leave one of them out");
  for (size_t i = 0; i < placed.layers.size(); ++i) {
    if (i > 0 && placed.layers[i] == placed.layers[i - 1]) {
      asked.split.back() += 1;
      continue;
    }
    const Device& device = placed.layers[i];
    asked.devices.push_back(device.is_cpu() ? DeviceOptions() : DeviceOptions::Cuda(device.index));
    asked.split.push_back(1);
  }
  return asked;
}

Result<Placement> PlanPlacement(const PlacementOptions& asked, const PlacementFacts& facts,
                                const PlacedTensors& placed) {
  const int64_t layers = LayersOf(facts);
  if (!asked.split.empty() && asked.split.size() != std::max<size_t>(asked.devices.size(), 1))
    return Error::Invalid("`split` has ", asked.split.size(), " parts, and `device` names ",
                          std::max<size_t>(asked.devices.size(), 1), " devices");
  if (asked.gpu_layers && *asked.gpu_layers > layers)
    return Error::Invalid("`gpu_layers` ", *asked.gpu_layers, ": the model has ", layers, " layers");
  if (asked.cpu_experts && !HasExperts(facts))
    return Error::Invalid("`cpu_experts`: the model is no mixture of experts; use `gpu_layers`");
  if (asked.cpu_experts && *asked.cpu_experts > layers)
    return Error::Invalid("`cpu_experts` ", *asked.cpu_experts, ": the model has ", layers, " layers");
  if (asked.cpu_experts && !asked.place.empty())
    return Error::Invalid("`cpu_experts` and `place` both say where experts are; leave one of them out");
  int64_t first = asked.cpu_experts.value_or(0);
  if (asked.cpu_experts == PlacementOptions::kAll) first = layers;
  CpuExpertLayers experts = placed.cpu_experts.empty() ? FirstLayers(facts, first) : placed.cpu_experts;
  const auto cpu = [](const DeviceOptions& device) { return device.kind == DeviceOptions::Kind::kCpu; };
  if (std::any_of(asked.devices.begin(), asked.devices.end(), cpu) || !placed.layers.empty()) {
    if (asked.gpu_layers)
      return Error::Invalid(
          "`gpu_layers` and a `device` cpu among several; say how many layers it has by `split`");
    return AsListed(asked, facts, experts);
  }
  if (facts.gpus.empty()) return Placement{.stages = {StageOf(facts, Device::Cpu(), {0, layers}, experts)}};
  const bool fixed = asked.gpu_layers && *asked.gpu_layers != PlacementOptions::kAuto;
  // Experts first: they are most of a mixture's bytes, and few of them are read for a token.
  if (!asked.cpu_experts && placed.cpu_experts.empty() && !fixed && HasExperts(facts))
    while (first < layers && TooLarge(Fill(facts, layers, experts, asked.split), facts))
      experts = FirstLayers(facts, ++first);
  // Listed GPUs hold all layers unless it is said that they need not.
  const bool all = !asked.gpu_layers && asked.gpu_memory == 0;
  const int64_t count = fixed ? *asked.gpu_layers : all ? layers : MostLayers(facts, experts, asked.split);
  const Placement placement = Fill(facts, count, experts, asked.split);
  if (TooLarge(placement, facts)) return NoRoom(placement, facts, experts, asked.split);
  return placement;
}

bool StreamsLayers(const Placement& placement, const PlacementFacts& facts) {
  const std::vector<Placement::Stage>& stages = placement.stages;
  return facts.fed_layers > 0 && stages.size() == 2 && stages[0].device.is_cpu() &&
         !stages[1].device.is_cpu();
}

bool StreamsExperts(const Placement& placement, const PlacementFacts& facts) {
  return facts.fed_experts > 0 &&
         std::any_of(placement.stages.begin(), placement.stages.end(),
                     [](const Placement::Stage& stage) { return !stage.cpu_experts.empty(); });
}

int64_t StreamFrom(const StreamSpeeds& speeds) {
  constexpr int64_t kLeast = 32;  // below that the GPU reads each weight once for too few tokens
  constexpr double kMost = 1e9;
  const double sending = speeds.sent_bytes / speeds.host_bytes_per_s,
               computing = 2 * speeds.macs / speeds.cpu_flops;
  return std::max(kLeast, static_cast<int64_t>(std::ceil(std::min(sending / computing, kMost))));
}

Result<Placement> WithStreaming(const Placement& plan, const PlacementOptions& asked,
                                const PlacementFacts& facts, const PlacedTensors& placed, int64_t from,
                                int64_t chunk) {
  const bool automatic = asked.stream_prompts == PlacementOptions::kAuto;
  const bool layers = StreamsLayers(plan, facts), experts = StreamsExperts(plan, facts);
  if (asked.stream_prompts == 0 || (!layers && !experts) || (automatic && from > chunk)) return plan;
  const int64_t needed = (layers ? facts.fed_layers : 0) + (experts ? facts.fed_experts : 0);
  constexpr int64_t kShare = 8;
  PlacementFacts tighter = facts;
  for (PlacementFacts::Gpu& gpu : tighter.gpus) {
    if (automatic && needed > gpu.room / kShare) return plan;
    gpu.room -= needed;
  }
  Result<Placement> with = PlanPlacement(asked, tighter, placed);
  // With less room there may be layers on the CPU where there were none.
  const bool enough =
      with && StreamsLayers(*with, facts) <= layers && StreamsExperts(*with, facts) <= experts;
  if (!enough && automatic) return plan;
  if (!with) return with.error().WithContext("with room for `stream_prompts`");
  if (!enough)
    return Error::OutOfMemory("`stream_prompts` needs ", Size(needed),
                              " of the GPU, and more with what then is on "
                              "the CPU; give `gpu_layers` and `cpu_experts` as numbers, or leave it out");
  with->stream_from = from;
  return with;
}

std::string Placement::ToString(const PlacementFacts& facts) const {
  std::string text;
  for (const Stage& stage : stages) {
    const bool heads = stage.layers.end() == LayersOf(facts);
    text += fmt::format("{}layer{} {}{}{} on {}", text.empty() ? "" : "; ",
                        stage.layers.count == 1 ? "" : "s", stage.layers.first,
                        stage.layers.count == 1 ? "" : fmt::format(" to {}", stage.layers.end() - 1),
                        heads ? " and the head" : "", stage.device.ToString());
    if (stage.weights > 0)
      text += fmt::format(": weights {}, KV {} at least", Size(stage.weights), Size(stage.kv));
    const auto elsewhere = std::count(stage.cpu_experts.begin(), stage.cpu_experts.end(), true);
    if (elsewhere > 0) text += fmt::format(", experts of {} layers on cpu", elsewhere);
  }
  if (stream_from > 0) text += fmt::format("; batches of {} tokens and more all on the GPU", stream_from);
  return text;
}

}  // namespace celer
