// The micro-kernels (GEMV) of row groups times one token. Part of tile_integer_arm_dotprod.cc. In assembly,
// because compilers load weights right before their use. A register of weights is loaded again as soon as it
// has been used.
//
// Measured on Neoverse N1 (two vector pipes) in cycles for 8 rows and 32 columns: Q4_0 (34 vector
// instructions) 19.1 from the L1 and L2 caches and 20.7 from memory with both cores at it, where loads alone
// take 18 to 19; with both halves of a byte unpacked, 38 instructions, 20.5 and 22.1. Of that loop,
// prefetches into L2, into L3 or 2 kB ahead and more cost 1 to 10 %, and none 2 %. Q4_K 19.8 and 21.5,
// Q6_K 27.8 and 29.8, where an mla of integers among dot products costs 1.3 cycles, and setting a register to
// zero nothing.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

static_assert(sizeof(XTokenBlock) == 64 && offsetof(XTokenBlock, sum) == 16 &&
              offsetof(XTokenBlock, q) == 32);
static_assert(sizeof(XTokenSuper) == 320 && offsetof(XTokenSuper, q) == 0 &&
              offsetof(XTokenSuper, low32) == 256 && offsetof(XTokenSuper, high32) == 264 &&
              offsetof(XTokenSuper, scale) == 304);

// clang-format off

// Weights 1 kB ahead.
#define CELER_FETCH(at) "prfm pldl1keep, [%[w], #1024+" #at "]\n"

// Row groups, each of which begins with `first`, and in them steps of `bytes` bytes and `x_bytes` of activations. What a
// row group ends with loads what the next one begins with; after the last one its last step is read again.
#define CELER_GROUPS_BEGIN(first, bytes, x_bytes) \
  "0:\n" first                                    \
  "mov %[left], %[steps]\n"                       \
  "1:\n"                                          \
  "add %[next_x], %[x], #" #x_bytes "\n"          \
  "add %[next_w], %[w], #" #bytes "\n"            \
  "add %[next_group], %[next_w], %[gap]\n"        \
  "cmp %[groups], #1\n"                           \
  "csel %[next_group], %[w], %[next_group], eq\n" \
  "subs %[left], %[left], #1\n"                   \
  "csel %[next_x], %[first_x], %[next_x], eq\n"   \
  "csel %[next_w], %[next_group], %[next_w], eq\n"
// Each ends with `last`.
#define CELER_GROUPS_END(last)                  \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n" \
  "cbnz %[left], 1b\n" last                     \
  "subs %[groups], %[groups], #1\n"             \
  "b.ne 0b\n"
#define CELER_GROUPS_OPERANDS                                                                                       \
  : [w] "+&r"(w), [x] "+&r"(x), [groups] "+&r"(groups), [out] "+&r"(out), [next_x] "=&r"(next_x),                   \
    [next_w] "=&r"(next_w), [next_group] "=&r"(next_group), [left] "=&r"(left)                                      \
  : [first_x] "r"(x), [steps] "r"(steps), [gap] "r"(gap)                                                            \
  : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",  \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
    "v31"

// Eight columns of eight rows of Q4_0 or Q4_K: bytes as they stand times the columns of their high halves, to v2 and v3;
// low halves to v4 and v5; and weights that are used later, from `at` after `from` on.
#define CELER_NIBBLE_PART(w0, w1, x, low, high, from, at) \
  "and v6.16b, v" #w0 ".16b, v15.16b\n"                   \
  "and v7.16b, v" #w1 ".16b, v15.16b\n"                   \
  "sdot v2.4s, v" #w0 ".16b, v" #x ".4b[" #high "]\n"     \
  "sdot v3.4s, v" #w1 ".16b, v" #x ".4b[" #high "]\n"     \
  "sdot v4.4s, v6.16b, v" #x ".4b[" #low "]\n"            \
  "sdot v5.4s, v7.16b, v" #x ".4b[" #low "]\n"            \
  "ldr q" #w0 ", [%[" #from "], #" #at "]\n"              \
  "ldr q" #w1 ", [%[" #from "], #" #at "+16]\n"
