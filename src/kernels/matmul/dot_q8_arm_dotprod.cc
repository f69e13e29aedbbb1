// Dot products of Q8_0, Q4_0 and Q4_1 weight rows with int8 activations, 16 multiply-adds per instruction.
//
// One pass over the columns serves up to four rows and four tokens: a block of 32 activations is loaded once
// for four rows, a block of weights is unpacked once for four tokens, and sixteen sums stay in registers.
// Each sum's order of additions depends on the number of columns alone.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matmul/activation_q8.h"
#include "kernels/matmul/dot_q8.h"
#include "kernels/matmul/dot_q8_rows.h"

namespace celer::arm {
namespace {

inline float HalfAt(const uint8_t* p) {
  __fp16 h;
  memcpy(&h, p, sizeof h);
  return h;
}

// A block of a format: 32 signed values, a scale, and for some a minimum.
struct Q8_0 {
  static constexpr int kBytes = 34;
  static constexpr bool kHasMin = false;
  static inline void Load(const uint8_t* p, int8x16_t* lo, int8x16_t* hi) {
    *lo = vld1q_s8(reinterpret_cast<const int8_t*>(p + 2));
    *hi = vld1q_s8(reinterpret_cast<const int8_t*>(p + 18));
  }
};
struct Q4_0 {
  static constexpr int kBytes = 18;
  static constexpr bool kHasMin = false;
  static inline void Load(const uint8_t* p, int8x16_t* lo, int8x16_t* hi) {
    const uint8x16_t packed = vld1q_u8(p + 2);
    const int8x16_t eight = vdupq_n_s8(8);
    *lo = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15))), eight);
    *hi = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(packed, 4)), eight);
  }
};
struct Q4_1 {
  static constexpr int kBytes = 20;
  static constexpr bool kHasMin = true;
  static inline void Load(const uint8_t* p, int8x16_t* lo, int8x16_t* hi) {
    const uint8x16_t packed = vld1q_u8(p + 4);
    *lo = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
    *hi = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
  }
};

struct Neon {
  template <class Format, int kRows, int kTokens>
  static void Dot(const uint8_t* w, int64_t row_bytes, const Q8Block4* x, int64_t blocks, float* out) {
    float32x4_t sum[kRows][kTokens];
    float32x4_t min_sum[kRows];  // lanes are tokens
    for (int r = 0; r < kRows; ++r) {
      min_sum[r] = vdupq_n_f32(0);
      for (int t = 0; t < kTokens; ++t) sum[r][t] = vdupq_n_f32(0);
    }
    for (int64_t b = 0; b < blocks; ++b, ++x, w += Format::kBytes) {
      const float32x4_t x_scale = vld1q_f32(x->scale);
      int8x16_t x_lo[kTokens], x_hi[kTokens];
      for (int t = 0; t < kTokens; ++t) {
        x_lo[t] = vld1q_s8(x->q[t]);
        x_hi[t] = vld1q_s8(x->q[t] + 16);
      }
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* p = w + r * row_bytes;
        __builtin_prefetch(p + 512);
        int8x16_t lo, hi;
        Format::Load(p, &lo, &hi);
        const float32x4_t scale = vmulq_n_f32(x_scale, HalfAt(p));
        if (Format::kHasMin) min_sum[r] = vfmaq_n_f32(min_sum[r], vld1q_f32(x->sum), HalfAt(p + 2));
        for (int t = 0; t < kTokens; ++t) {
          const int32x4_t dot = vdotq_s32(vdotq_s32(vdupq_n_s32(0), lo, x_lo[t]), hi, x_hi[t]);
          // The lane must be a constant; kTokens unrolls this away.
          const float32x4_t value = vcvtq_f32_s32(dot);
          sum[r][t] = t == 0   ? vfmaq_laneq_f32(sum[r][t], value, scale, 0)
                      : t == 1 ? vfmaq_laneq_f32(sum[r][t], value, scale, 1)
                      : t == 2 ? vfmaq_laneq_f32(sum[r][t], value, scale, 2)
                               : vfmaq_laneq_f32(sum[r][t], value, scale, 3);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float mins[kQ8Tokens];
      vst1q_f32(mins, min_sum[r]);
      for (int t = 0; t < kTokens; ++t) out[t * kQ8MaxRows + r] = vaddvq_f32(sum[r][t]) + mins[t];
    }
  }
};

}  // namespace

void DotQ8_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out) {
  DotRows<Neon, Q8_0>(w, row_bytes, rows, x, tokens, blocks, out);
}
void DotQ4_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out) {
  DotRows<Neon, Q4_0>(w, row_bytes, rows, x, tokens, blocks, out);
}
void DotQ4_1(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out) {
  DotRows<Neon, Q4_1>(w, row_bytes, rows, x, tokens, blocks, out);
}

}  // namespace celer::arm
