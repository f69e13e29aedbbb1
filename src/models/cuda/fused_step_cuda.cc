#include "models/cuda/fused_step.h"

#include <cmath>

#include "base/check.h"

namespace celer {

cuda::DecodeStepArgs FusedStep::Args(int count) const {
  const DecoderConfig& c = op_.config();
  cuda::DecodeStepArgs args;
  args.layers = layers_;
  args.batch = op_.batch_state.OnDevice(count);
  args.heads = static_cast<int>(c.heads);
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  args.embedding = op_.model.embedding;
  args.head.a = op_.model.head;
  args.head.norm = op_.model.norm;
  args.head.eps = c.norm_eps;
  args.head.out = op_.memory.logits;
  args.head.out_stride = c.vocab;
  args.x = op_.memory.x;
  return args;
}

Status FusedStep::Prepare() {
  if (!op_.shape.fused || op_.model.general) return {};
  for (size_t i = 0; i < op_.model.layers.size(); ++i) {
    const DeviceLayer& w = op_.model.layers[i];
    if (w.q_norm || w.sparse()) {
      layers_.clear();
      return {};
    }
    cuda::DecodeStepLayer layer;
    layer.qkv = op_.QkvArgs(w, op_.batch_state.OnDevice(1));
    layer.gate_up = op_.GateUpArgs(w, 1);
    layer.o.a = w.o;
    layer.down.a = w.down;
    layer.window = static_cast<int>(op_.config().Window(static_cast<int64_t>(i)));
    layers_.push_back(layer);
  }
  step_tokens_ = cuda::DecodeStepTokens(Args(1));
  if (step_tokens_ == 0) {
    layers_.clear();
    return {};
  }
  const auto planned = [&](size_t (*bytes)(const cuda::DecodeStepArgs&), const char* row) {
    for (const CudaWorkspace::Row& each : CudaWorkspace::Rows())
      if (each.name == std::string_view(row))
        CELER_CHECK_LE(static_cast<int64_t>(bytes(Args(1))), each.bytes(op_.shape));
  };
  planned(cuda::DecodeStepBytes, "decode step");
  CELER_RETURN_IF_ERROR(
      CudaStatus(cuda::PrepareDecodeStep(Args(1), op_.memory.step), "preparing decode steps"));
  batch_tokens_ = cuda::DecodeBatchTokens(Args(1));
  if (batch_tokens_ == 0) return {};
  planned(cuda::DecodeBatchBytes, "decode batch");
  return CudaStatus(cuda::PrepareDecodeBatch(Args(1), op_.memory.batch_step), "preparing decode steps");
}

void FusedStep::Describe(CudaFacts* facts) const {
  if (!runs()) return;
  facts->step_tokens = step_tokens_;
  facts->step_keys = cuda::DecodeStepKeys(Args(1));
  if (batch_tokens_ == 0) return;
  facts->batch_tokens = batch_tokens_;
  facts->batch_keys = cuda::DecodeBatchKeys();
}

void FusedStep::RunStep(int count, const cuda::GreedyTarget* choice) {
  cuda::DecodeStepArgs args = Args(count);
  if (choice) args.choice = *choice;
  op_.Check(cuda::LaunchDecodeStep(args, op_.memory.step, op_.stream.get()));
}

uint32_t* FusedStep::BatchCounter(int count) const {
  return cuda::DecodeBatchCounter(Args(count), op_.memory.batch_step);
}

void FusedStep::RunBatch(int count) {
  op_.Check(cuda::LaunchDecodeBatch(Args(count), op_.memory.batch_step, op_.stream.get()));
}

}  // namespace celer
