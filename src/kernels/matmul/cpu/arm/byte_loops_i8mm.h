// Loops over blocks of bytes, times four token pairs, added to `sum`: two row pairs straight from memory,
// three from the L1 cache. Part of tile_integer_arm_i8mm.cc. In assembly, because compilers order it so that
// it takes a third longer.
//
// Measured on Neoverse V1, for 8 rows x 8 tokens x 32 columns: two row pairs take 34 or 39 cycles, by a state
// of the core that lasts for many rounds and that unrelated instructions before them decide; three row pairs
// take 31, and that state does not touch them. Six vector instructions and loads together begin per cycle, so
// it matters that loads are few and evenly spread.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/matmul/cpu/packed.h"

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

// Unpacked bytes. Registers: v0..v11 sums, v12..v23 integer sums, v24..v26 weights, v27, v28 activations, v29..v31
// scales; v24..v27 in the end what is subtracted.
#define CELER_BYTE_STEP(mm, w01, w2, x0, x1, x2, x3) \
  "ldp q24, q25, [%[w], %[h] + " #w01 "]\n"          \
  "ldr q26, [%[w], %[h] + " #w2 "]\n"                \
  "ldr q27, [%[x], #" #x0 "]\n"                      \
  mm " v12.4s, v24.16b, v27.16b\n"                   \
  mm " v16.4s, v25.16b, v27.16b\n"                   \
  mm " v20.4s, v26.16b, v27.16b\n"                   \
  "ldr q28, [%[x], #" #x1 "]\n"                      \
  mm " v13.4s, v24.16b, v28.16b\n"                   \
  mm " v17.4s, v25.16b, v28.16b\n"                   \
  mm " v21.4s, v26.16b, v28.16b\n"                   \
  "ldr q27, [%[x], #" #x2 "]\n"                      \
  mm " v14.4s, v24.16b, v27.16b\n"                   \
  mm " v18.4s, v25.16b, v27.16b\n"                   \
  mm " v22.4s, v26.16b, v27.16b\n"                   \
  "ldr q28, [%[x], #" #x3 "]\n"                      \
  mm " v15.4s, v24.16b, v28.16b\n"                   \
  mm " v19.4s, v25.16b, v28.16b\n"                   \
  mm " v23.4s, v26.16b, v28.16b\n"
// A token pair's sums: scaled and added, and begun again with the next block's start.
#define CELER_BYTE_SCALE(x, next, i, j, k, a, b, c) \
  "fsub v" #i ".4s, v" #i ".4s, v" #x ".4s\n"       \
  "fsub v" #j ".4s, v" #j ".4s, v" #x ".4s\n"       \
  "fsub v" #k ".4s, v" #k ".4s, v" #x ".4s\n"       \
  "fmla v" #a ".4s, v" #i ".4s, v29.4s\n"           \
  "ldr q" #i ", [%[x], #" #next "]\n"               \
  "fmla v" #b ".4s, v" #j ".4s, v30.4s\n"           \
  "ldr q" #j ", [%[x], #" #next "]\n"               \
  "fmla v" #c ".4s, v" #k ".4s, v31.4s\n"           \
  "ldr q" #k ", [%[x], #" #next "]\n"
#define CELER_BYTE_MIN(x, at, a, b, c)    \
  "ldr q" #x ", [%[x], #" #at "]\n"       \
  "fmla v" #a ".4s, v29.4s, v" #x ".4s\n" \
  "fmla v" #b ".4s, v30.4s, v" #x ".4s\n" \
  "fmla v" #c ".4s, v31.4s, v" #x ".4s\n"
#define CELER_BYTE_MINS             \
  "ldp q29, q30, [%[w], #48]\n"     \
  "ldr q31, [%[w], #80]\n"          \
  CELER_BYTE_MIN(27, 16, 0, 4, 8)   \
  CELER_BYTE_MIN(28, 112, 1, 5, 9)  \
  CELER_BYTE_MIN(27, 208, 2, 6, 10) \
  CELER_BYTE_MIN(28, 304, 3, 7, 11)
