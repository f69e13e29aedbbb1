#include "kernels/attention/attention_cuda.h"

#include <algorithm>

#include "kernels/attention/attention_unit_kernel.cuh"

namespace celer::cuda {
namespace attention {

cudaError_t LaunchF16(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream);
cudaError_t LaunchBf16(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream);
cudaError_t LaunchI8(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream);
cudaError_t LaunchFp8(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream);

int Multiprocessors() {
  static const int count = [] {
    int device = 0, n = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
  }();
  return count;
}

namespace {

// A piece that is only a part of a sequence has to be joined with the others through memory, so where there
// is enough work sequences are split later. Up to four tokens are one kind of batch, five to eight another.
int LeastBlocks(int tokens, int columns) {
  if (FewPieces(tokens, columns)) return 8;
  const int work = (tokens <= 4 ? 1 : std::max(tokens, 8)) * columns;
  return work < 256 ? 32 : work < 1024 ? 64 : 128;
}

cudaError_t LaunchSome(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  switch (a.kv.dtype) {
    case DType::kF16:
      return LaunchF16(a, b, stream);
    case DType::kBf16:
      return LaunchBf16(a, b, stream);
    case DType::kI8:
      return LaunchI8(a, b, stream);
    case DType::kFp8E4M3:
      return LaunchFp8(a, b, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace attention

int AttentionSplits(int heads, int kv_heads) {
  // One sequence alone gives every multiprocessor four blocks, or two where each column would have many
  // pieces.
  const int columns = attention::BunchesOf(heads, kv_heads).columns;
  const int each = attention::FewColumns(columns) ? 2 : 4;
  return std::clamp(each * attention::Multiprocessors() / columns, 1, attention::kMostSplits);
}

int64_t AttentionPartialFloats(int64_t tokens, int heads, int kv_heads, int padded_dim) {
  const attention::Bunches b = attention::BunchesOf(heads, kv_heads);
  return static_cast<int64_t>(AttentionTokens(tokens)) * b.columns * AttentionSplits(heads, kv_heads) *
         b.at_once * (padded_dim + 4);
}

cudaError_t LaunchAttention(const DeviceAttentionArgs& args, cudaStream_t stream) {
  const attention::Bunches b = attention::BunchesOf(args.heads, args.kv.kv_heads);
  const int64_t width = static_cast<int64_t>(args.heads) * args.kv.head_dim;
  if (args.wide.data && args.batch.count > kAttentionTokens) return cudaErrorInvalidValue;
  for (int first = 0; first < args.batch.count; first += kAttentionTokens) {
    DeviceAttentionArgs some = args;
    some.least_blocks = attention::LeastBlocks(args.batch.count, b.columns);
    some.batch.count = std::min(kAttentionTokens, args.batch.count - first);
    some.batch.positions += first;
    some.batch.sequence += first;
    some.q += first * width;
    some.out += first * width;
    if (const cudaError_t code = attention::LaunchSome(some, b, stream); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace celer::cuda
