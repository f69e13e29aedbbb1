#include "kernels/llm/delta_rule/delta_rule_lanes.h"

namespace celer::x86 {

void ScanDeltaAvx2(const DeltaScan& scan) {
  ScanDeltaLanes(scan);
}

}  // namespace celer::x86
