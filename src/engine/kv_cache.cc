#include "engine/kv_cache.h"

#include "core/safe_math.h"

namespace celer {
namespace {

KvLayerView EmptyLayer(const DecoderConfig& config, DType dtype, int64_t blocks) {
  int64_t run = KvCache::kMaxRunBlocks;
  while (run > KvCache::kMinRunBlocks && run * 4 > blocks) run /= 2;
  return {.dtype = dtype,
          .blocks = blocks,
          .kv_heads = config.kv_heads,
          .block_size = KvCache::kBlockSize,
          .head_dim = config.head_dim,
          .run = run};
}

}  // namespace

int64_t KvBytesPerToken(const DecoderConfig& config, DType dtype) {
  return config.layers * 2 * EmptyLayer(config, dtype, 1).BlockBytes() / KvCache::kBlockSize;
}

Result<KvCache> KvCache::Make(const DecoderConfig& config, DType dtype, int64_t blocks,
                              Allocator& allocator) {
  KvCache cache;
  const KvLayerView empty = EmptyLayer(config, dtype, blocks);
  const auto bytes = CheckedMul(empty.Blocks(), empty.BlockBytes());
  if (!bytes)
    return Error::Invalid("a KV cache of ", blocks, " blocks is too large; use a smaller --context");
  for (int64_t i = 0; i < config.layers; ++i) {
    KvLayerView view = empty;
    for (std::byte** part : {&view.k, &view.v}) {
      CELER_ASSIGN(Buffer buffer, Buffer::Allocate(allocator, static_cast<size_t>(*bytes)));
      *part = buffer.data();
      cache.buffers_.push_back(std::move(buffer));
    }
    cache.layers_.push_back(view);
  }
  return cache;
}

}  // namespace celer
