#include "kernels/shared/gemm/gemm_lanes.h"

namespace celer {

const GemmKernels kGemmX86Avx512 = {.name = "x86_avx512",
                                    .mr = 8,
                                    .nr = kNr,
                                    .k_block = 256,
                                    .block = BlockOf<PlainSteps, 8>::Run,
                                    .pack_a = PackPanels<8>,
                                    .pack_b = PackPanels<kNr>,
                                    .pack_im2col = PackIm2col};

}  // namespace celer
