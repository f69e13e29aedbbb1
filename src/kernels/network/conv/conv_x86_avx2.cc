#include "kernels/network/conv/conv_lanes.h"

namespace celer {

const ConvKernels kConvX86Avx2 = {.name = "x86_avx2",
                                  .gemm = &kGemmX86Avx2,
                                  .depthwise = RunDepthwise,
                                  .winograd_input = RunWinogradInput<3 * Simd::kLanes>,
                                  .winograd_output = RunWinogradOutput};

}  // namespace celer
