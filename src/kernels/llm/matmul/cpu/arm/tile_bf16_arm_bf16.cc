// bf16 weights times activations rounded to bf16, accumulated in f32 by bfmmla: pairs of rows times pairs of
// tokens, four columns at a time. A single token has zeros beside it: it is memory-bound, and the order of
// additions stays that of every other batch.
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/tile_arm.h"

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

constexpr int kWideGroups = 3, kWidePairs = kWideGroups * kPairs, kMaxUnits = 16, kChunkSteps = 128;

// sum[row pair][token pair] += six row pairs times eight tokens, `steps` of four columns, of kWidePairs row
// pairs side by side. In assembly, because a compiler does not keep 24 sums, four activations and the weights
// in registers: 3.6 products per cycle on Neoverse V1, of at most four.
inline void Six(const uint8_t* w, const uint8_t* x, int64_t steps, float32x4_t (*sum)[4]) {
// clang-format off
#define CELER_PAIR(at, reg, a, b, c, d)                     \
  "ldr q" #reg ", [%[w], #" #at "]\n"                       \
  "bfmmla v" #a ".4s, v" #reg ".8h, v0.8h\n"                \
  "bfmmla v" #b ".4s, v" #reg ".8h, v1.8h\n"                \
  "bfmmla v" #c ".4s, v" #reg ".8h, v2.8h\n"                \
  "bfmmla v" #d ".4s, v" #reg ".8h, v3.8h\n"
#define CELER_SUMS(op, at, a, b, c, d)                      \
  op " q" #a ", q" #b ", [%[sum], #" #at "]\n"              \
  op " q" #c ", q" #d ", [%[sum], #" #at "+32]\n"
#define CELER_ALL_SUMS(op)                                                                \
  CELER_SUMS(op, 0, 8, 9, 10, 11) CELER_SUMS(op, 64, 12, 13, 14, 15)                      \
  CELER_SUMS(op, 128, 16, 17, 18, 19) CELER_SUMS(op, 192, 20, 21, 22, 23)                 \
  CELER_SUMS(op, 256, 24, 25, 26, 27) CELER_SUMS(op, 320, 28, 29, 30, 31)
  static_assert(kWidePairs * 16 == 192);
  asm volatile(
      CELER_ALL_SUMS("ldp")
      "1:\n"
      "ldp q0, q1, [%[x]]\n"
      "ldp q2, q3, [%[x], #32]\n"
      CELER_PAIR(0, 4, 8, 9, 10, 11)
      CELER_PAIR(16, 5, 12, 13, 14, 15)
      CELER_PAIR(32, 6, 16, 17, 18, 19)
      "add %[x], %[x], #64\n"
      "subs %[steps], %[steps], #1\n"
      CELER_PAIR(48, 7, 20, 21, 22, 23)
      CELER_PAIR(64, 4, 24, 25, 26, 27)
      CELER_PAIR(80, 5, 28, 29, 30, 31)
      "add %[w], %[w], #192\n"
      "b.ne 1b\n"
      CELER_ALL_SUMS("stp")
      : [w] "+r"(w), [x] "+r"(x), [steps] "+r"(steps)
      : [sum] "r"(sum)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
        "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
        "v29", "v30", "v31");
#undef CELER_ALL_SUMS
#undef CELER_SUMS
#undef CELER_PAIR
  // clang-format on
}

// Three row groups times all whole units of eight tokens. Cache blocking: columns are taken in chunks, whose
// weights stay in the L1 cache while the tokens are streamed: side by side, because groups are often a
// multiple of a cache way apart. Partial sums wait in memory, so that the order of additions stays the same.
inline void Wide(const TileJob& job, int units) {
  alignas(64) static thread_local float32x4_t sums[kMaxUnits][kWidePairs][4];
  alignas(64) static thread_local uint8_t weights[kChunkSteps * kWidePairs * 16];
  for (int u = 0; u < units; ++u)
    for (auto& pair : sums[u])
      for (auto& token : pair) token = vdupq_n_f32(0);
  const int64_t steps = (job.cols + 3) / 4;
  for (int64_t first = 0; first < steps; first += kChunkSteps) {
    const int64_t count = steps - first < kChunkSteps ? steps - first : kChunkSteps;
    for (int g = 0; g < kWideGroups; ++g) {
      const uint8_t* from = job.w + g * job.group_bytes + first * kStepBytes;
      uint8_t* to = weights + g * kStepBytes;
      for (int64_t i = 0; i < count; ++i, from += kStepBytes, to += kWidePairs * 16)
        for (int p = 0; p < kPairs; ++p) vst1q_u8(to + p * 16, vld1q_u8(from + p * 16));
    }
    // What comes next of these groups, or of the next job's, is fetched while these meet their tokens.
    const bool last = first + count == steps;
    const uint8_t* const soon =
        job.w + (last ? job.groups * job.group_bytes : (first + count) * int64_t{kStepBytes});
    for (int u = 0; u < units; ++u) {
      for (int g = 0; g < kWideGroups; ++g)
        for (int64_t at = count * u / units; at < count * (u + 1) / units; ++at)
          __builtin_prefetch(soon + g * job.group_bytes + at * kStepBytes, 0, 2);
      const uint8_t* const x = job.x + u * job.x_bytes + first * kStepBytes;
      Six(weights, x, count, sums[u]);
      Six(weights + 6 * 16, x, count, sums[u] + 6);
    }
  }
  for (int u = 0; u < units; ++u)
    for (int p = 0; p < kWidePairs; p += 2)
      for (int t = 0; t < 4; ++t) {
        float* const to = job.out + (u * kXUnitTokens + 2 * t) * job.out_stride + 2 * p;
        vst1q_f32(to, vuzp1q_f32(sums[u][p][t], sums[u][p + 1][t]));
        vst1q_f32(to + job.out_stride, vuzp2q_f32(sums[u][p][t], sums[u][p + 1][t]));
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
  // With one unit alone it would be no better: nothing stays in the cache.
  const int units = job.tokens / kXUnitTokens;
  const bool wide = job.groups == kWideGroups && units >= 2 && units <= kMaxUnits;
  if (wide) Wide(job, units);
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* w = job.w + g * job.group_bytes;
    for (int t = wide ? units * kXUnitTokens : 0; t < job.tokens; t += kXUnitTokens) {
      const uint8_t* x = job.x + t / kXUnitTokens * job.x_bytes;
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
