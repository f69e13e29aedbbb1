// The memory behind the blocks: K and V of each layer (see KvLayerView).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/result.h"
#include "kernels/batch.h"
#include "models/decoder_config.h"

namespace celer {

class KvCache {
 public:
  static constexpr int64_t kBlockSize = 16;
  // Blocks whose rows of a head lie together, at most; fewer where rounding up to whole runs would waste
  // much.
  static constexpr int64_t kMinRunBlocks = 16, kMaxRunBlocks = 64;

  static Result<KvCache> Make(const DecoderConfig& config, DType dtype, int64_t blocks, Allocator& allocator);

  std::span<const KvLayerView> layers() const { return layers_; }
  int64_t blocks() const { return layers_.empty() ? 0 : layers_[0].blocks; }

 private:
  std::vector<Buffer> buffers_;
  std::vector<KvLayerView> layers_;
};

// Keys and values of one token over all layers, scales included.
int64_t KvBytesPerToken(const DecoderConfig& config, DType dtype);

}  // namespace celer
