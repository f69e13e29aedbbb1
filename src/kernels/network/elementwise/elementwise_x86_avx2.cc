#include "kernels/network/elementwise/elementwise_lanes.h"

namespace celer {

const ElementwiseKernels kElementwiseX86Avx2 = {
    .unary = UnaryLanes, .binary = BinaryLanes, .transpose = TransposeLanes};

}  // namespace celer