// Low halves times 16 to the rest, and zeros for the next block.
#define CELER_NIBBLE_JOIN                               \
  "shl v4.4s, v4.4s, #4\n shl v5.4s, v5.4s, #4\n"       \
  "add v2.4s, v2.4s, v4.4s\n add v3.4s, v3.4s, v5.4s\n" \
  "movi v4.4s, #0\n movi v5.4s, #0\n"

// Sums in v0 and v1.
#define CELER_SUMS_BEGIN "movi v0.4s, #0\n movi v1.4s, #0\n"
#define CELER_SUMS_END "stp q0, q1, [%[out]], #32\n"

// Blocks. Registers: v0, v1 sums; v2..v5 integer sums; v8..v11 the token's columns; v12 start, zero or sum; v13, v14 scales
// or minima; v15 mask; v16..v23 and v24..v31 weights of the first and second block.

#define CELER_NIBBLE_HALVES(at) \
  "ldr q13, [%[w], #" #at "]\n" \
  "fcvtl2 v14.4s, v13.8h\n"     \
  "fcvtl v13.4s, v13.4h\n"
// Integer sums of a block whose scales stand at w; what to subtract from them stands at x.
#define CELER_NIBBLE_SCALE(sum0, sum1, w, x)    \
  CELER_NIBBLE_HALVES(w)                        \
  "ldr q12, [%[x], #" #x "]\n"                  \
  "fsub v" #sum0 ".4s, v" #sum0 ".4s, v12.4s\n" \
  "fsub v" #sum1 ".4s, v" #sum1 ".4s, v12.4s\n" \
  "fmla v0.4s, v" #sum0 ".4s, v13.4s\n"         \
  "fmla v1.4s, v" #sum1 ".4s, v14.4s\n"
// A block's start, at `at` from `x` on.
#define CELER_NIBBLE_START(sum0, sum1, x, at) \
  "ldr q" #sum0 ", [%[" #x "], #" #at "]\n"   \
  "ldr q" #sum1 ", [%[" #x "], #" #at "]\n"

// Q4_0: `groups` row groups of `steps` pairs of blocks, `gap` bytes between groups, to out[8 * groups].
inline void NibbleGroups(const uint8_t* w, const XTokenBlock* x, int64_t steps, int64_t groups, int64_t gap,
                         float* out) {
  const XTokenBlock* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  asm volatile(
      "movi v15.16b, #15\n"
      "ldp q16, q17, [%[w], #16]\n ldp q18, q19, [%[w], #48]\n ldp q20, q21, [%[w], #80]\n ldp q22, q23, [%[w], #112]\n"
      "ldp q24, q25, [%[w], #160]\n ldp q26, q27, [%[w], #192]\n ldp q28, q29, [%[w], #224]\n ldp q30, q31, [%[w], #256]\n"
      "ldp q8, q9, [%[x], #32]\n ldp q10, q11, [%[x], #96]\n"
      "movi v4.4s, #0\n movi v5.4s, #0\n"
      CELER_NIBBLE_START(2, 3, x, 0)
      CELER_GROUPS_BEGIN(CELER_SUMS_BEGIN, 288, 128)
      CELER_NIBBLE_PART(16, 17, 8, 0, 1, next_w, 16) CELER_FETCH(0)
      CELER_NIBBLE_PART(18, 19, 8, 2, 3, next_w, 48)
      CELER_NIBBLE_PART(20, 21, 9, 0, 1, next_w, 80) CELER_FETCH(64)
      CELER_NIBBLE_PART(22, 23, 9, 2, 3, next_w, 112)
      "ldp q8, q9, [%[next_x], #32]\n"
      CELER_NIBBLE_JOIN
      CELER_NIBBLE_SCALE(2, 3, 0, 16)
      CELER_NIBBLE_START(2, 3, x, 64)
      CELER_NIBBLE_PART(24, 25, 10, 0, 1, next_w, 160) CELER_FETCH(128)
      CELER_NIBBLE_PART(26, 27, 10, 2, 3, next_w, 192)
      CELER_NIBBLE_PART(28, 29, 11, 0, 1, next_w, 224) CELER_FETCH(192)
      CELER_NIBBLE_PART(30, 31, 11, 2, 3, next_w, 256) CELER_FETCH(256)
      "ldp q10, q11, [%[next_x], #96]\n"
      CELER_NIBBLE_JOIN
      CELER_NIBBLE_SCALE(2, 3, 144, 80)
      CELER_NIBBLE_START(2, 3, next_x, 0)
      CELER_GROUPS_END("mov %w[next_group], #0x3d800000\n dup v12.4s, %w[next_group]\n"  // 1 / 16
                       "fmul v0.4s, v0.4s, v12.4s\n fmul v1.4s, v1.4s, v12.4s\n" CELER_SUMS_END)
      CELER_GROUPS_OPERANDS);
}

