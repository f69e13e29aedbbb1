// The memory of the paged KV on a CPU: K and V of each layer (see KvLayerView), and the host blocks of
// swapped-out sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "device/buffer.h"
#include "kernels/llm/batch.h"
#include "models/config/decoder_config.h"

namespace celer {

class KvCache {
 public:
  // Blocks whose rows of a head lie together, at most; fewer where rounding up to whole runs would waste
  // much.
  static constexpr int64_t kMinRunBlocks = 16, kMaxRunBlocks = 64;

  // Zeros.
  static Result<KvCache> Make(const DecoderConfig& config, KvFormat format, int64_t blocks,
                              Allocator& allocator, int64_t host_blocks = 0);

  // Without keys and values for layers without attention; those of an earlier one for layers that share them.
  std::span<const KvLayerView> layers() const { return layers_; }
  int64_t blocks() const { return layers_.empty() ? 0 : layers_[0].blocks; }
  int64_t host_blocks() const { return host_blocks_; }

  void Clear(std::span<const int32_t> blocks);  // zeros
  // All blocks are zeros, and take no memory until they are written.
  void Discard();
  void Copy(std::span<const BlockCopy> copies);
  void SwapOut(std::span<const BlockCopy> copies);
  void SwapIn(std::span<const BlockCopy> copies);
  // Blocks as bytes, one behind the other, each as SwapOut() has it.
  int64_t block_bytes() const;
  void Read(std::span<const int32_t> blocks, std::byte* out) const;
  void Write(std::span<const int32_t> blocks, const std::byte* from);

 private:
  // Calls visit(layer, part) for the keys and values, which may be the same, of each layer that has its own.
  void ForOwnParts(auto&& visit) const;
  // Calls visit(memory, bytes) for the parts of a block, always in the same order.
  void ForParts(int32_t block, auto&& visit) const;
  std::byte* HostBlock(int32_t block) const;

  std::vector<Buffer> buffers_;
  std::vector<KvLayerView> layers_;
  std::vector<bool> owns_;  // whether a layer has keys and values of its own
  Buffer host_;
  int64_t host_blocks_ = 0;
};

// Keys and values over all layers that have their own, scales included; one row for both where attention is latent.
int64_t KvBlockBytes(const DecoderConfig& config, KvFormat format);
int64_t KvBytesPerToken(const DecoderConfig& config, KvFormat format);

}  // namespace celer
