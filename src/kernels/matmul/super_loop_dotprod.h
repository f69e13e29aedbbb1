// The loops over row groups of Q4_K's and Q6_K's super-blocks times one token. Part of
// tile_integer_arm_dotprod.cc. In assembly for the reasons of one_token_dotprod.h: compilers load weights
// right before their use (30 cycles for 32 columns of 8 rows of Q4_K from memory; the vector instructions
// alone take 20 on Neoverse N1, where an mla of integers among dot products costs 1.3 cycles, and setting a
// register to zero nothing).
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/matmul/packed.h"

namespace celer::arm {
namespace {

static_assert(sizeof(XTokenSuper) == 320 && offsetof(XTokenSuper, q) == 0 &&
              offsetof(XTokenSuper, low32) == 256 && offsetof(XTokenSuper, high32) == 264 &&
              offsetof(XTokenSuper, scale) == 304);

// clang-format off

// Registers: v0, v1 sums of dot products times scales, v10, v11 of minima; v2, v3 and v4, v5 dot products of whole bytes
// and of low halves; v8, v9 the token's columns; v14 the sums of its activations; v15 mask; v16..v23 and v24..v31 weights
// of even and odd sub-blocks. A super-block: scales f16[8], minima f16[8], scales int8[8][8] at 32, minima
// uint8[2][8][4] at 96 (of four sub-blocks side by side), values from 160 on.

// Eight columns of eight rows, and then the same weights of the next but one sub-block, at `at` from `from` on.
#define CELER_SUPER_PART(w0, w1, x, low, high, from, at)       \
  "and v6.16b, v" #w0 ".16b, v15.16b\n"                        \
  "and v7.16b, v" #w1 ".16b, v15.16b\n"                        \
  "sdot v2.4s, v" #w0 ".16b, v" #x ".4b[" #high "]\n"          \
  "sdot v3.4s, v" #w1 ".16b, v" #x ".4b[" #high "]\n"          \
  "sdot v4.4s, v6.16b, v" #x ".4b[" #low "]\n"                 \
  "sdot v5.4s, v7.16b, v" #x ".4b[" #low "]\n"                 \
  "ldr q" #w0 ", [%[" #from "], #" #at "]\n"                   \
  "ldr q" #w1 ", [%[" #from "], #" #at "+16]\n"
// Dot products times a sub-block's scales, which are in v12.
#define CELER_SUPER_SCALE(dot0, dot1)                          \
  "sxtl v12.8h, v12.8b\n"                                      \
  "sxtl2 v13.4s, v12.8h\n"                                     \
  "sxtl v12.4s, v12.4h\n"                                      \
  "mla v0.4s, v" #dot0 ".4s, v12.4s\n"                         \
  "mla v1.4s, v" #dot1 ".4s, v13.4s\n"
#define CELER_SUPER_FETCH(at) "prfm pldl1keep, [%[w], #1024+" #at "]\n"
// A sub-block, whose scales stand at `scales`. The next one's columns are at `columns` from `x` on, its start at
// `start`. `mins` uses v12 and v13, which `load` leaves for the next one.
#define CELER_SUPER_SUB(a0, a1, b0, b1, c0, c1, d0, d1, from, at, x, columns, start, scales, mins, load, fetch)      \
  CELER_SUPER_PART(a0, a1, 8, 0, 1, from, at) mins                                                                   \
  CELER_SUPER_FETCH(fetch)                                                                                           \
  CELER_SUPER_PART(b0, b1, 8, 2, 3, from, at+32)                                                                     \
  "ldr q8, [%[" #x "], #" #columns "]\n"                                                                             \
  CELER_SUPER_PART(c0, c1, 9, 0, 1, from, at+64)                                                                     \
  CELER_SUPER_FETCH(64+fetch)                                                                                        \
  "ldr d12, [%[w], #" #scales "]\n"                                                                                  \
  CELER_SUPER_PART(d0, d1, 9, 2, 3, from, at+96)                                                                     \
  "ldr q9, [%[" #x "], #" #columns "+16]\n"                                                                          \
  "shl v4.4s, v4.4s, #4\n shl v5.4s, v5.4s, #4\n"                                                                    \
  "add v2.4s, v2.4s, v4.4s\n add v3.4s, v3.4s, v5.4s\n"                                                              \
  "movi v4.4s, #0\n movi v5.4s, #0\n"                                                                                \
  CELER_SUPER_SCALE(2, 3)                                                                                            \
  "ldr q2, [%[" #x "], #" #start "]\n ldr q3, [%[" #x "], #" #start "]\n" load
#define CELER_SUPER_EVEN(from, at, columns, start, scales, mins, load, fetch)                                        \
  CELER_SUPER_SUB(16, 17, 18, 19, 20, 21, 22, 23, from, at, x, columns, start, scales, mins, load, fetch)
#define CELER_SUPER_ODD(from, at, x, columns, start, scales, mins, load, fetch)                                      \
  CELER_SUPER_SUB(24, 25, 26, 27, 28, 29, 30, 31, from, at, x, columns, start, scales, mins, load, fetch)
// Minima of four sub-blocks times element `lane` of the sums of activations: two low ones, then two high ones.
#define CELER_SUPER_LOAD_MINS(at) "ldp q12, q13, [%[w], #" #at "]\n"
#define CELER_SUPER_MINS(lane)                     \
  "sdot v10.4s, v12.16b, v14.4b[" #lane "]\n"      \
  "sdot v11.4s, v13.16b, v14.4b[" #lane "]\n"
#define CELER_SUPER_TIMES_64 "shl v10.4s, v10.4s, #6\n shl v11.4s, v11.4s, #6\n"
// Integers to floats, divided by 2^bits, and the scales at `at` to `scale0` and `scale1`.
#define CELER_SUPER_FLOATS(int0, int1, scale0, scale1, at, bits)          \
  "ldr q" #scale0 ", [%[w], #" #at "]\n"                                  \
  "fcvtl2 v" #scale1 ".4s, v" #scale0 ".8h\n"                             \
  "fcvtl v" #scale0 ".4s, v" #scale0 ".4h\n"                              \
  "scvtf v" #int0 ".4s, v" #int0 ".4s" bits "\n"                          \
  "scvtf v" #int1 ".4s, v" #int1 ".4s" bits "\n"

// Row groups, and in each of them super-blocks of `bytes` bytes. v0, v1 are zero at the beginning of a group. After the
// last one its weights are read again.
#define CELER_SUPER_BEGIN(bytes, x_bytes)             \
  "0:\n"                                              \
  "stp q0, q1, [%[out]]\n"                            \
  "mov %[left], %[supers]\n"                          \
  "1:\n"                                              \
  "add %[next_x], %[x], #" #x_bytes "\n"              \
  "add %[next_w], %[w], #" #bytes "\n"                \
  "add %[next_group], %[next_w], %[gap]\n"            \
  "cmp %[groups], #1\n"                               \
  "csel %[next_group], %[w], %[next_group], eq\n"     \
  "subs %[left], %[left], #1\n"                       \
  "csel %[next_x], %[first_x], %[next_x], eq\n"       \
  "csel %[next_w], %[next_group], %[next_w], eq\n"
// v12, v13 times the token's scale, element 0 of v14, added to the sums; v0, v1 back to zero.
#define CELER_SUPER_END                                                              \
  "ldp q6, q7, [%[out]]\n"                                                           \
  "fmla v6.4s, v12.4s, v14.s[0]\n fmla v7.4s, v13.4s, v14.s[0]\n"                    \
  "stp q6, q7, [%[out]]\n"                                                           \
  "movi v0.4s, #0\n movi v1.4s, #0\n"                                                \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                      \
  "cbnz %[left], 1b\n"                                                               \
  "add %[out], %[out], #32\n"                                                        \
  "subs %[groups], %[groups], #1\n"                                                  \
  "b.ne 0b\n"
#define CELER_SUPER_OPERANDS                                                                                        \
  : [w] "+&r"(w), [x] "+&r"(x), [groups] "+&r"(groups), [out] "+&r"(out), [next_x] "=&r"(next_x),                   \
    [next_w] "=&r"(next_w), [next_group] "=&r"(next_group), [left] "=&r"(left)                                      \
  : [first_x] "r"(x), [supers] "r"(supers), [gap] "r"(gap)                                                          \
  : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",  \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
    "v31"

// `groups` row groups of `supers` super-blocks, `gap` bytes between groups, to out[8 * groups]. The token is alone in its
// unit.
inline void NibbleSupers(const uint8_t* w, const XTokenNibbleSuper* x, int64_t supers, int64_t groups, int64_t gap,
                         float* out) {
  const XTokenNibbleSuper* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  asm volatile(
      "movi v15.16b, #15\n"
      "ldp q16, q17, [%[w], #160]\n ldp q18, q19, [%[w], #192]\n ldp q20, q21, [%[w], #224]\n ldp q22, q23, [%[w], #256]\n"
      "ldp q24, q25, [%[w], #288]\n ldp q26, q27, [%[w], #320]\n ldp q28, q29, [%[w], #352]\n ldp q30, q31, [%[w], #384]\n"
      "ldp q8, q9, [%[x]]\n ldr q2, [%[x], #320]\n ldr q3, [%[x], #320]\n"
      "movi v0.4s, #0\n movi v1.4s, #0\n movi v4.4s, #0\n movi v5.4s, #0\n movi v10.4s, #0\n movi v11.4s, #0\n"
      CELER_SUPER_BEGIN(1184, 448)
      "ldr q14, [%[x], #256]\n"
      CELER_SUPER_EVEN(w, 416, 32, 336, 32, "", CELER_SUPER_LOAD_MINS(96), 0)
      CELER_SUPER_ODD(w, 544, x, 64, 352, 40, CELER_SUPER_MINS(2), CELER_SUPER_LOAD_MINS(128), 128)
      CELER_SUPER_EVEN(w, 672, 96, 368, 48, CELER_SUPER_MINS(3) CELER_SUPER_TIMES_64, CELER_SUPER_LOAD_MINS(96), 256)
      CELER_SUPER_ODD(w, 800, x, 128, 384, 56, CELER_SUPER_MINS(0), CELER_SUPER_LOAD_MINS(128), 384)
      CELER_SUPER_EVEN(w, 928, 160, 400, 64, CELER_SUPER_MINS(1), "", 512)
      CELER_SUPER_ODD(w, 1056, x, 192, 416, 72, "", "", 640)
      CELER_SUPER_EVEN(next_w, 160, 224, 432, 80, "", "", 768)
      CELER_SUPER_ODD(next_w, 288, next_x, 0, 320, 88, "", "", 896)
      CELER_SUPER_FETCH(1024) CELER_SUPER_FETCH(1088) CELER_SUPER_FETCH(1152)
      "ldr s14, [%[x], #304]\n"
      CELER_SUPER_FLOATS(0, 1, 12, 13, 0, ", #4")
      CELER_SUPER_FLOATS(10, 11, 6, 7, 16, "")
      "fmul v12.4s, v0.4s, v12.4s\n fmul v13.4s, v1.4s, v13.4s\n"
      "fmls v12.4s, v10.4s, v6.4s\n fmls v13.4s, v11.4s, v7.4s\n"
      "movi v10.4s, #0\n movi v11.4s, #0\n"
      CELER_SUPER_END
      CELER_SUPER_OPERANDS);
}

// Q6_K: registers as above, but v2, v3 and v4, v5 are for even and odd sub-blocks, v6, v7, v10, v11 for unpacking, v8 and v9 columns and v16..v21 and v22..v27 weights of
// even and odd sub-blocks, which have 16 columns: p0..p2 (one for each half of the rows) hold those of three steps in
// their upper six bits and the fourth's in what is left. A super-block: scales f16[8], scales int8[16][8] at 16, values
// from 144 on. The weights of the next but one sub-block are at `at` from `from` on, its columns at `columns` from `x`.
#define CELER_SIX_SUB(dot0, dot1, p0, q0, p1, q1, p2, q2, c, from, at, x, columns, scales, fetch)    \
  "shl v6.16b, v" #p2 ".16b, #2\n shl v7.16b, v" #q2 ".16b, #2\n"                                    \
  "and v10.16b, v" #p0 ".16b, v15.16b\n and v11.16b, v" #q0 ".16b, v15.16b\n"                       \
  "sli v6.16b, v" #p1 ".16b, #4\n sli v7.16b, v" #q1 ".16b, #4\n"                                    \
  "sdot v" #dot0 ".4s, v10.16b, v" #c ".4b[0]\n sdot v" #dot1 ".4s, v11.16b, v" #c ".4b[0]\n"       \
  "and v" #p1 ".16b, v" #p1 ".16b, v15.16b\n and v" #q1 ".16b, v" #q1 ".16b, v15.16b\n"             \
  "sli v6.16b, v" #p0 ".16b, #6\n sli v7.16b, v" #q0 ".16b, #6\n"                                    \
  "ldr q" #p0 ", [%[" #from "], #" #at "]\n ldr q" #q0 ", [%[" #from "], #" #at "+16]\n"            \
  "sdot v" #dot0 ".4s, v" #p1 ".16b, v" #c ".4b[1]\n sdot v" #dot1 ".4s, v" #q1 ".16b, v" #c ".4b[1]\n" \
  "and v" #p2 ".16b, v" #p2 ".16b, v15.16b\n and v" #q2 ".16b, v" #q2 ".16b, v15.16b\n"             \
  "ldr q" #p1 ", [%[" #from "], #" #at "+32]\n ldr q" #q1 ", [%[" #from "], #" #at "+48]\n" fetch   \
  "sdot v" #dot0 ".4s, v" #p2 ".16b, v" #c ".4b[2]\n sdot v" #dot1 ".4s, v" #q2 ".16b, v" #c ".4b[2]\n" \
  "ldr d12, [%[w], #" #scales "]\n"                                                                 \
  "sdot v" #dot0 ".4s, v6.16b, v" #c ".4b[3]\n sdot v" #dot1 ".4s, v7.16b, v" #c ".4b[3]\n"         \
  "ldr q" #p2 ", [%[" #from "], #" #at "+64]\n ldr q" #q2 ", [%[" #from "], #" #at "+80]\n"         \
  "ldr q" #c ", [%[" #x "], #" #columns "]\n"                                                       \
  CELER_SUPER_SCALE(dot0, dot1)                                                                      \
  "movi v" #dot0 ".4s, #0\n movi v" #dot1 ".4s, #0\n"
// Two sub-blocks, 192 bytes.
#define CELER_SIX_PAIR(from, at, x, columns, scales, fetch)                                                          \
  CELER_SIX_SUB(2, 3, 16, 17, 18, 19, 20, 21, 8, from, at, x, columns, scales,                                       \
                CELER_SUPER_FETCH(fetch) CELER_SUPER_FETCH(64+fetch))                                                    \
  CELER_SIX_SUB(4, 5, 22, 23, 24, 25, 26, 27, 9, from, at+96, x, columns+16, scales+8, CELER_SUPER_FETCH(128+fetch))

inline void SixSupers(const uint8_t* w, const XTokenSuper* x, int64_t supers, int64_t groups, int64_t gap, float* out) {
  const XTokenSuper* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  asm volatile(
      "movi v15.16b, #252\n"
      "ldp q16, q17, [%[w], #144]\n ldp q18, q19, [%[w], #176]\n ldp q20, q21, [%[w], #208]\n"
      "ldp q22, q23, [%[w], #240]\n ldp q24, q25, [%[w], #272]\n ldp q26, q27, [%[w], #304]\n"
      "ldp q8, q9, [%[x]]\n"
      "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n movi v4.4s, #0\n movi v5.4s, #0\n"
      CELER_SUPER_BEGIN(1680, 320)
      CELER_SIX_PAIR(w, 336, x, 32, 16, 0)
      CELER_SIX_PAIR(w, 528, x, 64, 32, 192)
      CELER_SIX_PAIR(w, 720, x, 96, 48, 384)
      CELER_SIX_PAIR(w, 912, x, 128, 64, 576)
      CELER_SIX_PAIR(w, 1104, x, 160, 80, 768)
      CELER_SIX_PAIR(w, 1296, x, 192, 96, 960)
      CELER_SIX_PAIR(w, 1488, x, 224, 112, 1152)
      CELER_SIX_PAIR(next_w, 144, next_x, 0, 128, 1344)
      CELER_SUPER_FETCH(1536) CELER_SUPER_FETCH(1600) CELER_SUPER_FETCH(1664)
      "ldr s14, [%[x], #304]\n"
      CELER_SUPER_FLOATS(0, 1, 12, 13, 0, ", #2")  // the values are four times too large
      "fmul v12.4s, v0.4s, v12.4s\n fmul v13.4s, v1.4s, v13.4s\n"
      CELER_SUPER_END
      CELER_SUPER_OPERANDS);
}

#undef CELER_SIX_PAIR
#undef CELER_SIX_SUB
#undef CELER_SUPER_OPERANDS
#undef CELER_SUPER_END
#undef CELER_SUPER_BEGIN
#undef CELER_SUPER_FLOATS
#undef CELER_SUPER_TIMES_64
#undef CELER_SUPER_MINS
#undef CELER_SUPER_LOAD_MINS
#undef CELER_SUPER_ODD
#undef CELER_SUPER_EVEN
#undef CELER_SUPER_SUB
#undef CELER_SUPER_FETCH
#undef CELER_SUPER_SCALE
#undef CELER_SUPER_PART
// clang-format on

}  // namespace
}  // namespace celer::arm
