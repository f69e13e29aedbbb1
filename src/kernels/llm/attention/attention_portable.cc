// The tile at the width every CPU of this architecture has: NEON on aarch64, four lanes elsewhere.
#include "kernels/llm/attention/cpu/attention_float.h"

namespace celer {

void portable::AttendTile(const AttentionTile& tile) {
  AttendTileFloat(tile);
}

}  // namespace celer
