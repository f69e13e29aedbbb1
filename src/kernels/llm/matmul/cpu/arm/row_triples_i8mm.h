// The micro-kernels of three row pairs times four token pairs, block by block, added to `sum`: of nibbles as
// they are packed, or of bytes that were prepared. Part of tile_integer_arm_i8mm.cc. In assembly, because the
// compilers' schedule takes a third longer.
//
// Measured on Neoverse V1, for 8 rows x 8 tokens x 32 columns: two row pairs at a time take 34 or 39 cycles,
// by a state of the core that lasts for many rounds and that unrelated instructions before them decide; three
// take 31, and that state does not touch them. Six vector instructions and loads together begin per cycle, so
// it matters that loads are few and evenly spread.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/byte_loops_i8mm.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

// Three row pairs of packed nibbles: where the values of each begin, and their factors as floats, each twice:
// 48 bytes of scales to a block, and 48 of minima where there are some.
struct RowTriple {
  const uint8_t* values[3];
  const uint8_t* factors;
};

// clang-format off

// Registers: v0..v11 sums, v12..v23 integer sums, v24..v26 weights, v27, v28 activations, v29..v31 scales; v24..v27 in
// the end what is subtracted.
#define CELER_WEIGHTS(at)        \
  "ldr q24, [%[w0], #" #at "]\n" \
  "ldr q25, [%[w1], #" #at "]\n" \
  "ldr q26, [%[w2], #" #at "]\n"
// 8 columns.
#define CELER_STEP(mm, x0, x1, x2, x3) \
  "ldr q27, [%[x], #" #x0 "]\n"        \
  mm " v12.4s, v24.16b, v27.16b\n"     \
  mm " v16.4s, v25.16b, v27.16b\n"     \
  mm " v20.4s, v26.16b, v27.16b\n"     \
  "ldr q28, [%[x], #" #x1 "]\n"        \
  mm " v13.4s, v24.16b, v28.16b\n"     \
  mm " v17.4s, v25.16b, v28.16b\n"     \
  mm " v21.4s, v26.16b, v28.16b\n"     \
  "ldr q27, [%[x], #" #x2 "]\n"        \
  mm " v14.4s, v24.16b, v27.16b\n"     \
  mm " v18.4s, v25.16b, v27.16b\n"     \
  mm " v22.4s, v26.16b, v27.16b\n"     \
  "ldr q28, [%[x], #" #x3 "]\n"        \
  mm " v15.4s, v24.16b, v28.16b\n"     \
  mm " v19.4s, v25.16b, v28.16b\n"     \
  mm " v23.4s, v26.16b, v28.16b\n"
// Of bytes behind their factors.
#define CELER_BYTE_STEP(mm, w01, w2, x0, x1, x2, x3) \
  "ldp q24, q25, [%[s], %[h] + " #w01 "]\n"         \
  "ldr q26, [%[s], %[h] + " #w2 "]\n"               \
  CELER_STEP(mm, x0, x1, x2, x3)
#define CELER_BYTES(mm)                            \
  CELER_BYTE_STEP(mm, 0, 32, 32, 128, 224, 320)    \
  CELER_BYTE_STEP(mm, 48, 80, 48, 144, 240, 336)   \
  CELER_BYTE_STEP(mm, 96, 128, 64, 160, 256, 352)  \
  CELER_BYTE_STEP(mm, 144, 176, 80, 176, 272, 368)
// The bytes themselves meet the high step's activations, sixteen times the low nibbles the low step's (XPairBlock).
#define CELER_LOW_NIBBLES      \
  "shl v24.16b, v24.16b, #4\n" \
  "shl v25.16b, v25.16b, #4\n" \
  "shl v26.16b, v26.16b, #4\n"
#define CELER_NIBBLES                                                                                       \
  CELER_WEIGHTS(0) CELER_STEP("usmmla", 48, 144, 240, 336) CELER_LOW_NIBBLES                                \
  CELER_STEP("usmmla", 32, 128, 224, 320)                                                                   \
  CELER_WEIGHTS(64) CELER_STEP("usmmla", 80, 176, 272, 368) CELER_LOW_NIBBLES                               \
  CELER_STEP("usmmla", 64, 160, 256, 352)                                                                   \
  "add %[w0], %[w0], %[step]\n"                                                                            \
  "add %[w1], %[w1], %[step]\n"                                                                            \
  "add %[w2], %[w2], %[step]\n"
// A token pair's sums: scaled and added, and begun again with the next block's start.
#define CELER_SCALE(x, next, i, j, k, a, b, c) \
  "fsub v" #i ".4s, v" #i ".4s, v" #x ".4s\n"  \
  "fsub v" #j ".4s, v" #j ".4s, v" #x ".4s\n"  \
  "fsub v" #k ".4s, v" #k ".4s, v" #x ".4s\n"  \
  "fmla v" #a ".4s, v" #i ".4s, v29.4s\n"      \
  "ldr q" #i ", [%[x], #" #next "]\n"          \
  "fmla v" #b ".4s, v" #j ".4s, v30.4s\n"      \
  "ldr q" #j ", [%[x], #" #next "]\n"          \
  "fmla v" #c ".4s, v" #k ".4s, v31.4s\n"      \
  "ldr q" #k ", [%[x], #" #next "]\n"