// Q4_1. Eight columns of eight rows, both halves unpacked; the two blocks go side by side, with sums in v2, v3 and v4,
// v5.
#define CELER_NIBBLE_MIN_PART(sum0, sum1, w0, w1, x, low, high, at) \
  "and v6.16b, v" #w0 ".16b, v15.16b\n"                             \
  "and v7.16b, v" #w1 ".16b, v15.16b\n"                             \
  "ushr v" #w0 ".16b, v" #w0 ".16b, #4\n"                           \
  "ushr v" #w1 ".16b, v" #w1 ".16b, #4\n"                           \
  "sdot v" #sum0 ".4s, v6.16b, v" #x ".4b[" #low "]\n"              \
  "sdot v" #sum1 ".4s, v7.16b, v" #x ".4b[" #low "]\n"              \
  "sdot v" #sum0 ".4s, v" #w0 ".16b, v" #x ".4b[" #high "]\n"       \
  "sdot v" #sum1 ".4s, v" #w1 ".16b, v" #x ".4b[" #high "]\n"       \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"                           \
  "ldr q" #w1 ", [%[next_w], #" #at "+16]\n"
// The minima that stand at w times the sum of activations at x.
#define CELER_NIBBLE_MINS(w, x)  \
  CELER_NIBBLE_HALVES(w)         \
  "ldr q12, [%[x], #" #x "]\n"   \
  "fmla v0.4s, v13.4s, v12.4s\n" \
  "fmla v1.4s, v14.4s, v12.4s\n"

inline void NibbleMinGroups(const uint8_t* w, const XTokenBlock* x, int64_t steps, int64_t groups, int64_t gap,
                            float* out) {
  const XTokenBlock* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  asm volatile(
      "movi v15.16b, #15\n"
      "ldp q16, q17, [%[w], #32]\n ldp q18, q19, [%[w], #64]\n ldp q20, q21, [%[w], #96]\n ldp q22, q23, [%[w], #128]\n"
      "ldp q24, q25, [%[w], #192]\n ldp q26, q27, [%[w], #224]\n ldp q28, q29, [%[w], #256]\n ldp q30, q31, [%[w], #288]\n"
      "ldp q8, q9, [%[x], #32]\n ldp q10, q11, [%[x], #96]\n"
      CELER_NIBBLE_START(2, 3, x, 0)
      CELER_NIBBLE_START(4, 5, x, 64)
      CELER_GROUPS_BEGIN(CELER_SUMS_BEGIN, 320, 128)
      CELER_NIBBLE_MIN_PART(2, 3, 16, 17, 8, 0, 1, 32) CELER_FETCH(0)
      CELER_NIBBLE_MIN_PART(4, 5, 24, 25, 10, 0, 1, 192)
      CELER_NIBBLE_MIN_PART(2, 3, 18, 19, 8, 2, 3, 64) CELER_FETCH(64)
      CELER_NIBBLE_MIN_PART(4, 5, 26, 27, 10, 2, 3, 224)
      CELER_NIBBLE_MIN_PART(2, 3, 20, 21, 9, 0, 1, 96) CELER_FETCH(128)
      CELER_NIBBLE_MIN_PART(4, 5, 28, 29, 11, 0, 1, 256)
      CELER_NIBBLE_MIN_PART(2, 3, 22, 23, 9, 2, 3, 128) CELER_FETCH(192)
      CELER_NIBBLE_MIN_PART(4, 5, 30, 31, 11, 2, 3, 288) CELER_FETCH(256)
      CELER_NIBBLE_SCALE(2, 3, 0, 0) CELER_NIBBLE_MINS(16, 16)
      CELER_NIBBLE_START(2, 3, next_x, 0)
      CELER_NIBBLE_SCALE(4, 5, 160, 64) CELER_NIBBLE_MINS(176, 80)
      CELER_NIBBLE_START(4, 5, next_x, 64)
      "ldp q8, q9, [%[next_x], #32]\n ldp q10, q11, [%[next_x], #96]\n"
      CELER_GROUPS_END(CELER_SUMS_END)
      CELER_GROUPS_OPERANDS);
}

