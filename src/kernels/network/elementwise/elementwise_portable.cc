#include "kernels/network/elementwise/elementwise_lanes.h"

namespace celer {

const ElementwiseKernels kElementwisePortable = {
    .unary = UnaryLanes, .binary = BinaryLanes, .transpose = TransposeLanes};

}  // namespace celer
