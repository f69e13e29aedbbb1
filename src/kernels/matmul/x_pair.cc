#if defined(__aarch64__)
#include "kernels/matmul/x_pair.h"

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

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

// Writes one pair; `apart` is the distance from one of its blocks to the next.
void PrepareBlocks(const float* const* rows, int tokens, int64_t cols, XPairBlock* out, int apart) {
  for (int64_t b = 0; b < cols / kBlockCols; ++b) {
    XPairBlock& block = out[b * apart];
    for (int t = 0; t < 2; ++t) {
      if (t >= tokens) {
        for (auto& step : block.q) std::memset(step[t], 0, 8);
        block.scale[t] = block.scale[t + 2] = block.sum[t] = block.sum[t + 2] = 0;
        continue;
      }
      const float* x = rows[t] + b * kBlockCols;
      const float largest = Largest(x, kBlockCols);
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      const int16x8_t sums = vaddq_s16(Quantize16(x, inverse, block.q[0][t], block.q[1][t]),
                                       Quantize16(x + 16, inverse, block.q[2][t], block.q[3][t]));
      const int16_t sum = vaddvq_s16(sums);
      block.scale[t] = block.scale[t + 2] = largest / 127.0f;
      block.sum[t] = block.sum[t + 2] = largest / 127.0f * static_cast<float>(sum);
    }
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
      return 4 * cols / kBlockCols * static_cast<int64_t>(sizeof(XPairBlock));
    case XKind::kSupers:
      return 4 * cols / kSuperCols * static_cast<int64_t>(sizeof(XPairSuper));
    case XKind::kFloat:
      return 8 * RoundUp4(cols) * 4;
    case XKind::kBf16:
      return 8 * RoundUp4(cols) * 2;
    case XKind::kWide:
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
    if (kind == XKind::kBlocks)
      PrepareBlocks(rows + 2 * pair, present, cols, reinterpret_cast<XPairBlock*>(out) + pair, pairs);
    else
      PrepareSupers(rows + 2 * pair, present, cols, reinterpret_cast<XPairSuper*>(out) + pair, pairs);
  }
}

}  // namespace celer
#endif
