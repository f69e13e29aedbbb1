// The micro-kernels of attention_lanes.h for four or eight rows of queries, with f32 accumulators. In
// assembly, because compilers broadcast the element of a by-element product to all lanes first, and schedule
// loads in a lump before the products that wait for them. See simd.h for the unnamed namespace.
//
// Rows of keys and values are `padded` elements long, a multiple of 16.
#pragma once

#include "kernels/shared/simd.h"

namespace celer {
namespace {

// clang-format off

// An element of eight keys, v0 to v7, times that of four rows of queries.
#define CELER_LOW(op, q, part)                                                                         \
  op " v16.4s, v" q ", v0." part "\n" op " v17.4s, v" q ", v1." part "\n"                              \
  op " v18.4s, v" q ", v2." part "\n" op " v19.4s, v" q ", v3." part "\n"                              \
  op " v20.4s, v" q ", v4." part "\n" op " v21.4s, v" q ", v5." part "\n"                              \
  op " v22.4s, v" q ", v6." part "\n" op " v23.4s, v" q ", v7." part "\n"
#define CELER_HIGH(op, q, part)                                                                        \
  op " v24.4s, v" q ", v0." part "\n" op " v25.4s, v" q ", v1." part "\n"                              \
  op " v26.4s, v" q ", v2." part "\n" op " v27.4s, v" q ", v3." part "\n"                              \
  op " v28.4s, v" q ", v4." part "\n" op " v29.4s, v" q ", v5." part "\n"                              \
  op " v30.4s, v" q ", v6." part "\n" op " v31.4s, v" q ", v7." part "\n"

#define CELER_EACH_KEY(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define CELER_LOAD_16(i) "ldr q" #i ", [%[k" #i "]], #16\n"
#define CELER_LOAD_8(i) "ldr d" #i ", [%[k" #i "]], #8\n"
#define CELER_FROM_F16(i) "fcvtl v" #i ".4s, v" #i ".4h\n"
#define CELER_FROM_BF16(i) "shll v" #i ".4s, v" #i ".4h, #16\n"
#define CELER_LOAD_F32 CELER_EACH_KEY(CELER_LOAD_16)
#define CELER_LOAD_F16 CELER_EACH_KEY(CELER_LOAD_8) CELER_EACH_KEY(CELER_FROM_F16)
#define CELER_LOAD_BF16 CELER_EACH_KEY(CELER_LOAD_8) CELER_EACH_KEY(CELER_FROM_BF16)

#define CELER_NO_SUMS                                                                                  \
  "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n"                            \
  "movi v20.4s, #0\n movi v21.4s, #0\n movi v22.4s, #0\n movi v23.4s, #0\n"                            \
  "movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n"                            \
  "movi v28.4s, #0\n movi v29.4s, #0\n movi v30.4s, #0\n movi v31.4s, #0\n"
#define CELER_FETCH_TWO                                                                                \
  "prfm pldl1keep, [%[soon]]\n prfm pldl3keep, [%[later]]\n"                                           \
  "prfm pldl1keep, [%[soon], #64]\n prfm pldl3keep, [%[later], #64]\n"                                 \
  "add %[soon], %[soon], #128\n add %[later], %[later], #128\n"
#define CELER_FETCH_ONE                                                                                \
  "prfm pldl1keep, [%[soon]]\n prfm pldl3keep, [%[later]]\n"                                           \
  "add %[soon], %[soon], #64\n add %[later], %[later], #64\n"

// Eight rows: one dependency chain for each key and four rows, as long as the key.
#define CELER_STORE_8ROWS                                                                              \
  "stp q16, q24, [%[s]]\n stp q17, q25, [%[s], #32]\n stp q18, q26, [%[s], #64]\n"                     \
  "stp q19, q27, [%[s], #96]\n stp q20, q28, [%[s], #128]\n stp q21, q29, [%[s], #160]\n"              \
  "stp q22, q30, [%[s], #192]\n stp q23, q31, [%[s], #224]\n"
// Four rows: even and odd elements in separate chains, as a single one for each key would wait for its last
// sum.
#define CELER_STORE_4ROWS                                                                              \
  "fadd v16.4s, v16.4s, v24.4s\n fadd v17.4s, v17.4s, v25.4s\n fadd v18.4s, v18.4s, v26.4s\n"          \
  "fadd v19.4s, v19.4s, v27.4s\n fadd v20.4s, v20.4s, v28.4s\n fadd v21.4s, v21.4s, v29.4s\n"          \
  "fadd v22.4s, v22.4s, v30.4s\n fadd v23.4s, v23.4s, v31.4s\n"                                        \
  "stp q16, q17, [%[s]]\n stp q18, q19, [%[s], #32]\n stp q20, q21, [%[s], #64]\n"                     \
  "stp q22, q23, [%[s], #96]\n"

#define CELER_SCORES(body, store)                                                                                   \
  asm volatile(                                                                                                     \
      CELER_NO_SUMS "1:\n" body "subs %[left], %[left], #1\n b.ne 1b\n" store                                       \
      : [k0] "+r"(k), [k1] "+r"(k1), [k2] "+r"(k2), [k3] "+r"(k3), [k4] "+r"(k4), [k5] "+r"(k5), [k6] "+r"(k6),     \
        [k7] "+r"(k7), [q] "+r"(q), [soon] "+r"(soon), [later] "+r"(later), [left] "+r"(left)                       \
      : [s] "r"(scores)                                                                                             \
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",     \
        "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",    \
        "v29", "v30", "v31")
#define CELER_KEY_POINTERS                                                                                          \
  const uint8_t *k1 = k + stride, *k2 = k1 + stride, *k3 = k2 + stride, *k4 = k3 + stride, *k5 = k4 + stride,       \
                *k6 = k5 + stride, *k7 = k6 + stride

// One key's values times its weights. Eight rows of eight columns, v0 and v1 or the halves of v0; weights w0 and w1.
#define CELER_ROW8(a, b, opl, oph, v0, v1, w) opl " v" #a ".4s, v" v0 ", v" w "\n" oph " v" #b ".4s, v" v1 ", v" w "\n"
#define CELER_VALUES8(opl, oph, v0, v1, w0, w1, w2, w3, w4, w5, w6, w7)                                             \
  CELER_ROW8(16, 17, opl, oph, v0, v1, w0) CELER_ROW8(18, 19, opl, oph, v0, v1, w1)                                 \
  CELER_ROW8(20, 21, opl, oph, v0, v1, w2) CELER_ROW8(22, 23, opl, oph, v0, v1, w3)                                 \
  CELER_ROW8(24, 25, opl, oph, v0, v1, w4) CELER_ROW8(26, 27, opl, oph, v0, v1, w5)                                 \
  CELER_ROW8(28, 29, opl, oph, v0, v1, w6) CELER_ROW8(30, 31, opl, oph, v0, v1, w7)
// Four rows of 16 columns.
#define CELER_ROW4(a, b, c, d, opl, oph, v0, v1, v2, v3, w)                                                         \
  CELER_ROW8(a, b, opl, oph, v0, v1, w) CELER_ROW8(c, d, opl, oph, v2, v3, w)
#define CELER_VALUES4(opl, oph, v0, v1, v2, v3, w0, w1, w2, w3)                                                     \
  CELER_ROW4(16, 17, 18, 19, opl, oph, v0, v1, v2, v3, w0) CELER_ROW4(20, 21, 22, 23, opl, oph, v0, v1, v2, v3, w1) \
  CELER_ROW4(24, 25, 26, 27, opl, oph, v0, v1, v2, v3, w2) CELER_ROW4(28, 29, 30, 31, opl, oph, v0, v1, v2, v3, w3)

#define CELER_LOAD_SUMS                                                                                             \
  "ldp q16, q17, [%[acc]]\n ldp q18, q19, [%[acc], #32]\n ldp q20, q21, [%[acc], #64]\n"                            \
  "ldp q22, q23, [%[acc], #96]\n ldp q24, q25, [%[acc], #128]\n ldp q26, q27, [%[acc], #160]\n"                     \
  "ldp q28, q29, [%[acc], #192]\n ldp q30, q31, [%[acc], #224]\n"
#define CELER_STORE_SUMS                                                                                            \
  "stp q16, q17, [%[acc]]\n stp q18, q19, [%[acc], #32]\n stp q20, q21, [%[acc], #64]\n"                            \
  "stp q22, q23, [%[acc], #96]\n stp q24, q25, [%[acc], #128]\n stp q26, q27, [%[acc], #160]\n"                     \
  "stp q28, q29, [%[acc], #192]\n stp q30, q31, [%[acc], #224]\n"
#define CELER_SHRINK(r, w) "fmul v" #r ".4s, v" #r ".4s, v" w "\n"
#define CELER_SHRINK_8ROWS                                                                                          \
  "ldp q0, q1, [%[shrink]]\n"                                                                                       \
  CELER_SHRINK(16, "0.s[0]") CELER_SHRINK(17, "0.s[0]") CELER_SHRINK(18, "0.s[1]") CELER_SHRINK(19, "0.s[1]")       \
  CELER_SHRINK(20, "0.s[2]") CELER_SHRINK(21, "0.s[2]") CELER_SHRINK(22, "0.s[3]") CELER_SHRINK(23, "0.s[3]")       \
  CELER_SHRINK(24, "1.s[0]") CELER_SHRINK(25, "1.s[0]") CELER_SHRINK(26, "1.s[1]") CELER_SHRINK(27, "1.s[1]")       \
  CELER_SHRINK(28, "1.s[2]") CELER_SHRINK(29, "1.s[2]") CELER_SHRINK(30, "1.s[3]") CELER_SHRINK(31, "1.s[3]")
#define CELER_SHRINK_4ROWS                                                                                          \
  "ldr q0, [%[shrink]]\n"                                                                                           \
  CELER_SHRINK(16, "0.s[0]") CELER_SHRINK(17, "0.s[0]") CELER_SHRINK(18, "0.s[0]") CELER_SHRINK(19, "0.s[0]")       \
  CELER_SHRINK(20, "0.s[1]") CELER_SHRINK(21, "0.s[1]") CELER_SHRINK(22, "0.s[1]") CELER_SHRINK(23, "0.s[1]")       \
  CELER_SHRINK(24, "0.s[2]") CELER_SHRINK(25, "0.s[2]") CELER_SHRINK(26, "0.s[2]") CELER_SHRINK(27, "0.s[2]")       \
  CELER_SHRINK(28, "0.s[3]") CELER_SHRINK(29, "0.s[3]") CELER_SHRINK(30, "0.s[3]") CELER_SHRINK(31, "0.s[3]")
#define CELER_NEXT_KEY                                                                                              \
  "ldr x9, [%[v]], #8\n ldr x10, [%[next]], #8\n add x9, x9, %[column]\n prfm pldl1keep, [x10, %[ahead]]\n"
// Double buffering over two keys: while one's values are multiplied, those of the next are loaded into other
// registers.
#define CELER_VALUES(shrink_rows, load_a, body_a, load_b, body_b)                                                   \
  asm volatile(                                                                                                     \
      CELER_LOAD_SUMS shrink_rows CELER_NEXT_KEY load_a "tbz %[keys], #0, 1f\n"                                     \
      body_a "subs %[keys], %[keys], #1\n b.eq 2f\n" CELER_NEXT_KEY load_a                                          \
      "1:\n" CELER_NEXT_KEY load_b body_a CELER_NEXT_KEY load_a body_b "subs %[keys], %[keys], #2\n b.ne 1b\n"      \
      "2:\n" CELER_STORE_SUMS                                                                                       \
      : [v] "+r"(v), [next] "+r"(next), [w] "+r"(weights), [keys] "+r"(keys)                                        \
      : [column] "r"(column), [ahead] "r"(ahead), [acc] "r"(acc), [shrink] "r"(shrink)                              \
      : "memory", "cc", "x9", "x10", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",      \
        "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",    \
        "v31")

// What a tile needs to know of its loops: kRows queries and kRows * kColumns sums at a time, weights and queries as
// Elements, keys and values as elements of kBytes.
//   Scores: scores[8 keys][kRows] = the products of eight keys, `stride` bytes apart, with q[padded][kRows].
//     Prefetches as many bytes from `soon` on into the L1 cache and from `later` on into the last level.
//   Values: acc[kRows][kColumns] = acc * shrink[row] + the sum over `keys` of weights[key][row] times kColumns
//     columns of its value, which begin `column` bytes into the row v[key]. Prefetches next[key] + ahead. Reads,
//     but does not use, what lies behind the last key: v and next have one more entry, a row that may be read.
// An order of additions depends on kRows alone.

#if defined(__ARM_FEATURE_FP16_FML)

// Products of f16 are exact in f32, where they are added up.
template <int kTheRows>
struct LongLoops {
  using Element = __fp16;
  static constexpr int kRows = kTheRows, kColumns = 64 / kRows, kBytes = 2;

  static CELER_INLINE void Scores(const Element* q, const uint8_t* k, int64_t stride, int64_t padded, float* scores,
                                  const uint8_t* soon, const uint8_t* later) {
    CELER_KEY_POINTERS;
    int64_t left = padded / 8;
#define CELER_E(q, e) CELER_LOW("fmlal", q ".4h", "h[" #e "]") CELER_HIGH("fmlal2", q ".4h", "h[" #e "]")
#define CELER_P(q, e, o) CELER_LOW("fmlal", q ".4h", "h[" #e "]") CELER_HIGH("fmlal2", q ".4h", "h[" #o "]")
    if constexpr (kRows == 8)
      CELER_SCORES(CELER_LOAD_F32 "ldp q8, q9, [%[q]], #32\n ldp q10, q11, [%[q]], #32\n"
                   CELER_E("8", 0) "ldp q12, q13, [%[q]], #32\n" CELER_E("9", 1) "ldp q14, q15, [%[q]], #32\n"
                   CELER_E("10", 2) CELER_FETCH_TWO CELER_E("11", 3)
                   CELER_E("12", 4) CELER_E("13", 5) CELER_E("14", 6) CELER_E("15", 7), CELER_STORE_8ROWS);
    else
      CELER_SCORES(CELER_LOAD_F32 "ldp q8, q9, [%[q]], #32\n ldp q10, q11, [%[q]], #32\n"
                   CELER_P("8", 0, 1) CELER_FETCH_TWO CELER_P("9", 2, 3) CELER_P("10", 4, 5) CELER_P("11", 6, 7),
                   CELER_STORE_4ROWS);
#undef CELER_P
#undef CELER_E
  }

  static CELER_INLINE void Values(const uint8_t* const* v, const uint8_t* const* next, int64_t column, int64_t ahead,
                                  const Element* weights, int64_t keys, const float* shrink, float* acc) {
#define CELER_W8(v, w)                                                                                     \
  CELER_VALUES8("fmlal", "fmlal2", v ".4h", v ".4h", w ".h[0]", w ".h[1]", w ".h[2]", w ".h[3]",          \
                w ".h[4]", w ".h[5]", w ".h[6]", w ".h[7]")
#define CELER_W4(v0, v1, w)                                                                                \
  CELER_VALUES4("fmlal", "fmlal2", v0 ".4h", v0 ".4h", v1 ".4h", v1 ".4h", w ".h[0]", w ".h[1]",          \
                w ".h[2]", w ".h[3]")
    if constexpr (kRows == 8)
      CELER_VALUES(CELER_SHRINK_8ROWS, "ldr q0, [x9]\n ldr q2, [%[w]], #16\n", CELER_W8("0", "2"),
                   "ldr q1, [x9]\n ldr q3, [%[w]], #16\n", CELER_W8("1", "3"));
    else
      CELER_VALUES(CELER_SHRINK_4ROWS, "ldp q0, q1, [x9]\n ldr d2, [%[w]], #8\n", CELER_W4("0", "1", "2"),
                   "ldp q3, q4, [x9]\n ldr d5, [%[w]], #8\n", CELER_W4("3", "4", "5"));
#undef CELER_W4
#undef CELER_W8
  }
};

#endif

enum class RowKind { kF16, kBf16, kF32 };

// Everything in f32.
template <int kTheRows, RowKind kKind>
struct FloatLoops {
  using Element = float;
  static constexpr int kRows = kTheRows, kColumns = 64 / kRows, kBytes = kKind == RowKind::kF32 ? 4 : 2;

  static CELER_INLINE void Scores(const Element* q, const uint8_t* k, int64_t stride, int64_t padded, float* scores,
                                  const uint8_t* soon, const uint8_t* later) {
    CELER_KEY_POINTERS;
    int64_t left = padded / 4;
#define CELER_E(lo, hi, e) CELER_LOW("fmla", lo ".4s", "s[" #e "]") CELER_HIGH("fmla", hi ".4s", "s[" #e "]")
#define CELER_8ROWS                                                                                       \
  "ldp q8, q9, [%[q]], #32\n ldp q10, q11, [%[q]], #32\n"                                                 \
  CELER_E("8", "9", 0) "ldp q12, q13, [%[q]], #32\n ldp q14, q15, [%[q]], #32\n"                          \
  CELER_E("10", "11", 1) CELER_E("12", "13", 2) CELER_E("14", "15", 3)
#define CELER_P(lo, hi, e, o) CELER_LOW("fmla", lo ".4s", "s[" #e "]") CELER_HIGH("fmla", hi ".4s", "s[" #o "]")
#define CELER_4ROWS                                                                                       \
  "ldp q8, q9, [%[q]], #32\n ldp q10, q11, [%[q]], #32\n" CELER_P("8", "9", 0, 1) CELER_P("10", "11", 2, 3)
    if constexpr (kRows == 8 && kKind == RowKind::kF16)
      CELER_SCORES(CELER_LOAD_F16 CELER_8ROWS CELER_FETCH_ONE, CELER_STORE_8ROWS);
    else if constexpr (kRows == 8 && kKind == RowKind::kBf16)
      CELER_SCORES(CELER_LOAD_BF16 CELER_8ROWS CELER_FETCH_ONE, CELER_STORE_8ROWS);
    else if constexpr (kRows == 8)
      CELER_SCORES(CELER_LOAD_F32 CELER_8ROWS CELER_FETCH_TWO, CELER_STORE_8ROWS);
    else if constexpr (kKind == RowKind::kF16)
      CELER_SCORES(CELER_LOAD_F16 CELER_4ROWS CELER_FETCH_ONE, CELER_STORE_4ROWS);
    else if constexpr (kKind == RowKind::kBf16)
      CELER_SCORES(CELER_LOAD_BF16 CELER_4ROWS CELER_FETCH_ONE, CELER_STORE_4ROWS);
    else
      CELER_SCORES(CELER_LOAD_F32 CELER_4ROWS CELER_FETCH_TWO, CELER_STORE_4ROWS);
#undef CELER_4ROWS
#undef CELER_P
#undef CELER_8ROWS
#undef CELER_E
  }

  static CELER_INLINE void Values(const uint8_t* const* v, const uint8_t* const* next, int64_t column, int64_t ahead,
                                  const Element* weights, int64_t keys, const float* shrink, float* acc) {
// The columns of a key in v0, v1 ..., from the types they may have.
#define CELER_F16(from, low, high) "fcvtl2 v" high ".4s, v" from ".8h\n fcvtl v" low ".4s, v" from ".4h\n"
#define CELER_BF16(from, low, high) "shll2 v" high ".4s, v" from ".8h, #16\n shll v" low ".4s, v" from ".4h, #16\n"
#define CELER_W8(v0, v1, w0, w1)                                                                           \
  CELER_VALUES8("fmla", "fmla", v0 ".4s", v1 ".4s", w0 ".s[0]", w0 ".s[1]", w0 ".s[2]", w0 ".s[3]",        \
                w1 ".s[0]", w1 ".s[1]", w1 ".s[2]", w1 ".s[3]")
#define CELER_W4(v0, v1, v2, v3, w)                                                                        \
  CELER_VALUES4("fmla", "fmla", v0 ".4s", v1 ".4s", v2 ".4s", v3 ".4s", w ".s[0]", w ".s[1]", w ".s[2]", w ".s[3]")
#define CELER_8ROWS(load_a, load_b)                                                                        \
  CELER_VALUES(CELER_SHRINK_8ROWS, load_a "ldp q4, q5, [%[w]], #32\n", CELER_W8("0", "1", "4", "5"),       \
               load_b "ldp q8, q9, [%[w]], #32\n", CELER_W8("6", "7", "8", "9"))
#define CELER_4ROWS(load_a, load_b)                                                                        \
  CELER_VALUES(CELER_SHRINK_4ROWS, load_a "ldr q4, [%[w]], #16\n", CELER_W4("0", "1", "2", "3", "4"),      \
               load_b "ldr q5, [%[w]], #16\n", CELER_W4("6", "7", "8", "9", "5"))
    if constexpr (kRows == 8 && kKind == RowKind::kF16)
      CELER_8ROWS("ldr q0, [x9]\n" CELER_F16("0", "0", "1"), "ldr q6, [x9]\n" CELER_F16("6", "6", "7"));
    else if constexpr (kRows == 8 && kKind == RowKind::kBf16)
      CELER_8ROWS("ldr q0, [x9]\n" CELER_BF16("0", "0", "1"), "ldr q6, [x9]\n" CELER_BF16("6", "6", "7"));
    else if constexpr (kRows == 8)
      CELER_8ROWS("ldp q0, q1, [x9]\n", "ldp q6, q7, [x9]\n");
    else if constexpr (kKind == RowKind::kF16)
      CELER_4ROWS("ldp q0, q2, [x9]\n" CELER_F16("0", "0", "1") CELER_F16("2", "2", "3"),
                  "ldp q6, q8, [x9]\n" CELER_F16("6", "6", "7") CELER_F16("8", "8", "9"));
    else if constexpr (kKind == RowKind::kBf16)
      CELER_4ROWS("ldp q0, q2, [x9]\n" CELER_BF16("0", "0", "1") CELER_BF16("2", "2", "3"),
                  "ldp q6, q8, [x9]\n" CELER_BF16("6", "6", "7") CELER_BF16("8", "8", "9"));
    else
      CELER_4ROWS("ldp q0, q1, [x9]\n ldp q2, q3, [x9, #32]\n", "ldp q6, q7, [x9]\n ldp q8, q9, [x9, #32]\n");
#undef CELER_4ROWS
#undef CELER_8ROWS
#undef CELER_W4
#undef CELER_W8
#undef CELER_BF16
#undef CELER_F16
  }
};

// clang-format on
#undef CELER_VALUES
#undef CELER_NEXT_KEY
#undef CELER_SHRINK_4ROWS
#undef CELER_SHRINK_8ROWS
#undef CELER_SHRINK
#undef CELER_STORE_SUMS
#undef CELER_LOAD_SUMS
#undef CELER_VALUES4
#undef CELER_ROW4
#undef CELER_VALUES8
#undef CELER_ROW8
#undef CELER_KEY_POINTERS
#undef CELER_SCORES
#undef CELER_STORE_4ROWS
#undef CELER_STORE_8ROWS
#undef CELER_FETCH_ONE
#undef CELER_FETCH_TWO
#undef CELER_NO_SUMS
#undef CELER_LOAD_BF16
#undef CELER_LOAD_F16
#undef CELER_LOAD_F32
#undef CELER_FROM_BF16
#undef CELER_FROM_F16
#undef CELER_LOAD_8
#undef CELER_LOAD_16
#undef CELER_EACH_KEY
#undef CELER_HIGH
#undef CELER_LOW

}  // namespace
}  // namespace celer
