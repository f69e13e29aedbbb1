#define CELER_LANES_F16
#include "kernels/network/pool/pool_lanes.h"

namespace celer {

const BasicPoolKernels<F16> kPoolArmFp16 = {.plane = PoolLanes};

}  // namespace celer
