#include "kernels/network/rows/rows_lanes.h"

namespace celer {

const RowKernels kRowsX86Avx512 = {.softmax = SoftmaxLanes, .layer_norm = LayerNormLanes, .sum = SumLanes};

}  // namespace celer
