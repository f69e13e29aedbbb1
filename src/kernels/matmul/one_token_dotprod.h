// The loops over row groups of nibbles and of bytes times one token. Part of tile_integer_arm_dotprod.cc. In
// assembly, because compilers load weights right before their use.
//
// Nibbles: the weights of two blocks at a time, and a register of them is loaded anew as soon as it has been
// used. Measured on Neoverse N1 for a block of Q4_0 (34 vector instructions, two pipes): 19.1 cycles from the
// L1 and L2 caches, 20.7 from memory with both cores at it, where loads alone take 18 to 19. With both halves
// of a byte unpacked, 38 instructions, it took 20.5 and 22.1; of that loop, prefetches into L2, into L3 or 2
// kB ahead and more cost 1 to 10 %, and none 2 %.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/matmul/packed.h"

namespace celer::arm {
namespace {

static_assert(sizeof(XTokenBlock) == 64 && offsetof(XTokenBlock, sum) == 16 &&
              offsetof(XTokenBlock, q) == 32);

// clang-format off

// Registers: v0, v1 sums; v2..v5 integer sums; v8..v11 the token's columns; v12 start, zero or sum; v13, v14 scales or
// minima; v15 mask; v16..v23 and v24..v31 weights of the first and second block.

#define CELER_NIBBLE_FETCH(at) "prfm pldl1keep, [%[w], #1024+" #at "]\n"
#define CELER_NIBBLE_HALVES(at)     \
  "ldr q13, [%[w], #" #at "]\n"     \
  "fcvtl2 v14.4s, v13.8h\n"         \
  "fcvtl v13.4s, v13.4h\n"
// Integer sums of a block whose scales stand at w; what to subtract from them stands at x.
#define CELER_NIBBLE_SCALE(sum0, sum1, w, x)        \
  CELER_NIBBLE_HALVES(w)                            \
  "ldr q12, [%[x], #" #x "]\n"                      \
  "fsub v" #sum0 ".4s, v" #sum0 ".4s, v12.4s\n"     \
  "fsub v" #sum1 ".4s, v" #sum1 ".4s, v12.4s\n"     \
  "fmla v0.4s, v" #sum0 ".4s, v13.4s\n"             \
  "fmla v1.4s, v" #sum1 ".4s, v14.4s\n"
// A block's start, at `at` from `x` on.
#define CELER_NIBBLE_START(sum0, sum1, x, at)       \
  "ldr q" #sum0 ", [%[" #x "], #" #at "]\n"         \
  "ldr q" #sum1 ", [%[" #x "], #" #at "]\n"

// Row groups, and in each of them steps of `bytes` bytes and `columns` bytes of activations. What a row group ends with
// loads what the next one begins with; after the last one its last step is read again.
#define CELER_GROUPS_BEGIN(bytes, columns)               \
  "0:\n"                                                 \
  "movi v0.4s, #0\n movi v1.4s, #0\n"                    \
  "mov %[left], %[steps]\n"                              \
  "1:\n"                                                 \
  "add %[next_x], %[x], #" #columns "\n"                 \
  "add %[next_w], %[w], #" #bytes "\n"                   \
  "add %[next_group], %[next_w], %[gap]\n"               \
  "cmp %[groups], #1\n"                                  \
  "csel %[next_group], %[w], %[next_group], eq\n"        \
  "subs %[left], %[left], #1\n"                          \
  "csel %[next_x], %[first_x], %[next_x], eq\n"          \
  "csel %[next_w], %[next_group], %[next_w], eq\n"
// `unit` is done to the sums in the end.
#define CELER_GROUPS_END(unit)                           \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"          \
  "cbnz %[left], 1b\n" unit                              \
  "stp q0, q1, [%[out]], #32\n"                          \
  "subs %[groups], %[groups], #1\n"                      \
  "b.ne 0b\n"
#define CELER_GROUPS_OPERANDS                                                                                       \
  : [w] "+&r"(w), [x] "+&r"(x), [groups] "+&r"(groups), [out] "+&r"(out), [next_x] "=&r"(next_x),                   \
    [next_w] "=&r"(next_w), [next_group] "=&r"(next_group), [left] "=&r"(left)                                      \
  : [first_x] "r"(x), [steps] "r"(steps), [gap] "r"(gap)                                                            \
  : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",  \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
    "v31"

// Q4_0. Eight columns of eight rows: bytes as they stand times the columns of their high halves, to v2 and v3; low
// halves to v4 and v5; and the same weights of the next two blocks.
#define CELER_NIBBLE_PART(w0, w1, x, low, high, at)       \
  "and v6.16b, v" #w0 ".16b, v15.16b\n"                   \
  "and v7.16b, v" #w1 ".16b, v15.16b\n"                   \
  "sdot v2.4s, v" #w0 ".16b, v" #x ".4b[" #high "]\n"     \
  "sdot v3.4s, v" #w1 ".16b, v" #x ".4b[" #high "]\n"     \
  "sdot v4.4s, v6.16b, v" #x ".4b[" #low "]\n"            \
  "sdot v5.4s, v7.16b, v" #x ".4b[" #low "]\n"            \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"                 \
  "ldr q" #w1 ", [%[next_w], #" #at "+16]\n"
// Low halves times 16 to the rest, and zeros for the next block.
#define CELER_NIBBLE_JOIN                                 \
  "shl v4.4s, v4.4s, #4\n shl v5.4s, v5.4s, #4\n"         \
  "add v2.4s, v2.4s, v4.4s\n add v3.4s, v3.4s, v5.4s\n"   \
  "movi v4.4s, #0\n movi v5.4s, #0\n"

// `groups` row groups of `steps` pairs of blocks, `gap` bytes between groups, to out[8 * groups].
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
      CELER_GROUPS_BEGIN(288, 128)
      CELER_NIBBLE_PART(16, 17, 8, 0, 1, 16) CELER_NIBBLE_FETCH(0)
      CELER_NIBBLE_PART(18, 19, 8, 2, 3, 48)
      CELER_NIBBLE_PART(20, 21, 9, 0, 1, 80) CELER_NIBBLE_FETCH(64)
      CELER_NIBBLE_PART(22, 23, 9, 2, 3, 112)
      "ldp q8, q9, [%[next_x], #32]\n"
      CELER_NIBBLE_JOIN
      CELER_NIBBLE_SCALE(2, 3, 0, 16)
      CELER_NIBBLE_START(2, 3, x, 64)
      CELER_NIBBLE_PART(24, 25, 10, 0, 1, 160) CELER_NIBBLE_FETCH(128)
      CELER_NIBBLE_PART(26, 27, 10, 2, 3, 192)
      CELER_NIBBLE_PART(28, 29, 11, 0, 1, 224) CELER_NIBBLE_FETCH(192)
      CELER_NIBBLE_PART(30, 31, 11, 2, 3, 256) CELER_NIBBLE_FETCH(256)
      "ldp q10, q11, [%[next_x], #96]\n"
      CELER_NIBBLE_JOIN
      CELER_NIBBLE_SCALE(2, 3, 144, 80)
      CELER_NIBBLE_START(2, 3, next_x, 0)
      CELER_GROUPS_END("mov %w[next_group], #0x3d800000\n dup v12.4s, %w[next_group]\n"  // 1 / 16
                       "fmul v0.4s, v0.4s, v12.4s\n fmul v1.4s, v1.4s, v12.4s\n")
      CELER_GROUPS_OPERANDS);
}

