// The micro-kernels of 8 rows times four tokens, [token][half of the rows]. Part of
// tile_integer_arm_dotprod.cc. In assembly, because compilers copy registers and spill the accumulators.
//
// Measured on Neoverse N1 (two vector pipes), from the L1 cache: 43 cycles a block of bytes, of which the 64
// dot products are 32. A dot product that waits for a load keeps later ones out of the pipes' queues, so
// everything is loaded a step of 8 dot products or more before its use, and what the next block begins with
// during this one's end: 33.2 cycles without the 16 float instructions, 37.7 with loads right before their
// use. An fmla among dot products costs 0.7 cycles, not 0.5; spread evenly over them they cost more.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

static_assert(sizeof(XTokenSuper) == 320 && offsetof(XTokenSuper, q) == 0);
static_assert(sizeof(XTokenBlock) == 64 && offsetof(XTokenBlock, sum) == 16 &&
              offsetof(XTokenBlock, q) == 32);

// How scales and minima stand in front of a block's values.
enum class QuadHeader { kHalves /* f16 scales */, kSingles /* f32 scales */, kSinglesMin /* and minima */ };

// clang-format off

// Token t's columns `step` times the rows in `a` and `b`; then what is loaded meanwhile.
#define CELER_QUAD_DOT(t0, t1, a, b, x, step, load)        \
  "sdot v" #t0 ".4s, v" #a ".16b, v" #x ".4b[" #step "]\n" \
  "sdot v" #t1 ".4s, v" #b ".16b, v" #x ".4b[" #step "]\n" load
// Four columns of all tokens. Registers: v8..v15 integer sums, v16..v19 (v20..v23) the first (last) 16 columns of
// the tokens, a and b weights.
#define CELER_QUAD_STEP(a, b, x0, x1, x2, x3, step, load0, load1, load2, load3) \
  CELER_QUAD_DOT(8, 9, a, b, x0, step, load0)                                   \
  CELER_QUAD_DOT(10, 11, a, b, x1, step, load1)                                 \
  CELER_QUAD_DOT(12, 13, a, b, x2, step, load2)                                 \
  CELER_QUAD_DOT(14, 15, a, b, x3, step, load3)
#define CELER_QUAD_LOAD(to, from, at) "ldr q" #to ", [%[" #from "], #" #at "]\n"
#define CELER_QUAD_PAIR(a, b, from, header, at) "ldp q" #a ", q" #b ", [%[" #from "], #" #header "+" #at "]\n"
// A token's start to both of its sums.
#define CELER_QUAD_START(t0, t1, from, at) CELER_QUAD_LOAD(t0, from, at) CELER_QUAD_LOAD(t1, from, at)
#define CELER_QUAD_SUB(t0, t1, zero)               \
  "fsub v" #t0 ".4s, v" #t0 ".4s, v" #zero ".4s\n" \
  "fsub v" #t1 ".4s, v" #t1 ".4s, v" #zero ".4s\n"
#define CELER_QUAD_SCALE(s0, s1, t0, t1)    \
  "fmla v" #s0 ".4s, v" #t0 ".4s, v30.4s\n" \
  "fmla v" #s1 ".4s, v" #t1 ".4s, v31.4s\n"
#define CELER_QUAD_MIN(s0, s1, sum)          \
  "fmla v" #s0 ".4s, v26.4s, v" #sum ".4s\n" \
  "fmla v" #s1 ".4s, v27.4s, v" #sum ".4s\n"

#define CELER_QUAD_HALVES   \
  "ldr q30, [%[w]]\n"       \
  "fcvtl2 v31.4s, v30.8h\n" \
  "fcvtl v30.4s, v30.4h\n"
#define CELER_QUAD_SINGLES "ldp q30, q31, [%[w]]\n"
// The minima, times the sums of the activations.
#define CELER_QUAD_MINS         \
  "ldp q26, q27, [%[w], #32]\n" \
  CELER_QUAD_LOAD(28, x, 16)    \
  CELER_QUAD_LOAD(29, x, 80)    \
  CELER_QUAD_LOAD(24, x, 144)   \
  CELER_QUAD_LOAD(25, x, 208)   \
  CELER_QUAD_MIN(0, 1, 28)      \
  CELER_QUAD_MIN(2, 3, 29)      \
  CELER_QUAD_MIN(4, 5, 24)      \
  CELER_QUAD_MIN(6, 7, 25)

