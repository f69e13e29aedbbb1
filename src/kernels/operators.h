// The variant tables of all operators, for `celer kernels` and for checking CELER_FORCE.
#pragma once

#include <vector>

#include "device/variant.h"

namespace celer {

std::vector<OperatorInfo> KernelOperators();

}  // namespace celer
