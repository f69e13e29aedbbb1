// One token times nibbles: four row groups at once, each its own stream of memory. Part of
// tile_integer_arm_i8mm.cc.
//
// In assembly, with a schedule that was found by search (docs/notes/products_arm_i8mm.md): random moves of single
// instructions that keep all dependencies, with registers assigned again after each, measured on Neoverse V1
// with the weights in the L2 cache. What waits for a load there waits in the vector queue, and when that is
// full no further load begins. So loads are hoisted far before what uses them, the sums of a group are added
// and scaled long after its last product, and a block's first instructions (CELER_HEAD) run in the middle of
// the block before (software pipelining). For 8 rows x 32 columns of Q4_0 that is 8.9 cycles from L1 and L2
// and 9.9 to 10.1 from memory; the compiler's order takes 12.5 from L1, the best one without loads ahead 9.5,
// 10.0 from L2 and 10.7 from memory. What counts beyond that is the number of instructions: 30 vector
// instructions, 14 loads and 3 prefetches to 8 rows.
//
// Prefetches of Q4_0, whose four blocks are nine lines: every line 14720 bytes ahead into L3, and every third
// one 2048 bytes ahead into L2, which makes the hardware bring what is between. Every one or every second
// one is 3 to 8 % slower, every ninth 18 %; from 2496 bytes on some layouts in memory are 20 % slower. Into
// L1 instead it is 3 % slower: reads in flight from L3 to L1 are few per core.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/byte_loops_i8mm.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

// clang-format off

// The products of a row group (see XPairBlock: the bytes with the high step, 16 * their low nibbles with the low
// one) begin with `start`; what they add up to as floats is multiplied with the scales.
//
// CELER_NIBBLES is block `u` from where the pointers stand, and the head of block `v`, the next one: nothing of it is
// used after the last, and as it only reads activations and the first two of the four streams, what it reads is
// there. p0 to p11 are prefetches, evenly spread.
#define CELER_HEAD \
  "ldr q8, [%[x], #96 * 0]\n" "ldp q9, q10, [%[w0], #16 + 144 * 0]\n" "ldp q12, q11, [%[x], #32 + 96 * 0]\n" \
  "ldr q13, [%[x], #96 * 0]\n" "ldr q14, [%[x], #96 * 0]\n" "usdot v13.4s, v10.16b, v11.16b\n" \
  "shl v10.16b, v10.16b, #4\n" "ldr q15, [%[x], #96 * 0]\n" "usdot v8.4s, v9.16b, v11.16b\n" \
  "ldp q16, q17, [%[w0], #48 + 144 * 0]\n" "shl v9.16b, v9.16b, #4\n" "usdot v8.4s, v9.16b, v12.16b\n" \
  "ldp q18, q9, [%[w1], #16 + 144 * 0]\n" "usdot v15.4s, v16.16b, v11.16b\n" \
  "usdot v13.4s, v10.16b, v12.16b\n" "shl v16.16b, v16.16b, #4\n" "usdot v14.4s, v17.16b, v11.16b\n" \
  "ldp q19, q10, [%[w0], #80 + 144 * 0]\n" "shl v17.16b, v17.16b, #4\n" "usdot v15.4s, v16.16b, v12.16b\n" \
  "ldr q16, [%[x], #96 * 0]\n" "ldr q20, [%[x], #96 * 0]\n" "ldr q21, [%[x], #96 * 0]\n" \
  "usdot v20.4s, v18.16b, v11.16b\n" "ldp q23, q22, [%[x], #64 + 96 * 0]\n" "usdot v8.4s, v19.16b, v22.16b\n" \
  "shl v18.16b, v18.16b, #4\n" "ldp q24, q25, [%[w1], #48 + 144 * 0]\n" "shl v19.16b, v19.16b, #4\n" \
  "usdot v14.4s, v17.16b, v12.16b\n" "usdot v21.4s, v9.16b, v11.16b\n" "usdot v13.4s, v10.16b, v22.16b\n" \
  "ldp q17, q26, [%[w0], #112 + 144 * 0]\n" "shl v10.16b, v10.16b, #4\n" "usdot v20.4s, v18.16b, v12.16b\n" \
  "shl v9.16b, v9.16b, #4\n" "usdot v8.4s, v19.16b, v23.16b\n" "ldr q19, [%[x], #96 * 0]\n" \
  "usdot v21.4s, v9.16b, v12.16b\n" "usdot v13.4s, v10.16b, v23.16b\n"