// `header` bytes stand before the values; `scales` loads v30 and v31; what is subtracted stands `zero` bytes after a
// token's start. v0..v7 are the sums, v24..v29 weights. After the last block the loads for a next one read this one
// again.
#define CELER_QUAD_LOOP(header, scales, zero, mins)                                                                 \
  "ldp q0, q1, [%[sum]]\n ldp q2, q3, [%[sum], #32]\n ldp q4, q5, [%[sum], #64]\n ldp q6, q7, [%[sum], #96]\n"      \
  CELER_QUAD_PAIR(24, 25, w, header, 0)                                                                             \
  CELER_QUAD_PAIR(26, 27, w, header, 32)                                                                            \
  CELER_QUAD_LOAD(16, x, 32) CELER_QUAD_LOAD(17, x, 96) CELER_QUAD_LOAD(18, x, 160) CELER_QUAD_LOAD(19, x, 224)     \
  CELER_QUAD_START(8, 9, x, 0) CELER_QUAD_START(10, 11, x, 64)                                                      \
  CELER_QUAD_START(12, 13, x, 128) CELER_QUAD_START(14, 15, x, 192)                                                 \
  "1:\n"                                                                                                            \
  "add %[next_x], %[x], %[x_step]\n"                                                                                \
  "add %[next_w], %[w], #" #header "+256\n"                                                                         \
  "cmp %[blocks], #1\n"                                                                                             \
  "csel %[next_x], %[x], %[next_x], eq\n"                                                                           \
  "csel %[next_w], %[w], %[next_w], eq\n"                                                                           \
  "prfm pldl1keep, [%[soon]]\n"                                                                                     \
  "prfm pldl1keep, [%[soon], #64]\n"                                                                                \
  "add %[soon], %[soon], %[soon_step]\n"                                                                            \
  CELER_QUAD_STEP(24, 25, 16, 17, 18, 19, 0, CELER_QUAD_PAIR(28, 29, w, header, 64), CELER_QUAD_LOAD(20, x, 48),    \
                  CELER_QUAD_LOAD(21, x, 112), CELER_QUAD_LOAD(22, x, 176))                                         \
  CELER_QUAD_STEP(26, 27, 16, 17, 18, 19, 1, CELER_QUAD_PAIR(24, 25, w, header, 96), CELER_QUAD_LOAD(23, x, 240),   \
                  "", "")                                                                                           \
  CELER_QUAD_STEP(28, 29, 16, 17, 18, 19, 2, CELER_QUAD_PAIR(26, 27, w, header, 128), "", "", "")                   \
  CELER_QUAD_STEP(24, 25, 16, 17, 18, 19, 3, CELER_QUAD_PAIR(28, 29, w, header, 160), "", "", "")                   \
  CELER_QUAD_STEP(26, 27, 20, 21, 22, 23, 0, CELER_QUAD_PAIR(24, 25, w, header, 192),                               \
                  CELER_QUAD_LOAD(16, next_x, 32), CELER_QUAD_LOAD(17, next_x, 96), "")                             \
  CELER_QUAD_STEP(28, 29, 20, 21, 22, 23, 1, CELER_QUAD_PAIR(26, 27, w, header, 224),                               \
                  CELER_QUAD_LOAD(18, next_x, 160), CELER_QUAD_LOAD(19, next_x, 224), "")                           \
  CELER_QUAD_STEP(24, 25, 20, 21, 22, 23, 2, scales, CELER_QUAD_LOAD(28, x, zero), CELER_QUAD_LOAD(29, x, 64+zero), \
                  "")                                                                                               \
  CELER_QUAD_STEP(26, 27, 20, 21, 22, 23, 3, CELER_QUAD_LOAD(24, x, 128+zero), CELER_QUAD_LOAD(25, x, 192+zero),    \
                  "", "")                                                                                           \
  CELER_QUAD_SUB(8, 9, 28) CELER_QUAD_SUB(10, 11, 29) CELER_QUAD_SUB(12, 13, 24) CELER_QUAD_SUB(14, 15, 25)         \
  CELER_QUAD_SCALE(0, 1, 8, 9) CELER_QUAD_START(8, 9, next_x, 0)                                                    \
  CELER_QUAD_SCALE(2, 3, 10, 11) CELER_QUAD_START(10, 11, next_x, 64)                                               \
  CELER_QUAD_SCALE(4, 5, 12, 13) CELER_QUAD_START(12, 13, next_x, 128)                                              \
  CELER_QUAD_SCALE(6, 7, 14, 15) CELER_QUAD_START(14, 15, next_x, 192)                                              \
  mins                                                                                                              \
  CELER_QUAD_PAIR(24, 25, next_w, header, 0)                                                                        \
  CELER_QUAD_PAIR(26, 27, next_w, header, 32)                                                                       \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                                                     \
  "subs %[blocks], %[blocks], #1\n"                                                                                 \
  "b.ne 1b\n"                                                                                                       \
  "stp q0, q1, [%[sum]]\n stp q2, q3, [%[sum], #32]\n stp q4, q5, [%[sum], #64]\n stp q6, q7, [%[sum], #96]\n"
