// How the tokens of a batch become launches of latent_attention.cuh.
#include <algorithm>

#include "kernels/llm/latent/cuda/latent_attention.cuh"
#include "kernels/shared/cuda/formats.h"

namespace celer::cuda {
namespace latent {
namespace {

int RowsOf(const LatentAttentionArgs& a) {
  if (SmallLatentForms()) return a.alone ? 16 : kGroupedRows / 2;
  return a.alone ? a.heads <= 16 ? 16 : 32 : kGroupedRows;
}

// With `alone` exactly that many, else as many as there may be.
int UnitsOf(const LatentAttentionArgs& a) {
  const int rows = RowsOf(a), count = a.count;
  return a.alone ? count * ((a.heads + rows - 1) / rows)
                 : (count * a.heads + rows - 1) / rows + std::min(a.sequences, count) - 1;
}

}  // namespace

bool SmallLatentForms() {
  return SharedLimit() < kLatentSharedBytes;
}

}  // namespace latent

bool LatentRuns(const DeviceKv& kv, int kv_rank) {
  return kv.kv_heads == 1 && kv.head_dim <= kMaxLatentRow && kv_rank > 0 && kv_rank <= kMaxLatentRank &&
         kv_rank < kv.head_dim && SharedLimit() >= kSmallLatentSharedBytes;
}

// Up to four tokens are one kind of batch, five to eight another: there a token's result does not depend on the others.
int LatentSplits(const LatentAttentionArgs& args) {
  using namespace latent;
  if (args.steady) return kSteadyLatentSplits;
  LatentAttentionArgs as = args;
  if (as.alone) as.count = as.count <= 4 ? 4 : std::max(as.count, 8);
  const int blocks = (args.alone ? 1 : 2) * Multiprocessors();
  return std::clamp(blocks / std::max(UnitsOf(as), 1), 1, kMostLatentSplits);
}

int64_t LatentPieceCount(int64_t tokens, int heads) {
  using namespace latent;
  const int64_t rows = tokens * heads, processors = Multiprocessors();
  const int64_t steady = std::min<int64_t>(tokens, kSteadyLatentTokens) * heads * kSteadyLatentSplits;
  const int64_t most =
      std::max({rows, steady, processors * std::min(heads, 32), 2 * processors * kGroupedRows});
  return (most + 1) / 2 * 2;
}

cudaError_t LaunchLatentAttention(const LatentAttentionArgs& args, cudaStream_t stream) {
  using namespace latent;
  if (!LatentRuns(args.kv, args.kv_rank) ||
      (args.steady && (!args.alone || args.count > kSteadyLatentTokens)))
    return cudaErrorInvalidValue;
  const int units = UnitsOf(args);
  return WithKvType(args.kv.dtype, cudaErrorInvalidValue,
                    [&]<DType kType>() { return LaunchLatentType<kType>(args, units, stream); });
}

}  // namespace celer::cuda