#define CELER_NIBBLES(u, v, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11) \
  "usdot v15.4s, v17.16b, v22.16b\n" "ldr q10, [%[w0], #144 * " u "]\n" "shl v17.16b, v17.16b, #4\n" \
  "usdot v16.4s, v24.16b, v11.16b\n" "ldp q18, q9, [%[w2], #16 + 144 * " u "]\n" \
  "ldr q27, [%[x], #96 * " u "]\n" "usdot v14.4s, v26.16b, v22.16b\n" p0 "shl v24.16b, v24.16b, #4\n" \
  "usdot v19.4s, v25.16b, v11.16b\n" "shl v25.16b, v25.16b, #4\n" "ldp q29, q28, [%[w1], #80 + 144 * " u "]\n" \
  "faddp v8.4s, v8.4s, v13.4s\n" "shl v26.16b, v26.16b, #4\n" "usdot v16.4s, v24.16b, v12.16b\n" \
  "fcvtl v24.4s, v10.4h\n" "ldr q13, [%[x], #96 * " u "]\n" "fcvtl2 v10.4s, v10.8h\n" \
  "usdot v15.4s, v17.16b, v23.16b\n" "ldr q30, [%[x], #96 * " u "]\n" "usdot v20.4s, v29.16b, v22.16b\n" p1 \
  "usdot v19.4s, v25.16b, v12.16b\n" "usdot v14.4s, v26.16b, v23.16b\n" "usdot v27.4s, v18.16b, v11.16b\n" \
  "shl v18.16b, v18.16b, #4\n" "ldp q26, q25, [%[w2], #48 + 144 * " u "]\n" \
  "ldp q31, q17, [%[w1], #112 + 144 * " u "]\n" "usdot v13.4s, v9.16b, v11.16b\n" \
  "usdot v27.4s, v18.16b, v12.16b\n" "shl v29.16b, v29.16b, #4\n" "usdot v16.4s, v31.16b, v22.16b\n" \
  "ldr q18, [%[x], #96 * " u "]\n" "shl v9.16b, v9.16b, #4\n" "usdot v21.4s, v28.16b, v22.16b\n" p2 \
  "shl v28.16b, v28.16b, #4\n" "usdot v20.4s, v29.16b, v23.16b\n" "usdot v13.4s, v9.16b, v12.16b\n" \
  "ldr q9, [%[w1], #144 * " u "]\n" "fmla %[s0].4s, v8.4s, v24.4s\n" "faddp v15.4s, v15.4s, v14.4s\n" \
  "shl v31.16b, v31.16b, #4\n" "fmla %[s1].4s, v15.4s, v10.4s\n" "usdot v30.4s, v26.16b, v11.16b\n" \
  "ldp q15, q10, [%[w2], #80 + 144 * " u "]\n" "usdot v21.4s, v28.16b, v23.16b\n" \
  "usdot v16.4s, v31.16b, v23.16b\n" "ldp q31, q28, [%[w3], #16 + 144 * " u "]\n" \
  "usdot v18.4s, v25.16b, v11.16b\n" p3 "ldr q24, [%[x], #96 * " u "]\n" "usdot v19.4s, v17.16b, v22.16b\n" \
  "shl v26.16b, v26.16b, #4\n" "shl v25.16b, v25.16b, #4\n" "usdot v27.4s, v15.16b, v22.16b\n" \
  "ldr q29, [%[x], #96 * " u "]\n" "fcvtl v14.4s, v9.4h\n" "faddp v20.4s, v20.4s, v21.4s\n" \
  "usdot v30.4s, v26.16b, v12.16b\n" "shl v17.16b, v17.16b, #4\n" "usdot v19.4s, v17.16b, v23.16b\n" \
  "usdot v24.4s, v31.16b, v11.16b\n" "ldr q26, [%[x], #96 * " u "]\n" p4 "usdot v18.4s, v25.16b, v12.16b\n" \
  "fcvtl2 v9.4s, v9.8h\n" "shl v15.16b, v15.16b, #4\n" "fmla %[s2].4s, v20.4s, v14.4s\n" \
  "ldp q20, q14, [%[w2], #112 + 144 * " u "]\n" "ldp q17, q25, [%[w3], #48 + 144 * " u "]\n" \
  "usdot v13.4s, v10.16b, v22.16b\n" "usdot v26.4s, v28.16b, v11.16b\n" "shl v31.16b, v31.16b, #4\n" \
  "ldr q21, [%[w2], #144 * " u "]\n" "usdot v27.4s, v15.16b, v23.16b\n" "usdot v24.4s, v31.16b, v12.16b\n" \
  "ldr q31, [%[x], #96 * " u "]\n" p5 "shl v10.16b, v10.16b, #4\n" "ldr q8, [%[x], #96 * " v "]\n" \
  "shl v28.16b, v28.16b, #4\n" "faddp v16.4s, v16.4s, v19.4s\n" "usdot v13.4s, v10.16b, v23.16b\n" \
  "usdot v26.4s, v28.16b, v12.16b\n" "fmla %[s3].4s, v16.4s, v9.4s\n" "usdot v29.4s, v17.16b, v11.16b\n" \
  "usdot v30.4s, v20.16b, v22.16b\n" "shl v20.16b, v20.16b, #4\n" "ldp q28, q19, [%[w3], #80 + 144 * " u "]\n" \
  "fcvtl v16.4s, v21.4h\n" "ldp q9, q10, [%[w0], #16 + 144 * " v "]\n" p6 "usdot v31.4s, v25.16b, v11.16b\n" \
  "usdot v18.4s, v14.16b, v22.16b\n" "shl v14.16b, v14.16b, #4\n" "usdot v18.4s, v14.16b, v23.16b\n" \
  "shl v25.16b, v25.16b, #4\n" "shl v17.16b, v17.16b, #4\n" "faddp v27.4s, v27.4s, v13.4s\n" \
  "fcvtl2 v21.4s, v21.8h\n" "usdot v29.4s, v17.16b, v12.16b\n" "usdot v31.4s, v25.16b, v12.16b\n" \
  "ldp q12, q11, [%[x], #32 + 96 * " v "]\n" "ldr q13, [%[x], #96 * " v "]\n" \
  "fmla %[s4].4s, v27.4s, v16.4s\n" p7 "ldp q27, q25, [%[w3], #112 + 144 * " u "]\n" \
  "ldr q14, [%[x], #96 * " v "]\n" "usdot v13.4s, v10.16b, v11.16b\n" "shl v10.16b, v10.16b, #4\n" \
  "ldr q15, [%[x], #96 * " v "]\n" "usdot v24.4s, v28.16b, v22.16b\n" "usdot v8.4s, v9.16b, v11.16b\n" \
  "ldp q16, q17, [%[w0], #48 + 144 * " v "]\n" "shl v28.16b, v28.16b, #4\n" "usdot v26.4s, v19.16b, v22.16b\n" \
  "usdot v24.4s, v28.16b, v23.16b\n" "ldr q28, [%[w3], #144 * " u "]\n" "shl v9.16b, v9.16b, #4\n" p8 \
  "usdot v30.4s, v20.16b, v23.16b\n" "shl v19.16b, v19.16b, #4\n" "faddp v30.4s, v30.4s, v18.4s\n" \
  "usdot v8.4s, v9.16b, v12.16b\n" "ldp q18, q9, [%[w1], #16 + 144 * " v "]\n" \
  "usdot v29.4s, v27.16b, v22.16b\n" "shl v27.16b, v27.16b, #4\n" "usdot v15.4s, v16.16b, v11.16b\n" \
  "usdot v13.4s, v10.16b, v12.16b\n" "usdot v26.4s, v19.16b, v23.16b\n" "shl v16.16b, v16.16b, #4\n" \
  "usdot v14.4s, v17.16b, v11.16b\n" "usdot v31.4s, v25.16b, v22.16b\n" \
  "ldp q19, q10, [%[w0], #80 + 144 * " v "]\n" p9 "shl v25.16b, v25.16b, #4\n" \
  "fmla %[s5].4s, v30.4s, v21.4s\n" "shl v17.16b, v17.16b, #4\n" "usdot v15.4s, v16.16b, v12.16b\n" \
  "usdot v29.4s, v27.16b, v23.16b\n" "ldr q16, [%[x], #96 * " v "]\n" "ldr q20, [%[x], #96 * " v "]\n" \
  "ldr q21, [%[x], #96 * " v "]\n" "fcvtl v27.4s, v28.4h\n" "usdot v31.4s, v25.16b, v23.16b\n" \
  "usdot v20.4s, v18.16b, v11.16b\n" "faddp v24.4s, v24.4s, v26.4s\n" \
  "ldp q23, q22, [%[x], #64 + 96 * " v "]\n" p10 "usdot v8.4s, v19.16b, v22.16b\n" \
  "fmla %[s6].4s, v24.4s, v27.4s\n" "shl v18.16b, v18.16b, #4\n" "ldp q24, q25, [%[w1], #48 + 144 * " v "]\n" \
  "fcvtl2 v28.4s, v28.8h\n" "shl v19.16b, v19.16b, #4\n" "usdot v14.4s, v17.16b, v12.16b\n" \
  "usdot v21.4s, v9.16b, v11.16b\n" "usdot v13.4s, v10.16b, v22.16b\n" \
  "ldp q17, q26, [%[w0], #112 + 144 * " v "]\n" "shl v10.16b, v10.16b, #4\n" \
  "usdot v20.4s, v18.16b, v12.16b\n" "shl v9.16b, v9.16b, #4\n" p11 "usdot v8.4s, v19.16b, v23.16b\n" \
  "ldr q19, [%[x], #96 * " v "]\n" "faddp v29.4s, v29.4s, v31.4s\n" "usdot v21.4s, v9.16b, v12.16b\n" \
  "fmla %[s7].4s, v29.4s, v28.4s\n" "usdot v13.4s, v10.16b, v23.16b\n"
