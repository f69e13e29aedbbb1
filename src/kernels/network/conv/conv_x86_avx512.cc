#include "kernels/network/conv/conv_lanes.h"

namespace celer {

const ConvKernels kConvX86Avx512 = {.name = "x86_avx512",
                                    .gemm = &kGemmX86Avx512,
                                    .depthwise = RunDepthwise,
                                    .winograd_input = RunWinogradInput<3 * Simd::kLanes>,
                                    .winograd_output = RunWinogradOutput};

}  // namespace celer
