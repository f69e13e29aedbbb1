#include "engine/kv_cache.h"

#include "core/safe_math.h"

namespace celer {
namespace {

KvLayerView EmptyLayer(const DecoderConfig& config, DType dtype, int64_t blocks) {
  return {.dtype = dtype,
          .blocks = blocks,
          .kv_heads = config.kv_heads,
          .block_size = KvCache::kBlockSize,
          .head_dim = config.head_dim,
          .run = KvCache::kRunBlocks};
}

}  // namespace

int64_t KvBytesPerToken(const DecoderConfig& config, DType dtype) {
  return config.layers * 2 * EmptyLayer(config, dtype, 1).BlockBytes() / KvCache::kBlockSize;
}

Result<KvCache> KvCache::Make(const DecoderConfig& config, DType dtype, int64_t blocks,
                              Allocator& allocator) {
  KvCache cache;
  const KvLayerView empty = EmptyLayer(config, dtype, blocks);
  // One piece of memory for all: huge pages to the end, where a context of a few thousand tokens has some MB
  // per layer.
  const auto part = CheckedMul(empty.Blocks(), empty.BlockBytes());
  const auto bytes = part ? CheckedMul(*part, 2 * config.layers) : part;
  if (!bytes)
    return Error::Invalid("a KV cache of ", blocks, " blocks is too large; use a smaller --context");
  CELER_ASSIGN(cache.buffer_, Buffer::Allocate(allocator, static_cast<size_t>(*bytes)));
  std::byte* next = cache.buffer_.data();
  for (int64_t i = 0; i < config.layers; ++i) {
    KvLayerView view = empty;
    view.k = next, next += *part;
    view.v = next, next += *part;
    cache.layers_.push_back(view);
  }
  return cache;
}

}  // namespace celer
