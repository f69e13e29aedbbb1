#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/safe_math.h"
#include "device/cpu_allocator.h"

namespace celer {
namespace {

KvLayerView EmptyLayer(const DecoderConfig& config, KvFormat format, int64_t blocks) {
  int64_t run = KvCache::kMaxRunBlocks;
  while (run > KvCache::kMinRunBlocks && run * 4 > blocks) run /= 2;
  return {.dtype = format.dtype,
          .blocks = blocks,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .run = run,
          .channel_keys = format.channel_keys};
}

// Calls visit(part) for keys and values, which may be the same; a recurrent layer has neither.
void ForKeysAndValues(const KvLayerView& layer, auto&& visit) {
  if (layer.k) visit(layer.k);
  if (layer.v != layer.k) visit(layer.v);
}

// The others keep a state of each sequence instead (state_cache.h).
int64_t AttentionLayers(const DecoderConfig& config) {
  return config.layers - std::count(config.recurrent.layer.begin(), config.recurrent.layer.end(), true);
}

}  // namespace

int64_t KvBlockBytes(const DecoderConfig& config, KvFormat format) {
  const int64_t parts = config.IsLatent() ? 1 : 2;
  return AttentionLayers(config) * parts * EmptyLayer(config, format, 1).BlockBytes();
}

int64_t KvBytesPerToken(const DecoderConfig& config, KvFormat format) {
  return KvBlockBytes(config, format) / kKvBlockTokens;
}

Result<KvCache> KvCache::Make(const DecoderConfig& config, KvFormat format, int64_t blocks,
                              Allocator& allocator, int64_t host_blocks) {
  KvCache cache;
  const KvLayerView empty = EmptyLayer(config, format, blocks);
  const auto bytes = CheckedMul(empty.Blocks(), empty.BlockBytes());
  const auto host_bytes = CheckedMul(host_blocks, KvBlockBytes(config, format));
  if (!bytes || !host_bytes)
    return Error::Invalid(blocks, " and ", host_blocks,
                          " blocks of keys and values are more than any memory");
  for (int64_t i = 0; i < config.layers; ++i) {
    KvLayerView view = empty;
    if (config.IsRecurrent(i)) {
      cache.layers_.push_back(view);
      continue;
    }
    for (std::byte** part : {&view.k, &view.v}) {
      if (part == &view.v && config.IsLatent()) {  // one row is both
        view.v = view.k;
        continue;
      }
      CELER_ASSIGN(Buffer buffer, Buffer::Allocate(allocator, static_cast<size_t>(*bytes)));
      // Attention multiplies what lies behind a sequence's end with zero, which must not meet a NaN. Large
      // memory comes from the system as zeros, and takes room only once it is written.
      if (buffer.size() < CpuMemory::kHugePage) std::memset(buffer.data(), 0, buffer.size());
      *part = buffer.data();
      cache.buffers_.push_back(std::move(buffer));
    }
    cache.layers_.push_back(view);
  }
  if (host_blocks > 0) {
    CELER_ASSIGN(cache.host_, Buffer::Allocate(allocator, static_cast<size_t>(*host_bytes)));
    cache.host_blocks_ = host_blocks;
  }
  return cache;
}

void KvCache::ForParts(int32_t block, auto&& visit) const {
  CELER_CHECK_LT(block, blocks());
  for (const KvLayerView& layer : layers_)
    ForKeysAndValues(layer, [&](std::byte* part) {
      for (int64_t head = 0; head < layer.kv_heads; ++head)
        visit(part + layer.RowOffset(block, head, 0), static_cast<size_t>(layer.HeadBytes()));
    });
}

std::byte* KvCache::HostBlock(int32_t block) const {
  CELER_CHECK_LT(block, host_blocks_);
  return const_cast<std::byte*>(host_.data()) + static_cast<int64_t>(host_.size()) / host_blocks_ * block;
}

void KvCache::Clear(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks)
    ForParts(block, [](std::byte* memory, size_t bytes) { std::memset(memory, 0, bytes); });
}

void KvCache::Copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    CELER_CHECK_LT(copy.to, blocks());
    for (const KvLayerView& layer : layers_)
      ForKeysAndValues(layer, [&](std::byte* part) {
        for (int64_t head = 0; head < layer.kv_heads; ++head)
          std::memcpy(part + layer.RowOffset(copy.to, head, 0), part + layer.RowOffset(copy.from, head, 0),
                      static_cast<size_t>(layer.HeadBytes()));
      });
  }
}

void KvCache::SwapOut(std::span<const BlockCopy> copies) {
  for (const auto& [from, to] : copies) {
    std::byte* host = HostBlock(to);
    ForParts(from, [&](const std::byte* memory, size_t bytes) {
      std::memcpy(host, memory, bytes);
      host += bytes;
    });
  }
}

void KvCache::SwapIn(std::span<const BlockCopy> copies) {
  for (const auto& [from, to] : copies) {
    const std::byte* host = HostBlock(from);
    ForParts(to, [&](std::byte* memory, size_t bytes) {
      std::memcpy(memory, host, bytes);
      host += bytes;
    });
  }
}

}  // namespace celer
