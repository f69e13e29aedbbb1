// The micro-kernel over blocks of bytes: two row pairs straight from memory times four token pairs, added to
// `sum`. Part of tile_integer_arm_i8mm.cc. In assembly, because the compilers' schedule takes a third longer.
//
// Measured on Neoverse V1, for 8 rows x 8 tokens x 32 columns: 34 or 39 cycles, by a state of the core that
// lasts for many rounds and that unrelated instructions before them decide (row_triples_i8mm.h).
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

// What a block format has besides values and scales.
enum class Extra { kNone, kMin, kExcess /* values are 8 too large */ };

static_assert(sizeof(XPairBlock) == 96 && offsetof(XPairBlock, sum) == 16 && offsetof(XPairBlock, q) == 32);

// A step of 8 columns. Registers: v16..v23 integer sums, v24, v25 weights, v26, v27 activations.
#define CELER_BYTE_STEP(w, x0, x1, x2, x3) \
  "ldp q24, q25, [%[w], #" #w              \
  "]\n"                                    \
  "ldr q26, [%[x], #" #x0                  \
  "]\n"                                    \
  "smmla v16.4s, v24.16b, v26.16b\n"       \
  "smmla v20.4s, v25.16b, v26.16b\n"       \
  "ldr q27, [%[x], #" #x1                  \
  "]\n"                                    \
  "smmla v17.4s, v24.16b, v27.16b\n"       \
  "smmla v21.4s, v25.16b, v27.16b\n"       \
  "ldr q26, [%[x], #" #x2                  \
  "]\n"                                    \
  "smmla v18.4s, v24.16b, v26.16b\n"       \
  "smmla v22.4s, v25.16b, v26.16b\n"       \
  "ldr q27, [%[x], #" #x3                  \
  "]\n"                                    \
  "smmla v19.4s, v24.16b, v27.16b\n"       \
  "smmla v23.4s, v25.16b, v27.16b\n"

// A block; `scales` loads those of the row pairs to v28 and v29.
#define CELER_BYTE_LOOP(fetch, scales, mins) \
  "1:\n" fetch                               \
  scales                                     \
  "ldr q16, [%[x], #0]\n"                    \
  "ldr q20, [%[x], #0]\n"                    \
  "ldr q17, [%[x], #96]\n"                   \
  "ldr q21, [%[x], #96]\n"                   \
  "ldr q18, [%[x], #192]\n"                  \
  "ldr q22, [%[x], #192]\n"                  \
  "ldr q19, [%[x], #288]\n"                  \
  "ldr q23, [%[x], #288]\n"                  \
  CELER_BYTE_STEP(0, 32, 128, 224, 320)      \
  CELER_BYTE_STEP(64, 48, 144, 240, 336)     \
  CELER_BYTE_STEP(128, 64, 160, 256, 352)    \
  CELER_BYTE_STEP(192, 80, 176, 272, 368)    \
  "ldr q26, [%[x], #0]\n"                    \
  "fsub v16.4s, v16.4s, v26.4s\n"            \
  "fmla %[a0].4s, v16.4s, v28.4s\n"          \
  "fsub v20.4s, v20.4s, v26.4s\n"            \
  "fmla %[a4].4s, v20.4s, v29.4s\n"          \
  "ldr q27, [%[x], #96]\n"                   \
  "fsub v17.4s, v17.4s, v27.4s\n"            \
  "fmla %[a1].4s, v17.4s, v28.4s\n"          \
  "fsub v21.4s, v21.4s, v27.4s\n"            \
  "fmla %[a5].4s, v21.4s, v29.4s\n"          \
  "ldr q26, [%[x], #192]\n"                  \
  "fsub v18.4s, v18.4s, v26.4s\n"            \
  "fmla %[a2].4s, v18.4s, v28.4s\n"          \
  "fsub v22.4s, v22.4s, v26.4s\n"            \
  "fmla %[a6].4s, v22.4s, v29.4s\n"          \
  "ldr q27, [%[x], #288]\n"                  \
  "fsub v19.4s, v19.4s, v27.4s\n"            \
  "fmla %[a3].4s, v19.4s, v28.4s\n"          \
  "fsub v23.4s, v23.4s, v27.4s\n"            \
  "fmla %[a7].4s, v23.4s, v29.4s\n" mins     \
  "add %[w], %[w], %[step]\n"                \
  "add %[s], %[s], %[step]\n"                \
  "add %[x], %[x], #384\n"                   \
  "subs %[n], %[n], #1\n"                    \
  "b.ne 1b\n"

