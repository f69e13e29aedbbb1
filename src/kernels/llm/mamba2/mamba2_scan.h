// The inner loop of Mamba-2 (mamba2.h): one piece of S over the tokens of a prompt. For files with an ISA suffix, too,
// so that it includes nothing with functions.
#pragma once

#include <stdint.h>

namespace celer {

// One piece of S, of up to kDeltaColumns columns (delta_scan.h), over consecutive tokens of a sequence.
struct Mamba2Scan {
  float* state = nullptr;  // [state_dim, kDeltaColumns]
  const float *x = nullptr, *b = nullptr, *c = nullptr;
  int64_t stride = 0;  // floats from one token's x, B and C to the next one's
  const float *decay = nullptr, *step = nullptr;
  int64_t step_stride = 0;
  float skip = 0;  // D
  int64_t tokens = 0, state_dim = 0;
  int64_t columns = 0;  // that exist, up to kDeltaColumns
  float* out = nullptr;
  int64_t out_stride = 0;
};

}  // namespace celer
