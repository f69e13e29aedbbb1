// Layers in front of a decoder's own, whose place is the CPU: their weights and their keys and values are in host memory. A
// prompt of many tokens is computed by the GPU all the same, layer by layer, as the weights arrive (weights/weight_feed.h);
// the new keys and values go back to the host, which decodes with them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/llm/batch.h"
#include "models/cuda/forward.h"
#include "models/cuda/host/front_options.h"
#include "models/cuda/model.h"
#include "models/cuda/operators.h"
#include "weights/weight_feed.h"

namespace celer {

class CudaFront {
 public:
  // Blocks of keys and values that one batch may read and write.
  static int64_t KvBlocks(int64_t context, int64_t max_tokens);
  // What it takes on the GPU.
  static int64_t Bytes(const Model& host, const cuda::DeviceWeights& store, const CudaShape& shape, DType kv);

  // `op`: those of the layers behind, whose workspace these share.
  static Result<std::unique_ptr<CudaFront>> Make(int device, const CudaFrontOptions& options, DType kv,
                                                 const WeightOptions& weights, ThreadPool& pool,
                                                 const CudaOperators& op, CudaBatch* batch);

  bool Takes(const RaggedBatch& batch) const;
  const CudaFrontOptions& options() const { return options_; }
  CudaFacts Facts(int count, int64_t most_keys) const { return forward_->BatchFacts(count, 0, most_keys); }
  // x of the workspace is what the layers read, and then what they leave. All is queued on the decoder's stream.
  Status Run(ForwardStrategy strategy, const RaggedBatch& batch, UploadRing& ring);
  // Waits for the keys and values of that batch, and puts them into the host's pool.
  Status Finish();

 private:
  // Blocks of a batch in the order of their places here: those that are read alone, then those that are written, too, and
  // then those that are only written.
  struct Blocks {
    std::vector<int32_t> all;
    int64_t read = 0, first_written = 0;
    std::vector<int32_t> table;  // of the batch, in these places
    std::span<const int32_t> Read() const { return std::span(all).first(static_cast<size_t>(read)); }
    std::span<const int32_t> Written() const {
      return std::span(all).subspan(static_cast<size_t>(first_written));
    }
  };
  static Blocks BlocksOf(const RaggedBatch& batch);

  explicit CudaFront(const CudaFrontOptions& options) : options_(options) {}
  Status BringKv(int64_t layer);
  Status TakeKv(int64_t layer);
  Status GrowPinned(Buffer* buffer, int64_t bytes);

  int device_ = 0;
  CudaFrontOptions options_;
  CudaModel model_;
  std::unique_ptr<cuda::WeightFeed> feed_;
  std::optional<CudaOperators> op_;
  std::optional<CudaForward> forward_;
  CudaBatch* batch_ = nullptr;
  Buffer memory_;  // keys, then values, of one layer
  cuda::DeviceKv kv_;
  int64_t kv_blocks_ = 0;
  std::array<Buffer, 2> in_;  // pinned, by turns
  std::array<std::optional<Event>, 2> in_done_;
  Buffer out_;  // pinned: of each layer the blocks that were written, keys and then values
  std::optional<Event> out_done_;
  Blocks blocks_;         // of the batch under way
  bool pending_ = false;  // Finish() has something to do
};

}  // namespace celer