// One of the nine lines of four blocks, far and near ahead.
#define CELER_FAR(stream, line) "prfm pldl3keep, [%[w" #stream "], #14720 + 64 * " #line "]\n"
#define CELER_NEAR(stream, line) "prfm pldl2keep, [%[w" #stream "], #2048 + 64 * " #line "]\n"
#define CELER_ADVANCE(n) \
  "add %[w0], %[w0], #144 * " n "\n" "add %[w1], %[w1], #144 * " n "\n" "add %[w2], %[w2], #144 * " n "\n" \
  "add %[w3], %[w3], #144 * " n "\n" "add %[x], %[x], #96 * " n "\n"
#define CELER_FOUR_NIBBLES \
  CELER_NIBBLES("0", "1", CELER_FAR(0, 0), CELER_NEAR(0, 0), CELER_FAR(1, 0), CELER_NEAR(1, 0), CELER_FAR(2, 0), \
                CELER_NEAR(2, 0), CELER_FAR(3, 0), CELER_NEAR(3, 0), CELER_FAR(0, 1), CELER_FAR(1, 1), \
                CELER_FAR(2, 1), CELER_FAR(3, 1)) \
  CELER_NIBBLES("1", "2", CELER_FAR(0, 2), CELER_FAR(1, 2), CELER_FAR(2, 2), CELER_FAR(3, 2), CELER_FAR(0, 3), \
                CELER_NEAR(0, 3), CELER_FAR(1, 3), CELER_NEAR(1, 3), CELER_FAR(2, 3), CELER_NEAR(2, 3), \
                CELER_FAR(3, 3), CELER_NEAR(3, 3)) \
  CELER_NIBBLES("2", "3", CELER_FAR(0, 4), CELER_FAR(1, 4), CELER_FAR(2, 4), CELER_FAR(3, 4), CELER_FAR(0, 5), \
                CELER_FAR(1, 5), CELER_FAR(2, 5), CELER_FAR(3, 5), CELER_FAR(0, 6), CELER_NEAR(0, 6), \
                CELER_FAR(1, 6), CELER_NEAR(1, 6)) \
  CELER_NIBBLES("3", "4", CELER_FAR(2, 6), CELER_NEAR(2, 6), CELER_FAR(3, 6), CELER_NEAR(3, 6), CELER_FAR(0, 7), \
                CELER_FAR(1, 7), CELER_FAR(2, 7), CELER_FAR(3, 7), CELER_FAR(0, 8), CELER_FAR(1, 8), \
                CELER_FAR(2, 8), CELER_FAR(3, 8))
