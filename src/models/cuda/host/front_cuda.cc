#include "models/cuda/host/front.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "models/cuda/memory/kv.h"

namespace celer {

int64_t CudaFront::KvBlocks(int64_t context, int64_t max_tokens) {
  constexpr int64_t kMostTokens = 32'768;
  return KvBlocksFor(std::min(context, kMostTokens)) + KvBlocksFor(max_tokens);
}

int64_t CudaFront::Bytes(const Model& host, const cuda::DeviceWeights& store, const CudaShape& shape,
                         DType kv) {
  const int64_t kv_bytes = 2 * DeviceKvShape(host.config(), kv).block_bytes();
  return cuda::WeightFeed::DeviceBytes(CudaModel::FedLayerBytes(host, store)) +
         KvBlocks(shape.context, shape.max_tokens) * kv_bytes;
}

Result<std::unique_ptr<CudaFront>> CudaFront::Make(int device, const CudaFrontOptions& options, DType kv,
                                                   const WeightOptions& weights, ThreadPool& pool,
                                                   const CudaOperators& op, CudaBatch* batch) {
  std::unique_ptr<CudaFront> front(new CudaFront(options));
  front->device_ = device;
  front->batch_ = batch;
  CudaModel& model = front->model_;
  model.Configure(options.host->config());
  if (model.general != op.model.general || op.shape.gemm || op.shape.codes)
    return Error::Unsupported("layers on the CPU and those on the GPU run by different kernels there");
  CELER_ASSIGN(cuda::DeviceWeights store, cuda::DeviceWeights::Create(device, weights));
  model.weights.emplace(std::move(store));
  model.weights->set_plan(options.host->plan().With(weights));
  CELER_ASSIGN(front->feed_,
               cuda::WeightFeed::Make(device, CudaModel::FedLayerBytes(*options.host, *model.weights), pool));
  CELER_RETURN_IF_ERROR(model.FeedLayers(*options.host, front->feed_.get()));
  front->kv_ = DeviceKvShape(model.config, kv);
  front->kv_blocks_ = KvBlocks(op.shape.context, op.shape.max_tokens);
  const auto part = static_cast<size_t>(front->kv_blocks_ * front->kv_.block_bytes());
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(front->memory_, Buffer::Allocate(*allocator, 2 * part));
  // What is beyond a sequence's end is read and not used: it must be finite.
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(front->memory_.data(), 0, 2 * part, nullptr), "clearing GPU memory"));
  front->kv_.k = front->memory_.data();
  front->kv_.v = front->memory_.data() + part;
  for (DeviceLayer& layer : model.layers) layer.kv = front->kv_;
  for (std::optional<Event>* event : {&front->in_done_[0], &front->in_done_[1], &front->out_done_}) {
    CELER_ASSIGN(Event made, Event::Create(device));
    event->emplace(std::move(made));
  }
  front->op_.emplace(CudaOperators{.model = model,
                                   .shape = op.shape,
                                   .memory = op.memory,
                                   .batch_state = op.batch_state,
                                   .stream = op.stream,
                                   .fault = op.fault,
                                   .marks = op.marks});
  front->forward_.emplace(*front->op_);
  CELER_RETURN_IF_ERROR(front->forward_->Make(device, std::nullopt));
  front->forward_->set_around({.before = [self = front.get()](int64_t layer) -> Status {
                                 CELER_RETURN_IF_ERROR(self->BringKv(layer));
                                 return self->feed_->Arrive(self->op_->stream);
                               },
                               .after = [self = front.get()](int64_t layer) -> Status {
                                 CELER_RETURN_IF_ERROR(self->TakeKv(layer));
                                 return self->feed_->Leave(self->op_->stream);
                               }});
  return front;
}

CudaFront::Blocks CudaFront::BlocksOf(const RaggedBatch& batch) {
  struct Use {
    bool read = false, written = false;
  };
  std::map<int32_t, Use> uses;
  for (int64_t s = 0; s < batch.seqs(); ++s) {
    const int32_t first = batch.seq_start[static_cast<size_t>(s)],
                  end = batch.seq_start[static_cast<size_t>(s) + 1];
    if (first == end) continue;
    const int64_t before = batch.positions[static_cast<size_t>(first)],
                  after = batch.positions[static_cast<size_t>(end) - 1] + 1;
    for (int64_t b = 0; b < KvBlocksFor(after); ++b) {
      Use& use = uses[batch.block_table[static_cast<size_t>(s * batch.max_blocks + b)]];
      use.read = use.read || b * kKvBlockTokens < before;
      use.written = use.written || (b + 1) * kKvBlockTokens > before;
    }
  }
  Blocks blocks;
  std::map<int32_t, int32_t> places;
  const auto add = [&](bool read, bool written) {
    for (const auto& [block, use] : uses)
      if (use.read == read && use.written == written) {
        places[block] = static_cast<int32_t>(blocks.all.size());
        blocks.all.push_back(block);
      }
  };
  add(true, false);
  blocks.first_written = std::ssize(blocks.all);
  add(true, true);
  blocks.read = std::ssize(blocks.all);
  add(false, true);
  for (const int32_t block : batch.block_table) {
    const auto place = places.find(block);
    blocks.table.push_back(place == places.end() ? 0 : place->second);
  }
  return blocks;
}