#define CELER_QUAD_CLOBBERS                                                                                       \
  "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",  \
  "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
  "v31"
#define CELER_QUAD_OPERANDS                                                                             \
  : [w] "+&r"(w), [x] "+&r"(x), [blocks] "+&r"(blocks), [next_x] "=&r"(next_x), [next_w] "=&r"(next_w), \
    [soon] "+&r"(soon)                                                                                  \
  : [x_step] "r"(x_step), [soon_step] "r"(soon_step), [sum] "r"(sum)                                    \
  : CELER_QUAD_CLOBBERS

// Token t's block b is x[b * apart + t]. With each block 128 bytes are fetched into the L1 cache, `soon_step` after
// those of the block before.
template <QuadHeader kHeader, bool kZero>
inline void QuadBlocks(const uint8_t* w, const XTokenBlock* x, int64_t blocks, int apart, const void* soon,
                       int64_t soon_step, float32x4_t (*sum)[2]) {
  const int64_t x_step = apart * static_cast<int64_t>(sizeof(XTokenBlock));
  const XTokenBlock* next_x;
  const uint8_t* next_w;
  if constexpr (kHeader == QuadHeader::kHalves)
    asm volatile(CELER_QUAD_LOOP(16, CELER_QUAD_HALVES, 0, "") CELER_QUAD_OPERANDS);
  else if constexpr (kHeader == QuadHeader::kSinglesMin)
    asm volatile(CELER_QUAD_LOOP(64, CELER_QUAD_SINGLES, 0, CELER_QUAD_MINS) CELER_QUAD_OPERANDS);
  else if constexpr (kZero)
    asm volatile(CELER_QUAD_LOOP(32, CELER_QUAD_SINGLES, 16, "") CELER_QUAD_OPERANDS);
  else
    asm volatile(CELER_QUAD_LOOP(32, CELER_QUAD_SINGLES, 0, "") CELER_QUAD_OPERANDS);
}