#define CELER_MIN(x, at, a, b, c)         \
  "ldr q" #x ", [%[x], #" #at "]\n"       \
  "fmla v" #a ".4s, v29.4s, v" #x ".4s\n" \
  "fmla v" #b ".4s, v30.4s, v" #x ".4s\n" \
  "fmla v" #c ".4s, v31.4s, v" #x ".4s\n"
#define CELER_MINS              \
  "ldp q29, q30, [%[s], #48]\n" \
  "ldr q31, [%[s], #80]\n"      \
  CELER_MIN(27, 16, 0, 4, 8)    \
  CELER_MIN(28, 112, 1, 5, 9)   \
  CELER_MIN(27, 208, 2, 6, 10)  \
  CELER_MIN(28, 304, 3, 7, 11)
#define CELER_LOOP(products, z0, z1, z2, z3, mins) \
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
  products                                         \
  "ldr q24, [%[x], #" #z0 "]\n"                    \
  "ldp q29, q30, [%[s]]\n"                         \
  "ldr q31, [%[s], #32]\n"                         \
  "ldr q25, [%[x], #" #z1 "]\n"                    \
  "ldr q26, [%[x], #" #z2 "]\n"                    \
  CELER_SCALE(24, 384, 12, 16, 20, 0, 4, 8)        \
  "ldr q27, [%[x], #" #z3 "]\n"                    \
  CELER_SCALE(25, 480, 13, 17, 21, 1, 5, 9)        \
  CELER_SCALE(26, 576, 14, 18, 22, 2, 6, 10)       \
  CELER_SCALE(27, 672, 15, 19, 23, 3, 7, 11)       \
  mins                                             \
  "add %[s], %[s], %[factors]\n"                   \
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
#define CELER_CHANGED                                                                                        \
  "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",    \
    "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
    "v29", "v30", "v31"
#define CELER_NIBBLE_OPERANDS                                                                    \
  : [w0] "+r"(w.values[0]), [w1] "+r"(w.values[1]), [w2] "+r"(w.values[2]), [s] "+r"(w.factors), \
    [x] "+r"(x), [n] "+r"(blocks), [p] "+r"(soon)                                                \
  : [sum] "r"(sum), [step] "i"(kStep), [factors] "i"(kFactors)                                   \
  : CELER_CHANGED
#define CELER_BYTE_OPERANDS                                             \
  : [s] "+r"(w), [x] "+r"(x), [n] "+r"(blocks), [p] "+r"(soon)          \
  : [sum] "r"(sum), [factors] "i"(kFactors + 4 * 48), [h] "i"(kFactors) \
  : CELER_CHANGED

// Of `soon` 128 bytes a block are fetched into the L1 cache, 384 apart. Reads the starts of one block of activations
// too many. sum[row pair][token pair].
template <Extra kExtra>
inline void NibblesTimes(RowTriple w, const XPairBlock* x, int64_t blocks, const XPairBlock* soon,
                         float32x4_t (*sum)[4]) {
  constexpr int64_t kFactors = kExtra == Extra::kMin ? 96 : 48;
  constexpr int64_t kStep = (kExtra == Extra::kMin ? 32 : 16) + 128;
  static_assert(kExtra != Extra::kNone);
  if constexpr (kExtra == Extra::kMin)
    asm volatile(CELER_LOOP(CELER_NIBBLES, 0, 96, 192, 288, CELER_MINS) CELER_NIBBLE_OPERANDS);
  else
    asm volatile(CELER_LOOP(CELER_NIBBLES, 16, 112, 208, 304, "") CELER_NIBBLE_OPERANDS);
}
// Likewise. A block of `w` is factors and bytes, unsigned ones if kUnsigned: 48 to a step of columns, 16 of each pair.
template <bool kUnsigned, Extra kExtra>
inline void BytesTimes(const uint8_t* w, const XPairBlock* x, int64_t blocks, const XPairBlock* soon,
                       float32x4_t (*sum)[4]) {
  constexpr int64_t kFactors = kExtra == Extra::kMin ? 96 : 48;
  if constexpr (kUnsigned && kExtra == Extra::kMin)
    asm volatile(CELER_LOOP(CELER_BYTES("usmmla"), 0, 96, 192, 288, CELER_MINS) CELER_BYTE_OPERANDS);
  else if constexpr (kUnsigned)
    asm volatile(CELER_LOOP(CELER_BYTES("usmmla"), 16, 112, 208, 304, "") CELER_BYTE_OPERANDS);
  else if constexpr (kExtra == Extra::kMin)
    asm volatile(CELER_LOOP(CELER_BYTES("smmla"), 0, 96, 192, 288, CELER_MINS) CELER_BYTE_OPERANDS);
  else
    asm volatile(CELER_LOOP(CELER_BYTES("smmla"), 0, 96, 192, 288, "") CELER_BYTE_OPERANDS);
}

// clang-format on
#undef CELER_BYTE_OPERANDS
#undef CELER_NIBBLE_OPERANDS
#undef CELER_CHANGED
#undef CELER_LOOP
#undef CELER_MINS
#undef CELER_MIN
#undef CELER_SCALE
#undef CELER_NIBBLES
#undef CELER_LOW_NIBBLES
#undef CELER_BYTES
#undef CELER_BYTE_STEP
#undef CELER_STEP
#undef CELER_WEIGHTS

}  // namespace
}  // namespace celer::arm
