// Apart from activation.h, so that files with an ISA suffix can include it.
#pragma once

#include <stdint.h>

namespace celer {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2 };

}  // namespace celer