// Q4_1. Eight columns of eight rows, both halves unpacked; the two blocks go side by side, with sums in v2, v3 and v4,
// v5.
#define CELER_NIBBLE_MIN_PART(sum0, sum1, w0, w1, x, low, high, at)    \
  "and v6.16b, v" #w0 ".16b, v15.16b\n"                                \
  "and v7.16b, v" #w1 ".16b, v15.16b\n"                                \
  "ushr v" #w0 ".16b, v" #w0 ".16b, #4\n"                              \
  "ushr v" #w1 ".16b, v" #w1 ".16b, #4\n"                              \
  "sdot v" #sum0 ".4s, v6.16b, v" #x ".4b[" #low "]\n"                 \
  "sdot v" #sum1 ".4s, v7.16b, v" #x ".4b[" #low "]\n"                 \
  "sdot v" #sum0 ".4s, v" #w0 ".16b, v" #x ".4b[" #high "]\n"          \
  "sdot v" #sum1 ".4s, v" #w1 ".16b, v" #x ".4b[" #high "]\n"          \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"                              \
  "ldr q" #w1 ", [%[next_w], #" #at "+16]\n"
// The minima that stand at w times the sum of activations at x.
#define CELER_NIBBLE_MINS(w, x)     \
  CELER_NIBBLE_HALVES(w)            \
  "ldr q12, [%[x], #" #x "]\n"      \
  "fmla v0.4s, v13.4s, v12.4s\n"    \
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
      CELER_GROUPS_BEGIN(320, 128)
      CELER_NIBBLE_MIN_PART(2, 3, 16, 17, 8, 0, 1, 32) CELER_NIBBLE_FETCH(0)
      CELER_NIBBLE_MIN_PART(4, 5, 24, 25, 10, 0, 1, 192)
      CELER_NIBBLE_MIN_PART(2, 3, 18, 19, 8, 2, 3, 64) CELER_NIBBLE_FETCH(64)
      CELER_NIBBLE_MIN_PART(4, 5, 26, 27, 10, 2, 3, 224)
      CELER_NIBBLE_MIN_PART(2, 3, 20, 21, 9, 0, 1, 96) CELER_NIBBLE_FETCH(128)
      CELER_NIBBLE_MIN_PART(4, 5, 28, 29, 11, 0, 1, 256)
      CELER_NIBBLE_MIN_PART(2, 3, 22, 23, 9, 2, 3, 128) CELER_NIBBLE_FETCH(192)
      CELER_NIBBLE_MIN_PART(4, 5, 30, 31, 11, 2, 3, 288) CELER_NIBBLE_FETCH(256)
      CELER_NIBBLE_SCALE(2, 3, 0, 0) CELER_NIBBLE_MINS(16, 16)
      CELER_NIBBLE_START(2, 3, next_x, 0)
      CELER_NIBBLE_SCALE(4, 5, 160, 64) CELER_NIBBLE_MINS(176, 80)
      CELER_NIBBLE_START(4, 5, next_x, 64)
      "ldp q8, q9, [%[next_x], #32]\n ldp q10, q11, [%[next_x], #96]\n"
      CELER_GROUPS_END("")
      CELER_GROUPS_OPERANDS);
}

// Bytes: registers as above, weights of one block in v16..v31. Four columns of eight rows, and the same weights of the
// next block.
#define CELER_BYTE_PART(w0, w1, x, lane, at)                                \
  "sdot v2.4s, v" #w0 ".16b, v" #x ".4b[" #lane "]\n"                       \
  "sdot v3.4s, v" #w1 ".16b, v" #x ".4b[" #lane "]\n"                       \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"                                   \
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
      CELER_GROUPS_BEGIN(272, 64)
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
      CELER_GROUPS_END("")
      CELER_GROUPS_OPERANDS);
}

#undef CELER_BYTE_FETCH
#undef CELER_BYTE_PART
#undef CELER_NIBBLE_MINS
#undef CELER_NIBBLE_MIN_PART
#undef CELER_NIBBLE_JOIN
#undef CELER_NIBBLE_PART
#undef CELER_GROUPS_OPERANDS
#undef CELER_GROUPS_END
#undef CELER_GROUPS_BEGIN
#undef CELER_NIBBLE_START
#undef CELER_NIBBLE_SCALE
#undef CELER_NIBBLE_HALVES
#undef CELER_NIBBLE_FETCH
// clang-format on

}  // namespace
}  // namespace celer::arm
