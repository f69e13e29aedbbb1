#include "engine/cost/step_budget.h"

#include <algorithm>

#include "base/device.h"
#include "limits/measured_machine.h"
#include "limits/roofline.h"

namespace celer {
namespace {

// Below this, what a step costs beside its products shows. Measured with SmolLM2 on two cores: prompts in
// pieces of 128 take a tenth longer than in one, in pieces of 32 twice as long.
constexpr int64_t kLeastCpu = 128, kLeastGpu = 256;
constexpr int64_t kMultiple = 64;

}  // namespace

int64_t MixedChunk(const Runner& runner, int64_t chunk) {
  const std::string& name = runner.info().device;
  const auto device = Device::Parse(std::string_view(name).substr(0, name.find(' ')));
  if (!device) return chunk;
  const int64_t least = std::min(chunk, device->is_cpu() ? kLeastCpu : kLeastGpu);
  const auto machine = LoadOrMeasureThisMachine(/*allow_measure=*/false, *device, runner.info().threads);
  if (!machine) return least;
  int64_t tokens = least;
  while (tokens < chunk && LimitOf(Sum(runner.Work({.tokens = tokens})), *machine).memory_bound())
    tokens += kMultiple;
  return std::min(tokens, chunk);
}

}  // namespace celer
