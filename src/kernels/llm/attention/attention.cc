#include "kernels/llm/attention/attention.h"

#include "base/check.h"
#include "kernels/llm/attention/cpu/attention_expand.h"
#include "kernels/llm/attention/cpu/attention_flash.h"

namespace celer {
namespace {

template <AttentionTileFn kTile>
void Flash(const AttentionArgs& args) {
  FlashAttention(args, kTile);
}

constexpr Variant<AttentionFn> kAttention[] = {
// best first; the first that can run here wins
#if defined(__aarch64__)
    {"arm_fhm", Isa::kArmFhm, Flash<arm::AttendTileFhm>},
    {"arm_neon", Isa::kNeon, Flash<arm::AttendTileNeon>},
#elif defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, Flash<x86::AttendTileAvx512>},
    {"x86_avx2", Isa::kAvx2, Flash<x86::AttendTileAvx2>},
#endif
    {"portable", Isa::kBaseline, Flash<portable::AttendTile>},
    {"reference", Isa::kBaseline, reference::Attention},
};

}  // namespace

std::span<const Variant<AttentionFn>> AttentionVariants() {
  return kAttention;
}

void Attention(const AttentionArgs& args) {
  static const AttentionFn run = Pick<AttentionFn>("attention", kAttention)->run;
  CELER_CHECK(args.q && args.out && args.pool);
  CELER_CHECK_EQ(args.heads % args.kv.kv_heads, 0);
  if (args.batch.token_count() == 0) return;
  if (NeedsExpansion(args.kv)) return ExpandedAttention(args, run);
  run(args);
}

}  // namespace celer