// Nibbles (Halves::kMixed): high halves are the bytes as they stand (a, b), low ones in v28 and v29 16 times what they
// are less 8, made during the products before theirs with v31, which holds 128 in each byte.
#define CELER_QUAD_LOW(a, b) "shl v28.16b, v" #a ".16b, #4\n shl v29.16b, v" #b ".16b, #4\n"
#define CELER_QUAD_LESS_8 "eor v28.16b, v28.16b, v31.16b\n eor v29.16b, v29.16b, v31.16b\n"
// 32 columns. Weights stand `header` after w, the tokens' columns x0..x3 after x; `scales` loads, `convert` makes what
// v30 and v31 are to be, and end0..end3 load what comes after that.
#define CELER_QUAD_NIBBLE_STEPS(header, x0, x1, x2, x3, scales, convert, end0, end1, end2, end3)                    \
  CELER_QUAD_STEP(28, 29, 16, 17, 18, 19, 0, CELER_QUAD_PAIR(26, 27, w, header, 32), CELER_QUAD_LOAD(20, x, 16+x0), \
                  CELER_QUAD_LOAD(21, x, 16+x1), CELER_QUAD_LOAD(22, x, 16+x2))                                     \
  CELER_QUAD_STEP(24, 25, 16, 17, 18, 19, 1, CELER_QUAD_LOAD(23, x, 16+x3), CELER_QUAD_LOW(26, 27), "",             \
                  CELER_QUAD_LESS_8)                                                                                \
  CELER_QUAD_STEP(28, 29, 16, 17, 18, 19, 2, CELER_QUAD_PAIR(24, 25, w, header, 64), "", "", "")                    \
  CELER_QUAD_STEP(26, 27, 16, 17, 18, 19, 3, "", CELER_QUAD_LOW(24, 25), "", CELER_QUAD_LESS_8)                     \
  CELER_QUAD_STEP(28, 29, 20, 21, 22, 23, 0, CELER_QUAD_PAIR(26, 27, w, header, 96),                                \
                  CELER_QUAD_LOAD(16, next_x, x0), CELER_QUAD_LOAD(17, next_x, x1), "")                             \
  CELER_QUAD_STEP(24, 25, 20, 21, 22, 23, 1, CELER_QUAD_LOAD(18, next_x, x2), CELER_QUAD_LOW(26, 27),               \
                  CELER_QUAD_LOAD(19, next_x, x3), CELER_QUAD_LESS_8)                                               \
  CELER_QUAD_STEP(28, 29, 20, 21, 22, 23, 2, CELER_QUAD_PAIR(24, 25, next_w, header, 0) scales, "", convert, "")    \
  CELER_QUAD_STEP(26, 27, 20, 21, 22, 23, 3, end0, end1, end2 CELER_QUAD_LOW(24, 25), end3)

// Q4_0, as QuadBlocks().
#define CELER_QUAD_NIBBLES                                                                                      \
  "ldp q0, q1, [%[sum]]\n ldp q2, q3, [%[sum], #32]\n ldp q4, q5, [%[sum], #64]\n ldp q6, q7, [%[sum], #96]\n"  \
  CELER_QUAD_PAIR(24, 25, w, 16, 0)                                                                             \
  CELER_QUAD_LOAD(16, x, 32) CELER_QUAD_LOAD(17, x, 96) CELER_QUAD_LOAD(18, x, 160) CELER_QUAD_LOAD(19, x, 224) \
  CELER_QUAD_START(8, 9, x, 0) CELER_QUAD_START(10, 11, x, 64)                                                  \
  CELER_QUAD_START(12, 13, x, 128) CELER_QUAD_START(14, 15, x, 192)                                             \
  "movi v31.16b, #128\n"                                                                                        \
  CELER_QUAD_LOW(24, 25) CELER_QUAD_LESS_8                                                                      \
  "1:\n"                                                                                                        \
  "add %[next_x], %[x], %[x_step]\n"                                                                            \
  "add %[next_w], %[w], #144\n"                                                                                 \
  "cmp %[blocks], #1\n"                                                                                         \
  "csel %[next_x], %[x], %[next_x], eq\n"                                                                       \
  "csel %[next_w], %[w], %[next_w], eq\n"                                                                       \
  "prfm pldl1keep, [%[soon]]\n prfm pldl1keep, [%[soon], #64]\n"                                                \
  "add %[soon], %[soon], %[soon_step]\n"                                                                        \
  CELER_QUAD_NIBBLE_STEPS(16, 32, 96, 160, 224, "ldr q30, [%[w]]\n",                                            \
                          "fcvtl2 v31.4s, v30.8h\n fcvtl v30.4s, v30.4h\n",                                     \
                          CELER_QUAD_LOAD(20, x, 16), CELER_QUAD_LOAD(21, x, 80), CELER_QUAD_LOAD(22, x, 144),  \
                          CELER_QUAD_LOAD(23, x, 208))                                                          \
  CELER_QUAD_SUB(8, 9, 20) CELER_QUAD_SUB(10, 11, 21) CELER_QUAD_SUB(12, 13, 22) CELER_QUAD_SUB(14, 15, 23)     \
  CELER_QUAD_SCALE(0, 1, 8, 9) CELER_QUAD_START(8, 9, next_x, 0)                                                \
  CELER_QUAD_SCALE(2, 3, 10, 11) CELER_QUAD_START(10, 11, next_x, 64)                                           \
  CELER_QUAD_SCALE(4, 5, 12, 13) CELER_QUAD_START(12, 13, next_x, 128)                                          \
  CELER_QUAD_SCALE(6, 7, 14, 15) CELER_QUAD_START(14, 15, next_x, 192)                                          \
  "movi v31.16b, #128\n"                                                                                        \
  CELER_QUAD_LESS_8                                                                                             \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                                                 \
  "subs %[blocks], %[blocks], #1\n"                                                                             \
  "b.ne 1b\n"                                                                                                   \
  "stp q0, q1, [%[sum]]\n stp q2, q3, [%[sum], #32]\n stp q4, q5, [%[sum], #64]\n stp q6, q7, [%[sum], #96]\n"

