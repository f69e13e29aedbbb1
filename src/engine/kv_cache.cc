#include "engine/kv_cache.h"

#include "core/safe_math.h"

namespace celer {

int64_t KvBytesPerToken(const DecoderConfig& config, DType dtype) {
  return config.layers * 2 * config.kv_heads * config.head_dim * Info(dtype).block_bytes;
}

Result<KvCache> KvCache::Make(const DecoderConfig& config, DType dtype, int64_t blocks,
                              Allocator& allocator) {
  KvCache cache;
  const int64_t row = config.kv_heads * kBlockSize * config.head_dim * Info(dtype).block_bytes;
  const auto bytes = CheckedMul(blocks, row);
  if (!bytes)
    return Error::Invalid("a KV cache of ", blocks, " blocks is too large; use a smaller --context");
  for (int64_t i = 0; i < config.layers; ++i) {
    KvLayerView view{.dtype = dtype,
                     .blocks = blocks,
                     .kv_heads = config.kv_heads,
                     .block_size = kBlockSize,
                     .head_dim = config.head_dim};
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
