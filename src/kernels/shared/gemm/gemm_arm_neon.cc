#include "kernels/shared/gemm/gemm_lanes.h"

namespace celer {
namespace {

// One row of the tile times three vectors; lanes of `a` are factors as they are.
template <int kLane>
CELER_INLINE void LaneRow(float32x4_t (&s)[1], float32x4_t a, const float32x4_t (&b)[1]) {
  s[0] = vfmaq_laneq_f32(s[0], b[0], a, kLane);
}
template <int kLane>
CELER_INLINE void LaneRow(float32x4_t (&s)[2], float32x4_t a, const float32x4_t (&b)[2]) {
  s[0] = vfmaq_laneq_f32(s[0], b[0], a, kLane);
  s[1] = vfmaq_laneq_f32(s[1], b[1], a, kLane);
}
template <int kLane>
CELER_INLINE void LaneRow(float32x4_t (&s)[3], float32x4_t a, const float32x4_t (&b)[3]) {
  s[0] = vfmaq_laneq_f32(s[0], b[0], a, kLane);
  s[1] = vfmaq_laneq_f32(s[1], b[1], a, kLane);
  s[2] = vfmaq_laneq_f32(s[2], b[2], a, kLane);
}

template <int kRows, int kVectors>
CELER_INLINE void NeonStep(const float* a, const float* b, Sums<kRows, kVectors>& s) {
  float32x4_t bv[kVectors];
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) bv[v] = vld1q_f32(b + 4 * v);
  const float32x4_t low = vld1q_f32(a);
  LaneRow<0>(s.v[0], low, bv);
  if constexpr (kRows > 1) LaneRow<1>(s.v[1], low, bv);
  if constexpr (kRows > 2) LaneRow<2>(s.v[2], low, bv);
  if constexpr (kRows > 3) LaneRow<3>(s.v[3], low, bv);
  if constexpr (kRows > 4) {
    const float32x4_t high = vld1q_f32(a + 4);
    LaneRow<0>(s.v[4], high, bv);
    if constexpr (kRows > 5) LaneRow<1>(s.v[5], high, bv);
    if constexpr (kRows > 6) LaneRow<2>(s.v[6], high, bv);
    if constexpr (kRows > 7) LaneRow<3>(s.v[7], high, bv);
  }
}

// Edge tiles. Four pipes of four cycles want sixteen accumulators: smaller tiles keep two or four sets, for
// steps in turn, and add them at the end.
template <int kMr, int kRows, int kVectors>
struct NeonSteps {
  static CELER_INLINE void Run(const float* a, const float* b, int64_t k, Sums<kRows, kVectors>& s) {
    constexpr int kSets = kRows * kVectors <= 4 ? 4 : kRows * kVectors <= 12 ? 2 : 1;
    Sums<kRows, kVectors> sets[kSets];
#pragma GCC unroll 4
    for (int i = 0; i < kSets; ++i)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sets[i].v[r][v] = vdupq_n_f32(0.0f);
    int64_t i = 0;
    for (; i + 4 <= k; i += 4, a += 4 * kMr, b += 4 * kNr)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) NeonStep(a + j * kMr, b + j * kNr, sets[j % kSets]);
    for (; i < k; ++i, a += kMr, b += kNr) NeonStep(a, b, sets[0]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kSets == 4)
          s.v[r][v] = vaddq_f32(vaddq_f32(sets[0].v[r][v], sets[1].v[r][v]),
                                vaddq_f32(sets[2].v[r][v], sets[3].v[r][v]));
        else if constexpr (kSets == 2)
          s.v[r][v] = vaddq_f32(sets[0].v[r][v], sets[1].v[r][v]);
        else
          s.v[r][v] = sets[0].v[r][v];
      }
  }
};

