// Layers with a state of fixed size in place of attention.
#include "kernels/llm/delta_rule/delta_net_cuda.h"
#include "models/cuda/layer/layer_strategy.h"
#include "models/cuda/memory/states.h"

namespace celer {
namespace {

// Neighbours in memory as one matrix.
std::vector<DeviceMatrix> JoinNeighbours(std::span<const DeviceMatrix* const> matrices) {
  std::vector<DeviceMatrix> out;
  for (const DeviceMatrix* matrix : matrices) {
    if (!out.empty()) {
      const DeviceMatrix* const two[] = {&out.back(), matrix};
      if (const DeviceMatrix both = CudaOperators::Joined(two)) {
        out.back() = both;
        continue;
      }
    }
    out.push_back(*matrix);
  }
  return out;
}

}  // namespace

void GeneralStrategy::Recurrent(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DeviceRecurrent& r = w.recurrent;
  const cuda::DeltaNetShape shape = DeviceDeltaShape(config().recurrent);
  const DeviceMatrix* const inputs[] = {&r.q, &r.k, &r.v, &r.z, &r.b, &r.a};  // as DeltaNetArgs::in
  const std::vector<DeviceMatrix> joined = JoinNeighbours(inputs);
  std::vector<const DeviceMatrix*> matrices;
  for (const DeviceMatrix& matrix : joined) matrices.push_back(&matrix);
  op_.Project({.matrices = matrices,
               .x = m_.x,
               .norm = w.attention_norm,
               .eps = config().norm_eps,
               .out = m_.recurrent_in,
               .out_stride = shape.InputFloats()},
              batch.count);
  if (op_.lora) AdaptRecurrent(w, m_.recurrent_in, shape.InputFloats(), batch.count);
  const cuda::DeltaNetArgs args{.shape = shape,
                                .positions = batch.positions,
                                .sequence = batch.sequence,
                                .seq_start = op_.batch_state.seq_start(),
                                .slots = op_.batch_state.slots(),
                                .tokens = batch.count,
                                .sequences = static_cast<int>(op_.batch_state.sequences()),
                                .in = m_.recurrent_in,
                                .in_stride = shape.InputFloats(),
                                .conv = r.conv,
                                .rate = r.rate,
                                .dt_bias = r.dt_bias,
                                .norm = r.norm,
                                .eps = op_.model.branch_eps,
                                .states = r.states,
                                .slot_stride = r.slot_stride,
                                .prepared = m_.recurrent_prepared,
                                .out = m_.attention};
  const bool step = op_.batch_state.longest() == 1 && op_.batch_state.sequences() == batch.count;
  op_.Check(step ? cuda::LaunchDeltaNetStep(args, op_.stream.get())
                 : cuda::LaunchDeltaNet(args, op_.stream.get()));
}

}  // namespace celer