// Bytes: registers as above, weights of one block in v16..v31. Four columns of eight rows, and the same weights of the
// next block.
#define CELER_BYTE_PART(w0, w1, x, lane, at)          \
  "sdot v2.4s, v" #w0 ".16b, v" #x ".4b[" #lane "]\n" \
  "sdot v3.4s, v" #w1 ".16b, v" #x ".4b[" #lane "]\n" \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"             \
  "ldr q" #w1 ", [%[next_w], #" #at "+16]\n"
#define CELER_BYTE_FETCH(at) "prfm pldl1keep, [%[w], #768+" #at "]\n"

// The same for Q8_0, where a step is one block. The prefetches make decode 1.5 % faster; 1.5 kB ahead they cost
// 7 %, into L2 or as a stream 4 %.
inline void ByteGroups(const uint8_t* w, const XTokenBlock* x, int64_t steps, int64_t groups, int64_t gap, float* out) {
  const XTokenBlock* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  asm volatile(
      "ldp q16, q17, [%[w], #16]\n ldp q18, q19, [%[w], #48]\n ldp q20, q21, [%[w], #80]\n ldp q22, q23, [%[w], #112]\n"
      "ldp q24, q25, [%[w], #144]\n ldp q26, q27, [%[w], #176]\n ldp q28, q29, [%[w], #208]\n ldp q30, q31, [%[w], #240]\n"
      "ldp q8, q9, [%[x], #32]\n"
      CELER_NIBBLE_START(2, 3, x, 0)
      CELER_GROUPS_BEGIN(CELER_SUMS_BEGIN, 272, 64)
      CELER_BYTE_FETCH(0) CELER_BYTE_PART(16, 17, 8, 0, 16)
      CELER_BYTE_FETCH(64) CELER_BYTE_PART(18, 19, 8, 1, 48)
      CELER_BYTE_PART(20, 21, 8, 2, 80) CELER_BYTE_PART(22, 23, 8, 3, 112)
      "ldr q8, [%[next_x], #32]\n"
      CELER_BYTE_FETCH(128) CELER_BYTE_PART(24, 25, 9, 0, 144)
      CELER_BYTE_FETCH(192) CELER_BYTE_PART(26, 27, 9, 1, 176) CELER_BYTE_FETCH(256)
      CELER_BYTE_PART(28, 29, 9, 2, 208) CELER_BYTE_PART(30, 31, 9, 3, 240)
      "ldr q9, [%[next_x], #48]\n"
      CELER_NIBBLE_SCALE(2, 3, 0, 0)
      CELER_NIBBLE_START(2, 3, next_x, 0)
      CELER_GROUPS_END(CELER_SUMS_END)
      CELER_GROUPS_OPERANDS);
}

// Q4_K. Registers: v0, v1 sums of dot products times scales, v10, v11 of minima; v2, v3 and v4, v5 dot products of whole
// bytes and of low halves; v8, v9 the token's columns; v14 the sums of its activations; v15 mask; v16..v23 and v24..v31
// weights of even and odd sub-blocks. A super-block: scales f16[8], minima f16[8], scales int8[8][8] at 32, minima
// uint8[2][8][4] at 96 (of four sub-blocks side by side), values from 160 on.

// Dot products times a sub-block's scales, which are in v12.
#define CELER_SUPER_SCALE(dot0, dot1)  \
  "sxtl v12.8h, v12.8b\n"              \
  "sxtl2 v13.4s, v12.8h\n"             \
  "sxtl v12.4s, v12.4h\n"              \
  "mla v0.4s, v" #dot0 ".4s, v12.4s\n" \
  "mla v1.4s, v" #dot1 ".4s, v13.4s\n"