// The full register tile, 8 x 12, software-pipelined. Loads of the next step stand between the products of
// this one, in the registers that have come free; after eight steps the roles of the eight registers return.
// Written as intrinsics the loads come first and the registers are the same in each step: 0.89 of
// Neoverse-V1's peak, against 0.985.
#define CELER_ROW(S0, S1, S2, A, L, B0, B1, B2)  \
  "fmla v" #S0 ".4s, v" #B0 ".4s, v" #A ".s[" #L \
  "]\n"                                          \
  "fmla v" #S1 ".4s, v" #B1 ".4s, v" #A ".s[" #L \
  "]\n"                                          \
  "fmla v" #S2 ".4s, v" #B2 ".4s, v" #A ".s[" #L "]\n"
#define CELER_LOWER_ROWS(A1, B0, B1, B2)   \
  CELER_ROW(20, 21, 22, A1, 0, B0, B1, B2) \
  CELER_ROW(23, 24, 25, A1, 1, B0, B1, B2) \
  CELER_ROW(26, 27, 28, A1, 2, B0, B1, B2) \
  CELER_ROW(29, 30, 31, A1, 3, B0, B1, B2)
// Registers of this step's a and b, of the next one's, and where those are.
#define CELER_STEP(A0, A1, B0, B1, B2, NA0, NA1, NB0, NB1, NB2, AT_A, AT_A1, AT_B, AT_B1, AT_B2)  \
  CELER_ROW(8, 9, 10, A0, 0, B0, B1, B2)                                                          \
  "ldr q" #NA0 ", [%[a], #" #AT_A                                                                 \
  "]\n" CELER_ROW(11, 12, 13, A0, 1, B0, B1, B2) "ldr q" #NB0 ", [%[b], #" #AT_B "]\n" CELER_ROW( \
      14, 15, 16, A0, 2, B0, B1,                                                                  \
      B2) "ldr q" #NB1 ", [%[b], #" #AT_B1                                                        \
          "]\n" CELER_ROW(17, 18, 19, A0, 3, B0, B1,                                              \
                          B2) "ldr q" #NB2 ", [%[b], #" #AT_B2                                    \
                              "]\n" CELER_LOWER_ROWS(A1, B0, B1, B2) "ldr q" #NA1 ", [%[a], #" #AT_A1 "]\n"

