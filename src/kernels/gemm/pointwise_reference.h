#pragma once

#include "kernels/gemm/epilogue.h"

namespace celer::reference {

double Apply(const Pointwise& f, double x);

}  // namespace celer::reference
