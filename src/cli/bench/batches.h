// Throughput over batch size: celer, the limit, and other engines where their speeds are known.
#pragma once

#include "cli/bench/report.h"
#include "report/page.h"

namespace celer::cli {

// A section for each depth that was measured with several batch sizes.
void AddBatchCharts(const BenchReport& report, Page* page);

}  // namespace celer::cli
