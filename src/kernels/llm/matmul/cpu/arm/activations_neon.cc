#if defined(__aarch64__)
#include "kernels/llm/matmul/cpu/arm/activations_neon.h"

#include <arm_neon.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "formats/bfloat16.h"
#include "kernels/shared/simd.h"

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

// Sixteen values to int8, round-half-to-even, eight each to q0 and q1; their sums in 16 bits.
int16x8_t Quantize16(const float* x, float32x4_t inverse, int8_t* q0, int8_t* q1) {
  int16x8_t halves[2];
  for (int h = 0; h < 2; ++h) {
    const int32x4_t lo = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + 8 * h), inverse));
    const int32x4_t hi = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + 8 * h + 4), inverse));
    halves[h] = vuzp1q_s16(vreinterpretq_s16_s32(lo), vreinterpretq_s16_s32(hi));
  }
  vst1_s8(q0, vmovn_s16(halves[0]));
  vst1_s8(q1, vmovn_s16(halves[1]));
  return vaddq_s16(halves[0], halves[1]);
}

// Sixteen columns for kNibbles, which are steps of kStep columns for low and for high halves of bytes in
// turns. Numbers are rounded by adding the magic number 1.5 * 2^23, after which their low bytes are the
// integer: conversions would run on one pipe of four. Where `inverse` is a power of two products with it are
// exact.
struct NibbleSteps {
  int16x8_t lows, highs;
};
template <int kStep>
CELER_INLINE NibbleSteps RoundForNibbles(const float* x, float32x4_t inverse) {
  const float32x4_t magic = vdupq_n_f32(12582912.0f);
  float32x4_t low[2], high[2];
  for (int h = 0; h < 2; ++h) {
    const float* const from = x + h * (kStep == 8 ? 4 : 8);
    high[h] = vfmaq_f32(magic, vld1q_f32(from + kStep), inverse);
    const float32x4_t rounded = vsubq_f32(high[h], magic);
    low[h] = vaddq_f32(vfmsq_n_f32(vmulq_f32(vld1q_f32(from), inverse), rounded, 1.0f / 16), magic);
  }
  const auto narrow = [](float32x4_t v, float32x4_t w) {
    return vuzp1q_s16(vreinterpretq_s16_f32(v), vreinterpretq_s16_f32(w));
  };
  return {narrow(low[0], low[1]), narrow(high[0], high[1])};
}

// To a token's 16 columns.
CELER_INLINE NibbleSteps QuantizeForNibbles(const float* x, float32x4_t inverse, int8_t* q) {
  const NibbleSteps both = RoundForNibbles<4>(x, inverse);
  const int32x2x2_t steps =
      vzip_s32(vreinterpret_s32_s8(vmovn_s16(both.lows)), vreinterpret_s32_s8(vmovn_s16(both.highs)));
  vst1q_s8(q, vreinterpretq_s8_s32(vcombine_s32(steps.val[0], steps.val[1])));
  return both;
}
// The same; returns what adds up to `zero`: an eighth of what comes from the excess of the weights, in 16
// bits.
template <bool kLone>
CELER_INLINE int16x8_t QuantizeForNibbles(const float* x, float32x4_t inverse, XTokenBlock& block, int half,
                                          int) {
  const auto [lows, highs] = QuantizeForNibbles(x, inverse, block.q + 16 * half);
  return kLone ? vaddq_s16(vshlq_n_s16(lows, 4), highs) : highs;
}
// The same for token t of a pair. kLone: see XPairBlock.
template <bool kLone>
CELER_INLINE int16x8_t QuantizeForNibbles(const float* x, float32x4_t inverse, XPairBlock& block, int half,
                                          int t) {
  int8_t *const low_q = block.q[2 * half][t], *const high_q = block.q[2 * half + 1][t];
  const auto [lows, highs] = RoundForNibbles<8>(x, inverse);
  if constexpr (kLone) {
    const int8x16_t negative = {0, 0, 0, 0, -1, -1, -1, -1, 0, 0, 0, 0, -1, -1, -1, -1};
    const auto twice = [&](int16x8_t v) {
      const int8x16_t q = vuzp1q_s8(vreinterpretq_s8_s16(v), vreinterpretq_s8_s16(v));
      return vsubq_s8(veorq_s8(q, negative), negative);
    };
    vst1q_s8(low_q, twice(lows));
    vst1q_s8(high_q, twice(highs));
  } else {
    vst1_s8(low_q, vmovn_s16(lows));
    vst1_s8(high_q, vmovn_s16(highs));
  }
  return vaddq_s16(vshlq_n_s16(vaddq_s16(lows, highs), 4), highs);  // 16 * low + 17 * high
}