inline void QuadNibbles(const uint8_t* w, const XTokenBlock* x, int64_t blocks, int apart, const void* soon,
                        int64_t soon_step, float32x4_t (*sum)[2]) {
  const int64_t x_step = apart * static_cast<int64_t>(sizeof(XTokenBlock));
  const XTokenBlock* next_x;
  const uint8_t* next_w;
  asm volatile(CELER_QUAD_NIBBLES CELER_QUAD_OPERANDS);
}

// A sub-block's sums times its scales, and the next one begins: from the starts at `start`, those of the tokens `each`
// bytes apart.
#define CELER_QUAD_SUB_END(each)                                                                    \
  "mla v0.4s, v8.4s, v30.4s\n mla v1.4s, v9.4s, v31.4s\n" CELER_QUAD_START(8, 9, start, 0)          \
  "mla v2.4s, v10.4s, v30.4s\n mla v3.4s, v11.4s, v31.4s\n" CELER_QUAD_START(10, 11, start, each)   \
  "mla v4.4s, v12.4s, v30.4s\n mla v5.4s, v13.4s, v31.4s\n" CELER_QUAD_START(12, 13, start, 2*each) \
  "mla v6.4s, v14.4s, v30.4s\n mla v7.4s, v15.4s, v31.4s\n" CELER_QUAD_START(14, 15, start, 3*each)
