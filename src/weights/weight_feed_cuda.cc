#include "weights/weight_feed.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "weights/repack_cuda.h"

namespace celer::cuda {
namespace {

constexpr int64_t Aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

Result<std::unique_ptr<WeightFeed>> WeightFeed::Make(int device, int64_t slot_bytes, ThreadPool& pool) {
  const CudaDeviceScope scope(device);
  std::unique_ptr<WeightFeed> feed(new WeightFeed(device, pool));
  CELER_ASSIGN(Stream stream, Stream::Create(device));
  feed->stream_.emplace(std::move(stream));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  const auto event = [&](std::optional<Event>* to) -> Status {
    CELER_ASSIGN(Event made, Event::Create(device));
    to->emplace(std::move(made));
    return {};
  };
  for (Slot& slot : feed->slots_) {
    CELER_ASSIGN(slot.memory, Buffer::Allocate(*allocator, static_cast<size_t>(slot_bytes)));
    CELER_RETURN_IF_ERROR(event(&slot.filled));
    CELER_RETURN_IF_ERROR(event(&slot.left));
  }
  for (Staging& staging : feed->stagings_) {
    CELER_ASSIGN(staging.pinned, Buffer::Allocate(PinnedAllocator(), kStagingBytes));
    CELER_ASSIGN(staging.device, Buffer::Allocate(*allocator, kStagingBytes));
    CELER_RETURN_IF_ERROR(event(&staging.done));
  }
  return feed;
}

WeightFeed::~WeightFeed() {
  if (stream_) (void)stream_->Synchronize();
}

Status WeightFeed::Begin() {
  now_ = 0;
  for (int64_t part = 0; part < std::min<int64_t>(kSlots, parts()); ++part) CELER_RETURN_IF_ERROR(Fill(part));
  return {};
}

Status WeightFeed::Arrive(const Stream& stream) {
  CELER_CHECK_LT(now_, parts());
  return stream.WaitFor(*slots_[static_cast<size_t>(now_ % kSlots)].filled);
}

Status WeightFeed::Leave(const Stream& stream) {
  CELER_RETURN_IF_ERROR(slots_[static_cast<size_t>(now_ % kSlots)].left->Record(stream));
  const int64_t next = now_++ + kSlots;
  return next < parts() ? Fill(next) : Status();
}

// Reads, copies and repacks, all but the reading on a stream of its own.
Status WeightFeed::Fill(int64_t part) {
  const CudaDeviceScope scope(device_);
  Slot& slot = slots_[static_cast<size_t>(part % kSlots)];
  CELER_RETURN_IF_ERROR(stream_->WaitFor(*slot.left));
  // Repacking writes no padding.
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(slot.memory.data(), 0, slot.memory.size(), stream_->get()),
                                   "clearing GPU memory"));
  std::vector<Rows> some;
  int64_t used = 0;
  for (const FedMatrix& matrix : parts_[static_cast<size_t>(part)]) {
    const WeightView& host = matrix.source.host;
    const SentRows sent(host);
    const int64_t head = std::max(1, matrix.source.order.head_dim);  // pieces are whole heads
    const int64_t each = sent.row_bytes + sent.scale_row_bytes;
    for (int64_t row = 0; row < host.rows;) {
      constexpr int64_t kPadding = 512;  // of two aligned ends
      int64_t rows = std::min(host.rows - row, (kStagingBytes - used - kPadding) / each / head * head);
      if (rows <= 0 && used == 0)
        return Error::Unsupported("tensor '", host.name, "': rows of ", each,
                                  " bytes are too long to be sent");
      if (rows <= 0) {
        CELER_RETURN_IF_ERROR(Send(some, used));
        some.clear();
        used = 0;
        continue;
      }
      const int64_t scales_at = Aligned(used + rows * sent.row_bytes);
      some.push_back(
          {.matrix = &matrix, .sent = sent, .row = row, .rows = rows, .at = used, .scales_at = scales_at});
      used = Aligned(scales_at + rows * sent.scale_row_bytes);
      row += rows;
    }
  }
  if (!some.empty()) CELER_RETURN_IF_ERROR(Send(some, used));
  return slot.filled->Record(*stream_);
}

Status WeightFeed::Send(std::span<const Rows> some, int64_t bytes) {
  Staging& staging = stagings_[next_staging_];
  next_staging_ = (next_staging_ + 1) % kStagings;
  CELER_RETURN_IF_ERROR(staging.done->Synchronize());
  // Pieces of about this many bytes, so that threads that are slow do not hold up the others.
  constexpr int64_t kPiece = 1 << 20;
  std::vector<Rows> pieces;
  for (const Rows& rows : some) {
    const int64_t step = std::max<int64_t>(1, kPiece / (rows.sent.row_bytes + rows.sent.scale_row_bytes));
    for (int64_t first = 0; first < rows.rows; first += step) {
      Rows& piece = pieces.emplace_back(rows);
      piece.row += first;
      piece.rows = std::min(step, rows.rows - first);
      piece.at += first * rows.sent.row_bytes;
      piece.scales_at += first * rows.sent.scale_row_bytes;
    }
  }
  pool_.ParallelForDynamic(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Rows& p = pieces[static_cast<size_t>(i)];
      p.sent.Copy(p.matrix->source.host, p.row, p.rows, staging.pinned.data() + p.at,
                  staging.pinned.data() + p.scales_at);
    }
  });
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(staging.device.data(), staging.pinned.data(), static_cast<size_t>(bytes),
                                 cudaMemcpyHostToDevice, stream_->get()),
                 "sending weights to the GPU"));
  for (const Rows& rows : some) {
    RepackArgs args = RepackOf(rows.matrix->source, rows.sent, rows.matrix->target, rows.row, rows.rows);
    args.source = staging.device.data() + rows.at;
    if (rows.sent.scale_row_bytes > 0) args.source_scales = staging.device.data() + rows.scales_at;
    CELER_RETURN_IF_ERROR(CudaStatus(LaunchRepack(args, stream_->get()), "repacking weights on the GPU"));
  }
  return staging.done->Record(*stream_);
}

}  // namespace celer::cuda
