// The loops over row groups of nibbles and of bytes times one token. Part of tile_integer_arm_dotprod.cc. In
// assembly, because compilers load weights right before their use.
//
// Nibbles: two blocks side by side, so that four chains of dot products hide each other's latency, and a
// register of weights is loaded anew as soon as it has been used. Measured on Neoverse N1 for a block of Q4_0
// (38 vector instructions, two pipes): 20.8 cycles from the L1 and L2 caches, 22.3 from memory with both
// cores at it, where loads alone take 18 to 19. Without the prefetches 22.6, and 22.8 with ldp; into L2, into
// L3 or 2 kB ahead and more they cost 1 to 10 %.
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

// Registers: v0, v1 sums; v2, v3 and v4, v5 integer sums of the first and second block; v8..v11 the token's columns;
// v12 start or sum; v13, v14 scales or minima; v15 mask; v16..v23 and v24..v31 weights.

// Eight columns of eight rows: low halves to v6 and v7, high ones in place, then the dot products; and the same
// weights of the next two blocks.
#define CELER_NIBBLE_PART(low, high, sum0, sum1, w0, w1, x, lane0, lane1, at, fetch)   \
  low(6, w0) low(7, w1) high(w0) high(w1)                                       \
  "sdot v" #sum0 ".4s, v6.16b, v" #x ".4b[" #lane0 "]\n"                        \
  "sdot v" #sum1 ".4s, v7.16b, v" #x ".4b[" #lane0 "]\n"                        \
  "sdot v" #sum0 ".4s, v" #w0 ".16b, v" #x ".4b[" #lane1 "]\n"                  \
  "sdot v" #sum1 ".4s, v" #w1 ".16b, v" #x ".4b[" #lane1 "]\n"                  \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"                                       \
  "ldr q" #w1 ", [%[next_w], #" #at "+16]\n" fetch
#define CELER_NIBBLE_FETCH(at) "prfm pldl1keep, [%[w], #1024+" #at "]\n"
// Signed, times 16.
#define CELER_NIBBLE_SHL(to, w) "shl v" #to ".16b, v" #w ".16b, #4\n"
#define CELER_NIBBLE_AND(w) "and v" #w ".16b, v" #w ".16b, v15.16b\n"
// Unsigned.
#define CELER_NIBBLE_LOW(to, w) "and v" #to ".16b, v" #w ".16b, v15.16b\n"
#define CELER_NIBBLE_USHR(w) "ushr v" #w ".16b, v" #w ".16b, #4\n"

#define CELER_NIBBLE_HALVES(at)     \
  "ldr q13, [%[w], #" #at "]\n"     \
  "fcvtl2 v14.4s, v13.8h\n"         \
  "fcvtl v13.4s, v13.4h\n"
// The end of a block whose scales stand at w and activations at x; then its successor's start.
#define CELER_NIBBLE_END(sum0, sum1, w, x, mins)    \
  CELER_NIBBLE_HALVES(w)                            \
  "ldr q12, [%[x], #" #x "]\n"                      \
  "fsub v" #sum0 ".4s, v" #sum0 ".4s, v12.4s\n"     \
  "fsub v" #sum1 ".4s, v" #sum1 ".4s, v12.4s\n"     \
  "fmla v0.4s, v" #sum0 ".4s, v13.4s\n"             \
  "fmla v1.4s, v" #sum1 ".4s, v14.4s\n" mins        \
  "ldr q" #sum0 ", [%[next_x], #" #x "]\n"          \
  "ldr q" #sum1 ", [%[next_x], #" #x "]\n"
#define CELER_NIBBLE_MINS(w, x)     \
  CELER_NIBBLE_HALVES(w)            \
  "ldr q12, [%[x], #" #x "]\n"      \
  "fmla v0.4s, v13.4s, v12.4s\n"    \
  "fmla v1.4s, v14.4s, v12.4s\n"

