// The inner loops of attention_half_quads.h, in assembly for the reasons of attention_half_loops.h; a
// Neoverse N1, which decodes four instructions per cycle and begins two products, has no room for addresses
// that are computed in between.
#pragma once

#include "kernels/attention/attention_half.h"

namespace celer {
namespace {

// clang-format off

// Eight elements of four keys, k0 to k3, times those of four queries, q0 to q3, and loads of the next ones between them.
#define CELER_QUAD_STEP(op, k0, k1, k2, k3, q0, q1, q2, q3, l0, l1, l2, l3, l4, l5, fetch)       \
  op " v16.8h, v" #q0 ".8h, v" #k0 ".8h\n" l0 op " v17.8h, v" #q1 ".8h, v" #k0 ".8h\n" l1        \
  op " v18.8h, v" #q2 ".8h, v" #k0 ".8h\n" l2 op " v19.8h, v" #q3 ".8h, v" #k0 ".8h\n" l3        \
  op " v20.8h, v" #q0 ".8h, v" #k1 ".8h\n" op " v21.8h, v" #q1 ".8h, v" #k1 ".8h\n" l4           \
  op " v22.8h, v" #q2 ".8h, v" #k1 ".8h\n" op " v23.8h, v" #q3 ".8h, v" #k1 ".8h\n" l5           \
  op " v24.8h, v" #q0 ".8h, v" #k2 ".8h\n" op " v25.8h, v" #q1 ".8h, v" #k2 ".8h\n"              \
  op " v26.8h, v" #q2 ".8h, v" #k2 ".8h\n" op " v27.8h, v" #q3 ".8h, v" #k2 ".8h\n" fetch        \
  op " v28.8h, v" #q0 ".8h, v" #k3 ".8h\n" op " v29.8h, v" #q1 ".8h, v" #k3 ".8h\n"              \
  op " v30.8h, v" #q2 ".8h, v" #k3 ".8h\n" op " v31.8h, v" #q3 ".8h, v" #k3 ".8h\n"
#define CELER_QUAD_FETCH(at) "prfm pldl1keep, [%[soon], #" #at "]\n prfm pldl3keep, [%[later], #" #at "]\n"
// `at` counts steps.
#define CELER_QUAD_EVEN(op, at, next)                                                                        \
  CELER_QUAD_STEP(op, 0, 1, 2, 3, 4, 5, 6, 7,                                                                \
                  "ldp q12, q13, [%[q], #64*" #next "]\n", "ldr q8, [%[k0], #16*" #next "]\n",               \
                  "ldp q14, q15, [%[q], #64*" #next "+32]\n", "ldr q9, [%[k1], #16*" #next "]\n",            \
                  "ldr q10, [%[k2], #16*" #next "]\n", "ldr q11, [%[k3], #16*" #next "]\n", CELER_QUAD_FETCH(64*at))
#define CELER_QUAD_ODD(at, next)                                                                             \
  CELER_QUAD_STEP("fmla", 8, 9, 10, 11, 12, 13, 14, 15,                                                      \
                  "ldp q4, q5, [%[q], #64*" #next "]\n", "ldr q0, [%[k0], #16*" #next "]\n",                 \
                  "ldp q6, q7, [%[q], #64*" #next "+32]\n", "ldr q1, [%[k1], #16*" #next "]\n",              \
                  "ldr q2, [%[k2], #16*" #next "]\n", "ldr q3, [%[k3], #16*" #next "]\n", CELER_QUAD_FETCH(64*at))

// scores[key][query] = the products of 64 elements of four keys, `stride` bytes apart, with four queries,
// q[element / 8][query][element % 8]. kFirst: else they are added to what is there. Of a key and a query those of
// each lane are summed up first, then neighbouring lanes, three times. Prefetches 512 bytes each.
template <bool kFirst>
CELER_INLINE void QuadScores64(const __fp16* q, const uint8_t* k0, int64_t stride, __fp16* scores, const uint8_t* soon,
                               const uint8_t* later) {
  const uint8_t *const k1 = k0 + stride, *const k2 = k1 + stride, *const k3 = k2 + stride;
#define CELER_QUAD_PRODUCTS                                                                                         \
  "ldr q0, [%[k0]]\n ldr q1, [%[k1]]\n ldp q4, q5, [%[q]]\n ldp q6, q7, [%[q], #32]\n"                              \
  "ldr q2, [%[k2]]\n ldr q3, [%[k3]]\n"                                                                             \
  CELER_QUAD_EVEN("fmul", 0, 1) CELER_QUAD_ODD(1, 2) CELER_QUAD_EVEN("fmla", 2, 3) CELER_QUAD_ODD(3, 4)             \
  CELER_QUAD_EVEN("fmla", 4, 5) CELER_QUAD_ODD(5, 6) CELER_QUAD_EVEN("fmla", 6, 7)                                  \
  CELER_QUAD_STEP("fmla", 8, 9, 10, 11, 12, 13, 14, 15, "", "", "", "", "", "", CELER_QUAD_FETCH(448))              \
  "faddp v0.8h, v16.8h, v17.8h\n faddp v1.8h, v18.8h, v19.8h\n faddp v2.8h, v20.8h, v21.8h\n"                       \
  "faddp v3.8h, v22.8h, v23.8h\n faddp v4.8h, v24.8h, v25.8h\n faddp v5.8h, v26.8h, v27.8h\n"                       \
  "faddp v6.8h, v28.8h, v29.8h\n faddp v7.8h, v30.8h, v31.8h\n"                                                     \
  "faddp v0.8h, v0.8h, v1.8h\n faddp v2.8h, v2.8h, v3.8h\n faddp v4.8h, v4.8h, v5.8h\n faddp v6.8h, v6.8h, v7.8h\n" \
  "faddp v0.8h, v0.8h, v2.8h\n faddp v4.8h, v4.8h, v6.8h\n"
#define CELER_QUAD_OPERANDS                                                                                         \
  : : [k0] "r"(k0), [k1] "r"(k1), [k2] "r"(k2), [k3] "r"(k3), [q] "r"(q), [s] "r"(scores), [soon] "r"(soon),        \
      [later] "r"(later)                                                                                            \
  : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", \
    "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  if constexpr (kFirst)
    asm volatile(CELER_QUAD_PRODUCTS "stp q0, q4, [%[s]]\n" CELER_QUAD_OPERANDS);
  else
    asm volatile(CELER_QUAD_PRODUCTS
                 "ldp q1, q5, [%[s]]\n fadd v0.8h, v0.8h, v1.8h\n fadd v4.8h, v4.8h, v5.8h\n stp q0, q4, [%[s]]\n"
                 CELER_QUAD_OPERANDS);
#undef CELER_QUAD_OPERANDS
#undef CELER_QUAD_PRODUCTS
}

#define CELER_QUAD_ROW(r, a, b, c, d, v0, v1, v2, v3, w, lane)                                          \
  "fmla v" #a ".8h, v" #v0 ".8h, v" #w ".h[" #lane "]\n fmla v" #b ".8h, v" #v1 ".8h, v" #w ".h[" #lane "]\n" r \
  "fmla v" #c ".8h, v" #v2 ".8h, v" #w ".h[" #lane "]\n fmla v" #d ".8h, v" #v3 ".8h, v" #w ".h[" #lane "]\n"
// One key, whose weights are four elements of w, and the loads of the next one.
#define CELER_QUAD_KEY(v0, v1, v2, v3, n0, n1, n2, n3, w, l0, l1, l2, l3, also)                          \
  "ldp q" #n0 ", q" #n1 ", [x9]\n"                                                                       \
  CELER_QUAD_ROW("ldp q" #n2 ", q" #n3 ", [x9, #32]\n", 16, 17, 18, 19, v0, v1, v2, v3, w, l0)           \
  CELER_QUAD_ROW("add x9, x9, %[stride]\n", 20, 21, 22, 23, v0, v1, v2, v3, w, l1)                       \
  CELER_QUAD_ROW("prfm pldl1keep, [x10]\n add x10, x10, %[row]\n" also, 24, 25, 26, 27, v0, v1, v2, v3, w, l2) \
  CELER_QUAD_ROW("", 28, 29, 30, 31, v0, v1, v2, v3, w, l3)

// A segment's share of a step: its values, and the rows to prefetch meanwhile.
struct QuadSegment {
  const uint8_t *v, *soon;
};

// out[query][32 columns] = the sum over all 64 keys of a step of weights[key][query] times 32 columns of its value,
// which begin `column` bytes into the row; rows are `stride` bytes apart. Prefetches a line of each of the rows that
// the segments name, `row` bytes apart, `ahead` bytes behind their beginnings. A fifth segment and 16 bytes behind
// the weights are read, but not used.
CELER_INLINE void QuadValues64(const QuadSegment (&segments)[5], int64_t column, int64_t ahead, int64_t stride,
                               int64_t row, const __fp16* weights, __fp16* out) {
  const QuadSegment* segment = segments;
  asm volatile(
      "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n"
      "movi v20.4s, #0\n movi v21.4s, #0\n movi v22.4s, #0\n movi v23.4s, #0\n"
      "movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n"
      "movi v28.4s, #0\n movi v29.4s, #0\n movi v30.4s, #0\n movi v31.4s, #0\n"
      "ldr x9, [%[segment]]\n"
      "mov x13, #4\n"
      "add x9, x9, %[column]\n"
      "ldr q8, [%[w]], #16\n"
      "ldp q0, q1, [x9]\n ldp q2, q3, [x9, #32]\n"
      "add x9, x9, %[stride]\n"
      "1:\n"
      "ldp x10, x14, [%[segment], #8]\n"
      "add %[segment], %[segment], #16\n"
      "mov x12, #4\n"
      "add x10, x10, %[ahead]\n add x14, x14, %[column]\n"
      "2:\n"
      CELER_QUAD_KEY(0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, "ldr q9, [%[w]], #16\n")
      CELER_QUAD_KEY(4, 5, 6, 7, 0, 1, 2, 3, 8, 4, 5, 6, 7, "cmp x12, #1\n")
      CELER_QUAD_KEY(0, 1, 2, 3, 4, 5, 6, 7, 9, 0, 1, 2, 3, "csel x9, x14, x9, eq\n ldr q8, [%[w]], #16\n")
      CELER_QUAD_KEY(4, 5, 6, 7, 0, 1, 2, 3, 9, 4, 5, 6, 7, "")
      "subs x12, x12, #1\n"
      "b.ne 2b\n"
      "subs x13, x13, #1\n"
      "b.ne 1b\n"
      "stp q16, q17, [%[out]]\n stp q18, q19, [%[out], #32]\n stp q20, q21, [%[out], #64]\n"
      "stp q22, q23, [%[out], #96]\n stp q24, q25, [%[out], #128]\n stp q26, q27, [%[out], #160]\n"
      "stp q28, q29, [%[out], #192]\n stp q30, q31, [%[out], #224]\n"
      : [segment] "+r"(segment), [w] "+r"(weights)
      : [column] "r"(column), [ahead] "r"(ahead), [stride] "r"(stride), [row] "r"(row), [out] "r"(out)
      : "memory", "cc", "x9", "x10", "x12", "x13", "x14", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8",
        "v9", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
        "v31");
}

// clang-format on
#undef CELER_QUAD_KEY
#undef CELER_QUAD_ROW
#undef CELER_QUAD_ODD
#undef CELER_QUAD_EVEN
#undef CELER_QUAD_FETCH
#undef CELER_QUAD_STEP

}  // namespace
}  // namespace celer
