// The inner loops of attention_half_lanes.h: eight queries in the lanes of a register. In assembly, because
// compilers place loads in a lump before the products that wait for them, and because the accumulators of a
// whole step must stay in registers while memory is asked for what comes later.
//
// Both take addresses of 8 lines of 64 bytes each to prefetch into the L1 cache and into the last level; an
// address that was read already costs next to nothing.
#pragma once

#include "kernels/attention/attention_half.h"

namespace celer {
namespace {

// clang-format off

#define CELER_FMA8(a, b, c, d, e, f, g, h, q, lane)       \
  "fmla v" #a ".8h, v" #q ".8h, v0.h[" #lane "]\n"        \
  "fmla v" #b ".8h, v" #q ".8h, v1.h[" #lane "]\n"        \
  "fmla v" #c ".8h, v" #q ".8h, v2.h[" #lane "]\n"        \
  "fmla v" #d ".8h, v" #q ".8h, v3.h[" #lane "]\n"        \
  "fmla v" #e ".8h, v" #q ".8h, v4.h[" #lane "]\n"        \
  "fmla v" #f ".8h, v" #q ".8h, v5.h[" #lane "]\n"        \
  "fmla v" #g ".8h, v" #q ".8h, v6.h[" #lane "]\n"        \
  "fmla v" #h ".8h, v" #q ".8h, v7.h[" #lane "]\n"
#define CELER_EVEN(q, lane) CELER_FMA8(16, 17, 18, 19, 20, 21, 22, 23, q, lane)
#define CELER_ODD(q, lane) CELER_FMA8(24, 25, 26, 27, 28, 29, 30, 31, q, lane)
// The last products with eight elements of each key, which then make room for the next eight.
#define CELER_ODD_LAST(q, at)                                                           \
  "fmla v24.8h, v" #q ".8h, v0.h[7]\n" "ldr q0, [%[k0], #" #at "]\n"                    \
  "fmla v25.8h, v" #q ".8h, v1.h[7]\n" "ldr q1, [%[k1], #" #at "]\n"                    \
  "fmla v26.8h, v" #q ".8h, v2.h[7]\n" "ldr q2, [%[k2], #" #at "]\n"                    \
  "fmla v27.8h, v" #q ".8h, v3.h[7]\n" "ldr q3, [%[k3], #" #at "]\n"                    \
  "fmla v28.8h, v" #q ".8h, v4.h[7]\n" "ldr q4, [%[k4], #" #at "]\n"                    \
  "fmla v29.8h, v" #q ".8h, v5.h[7]\n" "ldr q5, [%[k5], #" #at "]\n"                    \
  "fmla v30.8h, v" #q ".8h, v6.h[7]\n" "ldr q6, [%[k6], #" #at "]\n"                    \
  "fmla v31.8h, v" #q ".8h, v7.h[7]\n" "ldr q7, [%[k7], #" #at "]\n"
// Eight elements of all keys; `at` counts bytes of queries, `line` those of what is prefetched.
#define CELER_SCORES8(at, line, next_q0, next_q1, last)                                 \
  "ldr q10, [%[q], #" #at "+32]\n"                                                      \
  CELER_EVEN(8, 0)                                                                      \
  "ldr q11, [%[q], #" #at "+48]\n"                                                      \
  "prfm pldl1keep, [%[soon], #" #line "]\n"                                             \
  CELER_ODD(9, 1)                                                                       \
  "ldr q8, [%[q], #" #at "+64]\n"                                                       \
  "prfm pldl3keep, [%[later], #" #line "]\n"                                            \
  CELER_EVEN(10, 2)                                                                     \
  "ldr q9, [%[q], #" #at "+80]\n"                                                       \
  CELER_ODD(11, 3)                                                                      \
  "ldr q10, [%[q], #" #at "+96]\n"                                                      \
  CELER_EVEN(8, 4)                                                                      \
  "ldr q11, [%[q], #" #at "+112]\n"                                                     \
  "prfm pldl1keep, [%[soon], #" #line "+64]\n"                                          \
  CELER_ODD(9, 5)                                                                       \
  next_q0                                                                               \
  "prfm pldl3keep, [%[later], #" #line "+64]\n"                                         \
  CELER_EVEN(10, 6)                                                                     \
  next_q1                                                                               \
  last

constexpr int kScoreDims = 32;

#define CELER_SUMS4(a, b, c, d, e, f, g, h)      \
  "fadd v" #a ".8h, v" #a ".8h, v" #e ".8h\n"    \
  "fadd v" #b ".8h, v" #b ".8h, v" #f ".8h\n"    \
  "fadd v" #c ".8h, v" #c ".8h, v" #g ".8h\n"    \
  "fadd v" #d ".8h, v" #d ".8h, v" #h ".8h\n"

// scores[key][lane] = (or, if not kFirst, +=) the products of kScoreDims elements of eight keys, `stride` bytes
// apart, with the same elements of eight queries, q[element][lane]: sums over even and over odd elements, then
// those two.
template <bool kFirst>
CELER_INLINE void ScoresOf8(const __fp16* q, const uint8_t* k, int64_t stride, __fp16* scores,
                            const uint8_t* soon, const uint8_t* later) {
  const uint8_t *k1 = k + stride, *k2 = k1 + stride, *k3 = k2 + stride, *k4 = k3 + stride, *k5 = k4 + stride,
                *k6 = k5 + stride, *k7 = k6 + stride;
#define CELER_PRODUCTS                                                                                           \
  "ldr q0, [%[k0]]\n" "ldr q1, [%[k1]]\n" "ldr q2, [%[k2]]\n" "ldr q3, [%[k3]]\n"                                \
  "ldp q8, q9, [%[q]]\n"                                                                                         \
  "ldr q4, [%[k4]]\n" "ldr q5, [%[k5]]\n" "ldr q6, [%[k6]]\n" "ldr q7, [%[k7]]\n"                                \
  "movi v16.4s, #0\n" "movi v17.4s, #0\n" "movi v18.4s, #0\n" "movi v19.4s, #0\n"                                \
  "movi v20.4s, #0\n" "movi v21.4s, #0\n" "movi v22.4s, #0\n" "movi v23.4s, #0\n"                                \
  "movi v24.4s, #0\n" "movi v25.4s, #0\n" "movi v26.4s, #0\n" "movi v27.4s, #0\n"                                \
  "movi v28.4s, #0\n" "movi v29.4s, #0\n" "movi v30.4s, #0\n" "movi v31.4s, #0\n"                                \
  CELER_SCORES8(0, 0, "ldr q8, [%[q], #128]\n", "ldr q9, [%[q], #144]\n", CELER_ODD_LAST(11, 16))               \
  CELER_SCORES8(128, 128, "ldr q8, [%[q], #256]\n", "ldr q9, [%[q], #272]\n", CELER_ODD_LAST(11, 32))           \
  CELER_SCORES8(256, 256, "ldr q8, [%[q], #384]\n", "ldr q9, [%[q], #400]\n", CELER_ODD_LAST(11, 48))           \
  CELER_SCORES8(384, 384, "", "", CELER_ODD(11, 7))                                                              \
  CELER_SUMS4(16, 17, 18, 19, 24, 25, 26, 27)                                                                    \
  CELER_SUMS4(20, 21, 22, 23, 28, 29, 30, 31)
#define CELER_STORE                                                                                              \
  "stp q16, q17, [%[s]]\n" "stp q18, q19, [%[s], #32]\n" "stp q20, q21, [%[s], #64]\n"                           \
  "stp q22, q23, [%[s], #96]\n"
#define CELER_OPERANDS                                                                                           \
  :                                                                                                              \
  : [k0] "r"(k), [k1] "r"(k1), [k2] "r"(k2), [k3] "r"(k3), [k4] "r"(k4), [k5] "r"(k5), [k6] "r"(k6),             \
    [k7] "r"(k7), [q] "r"(q), [s] "r"(scores), [soon] "r"(soon), [later] "r"(later)                              \
  : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v16", "v17", "v18",     \
    "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  if constexpr (kFirst)
    asm volatile(CELER_PRODUCTS CELER_STORE CELER_OPERANDS);
  else
    asm volatile(CELER_PRODUCTS
                 "ldp q0, q1, [%[s]]\n" "ldp q2, q3, [%[s], #32]\n" "ldp q4, q5, [%[s], #64]\n"
                 "ldp q6, q7, [%[s], #96]\n"
                 CELER_SUMS4(16, 17, 18, 19, 0, 1, 2, 3) CELER_SUMS4(20, 21, 22, 23, 4, 5, 6, 7)
                 CELER_STORE CELER_OPERANDS);
#undef CELER_OPERANDS
#undef CELER_STORE
#undef CELER_PRODUCTS
}

// A segment's share of a step: its values, and what to prefetch meanwhile.
struct ValueSegment {
  const uint8_t *v, *soon, *later;
};

#define CELER_VALUE_LANE(a, b, v0, v1, w, lane)           \
  "fmla v" #a ".8h, v" #v0 ".8h, v" #w ".h[" #lane "]\n"  \
  "fmla v" #b ".8h, v" #v1 ".8h, v" #w ".h[" #lane "]\n"
// One key, and the loads for the next one.
#define CELER_VALUE_KEY(v0, v1, w, n0, n1, nw, fetch)     \
  CELER_VALUE_LANE(16, 17, v0, v1, w, 0)                  \
  CELER_VALUE_LANE(18, 19, v0, v1, w, 1)                  \
  "ldr q" #nw ", [%[w]], #16\n"                           \
  CELER_VALUE_LANE(20, 21, v0, v1, w, 2)                  \
  "ldp q" #n0 ", q" #n1 ", [x9]\n"                        \
  CELER_VALUE_LANE(22, 23, v0, v1, w, 3)                  \
  "add x9, x9, %[stride]\n"                               \
  CELER_VALUE_LANE(24, 25, v0, v1, w, 4)                  \
  fetch                                                   \
  CELER_VALUE_LANE(26, 27, v0, v1, w, 5)                  \
  CELER_VALUE_LANE(28, 29, v0, v1, w, 6)                  \
  CELER_VALUE_LANE(30, 31, v0, v1, w, 7)

// out[query][16 columns] = the sum over all 64 keys of a step of weights[key][query] times 16 columns of its
// value, which begin `column` bytes into the row; rows are `stride` bytes apart. Prefetches begin `ahead` bytes
// behind where the segments say. A fifth segment and 16 bytes behind the weights are read, but not used.
CELER_INLINE void ValuesOf64(const ValueSegment (&segments)[5], int64_t column, int64_t ahead, int64_t stride,
                             const __fp16* weights, __fp16* out) {
  const ValueSegment* segment = segments;
  asm volatile(
      "movi v16.4s, #0\n" "movi v17.4s, #0\n" "movi v18.4s, #0\n" "movi v19.4s, #0\n"
      "movi v20.4s, #0\n" "movi v21.4s, #0\n" "movi v22.4s, #0\n" "movi v23.4s, #0\n"
      "movi v24.4s, #0\n" "movi v25.4s, #0\n" "movi v26.4s, #0\n" "movi v27.4s, #0\n"
      "movi v28.4s, #0\n" "movi v29.4s, #0\n" "movi v30.4s, #0\n" "movi v31.4s, #0\n"
      "ldr x9, [%[segment]]\n"
      "mov x13, #4\n"
      "add x9, x9, %[column]\n"
      "ldr q2, [%[w]], #16\n"
      "ldp q0, q1, [x9]\n"
      "add x9, x9, %[stride]\n"
      "1:\n"
      "ldp x10, x11, [%[segment], #8]\n"
      "ldr x14, [%[segment], #24]\n"
      "add %[segment], %[segment], #24\n"
      "mov x12, #4\n"
      "add x10, x10, %[ahead]\n"
      "add x11, x11, %[ahead]\n"
      "add x14, x14, %[column]\n"
      "2:\n"
      CELER_VALUE_KEY(0, 1, 2, 3, 4, 5, "prfm pldl1keep, [x10]\n" "cmp x12, #1\n")
      CELER_VALUE_KEY(3, 4, 5, 0, 1, 2, "prfm pldl1keep, [x10, #64]\n" "add x10, x10, #128\n")
      CELER_VALUE_KEY(0, 1, 2, 3, 4, 5, "prfm pldl2keep, [x11]\n" "csel x9, x14, x9, eq\n")
      CELER_VALUE_KEY(3, 4, 5, 0, 1, 2, "prfm pldl2keep, [x11, #64]\n" "add x11, x11, #128\n")
      "subs x12, x12, #1\n"
      "b.ne 2b\n"
      "subs x13, x13, #1\n"
      "b.ne 1b\n"
      "stp q16, q17, [%[out]]\n" "stp q18, q19, [%[out], #32]\n" "stp q20, q21, [%[out], #64]\n"
      "stp q22, q23, [%[out], #96]\n" "stp q24, q25, [%[out], #128]\n" "stp q26, q27, [%[out], #160]\n"
      "stp q28, q29, [%[out], #192]\n" "stp q30, q31, [%[out], #224]\n"
      : [segment] "+r"(segment), [w] "+r"(weights)
      : [column] "r"(column), [ahead] "r"(ahead), [stride] "r"(stride), [out] "r"(out)
      : "memory", "cc", "x9", "x10", "x11", "x12", "x13", "x14", "v0", "v1", "v2", "v3", "v4", "v5", "v16", "v17",
        "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}

// clang-format on
#undef CELER_VALUE_KEY
#undef CELER_VALUE_LANE
#undef CELER_SUMS4
#undef CELER_SCORES8
#undef CELER_ODD_LAST
#undef CELER_ODD
#undef CELER_EVEN
#undef CELER_FMA8

}  // namespace
}  // namespace celer
