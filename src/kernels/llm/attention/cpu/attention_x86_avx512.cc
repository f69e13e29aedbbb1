#include "kernels/llm/attention/cpu/attention_float.h"

namespace celer {

void x86::AttendTileAvx512(const AttentionTile& tile) {
  AttendTileFloat(tile);
}

}  // namespace celer