#define CELER_QUAD_SUB_SCALES "ldp q30, q31, [%[scales]], #32\n"
// Tokens are `apart` bytes apart. `next_start` goes from a sub-block's start to the next one's; `middle_scales` and
// `middle` are for a sub-block that ends after 16 columns.
#define CELER_QUAD_SUPER(apart, each, next_start, middle_scales, middle)                                            \
  "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n"                                             \
  "movi v4.4s, #0\n movi v5.4s, #0\n movi v6.4s, #0\n movi v7.4s, #0\n"                                             \
  CELER_QUAD_START(8, 9, start, 0) CELER_QUAD_START(10, 11, start, each)                                            \
  CELER_QUAD_START(12, 13, start, 2*each) CELER_QUAD_START(14, 15, start, 3*each)                                   \
  CELER_QUAD_PAIR(24, 25, w, 0, 0)                                                                                  \
  CELER_QUAD_PAIR(26, 27, w, 0, 32)                                                                                 \
  CELER_QUAD_LOAD(16, x, 0) CELER_QUAD_LOAD(17, x, apart)                                                           \
  CELER_QUAD_LOAD(18, x, 2*apart) CELER_QUAD_LOAD(19, x, 3*apart)                                                   \
  "1:\n"                                                                                                            \
  "add %[next_x], %[x], #32\n"                                                                                      \
  "add %[next_w], %[w], #256\n"                                                                                     \
  "cmp %[blocks], #1\n"                                                                                             \
  "csel %[next_x], %[x], %[next_x], eq\n"                                                                           \
  "csel %[next_w], %[w], %[next_w], eq\n" next_start                                                                \
  CELER_QUAD_STEP(24, 25, 16, 17, 18, 19, 0, CELER_QUAD_PAIR(28, 29, w, 0, 64), CELER_QUAD_LOAD(20, x, 16),         \
                  CELER_QUAD_LOAD(21, x, apart+16), CELER_QUAD_LOAD(22, x, 2*apart+16))                             \
  CELER_QUAD_STEP(26, 27, 16, 17, 18, 19, 1, CELER_QUAD_PAIR(24, 25, w, 0, 96), CELER_QUAD_LOAD(23, x, 3*apart+16), \
                  "prfm pldl1keep, [%[soon]]\n", "")                                                                \
  CELER_QUAD_STEP(28, 29, 16, 17, 18, 19, 2, CELER_QUAD_PAIR(26, 27, w, 0, 128), middle_scales, "", "")             \
  CELER_QUAD_STEP(24, 25, 16, 17, 18, 19, 3, CELER_QUAD_PAIR(28, 29, w, 0, 160), "", "", "")                        \
  middle                                                                                                            \
  CELER_QUAD_STEP(26, 27, 20, 21, 22, 23, 0, CELER_QUAD_PAIR(24, 25, w, 0, 192),                                    \
                  CELER_QUAD_LOAD(16, next_x, 0), CELER_QUAD_LOAD(17, next_x, apart), "")                           \
  CELER_QUAD_STEP(28, 29, 20, 21, 22, 23, 1, CELER_QUAD_PAIR(26, 27, w, 0, 224),                                    \
                  CELER_QUAD_LOAD(18, next_x, 2*apart), CELER_QUAD_LOAD(19, next_x, 3*apart), "")                   \
  CELER_QUAD_STEP(24, 25, 20, 21, 22, 23, 2, CELER_QUAD_SUB_SCALES, "prfm pldl1keep, [%[soon], #64]\n",             \
                  "add %[soon], %[soon], #128\n", "")                                                               \
  CELER_QUAD_STEP(26, 27, 20, 21, 22, 23, 3, "", "", "", "")                                                        \
  CELER_QUAD_SUB_END(each)                                                                                          \
  CELER_QUAD_PAIR(24, 25, next_w, 0, 0)                                                                             \
  CELER_QUAD_PAIR(26, 27, next_w, 0, 32)                                                                            \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                                                     \
  "subs %[blocks], %[blocks], #1\n"                                                                                 \
  "b.ne 1b\n"                                                                                                       \
  "stp q0, q1, [%[sum]]\n stp q2, q3, [%[sum], #32]\n stp q4, q5, [%[sum], #64]\n stp q6, q7, [%[sum], #96]\n"
// To the next sub-block's start; there is none after the last one (blocks was compared with 1).
#define CELER_QUAD_NEXT_START "mov %[step], #16\n csel %[step], xzr, %[step], eq\n add %[start], %[start], %[step]\n"
#define CELER_QUAD_SUPER_OPERANDS                                                                       \
  : [w] "+&r"(w), [x] "+&r"(x), [blocks] "+&r"(blocks), [next_x] "=&r"(next_x), [next_w] "=&r"(next_w), \
    [scales] "+&r"(scales), [soon] "+&r"(soon), [start] "+&r"(start), [step] "=&r"(step)                \
  : [sum] "r"(dots)                                                                                     \
  : CELER_QUAD_CLOBBERS

// A super-block with kSubs scales as integers, to integer sums. The tokens stand side by side at x. 1 kB from `soon`
// on is fetched into the L1 cache.
template <int kSubs, class XSuper>
inline void QuadSuper(const uint8_t* w, const int32_t* scales, const XSuper* super, const void* soon,
                      int32x4_t (*dots)[2]) {
  const int32x4_t zero = vdupq_n_s32(0);
  const void* start = &zero;
  const int8_t *x = super->q, *next_x;
  const uint8_t* next_w;
  int64_t blocks = 8, step;
  if constexpr (requires { super->start; }) {
    static_assert(kSubs == 8 && sizeof(XSuper) == 448);
    start = super->start;
    asm volatile(CELER_QUAD_SUPER(448, 448, CELER_QUAD_NEXT_START, "", "") CELER_QUAD_SUPER_OPERANDS);
  } else if constexpr (kSubs == 16) {
    asm volatile(CELER_QUAD_SUPER(320, 0, "", CELER_QUAD_SUB_SCALES, CELER_QUAD_SUB_END(0)) CELER_QUAD_SUPER_OPERANDS);
  } else {
    asm volatile(CELER_QUAD_SUPER(320, 0, "", "", "") CELER_QUAD_SUPER_OPERANDS);
  }
}

