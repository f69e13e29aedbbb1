// f32, f16 and bf16 weights in f32 arithmetic: eight rows per column, a token's column as a scalar. Even and
// odd columns have separate accumulators in every kernel, which halves the dependency chain.
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/tile_arm.h"

namespace celer::arm {
namespace {

constexpr int kRows = 8;

struct F32x8 {
  float32x4_t lo, hi;
};
struct Single {
  static constexpr int kBytes = 4 * kRows;
  static inline F32x8 Load(const uint8_t* p) {
    const auto* f = reinterpret_cast<const float*>(p);
    return {vld1q_f32(f), vld1q_f32(f + 4)};
  }
};
struct Half {
  static constexpr int kBytes = 2 * kRows;
  static inline F32x8 Load(const uint8_t* p) {
    const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
  }
};
struct Brain {
  static constexpr int kBytes = 2 * kRows;
  static inline F32x8 Load(const uint8_t* p) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
  }
};

template <int kLane>
inline void Add(float32x4_t (&sum)[2][2], const F32x8& w, float32x4_t x) {
  sum[kLane % 2][0] = vfmaq_laneq_f32(sum[kLane % 2][0], w.lo, x, kLane);
  sum[kLane % 2][1] = vfmaq_laneq_f32(sum[kLane % 2][1], w.hi, x, kLane);
}

// kGroups row groups times kTokens tokens; one of the two is 1.
template <class Format, int kGroups, int kTokens>
inline void Block(const TileJob& job, const uint8_t* w, const float* const* rows, float* out) {
  float32x4_t sum[kGroups][kTokens][2][2];
  for (auto& group : sum)
    for (auto& token : group)
      for (auto& parity : token) parity[0] = parity[1] = vdupq_n_f32(0);
  for (int64_t c = 0; c < job.cols; c += 4, w += 4 * Format::kBytes) {
    float32x4_t x[kTokens];
    for (int t = 0; t < kTokens; ++t) x[t] = vld1q_f32(rows[t] + c);
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* p = w + g * job.group_bytes;
      for (int i = 0; kGroups > 1 && i < 4 * Format::kBytes; i += 64)
        __builtin_prefetch(p + kStreamAhead + i, 0, 1);
      const F32x8 w0 = Format::Load(p), w1 = Format::Load(p + Format::kBytes);
      for (int t = 0; t < kTokens; ++t) Add<0>(sum[g][t], w0, x[t]);
      for (int t = 0; t < kTokens; ++t) Add<1>(sum[g][t], w1, x[t]);
      const F32x8 w2 = Format::Load(p + 2 * Format::kBytes), w3 = Format::Load(p + 3 * Format::kBytes);
      for (int t = 0; t < kTokens; ++t) Add<2>(sum[g][t], w2, x[t]);
      for (int t = 0; t < kTokens; ++t) Add<3>(sum[g][t], w3, x[t]);
    }
  }
  for (int g = 0; g < kGroups; ++g)
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < 2; ++i)
        vst1q_f32(out + t * job.out_stride + g * kRows + 4 * i, vaddq_f32(sum[g][t][0][i], sum[g][t][1][i]));
}

template <class Format>
inline void Tile(const TileJob& job) {
  const int64_t padded = (job.cols + 3) / 4 * 4;
  const auto row = [&](int t) {
    return reinterpret_cast<const float*>(job.x + t / kXUnitTokens * job.x_bytes) + t % kXUnitTokens * padded;
  };
  if (job.tokens == 1) {
    const float* rows[] = {row(0)};
    int g = 0;
    for (; g + 4 <= job.groups; g += 4)
      Block<Format, 4, 1>(job, job.w + g * job.group_bytes, rows, job.out + g * kRows);
    for (; g < job.groups; ++g)
      Block<Format, 1, 1>(job, job.w + g * job.group_bytes, rows, job.out + g * kRows);
    return;
  }
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* w = job.w + g * job.group_bytes;
    int t = 0;
    for (; t + 4 <= job.tokens; t += 4) {
      const float* rows[] = {row(t), row(t + 1), row(t + 2), row(t + 3)};
      Block<Format, 1, 4>(job, w, rows, job.out + t * job.out_stride + g * kRows);
    }
    for (; t < job.tokens; ++t) {
      const float* rows[] = {row(t)};
      Block<Format, 1, 1>(job, w, rows, job.out + t * job.out_stride + g * kRows);
    }
  }
}

}  // namespace

void TileF32(const TileJob& job) {
  Tile<Single>(job);
}
void TileF16(const TileJob& job) {
  Tile<Half>(job);
}
void TileBf16Wide(const TileJob& job) {
  Tile<Brain>(job);
}

}  // namespace celer::arm
