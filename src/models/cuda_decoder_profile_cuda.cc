// Where the time of CudaDecoder's steps goes, and what they cannot avoid.
#include <algorithm>

#include "models/cuda_decoder_impl.h"
#include "models/step_work.h"

namespace celer {

void CudaDecoder::set_profile(OpProfile* profile) {
  impl_->profile = profile;
}

// Two events with nothing between them show what an event itself takes.
void CudaDecoder::Impl::BeginMarks(bool captured) {
  if (!profile) return;
  marks.clear();
  marks_captured = captured;
  RecordMark(Op::kEmbed);
}

void CudaDecoder::Impl::RecordMark(Op op) {
  if (marks.size() == mark_events.size()) {
    auto made = Event::Create(options.device, /*timed=*/true);
    if (!made) return Check(Status(made.error()));
    mark_events.push_back(std::move(*made));
  }
  Check(cudaEventRecordWithFlags(mark_events[marks.size()].get(), stream->get(),
                                 marks_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
  marks.push_back(op);
}

// Each operator lasts from its event to the next; the last event has nothing behind it.
Status CudaDecoder::Impl::TakeMarks() {
  if (!profile || marks.size() < 3) return {};
  CELER_RETURN_IF_ERROR(stream->Synchronize());
  CELER_ASSIGN(const float empty, mark_events[1].MillisecondsSince(mark_events[0]));
  for (size_t i = 1; i + 1 < marks.size(); ++i) {
    CELER_ASSIGN(const float took, mark_events[i + 1].MillisecondsSince(mark_events[i]));
    OpProfile::Entry& entry = profile->ops[static_cast<size_t>(marks[i])];
    ++entry.calls;
    entry.seconds += std::max(0.0, static_cast<double>(took - empty) * 1e-3);
  }
  marks.clear();
  return {};
}

std::vector<OperatorWork> CudaDecoder::Work(const StepShape& shape) const {
  const Impl& d = *impl_;
  const auto size = [](const DeviceMatrix& m) {
    return MatrixSize{.rows = m.rows, .cols = m.cols, .bytes = m.bytes()};
  };
  StepMatrices step;
  step.embedding_row_bytes = d.embedding.row_bytes;
  step.head = size(d.head);
  for (const DeviceLayer& l : d.layers) {
    StepMatrices::Layer layer;
    layer.qkv = {size(l.q), size(l.k), size(l.v)};
    layer.output = size(l.o);
    if (l.sparse()) {
      layer.shared = {size(l.gate), size(l.up), size(l.down)};
      layer.router = {
          .rows = d.config.moe.experts, .cols = d.config.hidden, .bytes = d.router_bytes(), .compute = "f32"};
      layer.experts.assign(
          static_cast<size_t>(d.config.moe.experts),
          {size(l.expert_gate_up.first), size(l.expert_gate_up.up), size(l.expert_down.first)});
    } else {
      layer.dense = {size(l.gate), size(l.up), size(l.down)};
    }
    step.layers.push_back(std::move(layer));
  }
  return CountStep(d.config, step, d.kv_bytes_per_token(), shape);
}

}  // namespace celer
