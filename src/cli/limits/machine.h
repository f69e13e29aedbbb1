// --machine and the flags that define or override a machine.
#pragma once

#include <string>

#include "celer/limits.h"

namespace celer::cli {

struct MachineFlags {
  std::string machine;    // a built-in name, "this", or empty
  std::string memory;     // "24GiB"
  std::string bandwidth;  // "1008GB/s"
  std::string tflops;     // "82.58": one peak for every dtype
};

// Empty `machine` means the three flags when all are given, else this machine, measured (or measured before).
// The result is in `units` and has passed Validate().
Result<Machine> ResolveMachine(const MachineFlags& flags, Units units);

}  // namespace celer::cli
