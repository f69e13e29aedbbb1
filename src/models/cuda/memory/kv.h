// Keys and values on a GPU: one pool of blocks that the sequences of an engine share, and blocks of host
// memory that it can be swapped out to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/llm/kv_block.h"
#include "kernels/shared/cuda/device_batch.h"
#include "models/config/decoder_config.h"

namespace celer {

// A layer's keys and values, without memory.
cuda::DeviceKv DeviceKvShape(const DecoderConfig& config, DType dtype);
// Keys and values, or the one row that is both.
inline int KvParts(const DecoderConfig& config) {
  return config.IsLatent() ? 1 : 2;
}
// What one block takes, of all layers.
int64_t DeviceKvBlockBytes(const DecoderConfig& config, DType dtype);

class CudaKv {
 public:
  // Zeros. `host_blocks` may be 0: then there is nothing to swap to.
  static Result<std::unique_ptr<CudaKv>> Make(int device, const DecoderConfig& config, DType dtype,
                                              int64_t blocks, int64_t host_blocks);
  // Nothing that was queued may still use it: the decoder is gone by then.
  ~CudaKv() = default;
  CudaKv(const CudaKv&) = delete;
  CudaKv& operator=(const CudaKv&) = delete;

  int64_t blocks() const { return blocks_; }
  int64_t host_blocks() const { return host_blocks_; }
  int64_t device_bytes() const { return static_cast<int64_t>(memory_.size()); }
  std::span<const cuda::DeviceKv> layers() const { return layers_; }

  // Each is queued on `stream` and handles its blocks in no order: no block is written twice, or read in one
  // pair and written in another.
  Status Copy(std::span<const BlockCopy> copies, cudaStream_t stream);
  Status SwapOut(std::span<const BlockCopy> copies, cudaStream_t stream);  // to host blocks
  Status SwapIn(std::span<const BlockCopy> copies, cudaStream_t stream);   // from host blocks
  Status Clear(std::span<const int32_t> blocks, cudaStream_t stream);      // zeros

  // Blocks as bytes in any memory of the host, one behind the other. Both wait for `stream`.
  int64_t block_bytes() const;
  Status Read(std::span<const int32_t> blocks, std::span<std::byte> out, cudaStream_t stream);
  Status Write(std::span<const int32_t> blocks, std::span<const std::byte> from, cudaStream_t stream);

 private:
  CudaKv() = default;

  enum class Place { kNone, kDevice, kHost };
  Status Move(std::span<const BlockCopy> copies, Place from, Place to, const char* what, cudaStream_t stream);
  // Calls step(blocks, staging) for so many blocks at once as pinned memory is kept for.
  Status InStages(std::span<const int32_t> blocks,
                  const std::function<Status(std::span<const int32_t>, std::span<std::byte>)>& step);
  // Between the pool and pinned memory, in which blocks lie one behind the other.
  Status MoveStage(std::span<const int32_t> blocks, std::span<std::byte> staging, bool out,
                   cudaStream_t stream);

  int device_ = 0;
  int64_t blocks_ = 0, host_blocks_ = 0;
  int64_t parts_ = 0, part_bytes_ = 0, host_part_bytes_ = 0;
  Buffer memory_,
      host_;  // [layers with attention, k and v, bytes of a part], where a part is [blocks, bytes of a block]
  Buffer staging_;  // pinned; empty until it is needed
  std::vector<cuda::DeviceKv> layers_;
};

}  // namespace celer
