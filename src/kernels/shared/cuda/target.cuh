// Which GPU this pass of the compiler is for.
//
// Code of compute capability 9.0 uses what only Hopper has: bulk copies, barriers that count their bytes, programmatic
// launch, clusters. All other code is generic: copies of 16 bytes, barriers that count lanes. Both have the same kernels,
// so the host must ask which of them the driver took (HopperCode() in per_device.h) where sizes differ.
#pragma once

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define CELER_HOPPER 1
#else
#define CELER_HOPPER 0
#endif

namespace celer::cuda {

// Of this pass. On the host, where no code is meant, that of Hopper; there sizes are functions of HopperCode().
constexpr bool kHopper = CELER_HOPPER != 0;

}  // namespace celer::cuda