// Largest magnitudes among 32 columns, or among what they become for nibbles (with steps of kStep columns,
// else zero) before it is rounded: the largest of the four lanes is that of all.
template <int kStep>
CELER_INLINE float32x4_t BlockAbsMax(const float* x) {
  float32x4_t max = vdupq_n_f32(0);
  for (int i = 0; i < 32; i += 16)
    for (int j = 0; j < 2; ++j) {
      const float* const from = x + i + j * (kStep == 4 ? 8 : 4);
      const float32x4_t low = vld1q_f32(from), high = vld1q_f32(from + (kStep == 4 ? 4 : 8));
      const float32x4_t first = kStep > 0 ? vfmsq_n_f32(low, high, 1.0f / 16) : low;
      max = vmaxq_f32(max, vmaxq_f32(vabsq_f32(high), vabsq_f32(first)));
    }
  return max;
}

// Of four blocks.
struct PowersOfTwo {
  float32x4_t start, scale, inverse;
};
// The smallest ones with which `largest` becomes at most 127. Not a number where activations are none, or so
// large that sums would leave the range of floats; from 2^-100 on downwards all are as good as zero.
PowersOfTwo ScalesFor(float32x4_t largest) {
  constexpr int32_t kOne = 127 << 23, kSmallest = kOne - (100 << 23), kMantissa = (1 << 23) - 1;
  const uint32x4_t usable = vcltq_f32(largest, vdupq_n_f32(0x1p90f));
  // Unsigned, where the bits of a NaN may overflow.
  const uint32x4_t above = vreinterpretq_u32_f32(vmulq_n_f32(largest, 1.0f / 127)),
                   mantissa = vdupq_n_u32(kMantissa);
  const int32x4_t bits = vmaxq_s32(vreinterpretq_s32_u32(vbicq_u32(vaddq_u32(above, mantissa), mantissa)),
                                   vdupq_n_s32(kSmallest));
  const float32x4_t scale =
      vbslq_f32(usable, vreinterpretq_f32_s32(bits), vdupq_n_f32(std::numeric_limits<float>::quiet_NaN()));
  const uint32x4_t inverse = vandq_u32(usable, vreinterpretq_u32_s32(vsubq_s32(vdupq_n_s32(2 * kOne), bits)));
  return {vmulq_n_f32(scale, 12582912.0f), scale, vreinterpretq_f32_u32(inverse)};
}

// Up to kAtOnce blocks of token t of a pair, `apart` blocks from one to the next. What is one number to a
// block is computed for four of them at once; and for all of them before anything is quantized, so that few
// wait for it. kLone: the token is alone in its unit (XPairBlock).
constexpr int kAtOnce = 16;

// Where token t's step of 8 columns stands.
int8_t* StepOf(XPairBlock& block, int step, int t) {
  return block.q[step][t];
}
int8_t* StepOf(XTokenBlock& block, int step, int) {
  return block.q + 8 * step;
}
void SetScale(XPairBlock& block, int t, float start, float sum) {
  block.start[t] = block.start[t + 2] = start;
  block.sum[t] = block.sum[t + 2] = sum;
}
void SetScale(XTokenBlock& block, int, float start, float sum) {
  vst1q_f32(block.start, vdupq_n_f32(start));
  vst1q_f32(block.sum, vdupq_n_f32(sum));
}

