// Half precision as kernels keep it, and whole rows of it to floats and back. Plain types: files with an ISA
// suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

// IEEE binary16, by its bits. A type of its own, so that a kernel cannot take it for an integer.
struct F16 {
  uint16_t bits;
};

// Rounds to nearest even; beyond 65504 it is infinity.
void ToF16(const float* from, F16* to, int64_t n);
void ToFloats(const F16* from, float* to, int64_t n);

}  // namespace celer
