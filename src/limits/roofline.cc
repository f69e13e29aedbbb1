#include "limits/roofline.h"

#include <algorithm>

#include "base/check.h"
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

OperatorWork& OperatorWork::operator+=(const OperatorWork& other) {
  bytes += other.bytes;
  for (const auto& [dtype, count] : other.flops) flops[dtype] += count;
  return *this;
}

namespace {

struct Arithmetic {
  std::string dtype;
  double seconds;
};

std::vector<Arithmetic> TimesByType(const OperatorWork& work, const Machine& machine) {
  std::vector<Arithmetic> times;
  for (const auto& [dtype, count] : work.flops) {
    auto peak = machine.flops.find(dtype);
    if (peak == machine.flops.end()) peak = machine.flops.find("f32");
    if (dtype == "auto")
      for (const char* narrow : {"f16", "bf16"})
        if (const auto other = machine.flops.find(narrow);
            other != machine.flops.end() && (peak == machine.flops.end() || other->second > peak->second))
          peak = other;
    CELER_CHECK(peak != machine.flops.end());
    times.push_back({peak->first, count / peak->second});
  }
  return times;
}

}  // namespace

RooflineLimit LimitOf(const OperatorWork& work, const Machine& machine) {
  CELER_CHECK_GT(machine.read_bytes_per_s, 0);
  RooflineLimit limit{work.bytes / machine.read_bytes_per_s, 0};
  for (const Arithmetic& part : TimesByType(work, machine)) limit.compute_s += part.seconds;
  return limit;
}

OperatorWork Sum(const std::vector<OperatorWork>& operators) {
  OperatorWork sum{.name = "step"};
  for (const OperatorWork& work : operators) sum += work;
  return sum;
}

std::string MainArithmetic(const OperatorWork& work, const Machine& machine) {
  const auto times = TimesByType(work, machine);
  const auto longest = std::max_element(times.begin(), times.end(),
                                        [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return longest == times.end() ? "" : longest->dtype;
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
