#include "kernels/network/elementwise/elementwise_lanes.h"

namespace celer {

const ElementwiseKernels kElementwiseX86Avx512 = {
    .unary = UnaryLanes, .binary = BinaryLanes, .transpose = TransposeLanes};

}  // namespace celer
