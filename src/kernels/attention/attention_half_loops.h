// The inner loops of attention_half_lanes.h, and the softmax of attention_half_quads.h: eight queries in the
// lanes of a register. In assembly, because compilers place loads in a lump before the products that wait for
// them, and because the accumulators of a whole step must stay in registers while memory is asked for what
// comes later. On Neoverse V1 the products of scores and of values run at 0.9 of the peak from the L1 cache.
//
// Scores and values take addresses of lines of 64 bytes each to prefetch into the L1 cache and into the last
// level; an address that was read already costs next to nothing.
#pragma once

#include "kernels/attention/attention_half.h"

namespace celer {
namespace {

// clang-format off

// An element of eight keys, v0 to v7, times that of eight queries, and loads for later ones between them.
#define CELER_LANE(op, a, b, c, d, e, f, g, h, q, lane, load, fetch) \
  op " v" #a ".8h, v" #q ".8h, v0.h[" #lane "]\n"        \
  op " v" #b ".8h, v" #q ".8h, v1.h[" #lane "]\n"        \
  op " v" #c ".8h, v" #q ".8h, v2.h[" #lane "]\n"        \
  load                                                   \
  op " v" #d ".8h, v" #q ".8h, v3.h[" #lane "]\n"        \
  op " v" #e ".8h, v" #q ".8h, v4.h[" #lane "]\n"        \
  op " v" #f ".8h, v" #q ".8h, v5.h[" #lane "]\n"        \
  fetch                                                  \
  op " v" #g ".8h, v" #q ".8h, v6.h[" #lane "]\n"        \
  op " v" #h ".8h, v" #q ".8h, v7.h[" #lane "]\n"
#define CELER_EVEN(op, q, lane, load, fetch) CELER_LANE(op, 16, 17, 18, 19, 20, 21, 22, 23, q, lane, load, fetch)
#define CELER_ODD(op, q, lane, load, fetch) CELER_LANE(op, 24, 25, 26, 27, 28, 29, 30, 31, q, lane, load, fetch)
// The last products with eight elements of each key, which then make room for the next eight.
#define CELER_ODD_LAST(at, load)                                                        \
  "fmla v24.8h, v11.8h, v0.h[7]\n" "ldr q0, [%[k0], #" #at "]\n"                        \
  "fmla v25.8h, v11.8h, v1.h[7]\n" "ldr q1, [%[k1], #" #at "]\n"                        \
  "fmla v26.8h, v11.8h, v2.h[7]\n" "ldr q2, [%[k2], #" #at "]\n"                        \
  load                                                                                  \
  "fmla v27.8h, v11.8h, v3.h[7]\n" "ldr q3, [%[k3], #" #at "]\n"                        \
  "fmla v28.8h, v11.8h, v4.h[7]\n" "ldr q4, [%[k4], #" #at "]\n"                        \
  "fmla v29.8h, v11.8h, v5.h[7]\n" "ldr q5, [%[k5], #" #at "]\n"                        \
  "fmla v30.8h, v11.8h, v6.h[7]\n" "ldr q6, [%[k6], #" #at "]\n"                        \
  "fmla v31.8h, v11.8h, v7.h[7]\n" "ldr q7, [%[k7], #" #at "]\n"
// Eight elements of all keys; `at` counts bytes of queries, and those of what is prefetched.
#define CELER_SCORES8(first, at, next_q0, last)                                                                \
  CELER_EVEN(first, 8, 0, "ldr q10, [%[q], #" #at "+32]\n", "")                                                \
  CELER_ODD(first, 9, 1, "ldr q11, [%[q], #" #at "+48]\n", "prfm pldl1keep, [%[soon], #" #at "]\n")            \
  CELER_EVEN("fmla", 10, 2, "ldr q8, [%[q], #" #at "+64]\n", "prfm pldl3keep, [%[later], #" #at "]\n")         \
  CELER_ODD("fmla", 11, 3, "ldr q9, [%[q], #" #at "+80]\n", "")                                                \
  CELER_EVEN("fmla", 8, 4, "ldr q10, [%[q], #" #at "+96]\n", "")                                               \
  CELER_ODD("fmla", 9, 5, "ldr q11, [%[q], #" #at "+112]\n", "prfm pldl1keep, [%[soon], #" #at "+64]\n")       \
  CELER_EVEN("fmla", 10, 6, next_q0, "prfm pldl3keep, [%[later], #" #at "+64]\n")                              \
  last
#define CELER_SCORES8_NEXT(first, at, next_at, key_at)                      \
  CELER_SCORES8(first, at, "ldr q8, [%[q], #" #next_at "]\n",               \
                CELER_ODD_LAST(key_at, "ldr q9, [%[q], #" #next_at "+16]\n"))
#define CELER_SCORES8_LAST(at) CELER_SCORES8("fmla", at, "", CELER_ODD("fmla", 11, 7, "", ""))

#define CELER_SUMS4(a, b, c, d, e, f, g, h)      \
  "fadd v" #a ".8h, v" #a ".8h, v" #e ".8h\n"    \
  "fadd v" #b ".8h, v" #b ".8h, v" #f ".8h\n"    \
  "fadd v" #c ".8h, v" #c ".8h, v" #g ".8h\n"    \
  "fadd v" #d ".8h, v" #d ".8h, v" #h ".8h\n"

// scores[key][lane] = the products of eight keys, `stride` bytes apart, with eight queries, q[element][lane], and
// the same for the eight keys behind them, `groups` times. Of each 32 elements the even and the odd ones are summed
// up, then those two, then, if there are 64, the two halves. kFirst: else they are added to what is there.
// Prefetches 16 * kDims bytes each for every group.
template <int kDims, bool kFirst>
CELER_INLINE void ScoresOf8(const __fp16* q, const uint8_t* k, int64_t stride, int64_t groups, __fp16* scores,
                            const uint8_t* soon, const uint8_t* later) {
  const uint8_t *k1 = k + stride, *k2 = k1 + stride, *k3 = k2 + stride, *k4 = k3 + stride, *k5 = k4 + stride,
                *k6 = k5 + stride, *k7 = k6 + stride;
#define CELER_BEGIN                                                                                              \
  "1:\n"                                                                                                         \
  "ldr q0, [%[k0]]\n" "ldr q1, [%[k1]]\n" "ldr q2, [%[k2]]\n" "ldr q3, [%[k3]]\n"                                \
  "ldp q8, q9, [%[q]]\n"                                                                                         \
  "ldr q4, [%[k4]]\n" "ldr q5, [%[k5]]\n" "ldr q6, [%[k6]]\n" "ldr q7, [%[k7]]\n"                                \
  CELER_SCORES8_NEXT("fmul", 0, 128, 16)                                                                         \
  CELER_SCORES8_NEXT("fmla", 128, 256, 32)                                                                       \
  CELER_SCORES8_NEXT("fmla", 256, 384, 48)
#define CELER_PRODUCTS32 CELER_BEGIN CELER_SCORES8_LAST(384) CELER_JOIN
#define CELER_PRODUCTS64                                                                                         \
  CELER_BEGIN                                                                                                    \
  CELER_SCORES8_NEXT("fmla", 384, 512, 64)                                                                       \
  CELER_JOIN CELER_KEEP                                                                                          \
  CELER_SCORES8_NEXT("fmul", 512, 640, 80)                                                                       \
  CELER_SCORES8_NEXT("fmla", 640, 768, 96)                                                                       \
  CELER_SCORES8_NEXT("fmla", 768, 896, 112)                                                                      \
  CELER_SCORES8_LAST(896)                                                                                        \
  CELER_JOIN CELER_ADD
#define CELER_JOIN                                                                                               \
  CELER_SUMS4(16, 17, 18, 19, 24, 25, 26, 27)                                                                    \
  CELER_SUMS4(20, 21, 22, 23, 28, 29, 30, 31)
#define CELER_ADD                                                                                                \
  "ldp q0, q1, [%[s]]\n" "ldp q2, q3, [%[s], #32]\n" "ldp q4, q5, [%[s], #64]\n" "ldp q6, q7, [%[s], #96]\n"     \
  CELER_SUMS4(16, 17, 18, 19, 0, 1, 2, 3) CELER_SUMS4(20, 21, 22, 23, 4, 5, 6, 7)
#define CELER_KEEP                                                                                               \
  "stp q16, q17, [%[s]]\n" "stp q18, q19, [%[s], #32]\n" "stp q20, q21, [%[s], #64]\n"                           \
  "stp q22, q23, [%[s], #96]\n"
#define CELER_STORE                                                                                              \
  CELER_KEEP                                                                                                     \
  "subs %[groups], %[groups], #1\n"                                                                              \
  "add %[k0], %[k0], %[stride], lsl #3\n" "add %[k1], %[k1], %[stride], lsl #3\n"                                \
  "add %[k2], %[k2], %[stride], lsl #3\n" "add %[k3], %[k3], %[stride], lsl #3\n"                                \
  "add %[k4], %[k4], %[stride], lsl #3\n" "add %[k5], %[k5], %[stride], lsl #3\n"                                \
  "add %[k6], %[k6], %[stride], lsl #3\n" "add %[k7], %[k7], %[stride], lsl #3\n"                                \
  "add %[soon], %[soon], %[bytes]\n" "add %[later], %[later], %[bytes]\n"                                        \
  "add %[s], %[s], #128\n"                                                                                       \
  "b.ne 1b\n"
#define CELER_OPERANDS                                                                                           \
  : [k0] "+r"(k), [k1] "+r"(k1), [k2] "+r"(k2), [k3] "+r"(k3), [k4] "+r"(k4), [k5] "+r"(k5), [k6] "+r"(k6),      \
    [k7] "+r"(k7), [s] "+r"(scores), [soon] "+r"(soon), [later] "+r"(later), [groups] "+r"(groups)               \
  : [q] "r"(q), [stride] "r"(stride), [bytes] "i"(16 * kDims)                                                    \
  : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v16", "v17",      \
    "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  static_assert(kDims == 64 ? kFirst : kDims == 32);
  if constexpr (kDims == 64)
    asm volatile(CELER_PRODUCTS64 CELER_STORE CELER_OPERANDS);
  else if constexpr (kFirst)
    asm volatile(CELER_PRODUCTS32 CELER_STORE CELER_OPERANDS);
  else
    asm volatile(CELER_PRODUCTS32 CELER_ADD CELER_STORE CELER_OPERANDS);
#undef CELER_OPERANDS
#undef CELER_STORE
#undef CELER_KEEP
#undef CELER_ADD
#undef CELER_JOIN
#undef CELER_PRODUCTS64
#undef CELER_PRODUCTS32
#undef CELER_BEGIN
}

// Constants of PowersOf that are read anew each time, as a product is added to them in place: eight of each.
struct PowerConstants {
  alignas(16) __fp16 lanes[4][8] = {};
  constexpr PowerConstants(const float (&values)[4]) {
    for (int i = 0; i < 4; ++i)
      for (__fp16& lane : lanes[i]) lane = static_cast<__fp16>(values[i]);
  }
};

// x <- 2^((x - base) * scale) for kVectors x 8 numbers x <= base: about one unit in the last place, right down to the
// smallest number. Adds them to `sum`: four of them in f16, then in f32. `scale` is a power of two, and low that
// many times -25. Reads 64 bytes behind the last x.
//
// With (x - base) * scale = n + r, |r| <= 1/2, the sum with `magic` is rounded to an integer, and n + 25 stays in
// its low bits. 2^r / 1024 is interpolated at the four Chebyshev nodes, off by 1e-4 of itself; times 2^(n + 10),
// which is a normal number for n > -25, it rounds once where the result is subnormal.
//
// The second half of four vectors goes along with the first half of the next four: the core looks ahead by some
// fifty vector instructions, which one chain alone would fill.
template <int kVectors>
CELER_INLINE void PowersOf(__fp16* x, float16x8_t base, float16x8_t low, float16x8_t scale,
                           float32x4_t (&sum)[2]) {
  constexpr __fp16 kMagic = 1024 + 512 + 25;
  constexpr float kUnit = 1.0f / 1024;
  static constexpr PowerConstants kConstants({static_cast<float>(kMagic), 0.24263948f * kUnit, 0.69309489f * kUnit,
                                              0.99998493f * kUnit});
  const float16x8_t magic = vdupq_n_f16(kMagic), c3 = vdupq_n_f16(0.05583843f * kUnit);
  const __fp16* from = x;
  int64_t left = kVectors / 4;
#define CELER_4(X) X(0, 4, 16, 20, 24, 13, 0) X(1, 5, 17, 21, 25, 14, 16) X(2, 6, 18, 22, 26, 15, 32) \
                   X(3, 7, 19, 23, 27, 28, 48)
#define CELER_P0(x, t, e, m, p, u, at) "ldr q" #x ", [%[from], #" #at "]\n" "ldr q" #p ", [%[c], #16]\n"
#define CELER_P1(x, t, e, m, p, u, at)                                                                            \
  "fmla v" #p ".8h, v" #m ".8h, %[c3].8h\n" "fsub v" #x ".8h, v" #x ".8h, %[base].8h\n"
#define CELER_P2(x, t, e, m, p, u, at) "shl v" #e ".8h, v" #t ".8h, #10\n" "ldr q" #u ", [%[c], #32]\n"
#define CELER_P3(x, t, e, m, p, u, at)                                                                            \
  "fmla v" #u ".8h, v" #m ".8h, v" #p ".8h\n" "fmax v" #x ".8h, v" #x ".8h, %[low].8h\n"
#define CELER_P4(x, t, e, m, p, u, at) "ldr q" #t ", [%[c]]\n" "ldr q" #p ", [%[c], #48]\n"
#define CELER_P5(x, t, e, m, p, u, at)                                                                            \
  "fmla v" #p ".8h, v" #m ".8h, v" #u ".8h\n" "fmla v" #t ".8h, v" #x ".8h, %[scale].8h\n"
#define CELER_P6(x, t, e, m, p, u, at)                                                                            \
  "fsub v" #m ".8h, %[magic].8h, v" #t ".8h\n" "fmul v" #p ".8h, v" #p ".8h, v" #e ".8h\n"
#define CELER_P7(x, t, e, m, p, u, at)                                                                            \
  "fmla v" #m ".8h, v" #x ".8h, %[scale].8h\n" "str q" #p ", [%[x], #" #at "]\n"
#define CELER_FIRST(x, t, e, m, p, u, at)                                                                         \
  "ldr q" #x ", [%[from], #" #at "]\n" "ldr q" #t ", [%[c]]\n"                                                    \
  "fsub v" #x ".8h, v" #x ".8h, %[base].8h\n"                                                                     \
  "fmax v" #x ".8h, v" #x ".8h, %[low].8h\n"                                                                      \
  "fmla v" #t ".8h, v" #x ".8h, %[scale].8h\n"                                                                    \
  "fsub v" #m ".8h, %[magic].8h, v" #t ".8h\n"                                                                    \
  "fmla v" #m ".8h, v" #x ".8h, %[scale].8h\n"
  asm volatile(
      CELER_4(CELER_FIRST)
      "1:\n"
      "add %[from], %[from], #64\n"
      CELER_4(CELER_P0) CELER_4(CELER_P1) CELER_4(CELER_P2) CELER_4(CELER_P3)
      CELER_4(CELER_P4) CELER_4(CELER_P5) CELER_4(CELER_P6) CELER_4(CELER_P7)
      "fadd v24.8h, v24.8h, v25.8h\n"
      "fadd v26.8h, v26.8h, v27.8h\n"
      "add %[x], %[x], #64\n"
      "subs %[left], %[left], #1\n"
      "fadd v24.8h, v24.8h, v26.8h\n"
      "fcvtl v25.4s, v24.4h\n"
      "fcvtl2 v26.4s, v24.8h\n"
      "fadd %[s0].4s, %[s0].4s, v25.4s\n"
      "fadd %[s1].4s, %[s1].4s, v26.4s\n"
      "b.ne 1b\n"
      : [x] "+r"(x), [from] "+r"(from), [left] "+r"(left), [s0] "+w"(sum[0]), [s1] "+w"(sum[1])
      : [c] "r"(&kConstants), [base] "w"(base), [low] "w"(low), [scale] "w"(scale), [magic] "w"(magic), [c3] "w"(c3)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v13", "v14", "v15", "v16", "v17", "v18",
        "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28");
#undef CELER_FIRST
#undef CELER_P7
#undef CELER_P6
#undef CELER_P5
#undef CELER_P4
#undef CELER_P3
#undef CELER_P2
#undef CELER_P1
#undef CELER_P0
#undef CELER_4
}

// A segment's share of a step: its values, and what to prefetch meanwhile.
struct ValueSegment {
  const uint8_t *v, *soon, *later;
};

#define CELER_VALUE_LANE(a, b, v0, v1, w, lane)           \
  "fmla v" #a ".8h, v" #v0 ".8h, v" #w ".h[" #lane "]\n"  \
  "fmla v" #b ".8h, v" #v1 ".8h, v" #w ".h[" #lane "]\n"
// One key, the loads for the next one, and what else is to be done meanwhile.
#define CELER_VALUE_KEY(v0, v1, w, n0, n1, nw, fetch, also0, also1, also2) \
  CELER_VALUE_LANE(16, 17, v0, v1, w, 0)                  \
  CELER_VALUE_LANE(18, 19, v0, v1, w, 1)                  \
  "ldr q" #nw ", [%[w]], #16\n"                           \
  CELER_VALUE_LANE(20, 21, v0, v1, w, 2)                  \
  "ldp q" #n0 ", q" #n1 ", [x9]\n"                        \
  also0                                                   \
  CELER_VALUE_LANE(22, 23, v0, v1, w, 3)                  \
  "add x9, x9, %[stride]\n"                               \
  CELER_VALUE_LANE(24, 25, v0, v1, w, 4)                  \
  fetch                                                   \
  CELER_VALUE_LANE(26, 27, v0, v1, w, 5)                  \
  also1                                                   \
  CELER_VALUE_LANE(28, 29, v0, v1, w, 6)                  \
  also2                                                   \
  CELER_VALUE_LANE(30, 31, v0, v1, w, 7)
// Eight sums of before join their total.
#define CELER_JOIN_HALF(sums, at)                                                                \
  "ldp q10, q11, [%[acc], #" #at "]\n" "fcvtl v12.4s, v" #sums ".4h\n",                         \
  "fcvtl2 v13.4s, v" #sums ".8h\n" "fmla v12.4s, v10.4s, v9.4s\n", "fmla v13.4s, v11.4s, v9.4s\n"
#define CELER_JOIN_FIRST "ld1r {v9.4s}, [%[shrink]], #4\n" "ldp q6, q7, [%[sums]], #32\n" CELER_JOIN_HALF(6, 0)
#define CELER_JOIN_SECOND "stp q12, q13, [%[acc]]\n" CELER_JOIN_HALF(7, 32)
#define CELER_VALUE_KEYS(...) CELER_VALUE_KEY(__VA_ARGS__)
#define CELER_ROW_DONE "stp q12, q13, [%[acc], #32]\n" "add %[acc], %[acc], %[row]\n"

// out[query][16 columns] = the sum over all 64 keys of a step of weights[key][query] times 16 columns of its
// value, which begin `column` bytes into the row; rows are `stride` bytes apart. Prefetches begin `ahead` bytes
// behind where the segments say. A fifth segment and 16 bytes behind the weights are read, but not used.
//
// Meanwhile acc = acc * shrink + sums for eight rows of 16 columns, `row` bytes apart: those of the call before.
CELER_INLINE void ValuesOf64(const ValueSegment (&segments)[5], int64_t column, int64_t ahead, int64_t stride,
                             const __fp16* weights, __fp16* out, const __fp16* sums, const float* shrink,
                             float* acc, int64_t row) {
  const ValueSegment* segment = segments;
#define CELER_NEXT_SEGMENT                       \
      "ldp x10, x11, [%[segment], #8]\n"         \
      "ldr x14, [%[segment], #24]\n"             \
      "add %[segment], %[segment], #24\n"        \
      "mov x12, #4\n"                            \
      "add x10, x10, %[ahead]\n"                 \
      "add x11, x11, %[ahead]\n"                 \
      "add x14, x14, %[column]\n"
  asm volatile(
      "movi v16.4s, #0\n" "movi v17.4s, #0\n" "movi v18.4s, #0\n" "movi v19.4s, #0\n"
      "movi v20.4s, #0\n" "movi v21.4s, #0\n" "movi v22.4s, #0\n" "movi v23.4s, #0\n"
      "movi v24.4s, #0\n" "movi v25.4s, #0\n" "movi v26.4s, #0\n" "movi v27.4s, #0\n"
      "movi v28.4s, #0\n" "movi v29.4s, #0\n" "movi v30.4s, #0\n" "movi v31.4s, #0\n"
      "ldr x9, [%[segment]]\n"
      "mov x13, #3\n"
      "add x9, x9, %[column]\n"
      "ldr q2, [%[w]], #16\n"
      "ldp q0, q1, [x9]\n"
      "add x9, x9, %[stride]\n"
      CELER_NEXT_SEGMENT
      "1:\n"
      CELER_VALUE_KEYS(0, 1, 2, 3, 4, 5, "prfm pldl1keep, [x10]\n" "cmp x12, #1\n", CELER_JOIN_FIRST)
      CELER_VALUE_KEYS(3, 4, 5, 0, 1, 2, "prfm pldl1keep, [x10, #64]\n" "add x10, x10, #128\n", CELER_JOIN_SECOND)
      CELER_ROW_DONE
      CELER_VALUE_KEYS(0, 1, 2, 3, 4, 5, "prfm pldl3keep, [x11]\n" "csel x9, x14, x9, eq\n", CELER_JOIN_FIRST)
      CELER_VALUE_KEYS(3, 4, 5, 0, 1, 2, "prfm pldl3keep, [x11, #64]\n" "add x11, x11, #128\n", CELER_JOIN_SECOND)
      CELER_ROW_DONE
      "subs x12, x12, #1\n"
      "b.ne 1b\n"
      "2:\n"
      CELER_NEXT_SEGMENT
      "3:\n"
      CELER_VALUE_KEY(0, 1, 2, 3, 4, 5, "prfm pldl1keep, [x10]\n" "cmp x12, #1\n", "", "", "")
      CELER_VALUE_KEY(3, 4, 5, 0, 1, 2, "prfm pldl1keep, [x10, #64]\n" "add x10, x10, #128\n", "", "", "")
      CELER_VALUE_KEY(0, 1, 2, 3, 4, 5, "prfm pldl3keep, [x11]\n" "csel x9, x14, x9, eq\n", "", "", "")
      CELER_VALUE_KEY(3, 4, 5, 0, 1, 2, "prfm pldl3keep, [x11, #64]\n" "add x11, x11, #128\n", "", "", "")
      "subs x12, x12, #1\n"
      "b.ne 3b\n"
      "subs x13, x13, #1\n"
      "b.ne 2b\n"
      "stp q16, q17, [%[out]]\n" "stp q18, q19, [%[out], #32]\n" "stp q20, q21, [%[out], #64]\n"
      "stp q22, q23, [%[out], #96]\n" "stp q24, q25, [%[out], #128]\n" "stp q26, q27, [%[out], #160]\n"
      "stp q28, q29, [%[out], #192]\n" "stp q30, q31, [%[out], #224]\n"
      : [segment] "+r"(segment), [w] "+r"(weights), [sums] "+r"(sums), [shrink] "+r"(shrink), [acc] "+r"(acc)
      : [column] "r"(column), [ahead] "r"(ahead), [stride] "r"(stride), [out] "r"(out), [row] "r"(row)
      : "memory", "cc", "x9", "x10", "x11", "x12", "x13", "x14", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v9",
        "v10", "v11", "v12", "v13", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29", "v30", "v31");
#undef CELER_NEXT_SEGMENT
}

// clang-format on
#undef CELER_ROW_DONE
#undef CELER_VALUE_KEYS
#undef CELER_JOIN_SECOND
#undef CELER_JOIN_FIRST
#undef CELER_JOIN_HALF
#undef CELER_VALUE_KEY
#undef CELER_VALUE_LANE
#undef CELER_SUMS4
#undef CELER_SCORES8_LAST
#undef CELER_SCORES8_NEXT
#undef CELER_SCORES8
#undef CELER_ODD_LAST
#undef CELER_ODD
#undef CELER_EVEN
#undef CELER_LANE

}  // namespace
}  // namespace celer
