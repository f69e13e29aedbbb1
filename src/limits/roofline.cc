#include "limits/roofline.h"

#include <algorithm>

#include "core/check.h"
#include "limits/quantity.h"

namespace celer {

Result<Roof> RoofOf(const Machine& machine, std::string_view dtype) {
  const auto peak = machine.flops.find(std::string(dtype));
  if (peak == machine.flops.end()) {
    std::string known;
    for (const auto& [name, flops] : machine.flops) known += (known.empty() ? "" : ", ") + name;
    return Error::NotFound("machine '", machine.name, "' has no arithmetic peak for '", dtype,
                           "'; known: ", known);
  }
  return Roof{machine.read_bytes_per_s, peak->second, peak->first, machine.source};
}

RooflineLimit LimitOf(const Work& work, const Roof& roof) {
  CELER_CHECK_GT(roof.bytes_per_s, 0);
  CELER_CHECK_GT(roof.flops_per_s, 0);
  return {work.bytes() / roof.bytes_per_s, work.flops / roof.flops_per_s};
}

double RidgeIntensity(const Roof& roof) {
  return roof.flops_per_s / roof.bytes_per_s;
}

double AttainableFlops(double intensity, const Roof& roof) {
  return std::min(roof.flops_per_s, intensity * roof.bytes_per_s);
}

double RatioToLimit(const RooflineLimit& limit, double measured_s) {
  CELER_CHECK_GT(measured_s, 0);
  return limit.seconds() / measured_s;
}

std::string BoundBy(const RooflineLimit& limit, const Roof& roof) {
  const std::string source = roof.source.empty() ? "" : " " + roof.source;
  if (limit.memory_bound()) return "memory, " + FormatBandwidth(roof.bytes_per_s) + source;
  return roof.dtype + " arithmetic, " + FormatFlops(roof.flops_per_s) + source;
}

}  // namespace celer
