#include "kernels/network/conv/conv_lanes.h"

namespace celer {

const ConvKernels kConvPortable = {.name = "portable",
                                   .gemm = &kGemmPortable,
                                   .depthwise = RunDepthwise,
                                   .winograd_input = RunWinogradInput<3 * Simd::kLanes>,
                                   .winograd_output = RunWinogradOutput};

}  // namespace celer
