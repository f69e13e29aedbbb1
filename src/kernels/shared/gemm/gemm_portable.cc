#include "kernels/shared/gemm/gemm_lanes.h"

namespace celer {

const GemmKernels kGemmPortable = {.name = "portable",
                                   .mr = 4,
                                   .nr = kNr,
                                   .k_block = 512,
                                   .block = BlockOf<PlainSteps, 4>::Run,
                                   .pack_a = PackPanels<4>,
                                   .pack_b = PackPanels<kNr>,
                                   .pack_im2col = PackIm2col};

}  // namespace celer
