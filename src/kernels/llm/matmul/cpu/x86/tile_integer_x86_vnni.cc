#include "kernels/llm/matmul/cpu/x86/many_tokens_x86.h"
#include "kernels/llm/matmul/cpu/x86/tile_x86.h"

namespace celer::x86 {

CELER_X86_DEFINE_TILES(Vnni, AnyTokens)

}  // namespace celer::x86
