// bf16 weights times activations rounded to bf16, summed in f32 by bfmmla: pairs of rows times pairs of
// tokens, four columns at a time. A single token has zeros beside it: memory is the limit there, and the
// order of additions stays that of every other batch.
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/matmul/tile_arm.h"

namespace celer::arm {
namespace {

constexpr int kRows = 8;
constexpr int kPairs = 4;
constexpr int kStepBytes = kRows * 4 * 2;

inline bfloat16x8_t Load(const uint8_t* p) {
  return vreinterpretq_bf16_u8(vld1q_u8(p));
}

// A sum register is [row 0, token 0], [row 0, token 1], [row 1, token 0], [row 1, token 1].
template <int kGroups, int kT>
inline void Block(const TileJob& job, const uint8_t* w, const uint8_t* x, int tokens, float* out) {
  const int64_t x_step = 16 * XPairs(tokens);
  float32x4_t sum[kGroups][kPairs][kT];
  for (auto& group : sum)
    for (auto& pair : group)
      for (auto& token : pair) token = vdupq_n_f32(0);
  for (int64_t c = 0; c < job.cols; c += 4, w += kStepBytes, x += x_step) {
    for (int g = 0; g < kGroups; ++g) {
      if (kGroups > 1) __builtin_prefetch(w + g * job.group_bytes + kStreamAhead, 0, 1);
      for (int p = 0; p < kPairs; ++p) {
        const bfloat16x8_t rows = Load(w + g * job.group_bytes + p * 16);
        for (int t = 0; t < kT; ++t) sum[g][p][t] = vbfmmlaq_f32(sum[g][p][t], rows, Load(x + t * 16));
      }
    }
  }
  for (int g = 0; g < kGroups; ++g)
    for (int p = 0; p < kPairs; p += 2)
      for (int t = 0; t < kT; ++t) {
        float* to = out + 2 * t * job.out_stride + g * kRows + 2 * p;
        vst1q_f32(to, vuzp1q_f32(sum[g][p][t], sum[g][p + 1][t]));
        if (2 * t + 1 < tokens) vst1q_f32(to + job.out_stride, vuzp2q_f32(sum[g][p][t], sum[g][p + 1][t]));
      }
}

}  // namespace

void TileBf16(const TileJob& job) {
  if (job.tokens <= 2) {
    int g = 0;
    for (; g + 4 <= job.groups; g += 4)
      Block<4, 1>(job, job.w + g * job.group_bytes, job.x, job.tokens, job.out + g * kRows);
    for (; g < job.groups; ++g)
      Block<1, 1>(job, job.w + g * job.group_bytes, job.x, job.tokens, job.out + g * kRows);
    return;
  }
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* w = job.w + g * job.group_bytes;
    for (int t = 0; t < job.tokens; t += kXPairTokens) {
      const uint8_t* x = job.x + t / kXPairTokens * job.x_bytes;
      float* out = job.out + t * job.out_stride + g * kRows;
      const int tokens = job.tokens - t;
      switch (tokens > 6 ? 4 : (tokens + 1) / 2) {
        case 1:
          Block<1, 1>(job, w, x, tokens, out);
          break;
        case 2:
          Block<1, 2>(job, w, x, tokens, out);
          break;
        case 3:
          Block<1, 3>(job, w, x, tokens, out);
          break;
        default:
          Block<1, 4>(job, w, x, tokens, out);
      }
    }
  }
}

}  // namespace celer::arm