#define CELER_ONE_NIBBLES \
  CELER_NIBBLES("0", "1", CELER_FAR(0, 0), CELER_FAR(1, 0), CELER_FAR(2, 0), CELER_FAR(3, 0), CELER_FAR(0, 1), \
                CELER_FAR(1, 1), CELER_FAR(2, 1), CELER_FAR(3, 1), CELER_FAR(0, 2), CELER_FAR(1, 2), \
                CELER_FAR(2, 2), CELER_FAR(3, 2))
// The same with minima, each block by itself. Registers: v8..v11 activations, v12..v14 scales, v15 what minima are
// multiplied with, v16..v19 and v20..v23 sums of two groups, v24..v31 weights.
#define CELER_NIBBLES_MIN \
  "ldr q16, [%[x]]\n" "ldr q20, [%[x]]\n" "ldp q28, q29, [%[w1], #32]\n" "ldp q26, q27, [%[w0], #64]\n" \
  "ldp q24, q25, [%[w0], #32]\n" "ldr q15, [%[x], #16]\n" "ldp q8, q9, [%[x], #32]\n" "ldr q17, [%[x]]\n" \
  "ldr q21, [%[x]]\n" "ldp q10, q11, [%[x], #64]\n" "ldr q18, [%[x]]\n" "ldr q23, [%[x]]\n" "ldr q19, [%[x]]\n" \
  "ldp q30, q31, [%[w1], #64]\n" "prfm pldl1keep, [%[w0], #448]\n" "prfm pldl3keep, [%[w0], #6144]\n" \
  "ldr q22, [%[x]]\n" "usdot v20.4s, v28.16b, v9.16b\n" "prfm pldl1keep, [%[w1], #448]\n" \
  "prfm pldl3keep, [%[w1], #6144]\n" "usdot v16.4s, v24.16b, v9.16b\n" "shl v24.16b, v24.16b, #4\n" \
  "usdot v21.4s, v29.16b, v9.16b\n" "shl v28.16b, v28.16b, #4\n" "usdot v18.4s, v26.16b, v9.16b\n" \
  "usdot v17.4s, v25.16b, v9.16b\n" "shl v29.16b, v29.16b, #4\n" "shl v26.16b, v26.16b, #4\n" \
  "usdot v22.4s, v30.16b, v9.16b\n" "usdot v23.4s, v31.16b, v9.16b\n" "shl v25.16b, v25.16b, #4\n" \
  "usdot v17.4s, v25.16b, v8.16b\n" "shl v30.16b, v30.16b, #4\n" "usdot v19.4s, v27.16b, v9.16b\n" \
  "usdot v16.4s, v24.16b, v8.16b\n" "usdot v21.4s, v29.16b, v8.16b\n" "shl v27.16b, v27.16b, #4\n" \
  "usdot v19.4s, v27.16b, v8.16b\n" "shl v31.16b, v31.16b, #4\n" "ldp q24, q25, [%[w0], #96]\n" \
  "usdot v22.4s, v30.16b, v8.16b\n" "usdot v18.4s, v26.16b, v8.16b\n" "usdot v20.4s, v28.16b, v8.16b\n" \
  "ldr q13, [%[w0]]\n" "ldp q26, q27, [%[w0], #128]\n" "usdot v17.4s, v25.16b, v11.16b\n" \
  "usdot v19.4s, v27.16b, v11.16b\n" "usdot v23.4s, v31.16b, v8.16b\n" "shl v25.16b, v25.16b, #4\n" \
  "prfm pldl1keep, [%[w0], #512]\n" "ldp q28, q29, [%[w1], #96]\n" "prfm pldl3keep, [%[w0], #6208]\n" \
  "prfm pldl3keep, [%[w0], #6272]\n" "prfm pldl1keep, [%[w0], #576]\n" "usdot v16.4s, v24.16b, v11.16b\n" \
  "ldp q30, q31, [%[w1], #128]\n" "prfm pldl3keep, [%[w1], #6208]\n" "shl v24.16b, v24.16b, #4\n" \
  "usdot v20.4s, v28.16b, v11.16b\n" "usdot v21.4s, v29.16b, v11.16b\n" "shl v29.16b, v29.16b, #4\n" \
  "usdot v18.4s, v26.16b, v11.16b\n" "shl v28.16b, v28.16b, #4\n" "shl v26.16b, v26.16b, #4\n" \
  "fcvtl v14.4s, v13.4h\n" "usdot v22.4s, v30.16b, v11.16b\n" "shl v30.16b, v30.16b, #4\n" \
  "shl v27.16b, v27.16b, #4\n" "usdot v23.4s, v31.16b, v11.16b\n" "usdot v16.4s, v24.16b, v10.16b\n" \
  "shl v31.16b, v31.16b, #4\n" "usdot v17.4s, v25.16b, v10.16b\n" "usdot v20.4s, v28.16b, v10.16b\n" \
  "usdot v19.4s, v27.16b, v10.16b\n" "fcvtl2 v13.4s, v13.8h\n" "usdot v22.4s, v30.16b, v10.16b\n" \
  "usdot v21.4s, v29.16b, v10.16b\n" "usdot v23.4s, v31.16b, v10.16b\n" "usdot v18.4s, v26.16b, v10.16b\n" \
  "faddp v16.4s, v16.4s, v17.4s\n" "prfm pldl3keep, [%[w2], #6208]\n" "ldp q24, q25, [%[w2], #32]\n" \
  "faddp v18.4s, v18.4s, v19.4s\n" "fmla %[s1].4s, v18.4s, v13.4s\n" "fmla %[s0].4s, v16.4s, v14.4s\n" \
  "ldr q12, [%[w0], #16]\n" "faddp v22.4s, v22.4s, v23.4s\n" "prfm pldl1keep, [%[w1], #512]\n" \
  "fcvtl v13.4s, v12.4h\n" "fmla %[s0].4s, v13.4s, v15.4s\n" "faddp v20.4s, v20.4s, v21.4s\n" \
  "fcvtl2 v12.4s, v12.8h\n" "ldr q13, [%[w1]]\n" "fcvtl v14.4s, v13.4h\n" "fcvtl2 v13.4s, v13.8h\n" \
  "fmla %[s3].4s, v22.4s, v13.4s\n" "fmla %[s1].4s, v12.4s, v15.4s\n" "ldr q18, [%[x]]\n" "ldr q12, [%[w1], #16]\n" \
  "ldr q16, [%[x]]\n" "fcvtl v13.4s, v12.4h\n" "fcvtl2 v12.4s, v12.8h\n" "fmla %[s2].4s, v20.4s, v14.4s\n" \
  "prfm pldl3keep, [%[w1], #6272]\n" "prfm pldl1keep, [%[w1], #576]\n" "ldr q17, [%[x]]\n" \
  "fmla %[s3].4s, v12.4s, v15.4s\n" "ldp q28, q29, [%[w3], #32]\n" "ldp q26, q27, [%[w2], #64]\n" \
  "ldr q20, [%[x]]\n" "prfm pldl3keep, [%[w2], #6144]\n" "ldr q19, [%[x]]\n" "usdot v16.4s, v24.16b, v9.16b\n" \
  "ldr q23, [%[x]]\n" "prfm pldl1keep, [%[w3], #448]\n" "prfm pldl3keep, [%[w3], #6144]\n" "ldr q22, [%[x]]\n" \
  "ldr q21, [%[x]]\n" "ldp q30, q31, [%[w3], #64]\n" "shl v24.16b, v24.16b, #4\n" "usdot v20.4s, v28.16b, v9.16b\n" \
  "shl v28.16b, v28.16b, #4\n" "usdot v18.4s, v26.16b, v9.16b\n" "usdot v17.4s, v25.16b, v9.16b\n" \
  "usdot v21.4s, v29.16b, v9.16b\n" "shl v25.16b, v25.16b, #4\n" "shl v29.16b, v29.16b, #4\n" \
  "shl v26.16b, v26.16b, #4\n" "usdot v22.4s, v30.16b, v9.16b\n" "add %[x], %[x], #96\n" \
  "usdot v17.4s, v25.16b, v8.16b\n" "shl v30.16b, v30.16b, #4\n" "usdot v19.4s, v27.16b, v9.16b\n" \
  "usdot v16.4s, v24.16b, v8.16b\n" "shl v27.16b, v27.16b, #4\n" "usdot v18.4s, v26.16b, v8.16b\n" \
  "usdot v23.4s, v31.16b, v9.16b\n" "usdot v19.4s, v27.16b, v8.16b\n" "shl v31.16b, v31.16b, #4\n" \
  "usdot v22.4s, v30.16b, v8.16b\n" "usdot v20.4s, v28.16b, v8.16b\n" "ldp q24, q25, [%[w2], #96]\n" \
  "ldp q26, q27, [%[w2], #128]\n" "usdot v21.4s, v29.16b, v8.16b\n" "ldp q28, q29, [%[w3], #96]\n" \
  "prfm pldl1keep, [%[w2], #512]\n" "usdot v17.4s, v25.16b, v11.16b\n" "prfm pldl1keep, [%[w3], #512]\n" \
  "prfm pldl3keep, [%[w3], #6208]\n" "prfm pldl3keep, [%[w3], #6272]\n" "usdot v16.4s, v24.16b, v11.16b\n" \
  "usdot v20.4s, v28.16b, v11.16b\n" "shl v24.16b, v24.16b, #4\n" "prfm pldl1keep, [%[w3], #576]\n" \
  "usdot v23.4s, v31.16b, v8.16b\n" "ldr q12, [%[w2], #16]\n" "ldp q30, q31, [%[w3], #128]\n" \
  "usdot v22.4s, v30.16b, v11.16b\n" "shl v25.16b, v25.16b, #4\n" "shl v30.16b, v30.16b, #4\n" \
  "usdot v18.4s, v26.16b, v11.16b\n" "usdot v19.4s, v27.16b, v11.16b\n" "shl v28.16b, v28.16b, #4\n" \
  "usdot v21.4s, v29.16b, v11.16b\n" "usdot v23.4s, v31.16b, v11.16b\n" "shl v29.16b, v29.16b, #4\n" \
  "add %[w1], %[w1], #160\n" "shl v26.16b, v26.16b, #4\n" "fmla %[s2].4s, v13.4s, v15.4s\n" \
  "shl v27.16b, v27.16b, #4\n" "shl v31.16b, v31.16b, #4\n" "usdot v16.4s, v24.16b, v10.16b\n" \
  "usdot v20.4s, v28.16b, v10.16b\n" "usdot v18.4s, v26.16b, v10.16b\n" "usdot v22.4s, v30.16b, v10.16b\n" \
  "usdot v17.4s, v25.16b, v10.16b\n" "ldr q13, [%[w2]]\n" "fcvtl v14.4s, v13.4h\n" \
  "usdot v19.4s, v27.16b, v10.16b\n" "usdot v23.4s, v31.16b, v10.16b\n" "faddp v16.4s, v16.4s, v17.4s\n" \
  "faddp v22.4s, v22.4s, v23.4s\n" "faddp v18.4s, v18.4s, v19.4s\n" "prfm pldl3keep, [%[w2], #6272]\n" \
  "prfm pldl1keep, [%[w2], #448]\n" "fcvtl2 v13.4s, v13.8h\n" "fmla %[s5].4s, v18.4s, v13.4s\n" \
  "prfm pldl1keep, [%[w2], #576]\n" "fcvtl v13.4s, v12.4h\n" "fcvtl2 v12.4s, v12.8h\n" \
  "fmla %[s4].4s, v16.4s, v14.4s\n" "fmla %[s4].4s, v13.4s, v15.4s\n" "ldr q13, [%[w3]]\n" \
  "usdot v21.4s, v29.16b, v10.16b\n" "fmla %[s5].4s, v12.4s, v15.4s\n" "fcvtl v14.4s, v13.4h\n" \
  "faddp v20.4s, v20.4s, v21.4s\n" "fcvtl2 v13.4s, v13.8h\n" "ldr q12, [%[w3], #16]\n" "add %[w3], %[w3], #160\n" \
  "fmla %[s7].4s, v22.4s, v13.4s\n" "fmla %[s6].4s, v20.4s, v14.4s\n" "fcvtl v13.4s, v12.4h\n" \
  "fcvtl2 v12.4s, v12.8h\n" "fmla %[s6].4s, v13.4s, v15.4s\n" "fmla %[s7].4s, v12.4s, v15.4s\n" \
  "add %[w2], %[w2], #160\n" "add %[w0], %[w0], #160\n"

