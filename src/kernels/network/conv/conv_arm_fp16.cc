#define CELER_LANES_F16
#include "kernels/network/conv/conv_lanes.h"

namespace celer {

const BasicConvKernels<F16> kConvArmFp16 = {.name = "arm_fp16",
                                            .gemm = &kGemmArmFp16,
                                            .depthwise = RunDepthwise,
                                            .winograd_input = RunWinogradInput<3 * Lanes::kLanes>,
                                            .winograd_output = RunWinogradOutput};

}  // namespace celer
