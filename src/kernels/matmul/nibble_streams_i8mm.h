// One token times nibbles: four row groups at once, each its own stream of memory. Part of
// tile_integer_neon.h.
//
// In assembly, and in an order that was found by search: random moves of single instructions that keep all
// dependencies, measured on Neoverse V1. For 8 rows x 32 columns of Q4_0 from the L1 cache the compiler's
// order takes 12.5 cycles, one group after the other by hand 9.9, two and two groups in turns 10.0, this
// one 9.3. What counts beyond that is the number of vector instructions, of which about three begin per
// cycle: 30 here.
//
// Prefetches of Q4_0, whose four blocks are nine lines: every line 8 kB ahead into L3, and every second one
// 2304 bytes ahead into L2, which makes the hardware bring what is between. From memory that is 10.7 cycles
// whatever the length of the rows. Into L1 448 bytes ahead, line by line, it is 10.8 with 2048 columns
// and 11.5 with 5632, and more than 11.6 while others use the memory too: reads in flight from L3 to L1 are
// few per core. Into both L1 and L2 it is 11.6 to 12, without either 12.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/matmul/byte_loops_i8mm.h"
#include "kernels/matmul/packed.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
namespace celer::arm {
namespace {

// clang-format off

// The products of a row group (see XPairBlock: the bytes with the high step, 16 * their low nibbles with the low
// one) begin with `start`; what they add up to as floats is multiplied with the scales. Registers: v8..v11
// activations, v12..v15 scales (v15 of the second: what minima are multiplied with), v16..v19 and v20..v23 sums of
// two groups, v24..v31 weights.
// Block `u` from where the pointers stand; p0 to p13 are prefetches, evenly spread.
#define CELER_NIBBLES(u, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13) \
  "ldr q19, [%[x], #96 * " u "]\n" "ldr q18, [%[x], #96 * " u "]\n" "ldr q20, [%[x], #96 * " u "]\n" \
  "ldp q28, q29, [%[w1], #16 + 144 * " u "]\n" "ldp q8, q9, [%[x], #32 + 96 * " u "]\n" \
  "ldr q21, [%[x], #96 * " u "]\n" p0 "ldp q26, q27, [%[w0], #48 + 144 * " u "]\n" \
  "ldr q23, [%[x], #96 * " u "]\n" "usdot v20.4s, v28.16b, v9.16b\n" "ldr q22, [%[x], #96 * " u "]\n" \
  "ldp q30, q31, [%[w1], #48 + 144 * " u "]\n" "ldr q16, [%[x], #96 * " u "]\n" "usdot v19.4s, v27.16b, v9.16b\n" \
  "ldp q24, q25, [%[w0], #16 + 144 * " u "]\n" "shl v28.16b, v28.16b, #4\n" "ldr q17, [%[x], #96 * " u "]\n" \
  "usdot v17.4s, v25.16b, v9.16b\n" p1 "usdot v22.4s, v30.16b, v9.16b\n" "usdot v16.4s, v24.16b, v9.16b\n" \
  "usdot v21.4s, v29.16b, v9.16b\n" "shl v29.16b, v29.16b, #4\n" "usdot v18.4s, v26.16b, v9.16b\n" \
  "shl v27.16b, v27.16b, #4\n" "usdot v23.4s, v31.16b, v9.16b\n" "shl v30.16b, v30.16b, #4\n" \
  "ldp q10, q11, [%[x], #64 + 96 * " u "]\n" "usdot v20.4s, v28.16b, v8.16b\n" "shl v25.16b, v25.16b, #4\n" \
  "usdot v21.4s, v29.16b, v8.16b\n" p2 "usdot v17.4s, v25.16b, v8.16b\n" "shl v26.16b, v26.16b, #4\n" \
  "shl v31.16b, v31.16b, #4\n" "ldp q28, q29, [%[w1], #80 + 144 * " u "]\n" "shl v24.16b, v24.16b, #4\n" \
  "usdot v16.4s, v24.16b, v8.16b\n" "usdot v18.4s, v26.16b, v8.16b\n" "ldp q24, q25, [%[w0], #80 + 144 * " u "]\n" \
  "usdot v22.4s, v30.16b, v8.16b\n" "usdot v19.4s, v27.16b, v8.16b\n" "ldr q15, [%[w1], #144 * " u "]\n" p3 \
  "ldp q26, q27, [%[w0], #112 + 144 * " u "]\n" "usdot v20.4s, v28.16b, v11.16b\n" \
  "usdot v23.4s, v31.16b, v8.16b\n" "usdot v16.4s, v24.16b, v11.16b\n" "shl v28.16b, v28.16b, #4\n" \
  "fcvtl v12.4s, v15.4h\n" "ldp q30, q31, [%[w1], #112 + 144 * " u "]\n" "usdot v22.4s, v30.16b, v11.16b\n" \
  "shl v30.16b, v30.16b, #4\n" "usdot v17.4s, v25.16b, v11.16b\n" "shl v25.16b, v25.16b, #4\n" p4 \
  "usdot v21.4s, v29.16b, v11.16b\n" "usdot v19.4s, v27.16b, v11.16b\n" "usdot v18.4s, v26.16b, v11.16b\n" \
  "shl v26.16b, v26.16b, #4\n" "usdot v23.4s, v31.16b, v11.16b\n" "shl v24.16b, v24.16b, #4\n" \
  "shl v27.16b, v27.16b, #4\n" "usdot v16.4s, v24.16b, v10.16b\n" "usdot v17.4s, v25.16b, v10.16b\n" \
  "usdot v19.4s, v27.16b, v10.16b\n" "shl v31.16b, v31.16b, #4\n" "usdot v18.4s, v26.16b, v10.16b\n" p5 \
  "shl v29.16b, v29.16b, #4\n" "ldp q24, q25, [%[w2], #16 + 144 * " u "]\n" "usdot v22.4s, v30.16b, v10.16b\n" \
  "ldr q13, [%[w0], #144 * " u "]\n" "fcvtl v14.4s, v13.4h\n" "faddp v18.4s, v18.4s, v19.4s\n" \
  "faddp v16.4s, v16.4s, v17.4s\n" "usdot v23.4s, v31.16b, v10.16b\n" "usdot v21.4s, v29.16b, v10.16b\n" \
  "fmla %[s0].4s, v16.4s, v14.4s\n" "fcvtl2 v13.4s, v13.8h\n" p6 "usdot v20.4s, v28.16b, v10.16b\n" \
  "fcvtl2 v15.4s, v15.8h\n" "fmla %[s1].4s, v18.4s, v13.4s\n" "ldr q17, [%[x], #96 * " u "]\n" \
  "faddp v20.4s, v20.4s, v21.4s\n" "ldr q16, [%[x], #96 * " u "]\n" "ldr q18, [%[x], #96 * " u "]\n" \
  "ldr q19, [%[x], #96 * " u "]\n" "usdot v16.4s, v24.16b, v9.16b\n" "fmla %[s2].4s, v20.4s, v12.4s\n" \
  "faddp v22.4s, v22.4s, v23.4s\n" p7 "fmla %[s3].4s, v22.4s, v15.4s\n" \
  "ldp q28, q29, [%[w3], #16 + 144 * " u "]\n" "ldr q22, [%[x], #96 * " u "]\n" "usdot v17.4s, v25.16b, v9.16b\n" \
  "ldr q20, [%[x], #96 * " u "]\n" "ldp q26, q27, [%[w2], #48 + 144 * " u "]\n" "ldr q21, [%[x], #96 * " u "]\n" \
  "shl v24.16b, v24.16b, #4\n" "ldp q30, q31, [%[w3], #48 + 144 * " u "]\n" "usdot v20.4s, v28.16b, v9.16b\n" \
  "shl v25.16b, v25.16b, #4\n" p8 "usdot v18.4s, v26.16b, v9.16b\n" "usdot v21.4s, v29.16b, v9.16b\n" \
  "shl v26.16b, v26.16b, #4\n" "usdot v19.4s, v27.16b, v9.16b\n" "shl v28.16b, v28.16b, #4\n" \
  "usdot v22.4s, v30.16b, v9.16b\n" "ldr q23, [%[x], #96 * " u "]\n" "usdot v23.4s, v31.16b, v9.16b\n" \
  "usdot v16.4s, v24.16b, v8.16b\n" "shl v27.16b, v27.16b, #4\n" "shl v31.16b, v31.16b, #4\n" \
  "shl v29.16b, v29.16b, #4\n" p9 "shl v30.16b, v30.16b, #4\n" "usdot v22.4s, v30.16b, v8.16b\n" \
  "usdot v21.4s, v29.16b, v8.16b\n" "usdot v17.4s, v25.16b, v8.16b\n" "usdot v20.4s, v28.16b, v8.16b\n" \
  "ldp q24, q25, [%[w2], #80 + 144 * " u "]\n" "usdot v19.4s, v27.16b, v8.16b\n" "usdot v18.4s, v26.16b, v8.16b\n" \
  "usdot v23.4s, v31.16b, v8.16b\n" "ldp q28, q29, [%[w3], #80 + 144 * " u "]\n" \
  "usdot v20.4s, v28.16b, v11.16b\n" p10 "ldr q13, [%[w2], #144 * " u "]\n" "usdot v16.4s, v24.16b, v11.16b\n" \
  "ldp q26, q27, [%[w2], #112 + 144 * " u "]\n" "shl v24.16b, v24.16b, #4\n" "shl v28.16b, v28.16b, #4\n" \
  "usdot v21.4s, v29.16b, v11.16b\n" "usdot v18.4s, v26.16b, v11.16b\n" "shl v29.16b, v29.16b, #4\n" \
  "shl v26.16b, v26.16b, #4\n" "ldp q30, q31, [%[w3], #112 + 144 * " u "]\n" "usdot v17.4s, v25.16b, v11.16b\n" \
  p11 "usdot v22.4s, v30.16b, v11.16b\n" "shl v25.16b, v25.16b, #4\n" "usdot v19.4s, v27.16b, v11.16b\n" \
  "shl v30.16b, v30.16b, #4\n" "shl v27.16b, v27.16b, #4\n" "usdot v21.4s, v29.16b, v10.16b\n" \
  "usdot v23.4s, v31.16b, v11.16b\n" "shl v31.16b, v31.16b, #4\n" "usdot v16.4s, v24.16b, v10.16b\n" \
  "usdot v20.4s, v28.16b, v10.16b\n" "ldr q15, [%[w3], #144 * " u "]\n" "usdot v23.4s, v31.16b, v10.16b\n" p12 \
  "usdot v22.4s, v30.16b, v10.16b\n" "usdot v19.4s, v27.16b, v10.16b\n" "fcvtl v12.4s, v15.4h\n" \
  "usdot v18.4s, v26.16b, v10.16b\n" "fcvtl2 v15.4s, v15.8h\n" "usdot v17.4s, v25.16b, v10.16b\n" \
  "faddp v22.4s, v22.4s, v23.4s\n" "faddp v16.4s, v16.4s, v17.4s\n" "faddp v20.4s, v20.4s, v21.4s\n" \
  "faddp v18.4s, v18.4s, v19.4s\n" "fcvtl v14.4s, v13.4h\n" p13 "fcvtl2 v13.4s, v13.8h\n" \
  "fmla %[s7].4s, v22.4s, v15.4s\n" "fmla %[s6].4s, v20.4s, v12.4s\n" "fmla %[s4].4s, v16.4s, v14.4s\n" \
  "fmla %[s5].4s, v18.4s, v13.4s\n"
// One of the nine lines of four blocks, far and near ahead.
#define CELER_FAR(stream, line) "prfm pldl3keep, [%[w" #stream "], #8192 + 64 * " #line "]\n"
#define CELER_NEAR(stream, line) "prfm pldl2keep, [%[w" #stream "], #2304 + 64 * " #line "]\n"
#define CELER_ADVANCE(n) \
  "add %[w0], %[w0], #144 * " n "\n" "add %[w1], %[w1], #144 * " n "\n" "add %[w2], %[w2], #144 * " n "\n" \
  "add %[w3], %[w3], #144 * " n "\n" "add %[x], %[x], #96 * " n "\n"
#define CELER_FOUR_NIBBLES \
  CELER_NIBBLES("0", CELER_FAR(0, 0), CELER_NEAR(0, 0), CELER_FAR(1, 0), CELER_NEAR(1, 0), CELER_FAR(2, 0), \
                CELER_NEAR(2, 0), CELER_FAR(3, 0), CELER_NEAR(3, 0), CELER_FAR(0, 1), CELER_FAR(1, 1), \
                CELER_FAR(2, 1), CELER_FAR(3, 1), CELER_FAR(0, 2), CELER_NEAR(0, 2)) \
  CELER_NIBBLES("1", CELER_FAR(1, 2), CELER_NEAR(1, 2), CELER_FAR(2, 2), CELER_NEAR(2, 2), CELER_FAR(3, 2), \
                CELER_NEAR(3, 2), CELER_FAR(0, 3), CELER_FAR(1, 3), CELER_FAR(2, 3), CELER_FAR(3, 3), \
                CELER_FAR(0, 4), CELER_NEAR(0, 4), CELER_FAR(1, 4), CELER_NEAR(1, 4)) \
  CELER_NIBBLES("2", CELER_FAR(2, 4), CELER_NEAR(2, 4), CELER_FAR(3, 4), CELER_NEAR(3, 4), CELER_FAR(0, 5), \
                CELER_FAR(1, 5), CELER_FAR(2, 5), CELER_FAR(3, 5), CELER_FAR(0, 6), CELER_NEAR(0, 6), \
                CELER_FAR(1, 6), CELER_NEAR(1, 6), CELER_FAR(2, 6), CELER_NEAR(2, 6)) \
  CELER_NIBBLES("3", CELER_FAR(3, 6), CELER_NEAR(3, 6), CELER_FAR(0, 7), CELER_FAR(1, 7), CELER_FAR(2, 7), \
                CELER_FAR(3, 7), CELER_FAR(0, 8), CELER_NEAR(0, 8), CELER_FAR(1, 8), CELER_NEAR(1, 8), \
                CELER_FAR(2, 8), CELER_NEAR(2, 8), CELER_FAR(3, 8), CELER_NEAR(3, 8))
#define CELER_ONE_NIBBLES \
  CELER_NIBBLES("0", CELER_FAR(0, 0), CELER_FAR(1, 0), CELER_FAR(2, 0), CELER_FAR(3, 0), CELER_FAR(0, 1), \
                CELER_FAR(1, 1), CELER_FAR(2, 1), CELER_FAR(3, 1), CELER_FAR(0, 2), CELER_FAR(1, 2), \
                CELER_FAR(2, 2), CELER_FAR(3, 2), "", "")
// The same with minima.
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
    asm volatile("subs %[n], %[n], #4\n" "b.lo 2f\n"
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

}  // namespace
}  // namespace celer::arm
#endif