// sum[group][half of the rows]; x is that of a single token.
template <Extra kExtra>
inline void NibbleStreams(const uint8_t* w, int64_t group_bytes, const XPairBlock* x, int64_t blocks,
                          float32x4_t (&sum)[4][2]) {
  static_assert(kExtra != Extra::kNone);
  const uint8_t *w1 = w + group_bytes, *w2 = w1 + group_bytes, *w3 = w2 + group_bytes;
#define CELER_OPERANDS                                                                                            \
  : [s0] "+w"(sum[0][0]), [s1] "+w"(sum[0][1]), [s2] "+w"(sum[1][0]), [s3] "+w"(sum[1][1]),                       \
    [s4] "+w"(sum[2][0]), [s5] "+w"(sum[2][1]), [s6] "+w"(sum[3][0]), [s7] "+w"(sum[3][1]), [w0] "+r"(w),         \
    [w1] "+r"(w1), [w2] "+r"(w2), [w3] "+r"(w3), [x] "+r"(x), [n] "+r"(blocks)                                    \
  :                                                                                                               \
  : "memory", "cc", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",      \
    "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  if constexpr (kExtra == Extra::kMin)
    asm volatile("1:\n" CELER_NIBBLES_MIN "subs %[n], %[n], #1\n" "b.ne 1b\n" CELER_OPERANDS);
  else
    asm volatile(CELER_HEAD "subs %[n], %[n], #4\n" "b.lo 2f\n"
                 ".p2align 6\n" "1:\n" CELER_FOUR_NIBBLES CELER_ADVANCE("4") "subs %[n], %[n], #4\n" "b.hs 1b\n"
                 "2:\n" "adds %[n], %[n], #4\n" "b.eq 4f\n"
                 "3:\n" CELER_ONE_NIBBLES CELER_ADVANCE("1") "subs %[n], %[n], #1\n" "b.ne 3b\n"
                 "4:\n" CELER_OPERANDS);
#undef CELER_OPERANDS
}

// clang-format on
#undef CELER_NIBBLES_MIN
#undef CELER_ONE_NIBBLES
#undef CELER_FOUR_NIBBLES
#undef CELER_ADVANCE
#undef CELER_NEAR
#undef CELER_FAR
#undef CELER_NIBBLES
#undef CELER_HEAD

}  // namespace
}  // namespace celer::arm
