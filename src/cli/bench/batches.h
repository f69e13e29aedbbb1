// Throughput over batch size: celer, the limit, and other engines where their speeds are known.
#pragma once

#include <string>

#include "cli/bench/report.h"

namespace celer::cli {

// A section for each depth that was measured with several batch sizes; "" if there is none.
std::string BatchCharts(const BenchReport& report);

}  // namespace celer::cli
