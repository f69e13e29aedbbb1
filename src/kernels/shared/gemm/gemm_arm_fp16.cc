// f16 products with f16 accumulators: twice the arithmetic of f32 in a cycle. A sum of k products is off by
// about sqrt(k) / 5000 of its size, so k is taken in short blocks, whose sums are then added.
#define CELER_LANES_F16
#include "kernels/shared/gemm/gemm_lanes.h"

namespace celer {
namespace {

// One row of the tile; a lane of `a` is the factor as it is.
template <int kLane, int kVectors>
CELER_INLINE void LaneRow(float16x8_t (&s)[kVectors], float16x8_t a, const float16x8_t (&b)[kVectors]) {
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) s[v] = vfmaq_laneq_f16(s[v], b[v], a, kLane);
}

template <int kRows, int kVectors>
CELER_INLINE void HalfStep(const F16* a, const F16* b, Sums<kRows, kVectors>& s) {
  float16x8_t bv[kVectors];
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) bv[v] = Lanes::Load(b + 8 * v);
  const float16x8_t av = Lanes::Load(a);
  LaneRow<0>(s.v[0], av, bv);
  if constexpr (kRows > 1) LaneRow<1>(s.v[1], av, bv);
  if constexpr (kRows > 2) LaneRow<2>(s.v[2], av, bv);
  if constexpr (kRows > 3) LaneRow<3>(s.v[3], av, bv);
  if constexpr (kRows > 4) LaneRow<4>(s.v[4], av, bv);
  if constexpr (kRows > 5) LaneRow<5>(s.v[5], av, bv);
  if constexpr (kRows > 6) LaneRow<6>(s.v[6], av, bv);
  if constexpr (kRows > 7) LaneRow<7>(s.v[7], av, bv);
}

// Edge tiles: smaller ones keep two or four sets of accumulators, for steps in turn, so that the pipes are
// full.
template <int kMr, int kRows, int kVectors>
struct HalfSteps {
  static CELER_INLINE void Run(const F16* a, const F16* b, int64_t k, Sums<kRows, kVectors>& s) {
    constexpr int kSets = kRows * kVectors <= 4 ? 4 : kRows * kVectors <= 12 ? 2 : 1;
    Sums<kRows, kVectors> sets[kSets];
#pragma GCC unroll 4
    for (int i = 0; i < kSets; ++i)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sets[i].v[r][v] = Lanes::Set(0.0f);
    int64_t i = 0;
    for (; i + 4 <= k; i += 4, a += 4 * kMr, b += 4 * kNr)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) HalfStep(a + j * kMr, b + j * kNr, sets[j % kSets]);
    for (; i < k; ++i, a += kMr, b += kNr) HalfStep(a, b, sets[0]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        s.v[r][v] = sets[0].v[r][v];
        if constexpr (kSets > 1) s.v[r][v] = Lanes::Add(s.v[r][v], sets[1].v[r][v]);
        if constexpr (kSets > 2)
          s.v[r][v] = Lanes::Add(s.v[r][v], Lanes::Add(sets[2].v[r][v], sets[3].v[r][v]));
      }
  }
};

// The full register tile, 8 x 24: 24 accumulators, and two sets of one vector of `a` and three of `b` (double
// buffering). While one set is multiplied the other one is loaded. As in gemm_arm_neon.cc, the order is the
// one that keeps the pipes full.
#define CELER_ROW(S0, S1, S2, A, L, B0, B1, B2)  \
  "fmla v" #S0 ".8h, v" #B0 ".8h, v" #A ".h[" #L \
  "]\n"                                          \
  "fmla v" #S1 ".8h, v" #B1 ".8h, v" #A ".h[" #L \
  "]\n"                                          \
  "fmla v" #S2 ".8h, v" #B2 ".8h, v" #A ".h[" #L "]\n"
#define CELER_LOAD(R, FROM, AT) "ldr q" #R ", [%[" #FROM "], #" #AT "]\n"
// Registers of this step's a and b, of the next one's, and where those are.
#define CELER_STEP(A, B0, B1, B2, NA, NB0, NB1, NB2, AT_A, AT_B0, AT_B1, AT_B2) \
  CELER_ROW(8, 9, 10, A, 0, B0, B1, B2)                                         \
  CELER_LOAD(NA, a, AT_A)                                                       \
  CELER_ROW(11, 12, 13, A, 1, B0, B1, B2)                                       \
  CELER_LOAD(NB0, b, AT_B0)                                                     \
  CELER_ROW(14, 15, 16, A, 2, B0, B1, B2)                                       \
  CELER_LOAD(NB1, b, AT_B1)                                                     \
  CELER_ROW(17, 18, 19, A, 3, B0, B1, B2)                                       \
  CELER_LOAD(NB2, b, AT_B2)                                                     \
  CELER_ROW(20, 21, 22, A, 4, B0, B1, B2)                                       \
  CELER_ROW(23, 24, 25, A, 5, B0, B1, B2)                                       \
  CELER_ROW(26, 27, 28, A, 6, B0, B1, B2)                                       \
  CELER_ROW(29, 30, 31, A, 7, B0, B1, B2)

template <>
struct HalfSteps<8, 8, 3> {
  static CELER_INLINE void Run(const F16* a, const F16* b, int64_t k, Sums<8, 3>& s) {
    register float16x8_t s0 asm("v8"), s1 asm("v9"), s2 asm("v10"), s3 asm("v11"), s4 asm("v12"),
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
        "ldr q0, [%[a]], #16\n"
        "ldp q1, q2, [%[b]], #32\n"
        "ldr q3, [%[b]], #16\n"
        "subs %[k], %[k], #4\n"
        "b.lt 2f\n"
        "1:\n"
        // clang-format off
        CELER_STEP(0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 16, 32)
        CELER_STEP(4, 5, 6, 7, 0, 1, 2, 3, 16, 48, 64, 80)
        CELER_STEP(0, 1, 2, 3, 4, 5, 6, 7, 32, 96, 112, 128)
        CELER_STEP(4, 5, 6, 7, 0, 1, 2, 3, 48, 144, 160, 176)
        // clang-format on
        "add %[a], %[a], #64\n"
        "add %[b], %[b], #192\n"
        "subs %[k], %[k], #4\n"
        "b.ge 1b\n"
        "2:\n"
        "adds %[k], %[k], #4\n"
        "b.eq 4f\n"
        "3:\n"
        // clang-format off
        CELER_ROW(8, 9, 10, 0, 0, 1, 2, 3)
        CELER_ROW(11, 12, 13, 0, 1, 1, 2, 3)
        CELER_ROW(14, 15, 16, 0, 2, 1, 2, 3)
        CELER_ROW(17, 18, 19, 0, 3, 1, 2, 3)
        CELER_ROW(20, 21, 22, 0, 4, 1, 2, 3)
        CELER_ROW(23, 24, 25, 0, 5, 1, 2, 3)
        CELER_ROW(26, 27, 28, 0, 6, 1, 2, 3)
        CELER_ROW(29, 30, 31, 0, 7, 1, 2, 3)
        // clang-format on
        "ldr q0, [%[a]], #16\n"
        "ldp q1, q2, [%[b]], #32\n"
        "ldr q3, [%[b]], #16\n"
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

const BasicGemmKernels<F16> kGemmArmFp16 = {.name = "arm_fp16",
                                            .mr = 8,
                                            .nr = kNr,
                                            .k_block = 256,
                                            .block = BlockOf<HalfSteps, 8>::Run,
                                            .pack_a = PackPanels<8>,
                                            .pack_b = PackPanels<kNr>,
                                            .pack_im2col = PackIm2col};

}  // namespace celer