// A sub-block, whose scales stand at `scales`. The next one's columns are at `columns` from `x` on, its start at
// `start`. `mins` uses v12 and v13, which `load` leaves for the next one.
#define CELER_SUPER_SUB(a0, a1, b0, b1, c0, c1, d0, d1, from, at, x, columns, start, scales, mins, load, fetch) \
  CELER_NIBBLE_PART(a0, a1, 8, 0, 1, from, at) mins                                                             \
  CELER_FETCH(fetch)                                                                                            \
  CELER_NIBBLE_PART(b0, b1, 8, 2, 3, from, at+32)                                                               \
  "ldr q8, [%[" #x "], #" #columns "]\n"                                                                        \
  CELER_NIBBLE_PART(c0, c1, 9, 0, 1, from, at+64)                                                               \
  CELER_FETCH(64+fetch)                                                                                         \
  "ldr d12, [%[w], #" #scales "]\n"                                                                             \
  CELER_NIBBLE_PART(d0, d1, 9, 2, 3, from, at+96)                                                               \
  "ldr q9, [%[" #x "], #" #columns "+16]\n"                                                                     \
  CELER_NIBBLE_JOIN                                                                                             \
  CELER_SUPER_SCALE(2, 3)                                                                                       \
  "ldr q2, [%[" #x "], #" #start "]\n ldr q3, [%[" #x "], #" #start "]\n" load
#define CELER_SUPER_EVEN(from, at, columns, start, scales, mins, load, fetch) \
  CELER_SUPER_SUB(16, 17, 18, 19, 20, 21, 22, 23, from, at, x, columns, start, scales, mins, load, fetch)
#define CELER_SUPER_ODD(from, at, x, columns, start, scales, mins, load, fetch) \
  CELER_SUPER_SUB(24, 25, 26, 27, 28, 29, 30, 31, from, at, x, columns, start, scales, mins, load, fetch)
// Minima of four sub-blocks times element `lane` of the sums of activations: two low ones, then two high ones.
#define CELER_SUPER_LOAD_MINS(at) "ldp q12, q13, [%[w], #" #at "]\n"
#define CELER_SUPER_MINS(lane)                \
  "sdot v10.4s, v12.16b, v14.4b[" #lane "]\n" \
  "sdot v11.4s, v13.16b, v14.4b[" #lane "]\n"
#define CELER_SUPER_TIMES_64 "shl v10.4s, v10.4s, #6\n shl v11.4s, v11.4s, #6\n"
// Integers to floats, divided by 2^bits, and the scales at `at` to `scale0` and `scale1`.
#define CELER_SUPER_FLOATS(int0, int1, scale0, scale1, at, bits) \
  "ldr q" #scale0 ", [%[w], #" #at "]\n"                         \
  "fcvtl2 v" #scale1 ".4s, v" #scale0 ".8h\n"                    \
  "fcvtl v" #scale0 ".4s, v" #scale0 ".4h\n"                     \
  "scvtf v" #int0 ".4s, v" #int0 ".4s" bits "\n"                 \
  "scvtf v" #int1 ".4s, v" #int1 ".4s" bits "\n"

// Sums in memory, because registers are few. v0, v1 are zero then.
#define CELER_SUPER_BEGIN "stp q0, q1, [%[out]]\n"
// v12, v13 times the token's scale, element 0 of v14, added to the sums; v0, v1 back to zero.
#define CELER_SUPER_END                                           \
  "ldp q6, q7, [%[out]]\n"                                        \
  "fmla v6.4s, v12.4s, v14.s[0]\n fmla v7.4s, v13.4s, v14.s[0]\n" \
  "stp q6, q7, [%[out]]\n"                                        \
  "movi v0.4s, #0\n movi v1.4s, #0\n"                             \
  CELER_GROUPS_END("add %[out], %[out], #32\n")