// a0..a3 and b0..b3 are where the weights of two blocks stand, `pair` what both take. What a row group ends with loads
// what the next one begins with; after the last one these blocks are read again.
#define CELER_NIBBLE_LOOP(mask, low, high, a0, a1, a2, a3, b0, b1, b2, b3, pair, end_a, end_b)    \
  "movi v15.16b, #" #mask "\n"                                                                    \
  "ldp q16, q17, [%[w], #" #a0 "]\n ldp q18, q19, [%[w], #" #a1 "]\n"                             \
  "ldp q20, q21, [%[w], #" #a2 "]\n ldp q22, q23, [%[w], #" #a3 "]\n"                             \
  "ldp q24, q25, [%[w], #" #b0 "]\n ldp q26, q27, [%[w], #" #b1 "]\n"                             \
  "ldp q28, q29, [%[w], #" #b2 "]\n ldp q30, q31, [%[w], #" #b3 "]\n"                             \
  "ldp q8, q9, [%[x], #32]\n ldp q10, q11, [%[x], #96]\n"                                         \
  "ldr q2, [%[x]]\n ldr q3, [%[x]]\n ldr q4, [%[x], #64]\n ldr q5, [%[x], #64]\n"                 \
  "0:\n"                                                                                          \
  "movi v0.4s, #0\n movi v1.4s, #0\n"                                                             \
  "mov %[left], %[steps]\n"                                                                       \
  "1:\n"                                                                                          \
  "add %[next_x], %[x], #128\n"                                                                   \
  "add %[next_w], %[w], #" #pair "\n"                                                             \
  "add %[next_group], %[next_w], %[gap]\n"                                                        \
  "cmp %[groups], #1\n"                                                                           \
  "csel %[next_group], %[w], %[next_group], eq\n"                                                 \
  "subs %[left], %[left], #1\n"                                                                   \
  "csel %[next_x], %[first_x], %[next_x], eq\n"                                                   \
  "csel %[next_w], %[next_group], %[next_w], eq\n"                                                \
  CELER_NIBBLE_PART(low, high, 2, 3, 16, 17, 8, 0, 1, a0, CELER_NIBBLE_FETCH(0))                  \
  CELER_NIBBLE_PART(low, high, 4, 5, 24, 25, 10, 0, 1, b0, "")                                    \
  CELER_NIBBLE_PART(low, high, 2, 3, 18, 19, 8, 2, 3, a1, CELER_NIBBLE_FETCH(64))                 \
  CELER_NIBBLE_PART(low, high, 4, 5, 26, 27, 10, 2, 3, b1, "")                                    \
  CELER_NIBBLE_PART(low, high, 2, 3, 20, 21, 9, 0, 1, a2, CELER_NIBBLE_FETCH(128))                \
  CELER_NIBBLE_PART(low, high, 4, 5, 28, 29, 11, 0, 1, b2, "")                                    \
  CELER_NIBBLE_PART(low, high, 2, 3, 22, 23, 9, 2, 3, a3, CELER_NIBBLE_FETCH(192))                \
  CELER_NIBBLE_PART(low, high, 4, 5, 30, 31, 11, 2, 3, b3, CELER_NIBBLE_FETCH(256))               \
  end_a end_b                                                                                     \
  "ldp q8, q9, [%[next_x], #32]\n ldp q10, q11, [%[next_x], #96]\n"                               \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                                   \
  "cbnz %[left], 1b\n"                                                                            \
  "ldr q12, [%[unit]]\n"                                                                          \
  "fmul v0.4s, v0.4s, v12.4s\n fmul v1.4s, v1.4s, v12.4s\n"                                       \
  "stp q0, q1, [%[out]], #32\n"                                                                   \
  "subs %[groups], %[groups], #1\n"                                                               \
  "b.ne 0b\n"
#define CELER_NIBBLE_OPERANDS                                                                                       \
  : [w] "+&r"(w), [x] "+&r"(x), [groups] "+&r"(groups), [out] "+&r"(out), [next_x] "=&r"(next_x),                       \
    [next_w] "=&r"(next_w), [next_group] "=&r"(next_group), [left] "=&r"(left)                                      \
  : [first_x] "r"(x), [steps] "r"(steps), [gap] "r"(gap), [unit] "r"(&unit)                                         \
  : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",  \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
    "v31"

// `groups` row groups of `steps` pairs of blocks, `gap` bytes between groups, to out[8 * groups]. The results are
// multiplied with `unit`.
template <bool kMin>
inline void NibbleGroups(const uint8_t* w, const XTokenBlock* x, int64_t steps, int64_t groups, int64_t gap,
                         float32x4_t unit, float* out) {
  const XTokenBlock* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  if constexpr (kMin)
    asm volatile(CELER_NIBBLE_LOOP(15, CELER_NIBBLE_LOW, CELER_NIBBLE_USHR, 32, 64, 96, 128, 192, 224, 256, 288, 320,
                                   CELER_NIBBLE_END(2, 3, 0, 0, CELER_NIBBLE_MINS(16, 16)),
                                   CELER_NIBBLE_END(4, 5, 160, 64, CELER_NIBBLE_MINS(176, 80))) CELER_NIBBLE_OPERANDS);
  else
    asm volatile(CELER_NIBBLE_LOOP(240, CELER_NIBBLE_SHL, CELER_NIBBLE_AND, 16, 48, 80, 112, 160, 192, 224, 256, 288,
                                   CELER_NIBBLE_END(2, 3, 0, 0, ""),
                                   CELER_NIBBLE_END(4, 5, 144, 64, "")) CELER_NIBBLE_OPERANDS);
}

