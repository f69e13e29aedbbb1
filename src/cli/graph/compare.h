// How far two arrays are apart.
#pragma once

#include <cstdint>
#include <string>

#include "base/tensor_view.h"
#include "io/npy/npy.h"

namespace celer::cli {

struct Difference {
  double error = 0;  // the largest one, relative to the scale; infinite where one is not a number
  double scale = 0;  // the largest finite magnitude of the reference
  int64_t at = 0;    // where
  double ours = 0, theirs = 0;
  std::string problem = {};  // instead: types or shapes differ
};
Difference Compare(const TensorView& ours, const NpyArray& theirs);

std::string Describe(const Difference& difference,
                     const Shape& shape);  // "3.1e-02 of 1.2 at [0, 3]: 1 for 2"

}  // namespace celer::cli
