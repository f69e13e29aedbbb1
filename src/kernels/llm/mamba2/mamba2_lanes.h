// Scans with vectors as wide as the flags of the including file allow.
#pragma once

#include "kernels/llm/delta_rule/delta_rule_lanes.h"
#include "kernels/llm/mamba2/mamba2_scan.h"

namespace celer {
namespace {

CELER_INLINE void ScanMamba2Lanes(const Mamba2Scan& scan) {
  for (int64_t t = 0; t < scan.tokens; ++t) {
    const int64_t at = t * scan.stride, step = t * scan.step_stride;
    const DeltaRow x = DeltaRow::LoadSome(scan.x + at, scan.columns);
    DeltaRow delta = x;
    delta.Scale(Simd::Set(scan.step[step]));
    DeltaRow y = Update(scan.state, scan.decay[step], scan.b + at, delta, scan.c + at, scan.state_dim);
    y.Add(Simd::Set(scan.skip), x);
    y.StoreSome(scan.out + t * scan.out_stride, scan.columns);
  }
}

}  // namespace
}  // namespace celer
