// Weights that take turns in a GPU's memory: two slots, of which one is filled from the mapped file while the matrices of the
// other one are multiplied with. Files are read by several threads into pinned memory, from which the GPU fetches them.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "device/thread_pool.h"
#include "weights/device_weights.h"
#include "weights/sent_rows.h"

namespace celer::cuda {

class WeightFeed {
 public:
  static constexpr int kSlots = 2;
  static constexpr int64_t kStagingBytes = 32 << 20;  // of each of kStagings, in pinned memory and on the GPU
  static constexpr int kStagings = 2;
  // What it takes on the GPU.
  static constexpr int64_t DeviceBytes(int64_t slot_bytes) {
    return kSlots * slot_bytes + kStagings * kStagingBytes;
  }

  // The pool must outlive it, and nobody else uses it while a pass runs.
  static Result<std::unique_ptr<WeightFeed>> Make(int device, int64_t slot_bytes, ThreadPool& pool);
  ~WeightFeed();

  // The next part, which is in slot(parts() % kSlots).
  void Add(std::vector<FedMatrix> matrices) { parts_.push_back(std::move(matrices)); }
  int64_t parts() const { return std::ssize(parts_); }
  std::byte* slot(int64_t part) const { return slots_[static_cast<size_t>(part % kSlots)].memory.data(); }

  // A pass over all parts, in their order: Begin(), and of each Arrive(), its work on the stream, Leave().
  Status Begin();
  Status Arrive(const Stream& stream);  // what is queued there from now on finds the part in its slot
  Status Leave(const Stream& stream);   // and what was queued until now was the last that needs it

 private:
  struct Slot {
    Buffer memory;
    std::optional<Event> filled, left;
  };
  struct Staging {
    Buffer pinned, device;
    std::optional<Event> done;
  };
  // Some rows of a matrix, in a staging buffer.
  struct Rows {
    const FedMatrix* matrix = nullptr;
    SentRows sent;
    int64_t row = 0, rows = 0, at = 0, scales_at = 0;
  };
  WeightFeed(int device, ThreadPool& pool) : device_(device), pool_(pool) {}
  Status Fill(int64_t part);
  Status Send(std::span<const Rows> some, int64_t bytes);

  int device_;
  ThreadPool& pool_;
  std::optional<Stream> stream_;
  std::array<Slot, kSlots> slots_;
  std::array<Staging, kStagings> stagings_;
  size_t next_staging_ = 0;
  std::vector<std::vector<FedMatrix>> parts_;
  int64_t now_ = 0;  // of the pass
};

}  // namespace celer::cuda
