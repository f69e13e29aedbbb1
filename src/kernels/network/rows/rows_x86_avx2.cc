#include "kernels/network/rows/rows_lanes.h"

namespace celer {

const RowKernels kRowsX86Avx2 = {.softmax = SoftmaxLanes, .layer_norm = LayerNormLanes, .sum = SumLanes};

}  // namespace celer
