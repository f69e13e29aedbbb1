// The pieces of a step that pass a pipeline one behind the other, so that its stages work at the same time.
#pragma once

#include <cstdint>
#include <vector>

namespace celer {

// Where the pieces after the first one begin, in tokens. A stage takes as long for `least` tokens as for one, because it
// reads its weights once; beyond that each token counts. So a step is cut where filling and draining the pipeline gains
// more than reading the weights again costs, into at most four pieces for each stage.
std::vector<int32_t> MicroBatchCuts(int64_t tokens, int stages, int64_t least);

}  // namespace celer