// Bytes: registers as above, weights of one block in v16..v31. Four columns of eight rows, and the same weights of the
// next block.
#define CELER_BYTE_PART(w0, w1, x, lane, at)                                \
  "sdot v2.4s, v" #w0 ".16b, v" #x ".4b[" #lane "]\n"                       \
  "sdot v3.4s, v" #w1 ".16b, v" #x ".4b[" #lane "]\n"                       \
  "ldr q" #w0 ", [%[next_w], #" #at "]\n"                                   \
  "ldr q" #w1 ", [%[next_w], #" #at "+16]\n"
#define CELER_BYTE_FETCH(at) "prfm pldl1keep, [%[w], #768+" #at "]\n"
#define CELER_BYTE_LOOP                                                                           \
  "ldp q16, q17, [%[w], #16]\n ldp q18, q19, [%[w], #48]\n"                                       \
  "ldp q20, q21, [%[w], #80]\n ldp q22, q23, [%[w], #112]\n"                                      \
  "ldp q24, q25, [%[w], #144]\n ldp q26, q27, [%[w], #176]\n"                                     \
  "ldp q28, q29, [%[w], #208]\n ldp q30, q31, [%[w], #240]\n"                                     \
  "ldp q8, q9, [%[x], #32]\n ldr q2, [%[x]]\n ldr q3, [%[x]]\n"                                   \
  "0:\n"                                                                                          \
  "movi v0.4s, #0\n movi v1.4s, #0\n"                                                             \
  "mov %[left], %[steps]\n"                                                                       \
  "1:\n"                                                                                          \
  "add %[next_x], %[x], #64\n"                                                                    \
  "add %[next_w], %[w], #272\n"                                                                   \
  "add %[next_group], %[next_w], %[gap]\n"                                                        \
  "cmp %[groups], #1\n"                                                                           \
  "csel %[next_group], %[w], %[next_group], eq\n"                                                 \
  "subs %[left], %[left], #1\n"                                                                   \
  "csel %[next_x], %[first_x], %[next_x], eq\n"                                                   \
  "csel %[next_w], %[next_group], %[next_w], eq\n"                                                \
  CELER_BYTE_FETCH(0) CELER_BYTE_PART(16, 17, 8, 0, 16)                                           \
  CELER_BYTE_FETCH(64) CELER_BYTE_PART(18, 19, 8, 1, 48)                                          \
  CELER_BYTE_PART(20, 21, 8, 2, 80) CELER_BYTE_PART(22, 23, 8, 3, 112)                            \
  "ldr q8, [%[next_x], #32]\n"                                                                    \
  CELER_BYTE_FETCH(128) CELER_BYTE_PART(24, 25, 9, 0, 144)                                        \
  CELER_BYTE_FETCH(192) CELER_BYTE_PART(26, 27, 9, 1, 176) CELER_BYTE_FETCH(256)                  \
  CELER_BYTE_PART(28, 29, 9, 2, 208) CELER_BYTE_PART(30, 31, 9, 3, 240)                           \
  "ldr q9, [%[next_x], #48]\n"                                                                    \
  CELER_NIBBLE_END(2, 3, 0, 0, "")                                                                \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                                   \
  "cbnz %[left], 1b\n"                                                                            \
  "stp q0, q1, [%[out]], #32\n"                                                                   \
  "subs %[groups], %[groups], #1\n"                                                               \
  "b.ne 0b\n"

// The same for Q8_0, where a step is one block. The prefetches make decode 1.5 % faster; 1.5 kB ahead they cost
// 7 %, into L2 or as a stream 4 %.
inline void ByteGroups(const uint8_t* w, const XTokenBlock* x, int64_t steps, int64_t groups, int64_t gap, float* out) {
  const XTokenBlock* next_x;
  const uint8_t *next_w, *next_group;
  int64_t left;
  const float32x4_t unit = vdupq_n_f32(1);
  asm volatile(CELER_BYTE_LOOP CELER_NIBBLE_OPERANDS);
}

#undef CELER_BYTE_LOOP
#undef CELER_BYTE_FETCH
#undef CELER_BYTE_PART
#undef CELER_NIBBLE_OPERANDS
#undef CELER_NIBBLE_LOOP
#undef CELER_NIBBLE_MINS
#undef CELER_NIBBLE_END
#undef CELER_NIBBLE_HALVES
#undef CELER_NIBBLE_USHR
#undef CELER_NIBBLE_LOW
#undef CELER_NIBBLE_AND
#undef CELER_NIBBLE_SHL
#undef CELER_NIBBLE_FETCH
#undef CELER_NIBBLE_PART
// clang-format on

}  // namespace
}  // namespace celer::arm
