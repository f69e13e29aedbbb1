#include "engine/kv/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/safe_math.h"
#include "device/cpu_allocator.h"

namespace celer {
namespace {

KvLayerView EmptyLayer(const DecoderConfig& config, int64_t layer, KvFormat format, int64_t blocks) {
  int64_t run = KvCache::kMaxRunBlocks;
  while (run > KvCache::kMinRunBlocks && run * 4 > blocks) run /= 2;
  return {.dtype = format.dtype,
          .blocks = blocks,
          .kv_heads = config.KvHeads(layer),
          .head_dim = config.HeadDim(layer),
          .run = run,
          .channel_keys = format.channel_keys};
}

// The others read those of a layer before them, keep a state of each sequence instead (state_cache.h), or have neither.
bool OwnsKeys(const DecoderConfig& config, int64_t layer) {
  return config.HasAttention(layer) && config.KvFrom(layer) == layer;
}

}  // namespace

int64_t KvBlockBytes(const DecoderConfig& config, KvFormat format) {
  const int64_t parts = config.IsLatent() ? 1 : 2;
  int64_t bytes = 0;
  for (int64_t i = 0; i < config.layers; ++i)
    if (OwnsKeys(config, i)) bytes += parts * EmptyLayer(config, i, format, 1).BlockBytes();
  return bytes;
}

int64_t KvBytesPerToken(const DecoderConfig& config, KvFormat format) {
  return KvBlockBytes(config, format) / kKvBlockTokens;
}

Result<KvCache> KvCache::Make(const DecoderConfig& config, KvFormat format, int64_t blocks,
                              Allocator& allocator, int64_t host_blocks) {
  KvCache cache;
  const auto host_bytes = CheckedMul(host_blocks, KvBlockBytes(config, format));
  // More than any layer has.
  const auto most = CheckedMul(blocks + kMaxRunBlocks, KvBlockBytes(config, format));
  if (!most || !host_bytes)
    return Error::Invalid(blocks, " and ", host_blocks,
                          " blocks of keys and values are more than any memory");
  for (int64_t i = 0; i < config.layers; ++i) {
    KvLayerView view = EmptyLayer(config, i, format, blocks);
    if (!OwnsKeys(config, i)) {
      const int64_t from = config.KvFrom(i);
      cache.layers_.push_back(from < i ? cache.layers_[from] : view);
      cache.owns_.push_back(false);
      continue;
    }
    const int64_t bytes = view.Blocks() * view.BlockBytes();
    for (std::byte** part : {&view.k, &view.v}) {
      if (part == &view.v && config.IsLatent()) {  // one row is both
        view.v = view.k;
        continue;
      }
      CELER_ASSIGN(Buffer buffer, Buffer::Allocate(allocator, static_cast<size_t>(bytes)));
      // Attention multiplies what lies behind a sequence's end with zero, which must not meet a NaN. Large
      // memory comes from the system as zeros, and takes room only once it is written.
      if (buffer.size() < CpuMemory::kHugePage) std::memset(buffer.data(), 0, buffer.size());
      *part = buffer.data();
      cache.buffers_.push_back(std::move(buffer));
    }
    cache.layers_.push_back(view);
    cache.owns_.push_back(true);
  }
  if (host_blocks > 0) {
    CELER_ASSIGN(cache.host_, Buffer::Allocate(allocator, static_cast<size_t>(*host_bytes)));
    cache.host_blocks_ = host_blocks;
  }
  return cache;
}

void KvCache::ForOwnParts(auto&& visit) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KvLayerView& layer = layers_[i];
    if (!owns_[i]) continue;
    visit(layer, layer.k);
    if (layer.v != layer.k) visit(layer, layer.v);
  }
}

void KvCache::ForParts(int32_t block, auto&& visit) const {
  CELER_CHECK_LT(block, blocks());
  ForOwnParts([&](const KvLayerView& layer, std::byte* part) {
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

void KvCache::Discard() {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto drop = [page](const Buffer& buffer) {
    if (buffer.empty()) return;
    // Large memory is a mapping of its own (CpuMemory), so that whole pages of it are nobody else's.
    const bool mapped = buffer.size() >= CpuMemory::kHugePage && buffer.owns();
    const size_t whole = mapped ? buffer.size() / page * page : 0;
    if (whole > 0 && ::madvise(buffer.data(), whole, MADV_DONTNEED) == 0)
      std::memset(buffer.data() + whole, 0, buffer.size() - whole);
    else
      std::memset(buffer.data(), 0, buffer.size());
  };
  for (const Buffer& buffer : buffers_) drop(buffer);
  drop(host_);
}

void KvCache::Copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    CELER_CHECK_LT(copy.to, blocks());
    ForOwnParts([&](const KvLayerView& layer, std::byte* part) {
      for (int64_t head = 0; head < layer.kv_heads; ++head)
        std::memcpy(part + layer.RowOffset(copy.to, head, 0), part + layer.RowOffset(copy.from, head, 0),
                    static_cast<size_t>(layer.HeadBytes()));
    });
  }
}

int64_t KvCache::block_bytes() const {
  int64_t bytes = 0;
  ForOwnParts([&](const KvLayerView& layer, std::byte*) { bytes += layer.kv_heads * layer.HeadBytes(); });
  return bytes;
}

void KvCache::Read(std::span<const int32_t> blocks, std::byte* out) const {
  for (const int32_t block : blocks)
    ForParts(block, [&](const std::byte* memory, size_t bytes) {
      std::memcpy(out, memory, bytes);
      out += bytes;
    });
}

void KvCache::Write(std::span<const int32_t> blocks, const std::byte* from) {
  for (const int32_t block : blocks)
    ForParts(block, [&](std::byte* memory, size_t bytes) {
      std::memcpy(memory, from, bytes);
      from += bytes;
    });
}

void KvCache::SwapOut(std::span<const BlockCopy> copies) {
  for (const auto& [from, to] : copies) Read({&from, 1}, HostBlock(to));
}

void KvCache::SwapIn(std::span<const BlockCopy> copies) {
  for (const auto& [from, to] : copies) Write({&to, 1}, HostBlock(from));
}

}  // namespace celer