// `groups` row groups of `steps` super-blocks. The token is alone in its unit.
inline void NibbleSupers(const uint8_t* w, const XTokenNibbleSuper* x, int64_t steps, int64_t groups, int64_t gap,
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
      CELER_GROUPS_BEGIN(CELER_SUPER_BEGIN, 1184, 448)
      "ldr q14, [%[x], #256]\n"
      CELER_SUPER_EVEN(w, 416, 32, 336, 32, "", CELER_SUPER_LOAD_MINS(96), 0)
      CELER_SUPER_ODD(w, 544, x, 64, 352, 40, CELER_SUPER_MINS(2), CELER_SUPER_LOAD_MINS(128), 128)
      CELER_SUPER_EVEN(w, 672, 96, 368, 48, CELER_SUPER_MINS(3) CELER_SUPER_TIMES_64, CELER_SUPER_LOAD_MINS(96), 256)
      CELER_SUPER_ODD(w, 800, x, 128, 384, 56, CELER_SUPER_MINS(0), CELER_SUPER_LOAD_MINS(128), 384)
      CELER_SUPER_EVEN(w, 928, 160, 400, 64, CELER_SUPER_MINS(1), "", 512)
      CELER_SUPER_ODD(w, 1056, x, 192, 416, 72, "", "", 640)
      CELER_SUPER_EVEN(next_w, 160, 224, 432, 80, "", "", 768)
      CELER_SUPER_ODD(next_w, 288, next_x, 0, 320, 88, "", "", 896)
      CELER_FETCH(1024) CELER_FETCH(1088) CELER_FETCH(1152)
      "ldr s14, [%[x], #304]\n"
      CELER_SUPER_FLOATS(0, 1, 12, 13, 0, ", #4")
      CELER_SUPER_FLOATS(10, 11, 6, 7, 16, "")
      "fmul v12.4s, v0.4s, v12.4s\n fmul v13.4s, v1.4s, v13.4s\n"
      "fmls v12.4s, v10.4s, v6.4s\n fmls v13.4s, v11.4s, v7.4s\n"
      "movi v10.4s, #0\n movi v11.4s, #0\n"
      CELER_SUPER_END
      CELER_GROUPS_OPERANDS);
}

// Q6_K: registers as above, but v2, v3 and v4, v5 are for even and odd sub-blocks, v6, v7, v10 and v11 for unpacking, and
// v16..v21 and v22..v27 weights. A sub-block has 16 columns: p0..p2 (q0..q2 for the other half of the rows) hold those of
// three steps in their upper six bits and the fourth's in what is left. A super-block: scales f16[8], scales
// int8[16][8] at 16, values from 144 on. The weights of the next but one sub-block are at `at` from `from` on, its
// columns at `columns` from `x` on.
#define CELER_SIX_SUB(dot0, dot1, p0, q0, p1, q1, p2, q2, c, from, at, x, columns, scales, fetch)       \
  "shl v6.16b, v" #p2 ".16b, #2\n shl v7.16b, v" #q2 ".16b, #2\n"                                       \
  "and v10.16b, v" #p0 ".16b, v15.16b\n and v11.16b, v" #q0 ".16b, v15.16b\n"                           \
  "sli v6.16b, v" #p1 ".16b, #4\n sli v7.16b, v" #q1 ".16b, #4\n"                                       \
  "sdot v" #dot0 ".4s, v10.16b, v" #c ".4b[0]\n sdot v" #dot1 ".4s, v11.16b, v" #c ".4b[0]\n"           \
  "and v" #p1 ".16b, v" #p1 ".16b, v15.16b\n and v" #q1 ".16b, v" #q1 ".16b, v15.16b\n"                 \
  "sli v6.16b, v" #p0 ".16b, #6\n sli v7.16b, v" #q0 ".16b, #6\n"                                       \
  "ldr q" #p0 ", [%[" #from "], #" #at "]\n ldr q" #q0 ", [%[" #from "], #" #at "+16]\n"                \
  "sdot v" #dot0 ".4s, v" #p1 ".16b, v" #c ".4b[1]\n sdot v" #dot1 ".4s, v" #q1 ".16b, v" #c ".4b[1]\n" \
  "and v" #p2 ".16b, v" #p2 ".16b, v15.16b\n and v" #q2 ".16b, v" #q2 ".16b, v15.16b\n"                 \
  "ldr q" #p1 ", [%[" #from "], #" #at "+32]\n ldr q" #q1 ", [%[" #from "], #" #at "+48]\n" fetch       \
  "sdot v" #dot0 ".4s, v" #p2 ".16b, v" #c ".4b[2]\n sdot v" #dot1 ".4s, v" #q2 ".16b, v" #c ".4b[2]\n" \
  "ldr d12, [%[w], #" #scales "]\n"                                                                     \
  "sdot v" #dot0 ".4s, v6.16b, v" #c ".4b[3]\n sdot v" #dot1 ".4s, v7.16b, v" #c ".4b[3]\n"             \
  "ldr q" #p2 ", [%[" #from "], #" #at "+64]\n ldr q" #q2 ", [%[" #from "], #" #at "+80]\n"             \
  "ldr q" #c ", [%[" #x "], #" #columns "]\n"                                                           \
  CELER_SUPER_SCALE(dot0, dot1)                                                                         \
  "movi v" #dot0 ".4s, #0\n movi v" #dot1 ".4s, #0\n"
