#include "kernels/llm/mamba2/mamba2_lanes.h"

namespace celer::x86 {

void ScanMamba2Avx512(const Mamba2Scan& scan) {
  ScanMamba2Lanes(scan);
}

}  // namespace celer::x86
