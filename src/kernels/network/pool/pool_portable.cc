#include "kernels/network/pool/pool_lanes.h"

namespace celer {

const PoolKernels kPoolPortable = {.plane = PoolLanes};

}  // namespace celer