// The same for a super-block of nibbles, w, whose scales are bytes.
#define CELER_QUAD_NIBBLE_SUPER(apart)                                                                          \
  "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n"                                         \
  "movi v4.4s, #0\n movi v5.4s, #0\n movi v6.4s, #0\n movi v7.4s, #0\n"                                         \
  CELER_QUAD_START(8, 9, start, 0) CELER_QUAD_START(10, 11, start, apart)                                       \
  CELER_QUAD_START(12, 13, start, 2*apart) CELER_QUAD_START(14, 15, start, 3*apart)                             \
  CELER_QUAD_PAIR(24, 25, w, 0, 0)                                                                              \
  CELER_QUAD_LOAD(16, x, 0) CELER_QUAD_LOAD(17, x, apart)                                                       \
  CELER_QUAD_LOAD(18, x, 2*apart) CELER_QUAD_LOAD(19, x, 3*apart)                                               \
  "movi v31.16b, #128\n"                                                                                        \
  CELER_QUAD_LOW(24, 25) CELER_QUAD_LESS_8                                                                      \
  "1:\n"                                                                                                        \
  "add %[next_x], %[x], #32\n"                                                                                  \
  "add %[next_w], %[w], #128\n"                                                                                 \
  "cmp %[blocks], #1\n"                                                                                         \
  "csel %[next_x], %[x], %[next_x], eq\n"                                                                       \
  "csel %[next_w], %[w], %[next_w], eq\n" CELER_QUAD_NEXT_START                                                 \
  "prfm pldl1keep, [%[soon]]\n prfm pldl1keep, [%[soon], #64]\n"                                                \
  "add %[soon], %[soon], #128\n"                                                                                \
  CELER_QUAD_NIBBLE_STEPS(0, 0, apart, 2*apart, 3*apart, "ldr d30, [%[scales]], #8\n",                          \
                          "sxtl v30.8h, v30.8b\n sxtl2 v31.4s, v30.8h\n sxtl v30.4s, v30.4h\n", "", "", "", "") \
  CELER_QUAD_SUB_END(apart)                                                                                     \
  "movi v31.16b, #128\n"                                                                                        \
  CELER_QUAD_LESS_8                                                                                             \
  "mov %[x], %[next_x]\n mov %[w], %[next_w]\n"                                                                 \
  "subs %[blocks], %[blocks], #1\n"                                                                             \
  "b.ne 1b\n"                                                                                                   \
  "stp q0, q1, [%[sum]]\n stp q2, q3, [%[sum], #32]\n stp q4, q5, [%[sum], #64]\n stp q6, q7, [%[sum], #96]\n"

inline void QuadNibbleSuper(const uint8_t* w, const uint8_t* scales, const XTokenNibbleSuper* super, const void* soon,
                            int32x4_t (*dots)[2]) {
  const void* start = super->start;
  const int8_t *x = super->q, *next_x;
  const uint8_t* next_w;
  int64_t blocks = 8, step;
  asm volatile(CELER_QUAD_NIBBLE_SUPER(448) CELER_QUAD_SUPER_OPERANDS);
}

#undef CELER_QUAD_NIBBLE_SUPER
#undef CELER_QUAD_SUPER_OPERANDS
#undef CELER_QUAD_NEXT_START
#undef CELER_QUAD_SUPER
#undef CELER_QUAD_SUB_SCALES
#undef CELER_QUAD_SUB_END
#undef CELER_QUAD_NIBBLES
#undef CELER_QUAD_NIBBLE_STEPS
#undef CELER_QUAD_LESS_8
#undef CELER_QUAD_LOW
#undef CELER_QUAD_OPERANDS
#undef CELER_QUAD_CLOBBERS
#undef CELER_QUAD_LOOP
#undef CELER_QUAD_MINS
#undef CELER_QUAD_SINGLES
#undef CELER_QUAD_HALVES
#undef CELER_QUAD_MIN
#undef CELER_QUAD_SCALE
#undef CELER_QUAD_SUB
#undef CELER_QUAD_START
#undef CELER_QUAD_PAIR
#undef CELER_QUAD_LOAD
#undef CELER_QUAD_STEP
#undef CELER_QUAD_DOT
// clang-format on

}  // namespace
}  // namespace celer::arm