template <XKind kKind, bool kLone = false, class Block>
void PrepareSome(const float* x, int count, int t, Block* out, int apart) {
  constexpr bool kPair = std::is_same_v<Block, XPairBlock>;
  constexpr int kStep = kKind == XKind::kBlocks ? 0 : kPair ? 8 : 4;
  float inverse[kAtOnce], start[kAtOnce], scale[kAtOnce], second[kAtOnce];
  int32x4_t sums[kAtOnce];
  for (int b = 0; b < count; b += 4) {
    float32x4_t max[4];
    for (int i = 0; i < 4; ++i)
      max[i] = b + i < count ? BlockAbsMax<kStep>(x + (b + i) * kBlockCols) : vdupq_n_f32(0);
    const PowersOfTwo p = ScalesFor(vpmaxq_f32(vpmaxq_f32(max[0], max[1]), vpmaxq_f32(max[2], max[3])));
    vst1q_f32(inverse + b, p.inverse);
    vst1q_f32(start + b, p.start);
    vst1q_f32(scale + b, p.scale);
  }
  for (int b = 0; b < count; ++b) {
    const float* from = x + b * kBlockCols;
    Block& block = out[b * apart];
    const float32x4_t by = vld1q_dup_f32(inverse + b);
    if constexpr (kStep > 0)
      sums[b] = vpaddlq_s16(vaddq_s16(QuantizeForNibbles<kLone>(from, by, block, 0, t),
                                      QuantizeForNibbles<kLone>(from + 16, by, block, 1, t)));
    else
      sums[b] = vpaddlq_s16(vaddq_s16(Quantize16(from, by, StepOf(block, 0, t), StepOf(block, 1, t)),
                                      Quantize16(from + 16, by, StepOf(block, 2, t), StepOf(block, 3, t))));
  }
  for (int b = 0; b < count; b += 4) {
    for (int i = count; i < b + 4; ++i) sums[i] = int32x4_t{};
    const float32x4_t sum =
        vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(sums[b], sums[b + 1]), vpaddq_s32(sums[b + 2], sums[b + 3])));
    const float32x4_t scaled = vmulq_f32(vld1q_f32(scale + b), sum);
    // kNibbles: exact, a multiple of the scale below 2^24
    vst1q_f32(second + b, kKind == XKind::kNibbles ? vfmaq_n_f32(vld1q_f32(start + b), scaled, 8) : scaled);
  }
  for (int b = 0; b < count; ++b) {
    Block& block = out[b * apart];
    if constexpr (kLone && kPair) {
      const float minus = kKind == XKind::kNibbles ? -second[b] : -start[b];
      vst1q_f32(block.start, float32x4_t{start[b], minus, start[b], minus});
      vst1q_f32(block.sum, vdupq_n_f32(second[b]));
    } else {
      SetScale(block, t, start[b], second[b]);
    }
  }
}

// Writes one pair; `apart` is the distance from one of its blocks to the next. `lone`: its unit has one
// token.
template <XKind kKind>
void PrepareBlocks(const float* const* rows, int tokens, bool lone, int64_t cols, XPairBlock* out,
                   int apart) {
  const int64_t blocks = cols / kBlockCols;
  if (tokens == 0)
    for (int64_t b = 0; b < blocks; ++b) std::memset(&out[b * apart], 0, sizeof *out);
  for (int64_t b = 0; tokens > 0 && b < blocks; b += kAtOnce) {
    const auto count = static_cast<int>(std::min<int64_t>(kAtOnce, blocks - b));
    XPairBlock* const to = out + b * apart;
    if constexpr (kKind != XKind::kBlocks)
      if (lone) {
        PrepareSome<kKind, true>(rows[0] + b * kBlockCols, count, 0, to, apart);
        continue;
      }
    for (int t = 0; t < tokens; ++t) PrepareSome<kKind>(rows[t] + b * kBlockCols, count, t, to, apart);
    if (tokens == 2) continue;
    for (int i = 0; i < count; ++i) {
      XPairBlock& block = to[i * apart];
      block.start[1] = block.start[3] = block.sum[1] = block.sum[3] = 0;
      for (auto& step : block.q) std::memcpy(step[1], step[0], 8);
    }
  }
}

// Of one token's 256 columns, over 16 and over 32 of them.
struct SuperSums {
  int16_t of16[16], of32[8];
};
// One token's 256 columns to q; returns their scale.
float PrepareSuper(const float* x, int8_t* q, SuperSums* sums) {
  const float largest = Largest(x, kSuperCols);
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  for (int s = 0; s < 16; ++s)
    sums->of16[s] = vaddvq_s16(Quantize16(x + 16 * s, vdupq_n_f32(inverse), q + 16 * s, q + 16 * s + 8));
  vst1q_s16(sums->of32, vpaddq_s16(vld1q_s16(sums->of16), vld1q_s16(sums->of16 + 8)));
  return largest / 127.0f;
}

// Eight sums as low + 64 * high.
void SplitSums(const int16_t* sums, int8_t* low, int8_t* high) {
  const int16x8_t sum = vld1q_s16(sums), upper = vrshrq_n_s16(sum, 6);
  vst1_s8(high, vmovn_s16(upper));
  vst1_s8(low, vmovn_s16(vsubq_s16(sum, vshlq_n_s16(upper, 6))));
}
void PrepareTokenSuper(const float* x, XTokenSuper* out) {
  SuperSums sums;
  out->scale = PrepareSuper(x, out->q, &sums);
  SplitSums(sums.of32, out->low32, out->high32);
  for (int s = 0; s < 16; s += 8) SplitSums(sums.of16 + s, out->low16 + s, out->high16 + s);
}

