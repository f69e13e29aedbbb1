#include "kernels/network/pool/pool_lanes.h"

namespace celer {

const PoolKernels kPoolX86Avx512 = {.plane = PoolLanes};

}  // namespace celer
