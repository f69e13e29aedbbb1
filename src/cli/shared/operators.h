// Every operator table of the program.
#pragma once

#include <vector>

#include "device/variant.h"

namespace celer::cli {

std::vector<OperatorInfo> AllOperators();

}  // namespace celer::cli
