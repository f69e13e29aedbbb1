// The tables that the CPU probe chooses its loops from.
#pragma once

#include <span>

#include "device/variant.h"
#include "limits/probe/probe_kernels.h"

namespace celer::probe {

std::span<const Variant<ReadFn>> ReadVariants();
std::span<const Variant<CopyFn>> CopyVariants();

// One table per dtype that some CPU has an instruction for; on a given machine it may have no runnable row.
struct PeakTable {
  const char* dtype;          // "f32"
  const char* operator_name;  // "probe_f32"
  std::span<const Variant<PeakFn>> variants;
};
std::span<const PeakTable> PeakTables();

}  // namespace celer::probe
