// One token times nibbles: four row groups at once, each its own stream of memory. Part of
// tile_integer_neon.h. In assembly: the compiler's order takes 12.5 cycles for 8 rows x 32 columns on
// Neoverse V1, this one 11.0 from the L1 cache and 11.7 from memory. The end of one group's block is spread
// over the products of the next group, and loads are spread evenly.
//
// Prefetches: every line kStreamAhead (tile_arm.h) ahead into L3, and most of them once more into L1 when
// they are near. With the latter alone it is 13.6 cycles, with none 16.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/matmul/byte_loops_i8mm.h"
#include "kernels/matmul/packed.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
namespace celer::arm {
namespace {

// clang-format off

// Registers: v8..v11 activations, v12 what is subtracted, v13, v14 scales, v15 what minima are multiplied with,
// v16..v19 and v20..v23 integer sums, v24..v27 and v28..v31 weights.
//
// The products of a row group (see XPairBlock: the bytes with the high step, 16 * their low nibbles with the low
// one), and between them what is done for its neighbours: e0.. and `min` end the one before, s0.. begin the next.
#define CELER_NIBBLE_GROUP(w, a, b, c, d, i, j, k, l, e0, e1, e2, e3, e4, e5, e6, e7, e8, min, s0, s1, s2, s3) \
  "ldp q" #i ", q" #j ", [%[" #w "], %[h]]\n"               \
  "ldp q" #k ", q" #l ", [%[" #w "], %[h] + 32]\n"          \
  "prfm pldl3keep, [%[" #w "], #8192]\n"                   \
  "prfm pldl1keep, [%[" #w "], #768]\n"                    \
  e0                                                        \
  "usdot v" #a ".4s, v" #i ".16b, v9.16b\n"                 \
  "shl v" #i ".16b, v" #i ".16b, #4\n"                      \
  e1                                                        \
  "usdot v" #b ".4s, v" #j ".16b, v9.16b\n"                 \
  "shl v" #j ".16b, v" #j ".16b, #4\n"                      \
  e2                                                        \
  "usdot v" #c ".4s, v" #k ".16b, v9.16b\n"                 \
  "shl v" #k ".16b, v" #k ".16b, #4\n"                      \
  e3                                                        \
  "usdot v" #d ".4s, v" #l ".16b, v9.16b\n"                 \
  "shl v" #l ".16b, v" #l ".16b, #4\n"                      \
  e4                                                        \
  "usdot v" #a ".4s, v" #i ".16b, v8.16b\n"                 \
  "usdot v" #b ".4s, v" #j ".16b, v8.16b\n"                 \
  e5                                                        \
  "usdot v" #c ".4s, v" #k ".16b, v8.16b\n"                 \
  "usdot v" #d ".4s, v" #l ".16b, v8.16b\n"                 \
  e6                                                        \
  "ldp q" #i ", q" #j ", [%[" #w "], %[h] + 64]\n"          \
  "ldp q" #k ", q" #l ", [%[" #w "], %[h] + 96]\n"          \
  "prfm pldl3keep, [%[" #w "], #8256]\n"                   \
  "prfm pldl1keep, [%[" #w "], #832]\n"                    \
  "prfm pldl3keep, [%[" #w "], #8320]\n"                   \
  e7                                                        \
  "usdot v" #a ".4s, v" #i ".16b, v11.16b\n"                \
  "shl v" #i ".16b, v" #i ".16b, #4\n"                      \
  e8                                                        \
  "usdot v" #b ".4s, v" #j ".16b, v11.16b\n"                \
  "shl v" #j ".16b, v" #j ".16b, #4\n"                      \
  min s0                                                    \
  "usdot v" #c ".4s, v" #k ".16b, v11.16b\n"                \
  "shl v" #k ".16b, v" #k ".16b, #4\n"                      \
  s1                                                        \
  "usdot v" #d ".4s, v" #l ".16b, v11.16b\n"                \
  "shl v" #l ".16b, v" #l ".16b, #4\n"                      \
  s2                                                        \
  "usdot v" #a ".4s, v" #i ".16b, v10.16b\n"                \
  "usdot v" #b ".4s, v" #j ".16b, v10.16b\n"                \
  s3                                                        \
  "usdot v" #c ".4s, v" #k ".16b, v10.16b\n"                \
  "usdot v" #d ".4s, v" #l ".16b, v10.16b\n"

#define CELER_NO_END "", "", "", "", "", "", "", "", ""
#define CELER_END(w, a, b, c, d, lo, hi)                                                                      \
  "ldr q13, [%[" #w "]]\n", "addp v" #a ".4s, v" #a ".4s, v" #b ".4s\n",                                     \
  "addp v" #c ".4s, v" #c ".4s, v" #d ".4s\n", "fcvtl v14.4s, v13.4h\n", "fcvtl2 v13.4s, v13.8h\n",          \
  "fsub v" #a ".4s, v" #a ".4s, v12.4s\n", "fsub v" #c ".4s, v" #c ".4s, v12.4s\n",                          \
  "fmla %[" #lo "].4s, v" #a ".4s, v14.4s\n", "fmla %[" #hi "].4s, v" #c ".4s, v13.4s\n"
#define CELER_NO_MIN(w, lo, hi) ""
#define CELER_MIN(w, lo, hi)               \
  "ldr q13, [%[" #w "], #16]\n"            \
  "fcvtl v14.4s, v13.4h\n"                 \
  "fcvtl2 v13.4s, v13.8h\n"                \
  "fmla %[" #lo "].4s, v14.4s, v15.4s\n"   \
  "fmla %[" #hi "].4s, v13.4s, v15.4s\n"
#define CELER_BEGIN(a, b, c, d) \
  "ldr q" #a ", [%[x]]\n", "ldr q" #b ", [%[x]]\n", "ldr q" #c ", [%[x]]\n", "ldr q" #d ", [%[x]]\n"
#define CELER_NO_BEGIN "", "", "", ""
// Lets a macro that stands for several arguments be counted as such.
#define CELER_GROUP(...) CELER_NIBBLE_GROUP(__VA_ARGS__)
#define CELER_ALL_OF(a, b, c, d, e, f, g, h, i) a b c d e f g h i
#define CELER_ALL(...) CELER_ALL_OF(__VA_ARGS__)

#define CELER_NIBBLE_LOOP(zero, MIN)                                                                              \
  "1:\n"                                                                                                          \
  "ldp q8, q9, [%[x], #32]\n"                                                                                     \
  "ldp q10, q11, [%[x], #64]\n"                                                                                   \
  zero                                                                                                            \
  "ldr q16, [%[x]]\n"                                                                                             \
  "ldr q17, [%[x]]\n"                                                                                             \
  "ldr q18, [%[x]]\n"                                                                                             \
  "ldr q19, [%[x]]\n"                                                                                             \
  CELER_GROUP(w0, 16, 17, 18, 19, 24, 25, 26, 27, CELER_NO_END, "", CELER_BEGIN(20, 21, 22, 23))                  \
  CELER_GROUP(w1, 20, 21, 22, 23, 28, 29, 30, 31, CELER_END(w0, 16, 17, 18, 19, s0, s1), MIN(w0, s0, s1),         \
              CELER_BEGIN(16, 17, 18, 19))                                                                        \
  CELER_GROUP(w2, 16, 17, 18, 19, 24, 25, 26, 27, CELER_END(w1, 20, 21, 22, 23, s2, s3), MIN(w1, s2, s3),         \
              CELER_BEGIN(20, 21, 22, 23))                                                                        \
  CELER_GROUP(w3, 20, 21, 22, 23, 28, 29, 30, 31, CELER_END(w2, 16, 17, 18, 19, s4, s5), MIN(w2, s4, s5),         \
              CELER_NO_BEGIN)                                                                                     \
  CELER_ALL(CELER_END(w3, 20, 21, 22, 23, s6, s7))                                                                \
  MIN(w3, s6, s7)                                                                                                 \
  "add %[w0], %[w0], %[step]\n"                                                                                   \
  "add %[w1], %[w1], %[step]\n"                                                                                   \
  "add %[w2], %[w2], %[step]\n"                                                                                   \
  "add %[w3], %[w3], %[step]\n"                                                                                   \
  "add %[x], %[x], #96\n"                                                                                         \
  "subs %[n], %[n], #1\n"                                                                                         \
  "b.ne 1b\n"

// sum[group][half of the rows]; x is that of a single token.
template <Extra kExtra>
inline void NibbleStreams(const uint8_t* w, int64_t group_bytes, const XPairBlock* x, int64_t blocks,
                          float32x4_t (&sum)[4][2]) {
  constexpr int kHeader = kExtra == Extra::kMin ? 32 : 16, kStep = kHeader + 128;
  const uint8_t *w1 = w + group_bytes, *w2 = w1 + group_bytes, *w3 = w2 + group_bytes;
#define CELER_OPERANDS                                                                                            \
  : [s0] "+w"(sum[0][0]), [s1] "+w"(sum[0][1]), [s2] "+w"(sum[1][0]), [s3] "+w"(sum[1][1]),                       \
    [s4] "+w"(sum[2][0]), [s5] "+w"(sum[2][1]), [s6] "+w"(sum[3][0]), [s7] "+w"(sum[3][1]), [w0] "+r"(w),         \
    [w1] "+r"(w1), [w2] "+r"(w2), [w3] "+r"(w3), [x] "+r"(x), [n] "+r"(blocks)                                    \
  : [h] "i"(kHeader), [step] "i"(kStep)                                                                           \
  : "memory", "cc", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",      \
    "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  if constexpr (kExtra == Extra::kMin)
    asm volatile(CELER_NIBBLE_LOOP("ld1r {v12.4s}, [%[x]]\n"
                                   "ldr s15, [%[x], #16]\n"
                                   "dup v15.4s, v15.s[0]\n", CELER_MIN) CELER_OPERANDS);
  else
    asm volatile(CELER_NIBBLE_LOOP("ldr s12, [%[x], #16]\n"
                                   "dup v12.4s, v12.s[0]\n", CELER_NO_MIN) CELER_OPERANDS);
#undef CELER_OPERANDS
}

// clang-format on
#undef CELER_NIBBLE_LOOP
#undef CELER_ALL
#undef CELER_ALL_OF
#undef CELER_GROUP
#undef CELER_NO_BEGIN
#undef CELER_BEGIN
#undef CELER_MIN
#undef CELER_NO_MIN
#undef CELER_END
#undef CELER_NO_END
#undef CELER_NIBBLE_GROUP

}  // namespace
}  // namespace celer::arm
#endif