// The same for kNibblesMin. `lone`: the token is alone in its unit.
void PrepareTokenNibbles(const float* x, bool lone, XTokenNibbleSuper* out) {
  float32x4_t max = vdupq_n_f32(0);
  for (int b = 0; b < 8; ++b) max = vmaxq_f32(max, BlockAbsMax<4>(x + b * kBlockCols));
  const float largest = vmaxvq_f32(max);
  const float32x4_t inverse = vdupq_n_f32(largest > 0 ? 127.0f / largest : 0.0f);
  int16_t sums[8];
  for (int b = 0; b < 8; ++b) {
    int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);
    for (int i = 0; i < kBlockCols; i += 16) {
      const auto [lows, highs] =
          QuantizeForNibbles(x + b * kBlockCols + i, inverse, out->q + b * kBlockCols + i);
      low = vaddq_s16(low, lows);
      high = vaddq_s16(high, highs);
    }
    const int32_t low_sum = vaddlvq_s16(low), high_sum = vaddlvq_s16(high);
    // A low column is its integer and a sixteenth of the high one's.
    sums[b] = static_cast<int16_t>((16 * low_sum + 17 * high_sum + 8) >> 4);
    vst1q_s32(out->start[b], vdupq_n_s32(128 * (high_sum + (lone ? 0 : low_sum))));
  }
  SplitSums(sums, out->low32, out->high32);
  out->scale = largest / 127.0f;
}

void PrepareSupers(const float* const* rows, int tokens, int64_t cols, XPairSuper* out, int apart) {
  for (int64_t b = 0; b < cols / kSuperCols; ++b) {
    XPairSuper& super = out[b * apart];
    if (tokens < 2) std::memset(&super, 0, sizeof super);
    for (int t = 0; t < tokens; ++t) {
      int8_t q[kSuperCols];
      SuperSums sums;
      super.scale[t] = super.scale[t + 2] = PrepareSuper(rows[t] + b * kSuperCols, q, &sums);
      for (int s = 0; s < 16; ++s) super.sum16[s][t] = super.sum16[s][t + 2] = sums.of16[s];
      for (int s = 0; s < 8; ++s) super.sum32[s][t] = super.sum32[s][t + 2] = sums.of32[s];
      for (int s = 0; s < 32; ++s) std::memcpy(super.q[s][t], q + 8 * s, 8);
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
      PrepareBlocks<XKind::kBlocks>(from, present, tokens == 1, cols, blocks, pairs);
    else if (kind == XKind::kNibbles)
      PrepareBlocks<XKind::kNibbles>(from, present, tokens == 1, cols, blocks, pairs);
    else if (kind == XKind::kNibblesMin)
      PrepareBlocks<XKind::kNibblesMin>(from, present, tokens == 1, cols, blocks, pairs);
    else
      PrepareSupers(from, present, cols, reinterpret_cast<XPairSuper*>(out) + pair, pairs);
  }
}

int64_t XTokenBytes(XKind kind, int64_t cols) {
  if (kind == XKind::kBlocks || kind == XKind::kNibbles)
    return kXUnitTokens * cols / kBlockCols * static_cast<int64_t>(sizeof(XTokenBlock));
  if (kind == XKind::kSupers)
    return kXUnitTokens * cols / kSuperCols * static_cast<int64_t>(sizeof(XTokenSuper));
  if (kind == XKind::kNibblesMin)
    return kXUnitTokens * cols / kSuperCols * static_cast<int64_t>(sizeof(XTokenNibbleSuper));
  return XPairBytes(kind, cols);
}

void PrepareXToken(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  const auto some = kind == XKind::kBlocks    ? PrepareSome<XKind::kBlocks, false, XTokenBlock>
                    : kind != XKind::kNibbles ? nullptr
                    : tokens == 1             ? PrepareSome<XKind::kNibbles, true, XTokenBlock>
                                              : PrepareSome<XKind::kNibbles, false, XTokenBlock>;
  const bool in_supers = kind == XKind::kSupers || kind == XKind::kNibblesMin;
  if (!some && !in_supers) return PrepareXPair(kind, rows, tokens, cols, out);
  const int apart = XTokens(tokens);
  auto* const blocks = reinterpret_cast<XTokenBlock*>(out);
  auto* const supers = reinterpret_cast<XTokenSuper*>(out);
  auto* const nibbles = reinterpret_cast<XTokenNibbleSuper*>(out);
  for (int t = 0; t < tokens; ++t) {
    for (int64_t b = 0; some && b < cols / kBlockCols; b += kAtOnce)
      some(rows[t] + b * kBlockCols, static_cast<int>(std::min<int64_t>(kAtOnce, cols / kBlockCols - b)), t,
           blocks + b * apart + t, apart);
    for (int64_t b = 0; in_supers && b < cols / kSuperCols; ++b)
      if (const float* const from = rows[t] + b * kSuperCols; kind == XKind::kSupers)
        PrepareTokenSuper(from, supers + b * apart + t);
      else
        PrepareTokenNibbles(from, tokens == 1, nibbles + b * apart + t);
  }
}

}  // namespace celer
#endif
