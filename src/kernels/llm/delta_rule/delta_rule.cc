#include "kernels/llm/delta_rule/delta_rule.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/llm/delta_rule/delta_rule_lanes.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/shared/activation/activation.h"

namespace celer {
namespace {

constexpr Variant<DeltaScanFn> kScanDelta[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, x86::ScanDeltaAvx512},
    {"x86_avx2", Isa::kAvx2, x86::ScanDeltaAvx2},
#endif
    {"portable", Isa::kBaseline, portable::ScanDelta},
};

constexpr float kLengthEps = 1e-6f;  // added to the square of the length of q and k
constexpr float kLinear = 20;        // from here on softplus is its argument

float Softplus(float x) {
  return x > kLinear ? x : std::log1p(std::exp(x));
}

int64_t Width(const DeltaRuleArgs& args) {
  return 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
}

// To a length of `length`.
void NormalizeHeads(float* heads, int64_t count, int64_t dim, float length) {
  const auto size = static_cast<float>(dim);
  for (float* x = heads; x < heads + count * dim; x += dim) {
    const float scale = InverseRms(x, dim, kLengthEps / size) / std::sqrt(size) * length;
    for (int64_t i = 0; i < dim; ++i) x[i] *= scale;
  }
}

// q and k of unit length, the decay in the place of a, beta in the place of b.
void PrepareToken(const DeltaRuleArgs& args, int64_t token) {
  float* const q = args.qkv + token * Width(args);
  NormalizeHeads(q, args.key_heads, args.key_dim, 1 / std::sqrt(static_cast<float>(args.key_dim)));
  NormalizeHeads(q + args.key_heads * args.key_dim, args.key_heads, args.key_dim, 1);
  for (int64_t h = 0; h < args.value_heads; ++h) {
    float &a = args.a[token * args.value_heads + h], &b = args.b[token * args.value_heads + h];
    a = std::exp(-args.rate[h] * Softplus(a + args.dt_bias[h]));
    b = 1 / (1 + std::exp(-b));
  }
}

// Columns [piece * kDeltaColumns, ...) of a value head over the tokens of a sequence.
void ScanPiece(const DeltaRuleArgs& args, DeltaScanFn run, int64_t seq, int64_t head, int64_t piece) {
  const int64_t first = args.batch.seq_start[seq], tokens = args.batch.seq_start[seq + 1] - first;
  if (tokens == 0) return;
  const int64_t pieces = (args.value_dim + kDeltaColumns - 1) / kDeltaColumns;
  const int64_t key_head =
      args.tiled_values ? head % args.key_heads : head / (args.value_heads / args.key_heads);
  const int64_t column = piece * kDeltaColumns, width = Width(args), keys = args.key_heads * args.key_dim;
  const int64_t at = (head * pieces + piece) * args.key_dim * kDeltaColumns;
  float* const state = args.states.Of(seq) + at;
  if (args.batch.positions[first] == 0) std::fill_n(state, args.key_dim * kDeltaColumns, 0.0f);
  const auto scan = [&](float* of, int64_t begin, int64_t count) {
    const float* const row = args.qkv + begin * width;
    run({.state = of,
         .q = row + key_head * args.key_dim,
         .k = row + keys + key_head * args.key_dim,
         .v = row + 2 * keys + head * args.value_dim + column,
         .stride = width,
         .decay = args.a + begin * args.value_heads + head,
         .beta = args.b + begin * args.value_heads + head,
         .gate_stride = args.value_heads,
         .tokens = count,
         .key_dim = args.key_dim,
         .columns = std::min(kDeltaColumns, args.value_dim - column),
         .out = args.out + (begin * args.value_heads + head) * args.value_dim + column,
         .out_stride = args.value_heads * args.value_dim});
  };
  const int64_t certain = args.states.Certain(seq, tokens);
  if (certain > 0) scan(state, first, certain);
  if (certain == tokens) return;
  float* const drafted = args.states.DraftOf(seq) + at;
  std::copy_n(state, args.key_dim * kDeltaColumns, drafted);
  scan(drafted, first + certain, tokens - certain);
}

void FinishToken(const DeltaRuleArgs& args, int64_t token) {
  const int64_t dim = args.value_dim, at = token * args.value_heads * dim;
  float* const out = args.out + at;
  RmsNorm(
      {.x = out, .weight = args.norm, .eps = args.eps, .rows = args.value_heads, .cols = dim, .out = out});
  ActivateMul(Activation::kSilu, args.z + at, out, out, args.value_heads * dim);
}

}  // namespace

void portable::ScanDelta(const DeltaScan& scan) {
  ScanDeltaLanes(scan);
}

std::span<const Variant<DeltaScanFn>> DeltaScanVariants() {
  return kScanDelta;
}

void DeltaRule(const DeltaRuleArgs& args) {
  static const DeltaScanFn run = Pick<DeltaScanFn>("delta_rule", kScanDelta)->run;
  CELER_CHECK_EQ(args.value_heads % args.key_heads, 0);
  const int64_t tokens = args.batch.token_count();
  constexpr int64_t kTokens = 4;  // of a piece of work
  args.pool->ParallelFor(tokens, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) PrepareToken(args, t);
  });
  const int64_t pieces = (args.value_dim + kDeltaColumns - 1) / kDeltaColumns;
  args.pool->ParallelFor(args.batch.seqs() * args.value_heads * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      ScanPiece(args, run, i / pieces / args.value_heads, i / pieces % args.value_heads, i % pieces);
  });
  args.pool->ParallelFor(tokens, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) FinishToken(args, t);
  });
}

}  // namespace celer
