#include "cli/limits/machine.h"

#include "base/result.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"

namespace celer::cli {

Result<Machine> ResolveMachine(const MachineFlags& flags, Units units) {
  const bool complete = !flags.memory.empty() && !flags.bandwidth.empty() && !flags.tflops.empty();
  Machine machine;
  if (flags.machine == "this" || (flags.machine.empty() && !complete)) {
    CELER_ASSIGN(machine, LoadOrMeasureThisMachine(/*allow_measure=*/true));
  } else if (!flags.machine.empty()) {
    CELER_ASSIGN(machine, FindMachinePreset(flags.machine));
    machine = InUnits(std::move(machine), units);  // a data sheet's numbers; measured ones are bytes already
  }

  if (!flags.memory.empty()) {
    CELER_ASSIGN(machine.memory_bytes, ParseBytes(flags.memory, units, "--memory"));
  }
  if (!flags.bandwidth.empty()) {
    CELER_ASSIGN(machine.read_bytes_per_s, ParseBytesPerSecond(flags.bandwidth, units, "--bandwidth"));
  }
  if (!flags.tflops.empty()) {
    CELER_ASSIGN(const double tera, ParsePositive(flags.tflops, 1e9, "--tflops"));
    const double peak = tera * (units == Units::kBinary ? 1099511627776.0 : 1e12);
    machine.flops = {{"f32", peak}, {"f16", peak}, {"bf16", peak}};
  }
  if (machine.name.empty()) {
    machine.name = "custom";
    machine.source = "flags";
  } else if (!flags.memory.empty() || !flags.bandwidth.empty() || !flags.tflops.empty()) {
    machine.source += ", overridden by flags";
  }
  CELER_RETURN_IF_ERROR(Validate(machine));
  return machine;
}

}  // namespace celer::cli