#define CELER_BYTE_HALVES(at)     \
  "ldr d30, [%[s], #" #at         \
  "]\n"                           \
  "fcvtl v30.4s, v30.4h\n"        \
  "zip1 v28.4s, v30.4s, v30.4s\n" \
  "zip2 v29.4s, v30.4s, v30.4s\n"
#define CELER_BYTE_MINS             \
  CELER_BYTE_HALVES(16)             \
  "ldr q26, [%[x], #16]\n"          \
  "fmla %[a0].4s, v28.4s, v26.4s\n" \
  "fmla %[a4].4s, v29.4s, v26.4s\n" \
  "ldr q27, [%[x], #112]\n"         \
  "fmla %[a1].4s, v28.4s, v27.4s\n" \
  "fmla %[a5].4s, v29.4s, v27.4s\n" \
  "ldr q26, [%[x], #208]\n"         \
  "fmla %[a2].4s, v28.4s, v26.4s\n" \
  "fmla %[a6].4s, v29.4s, v26.4s\n" \
  "ldr q27, [%[x], #304]\n"         \
  "fmla %[a3].4s, v28.4s, v27.4s\n" \
  "fmla %[a7].4s, v29.4s, v27.4s\n"
#define CELER_BYTE_FETCH           \
  "prfm pldl2keep, [%[p]]\n"       \
  "prfm pldl2keep, [%[p], #64]\n"  \
  "add %[p], %[p], #128\n"         \
  "prfm pldl1keep, [%[w], #544]\n" \
  "prfm pldl1keep, [%[w], #608]\n" \
  "prfm pldl1keep, [%[w], #672]\n" \
  "prfm pldl1keep, [%[w], #736]\n"
#define CELER_OPERANDS                                                                                         \
  : [a0] "+w"(sum[0][0]), [a1] "+w"(sum[0][1]), [a2] "+w"(sum[0][2]), [a3] "+w"(sum[0][3]),                    \
    [a4] "+w"(sum[1][0]), [a5] "+w"(sum[1][1]), [a6] "+w"(sum[1][2]), [a7] "+w"(sum[1][3]), [w] "+r"(values),  \
    [s] "+r"(header), [x] "+r"(x), [n] "+r"(blocks), [p] "+r"(soon)                                            \
  : [step] "i"(kStep)                                                                                          \
  : "memory", "cc", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
    "v29", "v30"
// clang-format off

// Packed bytes straight from memory: some blocks ahead they are fetched into the L1 cache, and of `soon` 128
// bytes a block into L2.
template <bool kMin>
inline void StreamBytes(const uint8_t* w, const XPairBlock* x, int64_t blocks, int pair, const uint8_t* soon,
                        float32x4_t (&sum)[2][4]) {
  constexpr int64_t kHeader = (kMin ? 4 : 2) * 8, kStep = kHeader + 256;
  const uint8_t *header = w + 4 * pair, *values = w + kHeader + 16 * pair;
  if constexpr (kMin)
    asm volatile(CELER_BYTE_LOOP(CELER_BYTE_FETCH, CELER_BYTE_HALVES(0), CELER_BYTE_MINS) CELER_OPERANDS);
  else
    asm volatile(CELER_BYTE_LOOP(CELER_BYTE_FETCH, CELER_BYTE_HALVES(0), "") CELER_OPERANDS);
}
#undef CELER_OPERANDS
#undef CELER_BYTE_FETCH
#undef CELER_BYTE_MINS
#undef CELER_BYTE_HALVES
#undef CELER_BYTE_LOOP
#undef CELER_BYTE_STEP

// clang-format on

}  // namespace
}  // namespace celer::arm