// Two sub-blocks, 192 bytes.
#define CELER_SIX_PAIR(from, at, x, columns, scales, fetch)                    \
  CELER_SIX_SUB(2, 3, 16, 17, 18, 19, 20, 21, 8, from, at, x, columns, scales, \
                CELER_FETCH(fetch) CELER_FETCH(64+fetch))                      \
  CELER_SIX_SUB(4, 5, 22, 23, 24, 25, 26, 27, 9, from, at+96, x, columns+16, scales+8, CELER_FETCH(128+fetch))

inline void SixSupers(const uint8_t* w, const XTokenSuper* x, int64_t steps, int64_t groups, int64_t gap, float* out) {
  const XTokenSuper* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  asm volatile(
      "movi v15.16b, #252\n"
      "ldp q16, q17, [%[w], #144]\n ldp q18, q19, [%[w], #176]\n ldp q20, q21, [%[w], #208]\n"
      "ldp q22, q23, [%[w], #240]\n ldp q24, q25, [%[w], #272]\n ldp q26, q27, [%[w], #304]\n"
      "ldp q8, q9, [%[x]]\n"
      "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n movi v4.4s, #0\n movi v5.4s, #0\n"
      CELER_GROUPS_BEGIN(CELER_SUPER_BEGIN, 1680, 320)
      CELER_SIX_PAIR(w, 336, x, 32, 16, 0)
      CELER_SIX_PAIR(w, 528, x, 64, 32, 192)
      CELER_SIX_PAIR(w, 720, x, 96, 48, 384)
      CELER_SIX_PAIR(w, 912, x, 128, 64, 576)
      CELER_SIX_PAIR(w, 1104, x, 160, 80, 768)
      CELER_SIX_PAIR(w, 1296, x, 192, 96, 960)
      CELER_SIX_PAIR(w, 1488, x, 224, 112, 1152)
      CELER_SIX_PAIR(next_w, 144, next_x, 0, 128, 1344)
      CELER_FETCH(1536) CELER_FETCH(1600) CELER_FETCH(1664)
      "ldr s14, [%[x], #304]\n"
      CELER_SUPER_FLOATS(0, 1, 12, 13, 0, ", #2")  // the values are four times too large
      "fmul v12.4s, v0.4s, v12.4s\n fmul v13.4s, v1.4s, v13.4s\n"
      CELER_SUPER_END
      CELER_GROUPS_OPERANDS);
}

#undef CELER_SIX_PAIR
#undef CELER_SIX_SUB
#undef CELER_SUPER_END
#undef CELER_SUPER_BEGIN
#undef CELER_SUPER_FLOATS
#undef CELER_SUPER_TIMES_64
#undef CELER_SUPER_MINS
#undef CELER_SUPER_LOAD_MINS
#undef CELER_SUPER_ODD
#undef CELER_SUPER_EVEN
#undef CELER_SUPER_SUB
#undef CELER_SUPER_SCALE
#undef CELER_BYTE_FETCH
#undef CELER_BYTE_PART
#undef CELER_NIBBLE_MINS
#undef CELER_NIBBLE_MIN_PART
#undef CELER_NIBBLE_START
#undef CELER_NIBBLE_SCALE
#undef CELER_NIBBLE_HALVES
#undef CELER_NIBBLE_JOIN
#undef CELER_NIBBLE_PART
#undef CELER_SUMS_END
#undef CELER_SUMS_BEGIN
#undef CELER_GROUPS_OPERANDS
#undef CELER_GROUPS_END
#undef CELER_GROUPS_BEGIN
#undef CELER_FETCH
// clang-format on

}  // namespace
}  // namespace celer::arm