bool CudaFront::Takes(const RaggedBatch& batch) const {
  if (batch.token_count() < options_.min_tokens || forward_->watched()) return false;
  int64_t most = 0;
  for (int64_t s = 0; s < batch.seqs(); ++s) {
    const int32_t end = batch.seq_start[static_cast<size_t>(s) + 1];
    if (end > batch.seq_start[static_cast<size_t>(s)])
      most += KvBlocksFor(batch.positions[static_cast<size_t>(end) - 1] + 1);
  }
  return most <= kv_blocks_;
}

Status CudaFront::GrowPinned(Buffer* buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer->size()) >= bytes) return {};
  CELER_ASSIGN(*buffer, Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(bytes)));
  return {};
}

Status CudaFront::Run(ForwardStrategy strategy, const RaggedBatch& batch, UploadRing& ring) {
  pending_ = false;  // of a batch that failed
  blocks_ = BlocksOf(batch);
  const int64_t written = std::ssize(blocks_.Written());
  CELER_RETURN_IF_ERROR(GrowPinned(&out_, std::ssize(model_.layers) * 2 * written * kv_.block_bytes()));
  RaggedBatch here = batch;
  here.block_table = blocks_.table;
  here.logit_rows = {};
  CELER_RETURN_IF_ERROR(batch_->Send(here, {}, ring));
  CELER_RETURN_IF_ERROR(feed_->Begin());
  forward_->RunLayers(strategy, static_cast<int>(batch.token_count()));
  CELER_RETURN_IF_ERROR(op_->fault.Take("running layers on the GPU"));
  CELER_RETURN_IF_ERROR(out_done_->Record(op_->stream));
  pending_ = true;
  return {};
}

// Earlier tokens of the batch's sequences.
Status CudaFront::BringKv(int64_t layer) {
  if (blocks_.read == 0) return {};
  const auto turn = static_cast<size_t>(layer % 2);
  const int64_t bytes = blocks_.read * kv_.block_bytes();
  CELER_RETURN_IF_ERROR(in_done_[turn]->Synchronize());
  CELER_RETURN_IF_ERROR(GrowPinned(&in_[turn], 2 * bytes));
  std::byte *const k = in_[turn].data(), *const v = k + bytes;
  options_.kv->Read(layer, blocks_.Read(), k, v);
  cudaStream_t stream = op_->stream.get();
  const auto size = static_cast<size_t>(bytes);
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(kv_.k, k, size, cudaMemcpyHostToDevice, stream), "sending keys to the GPU"));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(kv_.v, v, size, cudaMemcpyHostToDevice, stream),
                                   "sending values to the GPU"));
  return in_done_[turn]->Record(op_->stream);
}

Status CudaFront::TakeKv(int64_t layer) {
  const int64_t bytes = std::ssize(blocks_.Written()) * kv_.block_bytes();
  const int64_t from = blocks_.first_written * kv_.block_bytes();
  std::byte* const to = out_.data() + layer * 2 * bytes;
  cudaStream_t stream = op_->stream.get();
  const auto size = static_cast<size_t>(bytes);
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(to, kv_.k + from, size, cudaMemcpyDeviceToHost, stream),
                                   "taking keys from the GPU"));
  return CudaStatus(cudaMemcpyAsync(to + bytes, kv_.v + from, size, cudaMemcpyDeviceToHost, stream),
                    "taking values from the GPU");
}

Status CudaFront::Finish() {
  if (!std::exchange(pending_, false)) return {};
  CELER_RETURN_IF_ERROR(out_done_->Synchronize());
  const int64_t bytes = std::ssize(blocks_.Written()) * kv_.block_bytes();
  for (int64_t layer = 0; layer < std::ssize(model_.layers); ++layer) {
    const std::byte* const k = out_.data() + layer * 2 * bytes;
    options_.kv->Write(layer, blocks_.Written(), k, k + bytes);
  }
  return {};
}

}  // namespace celer