#define CELER_BYTE_LOOP(mm, z0, z1, z2, z3, mins)  \
  "ldp q0, q1, [%[sum], #0]\n"                     \
  "ldp q2, q3, [%[sum], #32]\n"                    \
  "ldp q4, q5, [%[sum], #64]\n"                    \
  "ldp q6, q7, [%[sum], #96]\n"                    \
  "ldp q8, q9, [%[sum], #128]\n"                   \
  "ldp q10, q11, [%[sum], #160]\n"                 \
  "ldr q12, [%[x], #0]\n"                          \
  "ldr q16, [%[x], #0]\n"                          \
  "ldr q20, [%[x], #0]\n"                          \
  "ldr q13, [%[x], #96]\n"                         \
  "ldr q17, [%[x], #96]\n"                         \
  "ldr q21, [%[x], #96]\n"                         \
  "ldr q14, [%[x], #192]\n"                        \
  "ldr q18, [%[x], #192]\n"                        \
  "ldr q22, [%[x], #192]\n"                        \
  "ldr q15, [%[x], #288]\n"                        \
  "ldr q19, [%[x], #288]\n"                        \
  "ldr q23, [%[x], #288]\n"                        \
  "1:\n"                                           \
  CELER_BYTE_STEP(mm, 0, 32, 32, 128, 224, 320)    \
  CELER_BYTE_STEP(mm, 48, 80, 48, 144, 240, 336)   \
  CELER_BYTE_STEP(mm, 96, 128, 64, 160, 256, 352)  \
  CELER_BYTE_STEP(mm, 144, 176, 80, 176, 272, 368) \
  "ldr q24, [%[x], #" #z0 "]\n"                    \
  "ldp q29, q30, [%[w]]\n"                         \
  "ldr q31, [%[w], #32]\n"                         \
  "ldr q25, [%[x], #" #z1 "]\n"                    \
  "ldr q26, [%[x], #" #z2 "]\n"                    \
  CELER_BYTE_SCALE(24, 384, 12, 16, 20, 0, 4, 8)   \
  "ldr q27, [%[x], #" #z3 "]\n"                    \
  CELER_BYTE_SCALE(25, 480, 13, 17, 21, 1, 5, 9)   \
  CELER_BYTE_SCALE(26, 576, 14, 18, 22, 2, 6, 10)  \
  CELER_BYTE_SCALE(27, 672, 15, 19, 23, 3, 7, 11)  \
  mins                                             \
  "add %[w], %[w], %[step]\n"                      \
  "prfm pldl1keep, [%[p]]\n"                       \
  "prfm pldl1keep, [%[p], #64]\n"                  \
  "add %[p], %[p], #384\n"                         \
  "add %[x], %[x], #384\n"                         \
  "subs %[n], %[n], #1\n"                          \
  "b.ne 1b\n"                                      \
  "stp q0, q1, [%[sum], #0]\n"                     \
  "stp q2, q3, [%[sum], #32]\n"                    \
  "stp q4, q5, [%[sum], #64]\n"                    \
  "stp q6, q7, [%[sum], #96]\n"                    \
  "stp q8, q9, [%[sum], #128]\n"                   \
  "stp q10, q11, [%[sum], #160]\n"
#define CELER_OPERANDS                                                                                       \
  : [w] "+r"(w), [x] "+r"(x), [n] "+r"(blocks), [p] "+r"(soon)                                               \
  : [sum] "r"(sum), [step] "i"(kStep), [h] "i"(kHeader)                                                      \
  : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",  \
    "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
    "v29", "v30", "v31"

// Three row pairs. A block: scales as floats, each twice, 48 bytes; minima likewise where there are some; values.
// Reads the starts of one block of activations too many. sum[row pair][token pair].
template <bool kUnsigned, Extra kExtra>
inline void UnpackedBytes(const uint8_t* w, const XPairBlock* x, int64_t blocks, const XPairBlock* soon,
                          float32x4_t (*sum)[4]) {
  constexpr int64_t kHeader = kExtra == Extra::kMin ? 96 : 48, kStep = kHeader + 192;
  static_assert(!kUnsigned || kExtra != Extra::kNone);
  if constexpr (kUnsigned && kExtra == Extra::kMin)
    asm volatile(CELER_BYTE_LOOP("usmmla", 0, 96, 192, 288, CELER_BYTE_MINS) CELER_OPERANDS);
  else if constexpr (kUnsigned)
    asm volatile(CELER_BYTE_LOOP("usmmla", 16, 112, 208, 304, "") CELER_OPERANDS);
  else if constexpr (kExtra == Extra::kMin)
    asm volatile(CELER_BYTE_LOOP("smmla", 0, 96, 192, 288, CELER_BYTE_MINS) CELER_OPERANDS);
  else
    asm volatile(CELER_BYTE_LOOP("smmla", 0, 96, 192, 288, "") CELER_OPERANDS);
}

// clang-format on
#undef CELER_OPERANDS
#undef CELER_BYTE_LOOP
#undef CELER_BYTE_MINS
#undef CELER_BYTE_MIN
#undef CELER_BYTE_SCALE
#undef CELER_BYTE_STEP

}  // namespace
}  // namespace celer::arm
