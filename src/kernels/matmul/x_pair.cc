#if defined(__aarch64__)
#include "kernels/matmul/x_pair.h"

#include <arm_neon.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "formats/bfloat16.h"

namespace celer {
namespace {

int64_t RoundUp4(int64_t n) {
  return (n + 3) / 4 * 4;
}

// Largest magnitude of n floats, a multiple of 16.
float Largest(const float* x, int n) {
  float32x4_t max[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
  for (int i = 0; i < n; i += 16)
    for (int j = 0; j < 4; ++j) max[j] = vmaxq_f32(max[j], vabsq_f32(vld1q_f32(x + i + 4 * j)));
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(max[0], max[1]), vmaxq_f32(max[2], max[3])));
}

// Sixteen values to int8, rounded to nearest even, eight each to q0 and q1; their sums in 16 bits.
int16x8_t Quantize16(const float* x, float inverse, int8_t* q0, int8_t* q1) {
  int16x8_t halves[2];
  for (int h = 0; h < 2; ++h) {
    const int32x4_t lo = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 * h), inverse));
    const int32x4_t hi = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 * h + 4), inverse));
    halves[h] = vcombine_s16(vmovn_s32(lo), vmovn_s32(hi));
  }
  vst1_s8(q0, vmovn_s16(halves[0]));
  vst1_s8(q1, vmovn_s16(halves[1]));
  return vaddq_s16(halves[0], halves[1]);
}

// The largest magnitude among what 32 columns become for kNibbles, before it is rounded.
float LargestForNibbles(const float* x) {
  float32x4_t max = vdupq_n_f32(0);
  for (int i = 0; i < 32; i += 16)
    for (int j = 0; j < 8; j += 4) {
      const float32x4_t low = vld1q_f32(x + i + j), high = vld1q_f32(x + i + j + 8);
      max = vmaxq_f32(max, vmaxq_f32(vabsq_f32(high), vabsq_f32(vfmsq_n_f32(low, high, 1.0f / 16))));
    }
  return vmaxvq_f32(max);
}

// Two steps of 8 columns for kNibbles; returns 16 * their sum.
int32_t QuantizeForNibbles(const float* x, float inverse, int8_t* low_q, int8_t* high_q) {
  int32x4_t low[2], high[2], sum = vdupq_n_s32(0);
  for (int h = 0; h < 2; ++h) {
    high[h] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 + 4 * h), inverse));
    const float32x4_t scaled = vmulq_n_f32(vld1q_f32(x + 4 * h), inverse);
    low[h] = vcvtnq_s32_f32(vfmsq_n_f32(scaled, vcvtq_f32_s32(high[h]), 1.0f / 16));
    sum = vmlaq_n_s32(vmlaq_n_s32(sum, low[h], 16), high[h], 17);
  }
  vst1_s8(low_q, vqmovn_s16(vcombine_s16(vmovn_s32(low[0]), vmovn_s32(low[1]))));
  vst1_s8(high_q, vqmovn_s16(vcombine_s16(vmovn_s32(high[0]), vmovn_s32(high[1]))));
  return vaddvq_s32(sum);
}

struct PowerOfTwo {
  float start, scale, inverse;
};
// The smallest one with which `largest` becomes at most 127. Not a number where activations are none, or so
// large that sums would leave the range of floats; from 2^-100 on downwards all are as good as zero.
PowerOfTwo ScaleFor(float largest) {
  constexpr uint32_t kOne = 127u << 23, kSmallest = kOne - (100u << 23), kMantissa = (1u << 23) - 1;
  if (!(largest < 0x1p90f)) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    return {kNan, kNan, 0};
  }
  const uint32_t bits =
      std::max((std::bit_cast<uint32_t>(largest * (1.0f / 127)) + kMantissa) & ~kMantissa, kSmallest);
  const auto scale = std::bit_cast<float>(bits);
  return {12582912.0f * scale, scale, std::bit_cast<float>(2 * kOne - bits)};
}

