#include "models/cuda/memory/upload.h"

#include <algorithm>
#include <cstring>

#include "device/cuda_allocator.h"
#include "device/cuda_status.h"

namespace celer {

Status UploadRing::Reserve(int64_t bytes) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    CELER_ASSIGN([[maybe_unused]] std::byte* const memory, Begin(bytes));
    CELER_RETURN_IF_ERROR(End());
  }
  return {};
}

Result<std::byte*> UploadRing::Begin(int64_t bytes) {
  Piece& piece = pieces_[next_];
  next_ = (next_ + 1) % pieces_.size();
  if (piece.done) CELER_RETURN_IF_ERROR(piece.done->Synchronize());
  if (static_cast<int64_t>(piece.memory.size()) < bytes) {
    CELER_ASSIGN(piece.memory,
                 Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(std::max<int64_t>(bytes, 1 << 16))));
  }
  if (!piece.done) {
    CELER_ASSIGN(Event event, Event::Create(device_));
    piece.done.emplace(std::move(event));
  }
  now_ = &piece;
  return piece.memory.data();
}

Status UploadRing::Copy(void* to, const void* from, int64_t bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()),
      "copying a batch to the GPU");
}

Status UploadRing::CopyRows(void* to, int64_t to_stride, const void* from, int64_t row_bytes, int64_t rows) {
  return CudaStatus(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from,
                                      static_cast<size_t>(row_bytes), static_cast<size_t>(row_bytes),
                                      static_cast<size_t>(rows), cudaMemcpyHostToDevice, stream_.get()),
                    "copying a block table to the GPU");
}

Status UploadRing::End() {
  return now_->done->Record(stream_);
}

Status UploadRing::Upload(void* to, const void* from, int64_t bytes) {
  CELER_ASSIGN(std::byte * memory, Begin(bytes));
  std::memcpy(memory, from, static_cast<size_t>(bytes));
  CELER_RETURN_IF_ERROR(Copy(to, memory, bytes));
  return End();
}

}  // namespace celer
