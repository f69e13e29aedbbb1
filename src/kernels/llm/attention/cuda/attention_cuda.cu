// How the tokens of a batch become launches of attention_unit_kernel.cuh.
#include "kernels/llm/attention/cuda/attention_cuda.h"

#include <algorithm>

#include "kernels/llm/attention/cuda/attention_unit_kernel.cuh"

namespace celer::cuda {
namespace attention {

namespace {

constexpr int kSplitTokens = AttentionTokens(/*steady=*/true);
constexpr int kSteadyBlocks = 32;

// The splits of a sequence are combined through global memory, so where there is enough work sequences are
// split later.
int LeastBlocks(int tokens, int columns) {
  const int units = UnitsOf(tokens, columns);
  if (FewUnits(tokens, columns)) return tokens <= 4 ? 8 : units <= 64 ? 16 : 64;
  return units < 256 ? 32 : units < 1024 ? 64 : 128;
}

cudaError_t LaunchSome(const ScoredArgs& a, const Bunches& b, cudaStream_t stream) {
  return WithKvType(a.kv.dtype, cudaErrorInvalidValue,
                    [&]<DType kType>() { return LaunchType<kType>(a, b, stream); });
}

}  // namespace
}  // namespace attention

int AttentionSplits(int heads, int kv_heads) {
  // One sequence alone gives every multiprocessor four blocks, or two where each column would have many
  // splits.
  const int columns = attention::BunchesOf(heads, kv_heads).columns;
  const int each = attention::FewColumns(columns) ? 2 : 4;
  return std::clamp(each * Multiprocessors() / columns, 1, attention::kMostSplits);
}

int64_t AttentionPartialFloats(int64_t tokens, int heads, int kv_heads, int padded_dim) {
  const attention::Bunches b = attention::BunchesOf(heads, kv_heads);
  return std::min<int64_t>(tokens, attention::kSplitTokens) * b.columns * AttentionSplits(heads, kv_heads) *
         b.at_once * (padded_dim + 4);
}

cudaError_t LaunchAttention(const DeviceAttentionArgs& args, cudaStream_t stream) {
  return LaunchAttention(args, {}, stream);
}

cudaError_t LaunchAttention(const DeviceAttentionArgs& args, const AttentionScores& scores,
                            cudaStream_t stream) {
  const attention::Bunches b = attention::BunchesOf(args.heads, args.kv.kv_heads);
  const int64_t width = static_cast<int64_t>(args.heads) * args.kv.head_dim;
  const int at_once = AttentionTokens(args.steady);
  if (args.wgmma.data && args.batch.count > at_once) return cudaErrorInvalidValue;
  for (int first = 0; first < args.batch.count; first += at_once) {
    attention::ScoredArgs some{args, scores};
    some.least_blocks =
        args.steady ? attention::kSteadyBlocks : attention::LeastBlocks(args.batch.count, b.columns);
    some.batch.count = std::min(at_once, args.batch.count - first);
    if (some.batch.count > attention::kSplitTokens)
      some.splits = std::max(1, attention::kSplitTokens * args.splits / some.batch.count);
    some.batch.positions += first;
    some.batch.sequence += first;
    some.q += first * width;
    some.out += first * width;
    if (args.rows) some.rows = static_cast<std::byte*>(args.rows) + 2 * first * args.rows_width;
    if (const cudaError_t code = attention::LaunchSome(some, b, stream); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace celer::cuda
