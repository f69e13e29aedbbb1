#include "kernels/llm/mamba2/mamba2.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/llm/mamba2/mamba2_lanes.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/shared/activation/activation.h"

namespace celer {
namespace {

constexpr Variant<Mamba2ScanFn> kScanMamba2[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, x86::ScanMamba2Avx512},
    {"x86_avx2", Isa::kAvx2, x86::ScanMamba2Avx2},
#endif
    {"portable", Isa::kBaseline, portable::ScanMamba2},
};

constexpr float kLinear = 20;  // from here on softplus is its argument

float Softplus(float x) {
  return x > kLinear ? x : std::log1p(std::exp(x));
}

int64_t Width(const Mamba2Args& args) {
  return args.heads * args.head_dim + 2 * args.groups * args.state_dim;
}

// The step in the place of dt, and the decay. NaN stays NaN.
void PrepareToken(const Mamba2Args& args, int64_t token) {
  for (int64_t h = 0; h < args.heads; ++h) {
    float& dt = args.dt[token * args.heads + h];
    dt = Softplus(dt + args.dt_bias[h]);
    if (dt < args.step_min) dt = args.step_min;
    if (args.step_max > 0 && dt > args.step_max) dt = args.step_max;
    args.decay[token * args.heads + h] = std::exp(-args.rate[h] * dt);
  }
}

// Columns [piece * kDeltaColumns, ...) of a head over the tokens of a sequence.
void ScanPiece(const Mamba2Args& args, Mamba2ScanFn run, int64_t seq, int64_t head, int64_t piece) {
  const int64_t first = args.batch.seq_start[seq], tokens = args.batch.seq_start[seq + 1] - first;
  if (tokens == 0) return;
  const int64_t pieces = (args.head_dim + kDeltaColumns - 1) / kDeltaColumns;
  const int64_t group = head / (args.heads / args.groups);
  const int64_t column = piece * kDeltaColumns, width = Width(args), values = args.heads * args.head_dim;
  const int64_t at = (head * pieces + piece) * args.state_dim * kDeltaColumns;
  float* const state = args.states.Of(seq) + at;
  if (args.batch.positions[first] == 0) std::fill_n(state, args.state_dim * kDeltaColumns, 0.0f);
  const auto scan = [&](float* of, int64_t begin, int64_t count) {
    const float* const row = args.xbc + begin * width;
    run({.state = of,
         .x = row + head * args.head_dim + column,
         .b = row + values + group * args.state_dim,
         .c = row + values + (args.groups + group) * args.state_dim,
         .stride = width,
         .decay = args.decay + begin * args.heads + head,
         .step = args.dt + begin * args.heads + head,
         .step_stride = args.heads,
         .skip = args.skip[head],
         .tokens = count,
         .state_dim = args.state_dim,
         .columns = std::min(kDeltaColumns, args.head_dim - column),
         .out = args.out + begin * values + head * args.head_dim + column,
         .out_stride = values});
  };
  const int64_t certain = args.states.Certain(seq, tokens);
  if (certain > 0) scan(state, first, certain);
  if (certain == tokens) return;
  float* const drafted = args.states.DraftOf(seq) + at;
  std::copy_n(state, args.state_dim * kDeltaColumns, drafted);
  scan(drafted, first + certain, tokens - certain);
}

void FinishToken(const Mamba2Args& args, int64_t token) {
  const int64_t values = args.heads * args.head_dim, part = values / args.norm_groups;
  float* const out = args.out + token * values;
  ActivateMul(Activation::kSilu, args.z + token * values, out, out, values);
  for (int64_t at = 0; at < values; at += part)
    RmsNorm(
        {.x = out + at, .weight = args.norm + at, .eps = args.eps, .rows = 1, .cols = part, .out = out + at});
}

}  // namespace

void portable::ScanMamba2(const Mamba2Scan& scan) {
  ScanMamba2Lanes(scan);
}

std::span<const Variant<Mamba2ScanFn>> Mamba2ScanVariants() {
  return kScanMamba2;
}

void Mamba2(const Mamba2Args& args) {
  static const Mamba2ScanFn run = Pick<Mamba2ScanFn>("mamba2", kScanMamba2)->run;
  CELER_CHECK_EQ(args.heads % args.groups, 0);
  CELER_CHECK_EQ(args.heads * args.head_dim % args.norm_groups, 0);
  const int64_t tokens = args.batch.token_count();
  constexpr int64_t kTokens = 4;  // of a piece of work
  args.pool->ParallelFor(tokens, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) PrepareToken(args, t);
  });
  const int64_t pieces = (args.head_dim + kDeltaColumns - 1) / kDeltaColumns;
  args.pool->ParallelFor(args.batch.seqs() * args.heads * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      ScanPiece(args, run, i / pieces / args.heads, i / pieces % args.heads, i % pieces);
  });
  args.pool->ParallelFor(tokens, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) FinishToken(args, t);
  });
}

}  // namespace celer
