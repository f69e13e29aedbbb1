#include "kernels/network/rows/rows_lanes.h"

namespace celer {

const RowKernels kRowsPortable = {.softmax = SoftmaxLanes, .layer_norm = LayerNormLanes, .sum = SumLanes};

}  // namespace celer