// Writes one pair; `apart` is the distance from one of its blocks to the next.
template <XKind kKind>
void PrepareBlocks(const float* const* rows, int tokens, int64_t cols, XPairBlock* out, int apart) {
  for (int64_t b = 0; b < cols / kBlockCols; ++b) {
    XPairBlock& block = out[b * apart];
    if (tokens < 2) std::memset(&block, 0, sizeof block);
    for (int t = 0; t < tokens; ++t) {
      const float* x = rows[t] + b * kBlockCols;
      constexpr bool nibbles = kKind != XKind::kBlocks;
      const PowerOfTwo p = ScaleFor(nibbles ? LargestForNibbles(x) : Largest(x, kBlockCols));
      int32_t sum;
      if constexpr (nibbles) {
        sum = QuantizeForNibbles(x, p.inverse, block.q[0][t], block.q[1][t]);
        sum += QuantizeForNibbles(x + 16, p.inverse, block.q[2][t], block.q[3][t]);
      } else {
        sum = vaddvq_s16(vaddq_s16(Quantize16(x, p.inverse, block.q[0][t], block.q[1][t]),
                                   Quantize16(x + 16, p.inverse, block.q[2][t], block.q[3][t])));
      }
      block.start[t] = block.start[t + 2] = p.start;
      const float scaled = p.scale * static_cast<float>(sum);
      if constexpr (kKind == XKind::kNibbles)
        block.zero[t] = block.zero[t + 2] =
            p.start + 8 * scaled;  // exact: a multiple of the scale below 2^24
      else
        block.sum[t] = block.sum[t + 2] = scaled;
    }
    if (tokens == 1)
      for (auto& step : block.q) std::memcpy(step[1], step[0], 8);
  }
}

void PrepareSupers(const float* const* rows, int tokens, int64_t cols, XPairSuper* out, int apart) {
  for (int64_t b = 0; b < cols / kSuperCols; ++b) {
    XPairSuper& super = out[b * apart];
    if (tokens < 2) std::memset(&super, 0, sizeof super);
    for (int t = 0; t < tokens; ++t) {
      const float* x = rows[t] + b * kSuperCols;
      const float largest = Largest(x, kSuperCols);
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      super.scale[t] = super.scale[t + 2] = largest / 127.0f;
      for (int s = 0; s < 16; ++s)
        super.sum16[s][t] = super.sum16[s][t + 2] =
            vaddvq_s16(Quantize16(x + 16 * s, inverse, super.q[2 * s][t], super.q[2 * s + 1][t]));
      for (int s = 0; s < 8; ++s)
        super.sum32[s][t] = super.sum32[s][t + 2] =
            static_cast<int16_t>(super.sum16[2 * s][t] + super.sum16[2 * s + 1][t]);
    }
  }
}

void PrepareFloats(const float* const* rows, int tokens, int64_t cols, float* out) {
  const int64_t stride = RoundUp4(cols);
  for (int t = 0; t < tokens; ++t) {
    std::copy_n(rows[t], cols, out + t * stride);
    std::fill(out + t * stride + cols, out + (t + 1) * stride, 0.0f);
  }
}

void PrepareBf16(const float* const* rows, int tokens, int64_t cols, uint16_t* out) {
  const int64_t pairs = XPairs(tokens);
  std::fill_n(out, 2 * pairs * RoundUp4(cols), uint16_t{0});
  for (int t = 0; t < tokens; ++t) {
    uint16_t* to = out + t * 4;
    for (int64_t c = 0; c < cols; c += 4, to += 8 * pairs)
      for (int64_t i = 0; i < std::min<int64_t>(4, cols - c); ++i) to[i] = FloatToBf16(rows[t][c + i]);
  }
}

}  // namespace

int64_t XPairBytes(XKind kind, int64_t cols) {
  switch (kind) {
    case XKind::kBlocks:
    case XKind::kNibbles:
    case XKind::kNibblesMin:
      return (cols / kBlockCols + 1) * 4 *
             static_cast<int64_t>(sizeof(XPairBlock));  // one may be read too many
    case XKind::kSupers:
      return 4 * cols / kSuperCols * static_cast<int64_t>(sizeof(XPairSuper));
    case XKind::kFloat:
      return 8 * RoundUp4(cols) * 4;
    case XKind::kBf16:
      return 8 * RoundUp4(cols) * 2;
    case XKind::kRow:
      break;
  }
  CELER_CHECK(false);
  return 0;
}

void PrepareXPair(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  if (kind == XKind::kFloat) return PrepareFloats(rows, tokens, cols, reinterpret_cast<float*>(out));
  if (kind == XKind::kBf16) return PrepareBf16(rows, tokens, cols, reinterpret_cast<uint16_t*>(out));
  const int pairs = XPairs(tokens);
  for (int pair = 0; pair < pairs; ++pair) {
    const int present = std::clamp(tokens - 2 * pair, 0, 2);
    const float* const* from = rows + 2 * pair;
    auto* const blocks = reinterpret_cast<XPairBlock*>(out) + pair;
    if (kind == XKind::kBlocks)
      PrepareBlocks<XKind::kBlocks>(from, present, cols, blocks, pairs);
    else if (kind == XKind::kNibbles)
      PrepareBlocks<XKind::kNibbles>(from, present, cols, blocks, pairs);
    else if (kind == XKind::kNibblesMin)
      PrepareBlocks<XKind::kNibblesMin>(from, present, cols, blocks, pairs);
    else
      PrepareSupers(from, present, cols, reinterpret_cast<XPairSuper*>(out) + pair, pairs);
  }
}

}  // namespace celer
#endif
