#include "models/cuda/marks.h"

#include <algorithm>

namespace celer {

// Two events with nothing between them show what an event itself takes.
void CudaMarks::Begin(const Stream& stream, bool captured) {
  if (!profile_) return;
  ops_.clear();
  stream_ = &stream;
  captured_ = captured;
  Record(Op::kEmbed);
}

void CudaMarks::Record(Op op) {
  if (ops_.size() == events_.size()) {
    auto made = Event::Create(device_, /*timed=*/true);
    if (!made) return fault_.Check(Status(made.error()));
    events_.push_back(std::move(*made));
  }
  fault_.Check(cudaEventRecordWithFlags(events_[ops_.size()].get(), stream_->get(),
                                        captured_ ? cudaEventRecordExternal : cudaEventRecordDefault));
  ops_.push_back(op);
}

// Each operator lasts from its event to the next; the last event has nothing behind it.
Status CudaMarks::Take() {
  if (!profile_ || ops_.size() < 3) return {};
  CELER_RETURN_IF_ERROR(stream_->Synchronize());
  CELER_ASSIGN(const float empty, events_[1].MillisecondsSince(events_[0]));
  for (size_t i = 1; i + 1 < ops_.size(); ++i) {
    CELER_ASSIGN(const float took, events_[i + 1].MillisecondsSince(events_[i]));
    OpProfile::Entry& entry = profile_->ops[static_cast<size_t>(ops_[i])];
    ++entry.calls;
    entry.seconds += std::max(0.0, static_cast<double>(took - empty) * 1e-3);
  }
  ops_.clear();
  return {};
}

}  // namespace celer