template <>
struct NeonSteps<8, 8, 3> {
  static CELER_INLINE void Run(const float* a, const float* b, int64_t k, Sums<8, 3>& s) {
    register float32x4_t s0 asm("v8"), s1 asm("v9"), s2 asm("v10"), s3 asm("v11"), s4 asm("v12"),
        s5 asm("v13"), s6 asm("v14"), s7 asm("v15"), s8 asm("v16"), s9 asm("v17"), s10 asm("v18"),
        s11 asm("v19"), s12 asm("v20"), s13 asm("v21"), s14 asm("v22"), s15 asm("v23"), s16 asm("v24"),
        s17 asm("v25"), s18 asm("v26"), s19 asm("v27"), s20 asm("v28"), s21 asm("v29"), s22 asm("v30"),
        s23 asm("v31");
    asm volatile(
        "movi v8.4s, #0\n movi v9.4s, #0\n movi v10.4s, #0\n movi v11.4s, #0\n"
        "movi v12.4s, #0\n movi v13.4s, #0\n movi v14.4s, #0\n movi v15.4s, #0\n"
        "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n"
        "movi v20.4s, #0\n movi v21.4s, #0\n movi v22.4s, #0\n movi v23.4s, #0\n"
        "movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n"
        "movi v28.4s, #0\n movi v29.4s, #0\n movi v30.4s, #0\n movi v31.4s, #0\n"
        "ldp q0, q1, [%[a]], #32\n"
        "ldp q2, q3, [%[b]], #32\n"
        "ldr q4, [%[b]], #16\n"
        "subs %[k], %[k], #8\n"
        "b.lt 2f\n"
        "1:\n"
        // clang-format off
        CELER_STEP(0, 1, 2, 3, 4, 5, 2, 6, 7, 0, 0, 16, 0, 16, 32)
        CELER_STEP(5, 2, 6, 7, 0, 3, 6, 4, 1, 5, 32, 48, 48, 64, 80)
        CELER_STEP(3, 6, 4, 1, 5, 7, 4, 0, 2, 3, 64, 80, 96, 112, 128)
        CELER_STEP(7, 4, 0, 2, 3, 1, 0, 5, 6, 7, 96, 112, 144, 160, 176)
        CELER_STEP(1, 0, 5, 6, 7, 2, 5, 3, 4, 1, 128, 144, 192, 208, 224)
        CELER_STEP(2, 5, 3, 4, 1, 6, 3, 7, 0, 2, 160, 176, 240, 256, 272)
        CELER_STEP(6, 3, 7, 0, 2, 4, 7, 1, 5, 6, 192, 208, 288, 304, 320)
        CELER_STEP(4, 7, 1, 5, 6, 0, 1, 2, 3, 4, 224, 240, 336, 352, 368)
        // clang-format on
        "add %[a], %[a], #256\n"
        "add %[b], %[b], #384\n"
        "subs %[k], %[k], #8\n"
        "b.ge 1b\n"
        "2:\n"
        "adds %[k], %[k], #8\n"
        "b.eq 4f\n"
        "3:\n"
        // clang-format off
        CELER_ROW(8, 9, 10, 0, 0, 2, 3, 4)
        CELER_ROW(11, 12, 13, 0, 1, 2, 3, 4)
        CELER_ROW(14, 15, 16, 0, 2, 2, 3, 4)
        CELER_ROW(17, 18, 19, 0, 3, 2, 3, 4)
        "ldr q0, [%[a]], #16\n"
        CELER_LOWER_ROWS(1, 2, 3, 4)
        // clang-format on
        "ldr q1, [%[a]], #16\n"
        "ldp q2, q3, [%[b]], #32\n"
        "ldr q4, [%[b]], #16\n"
        "subs %[k], %[k], #1\n"
        "b.ne 3b\n"
        "4:\n"
        : "=&w"(s0), "=&w"(s1), "=&w"(s2), "=&w"(s3), "=&w"(s4), "=&w"(s5), "=&w"(s6), "=&w"(s7), "=&w"(s8),
          "=&w"(s9), "=&w"(s10), "=&w"(s11), "=&w"(s12), "=&w"(s13), "=&w"(s14), "=&w"(s15), "=&w"(s16),
          "=&w"(s17), "=&w"(s18), "=&w"(s19), "=&w"(s20), "=&w"(s21), "=&w"(s22),
          "=&w"(s23), [a] "+r"(a), [b] "+r"(b), [k] "+r"(k)
        :
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "cc", "memory");
    s.v[0][0] = s0, s.v[0][1] = s1, s.v[0][2] = s2;
    s.v[1][0] = s3, s.v[1][1] = s4, s.v[1][2] = s5;
    s.v[2][0] = s6, s.v[2][1] = s7, s.v[2][2] = s8;
    s.v[3][0] = s9, s.v[3][1] = s10, s.v[3][2] = s11;
    s.v[4][0] = s12, s.v[4][1] = s13, s.v[4][2] = s14;
    s.v[5][0] = s15, s.v[5][1] = s16, s.v[5][2] = s17;
    s.v[6][0] = s18, s.v[6][1] = s19, s.v[6][2] = s20;
    s.v[7][0] = s21, s.v[7][1] = s22, s.v[7][2] = s23;
  }
};

}  // namespace

const GemmKernels kGemmArmNeon = {.name = "arm_neon",
                                  .mr = 8,
                                  .nr = kNr,
                                  .k_block = 512,
                                  .block = BlockOf<NeonSteps, 8>::Run,
                                  .pack_a = PackPanels<8>,
                                  .pack_b = PackPanels<kNr>,
                                  .pack_im2col = PackIm2col};

}  // namespace celer
