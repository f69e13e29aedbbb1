#include "models/cuda/forward.h"

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "device/cuda_allocator.h"
#include "kernels/llm/embed/embed_cuda.h"
#include "kernels/llm/rms_norm/norm_cuda.h"
#include "models/cuda/graphs.h"

namespace celer {

// The numbers that strategy.cc names are those of the kernels.
static_assert(cuda::kMaxStepTokens == 4);
static_assert(cuda::kMaxMatvecTokens == 8);
static_assert(cuda::kWgmmaJoined == 64);

CudaForward::CudaForward(CudaOperators& op)
    : op_(op), fused_(op), matvec_(op), wgmma_(op), joined_(op), general_(op) {}

Status CudaForward::Make(int device, std::optional<cuda::Gemm> gemm) {
  if (!op_.model.experts_elsewhere.empty())
    CELER_RETURN_IF_ERROR(crossing_.Make(
        device, std::min<int64_t>(op_.shape.sequences, DecodeGraphs::kMaxSequences) * op_.config().hidden));
  if (!gemm) return {};
  if (op_.shape.codes) {
    codes_ = std::make_unique<CodesStrategy>(op_, std::move(*gemm), *op_.shape.codes);
    return {};
  }
  CELER_ASSIGN(gemm_, GemmStrategy::Make(device, op_, std::move(*gemm)));
  general_.set_rows(gemm_.get());
  return {};
}

CudaFacts CudaForward::Facts(int count, int rows) const {
  const bool general = op_.model.general;  // there the others do not run
  return {.tokens = count,
          .logit_rows = rows,
          .profiled = op_.marks.on(),
          .deterministic = op_.shape.deterministic,
          .wgmma = op_.shape.wgmma && !general,
          .gemm = gemm_ != nullptr,
          .rows = op_.shape.rows,
          .codes = codes_ != nullptr,
          .general = general,
          .adapted = op_.lora != nullptr};
}

CudaFacts CudaForward::BatchFacts(int count, int rows, int64_t most_keys) const {
  CudaFacts facts = Facts(count, rows);
  facts.most_keys = most_keys;
  if (!op_.shape.exact && !watch_) fused_.Describe(&facts);
  return facts;
}

CudaFacts CudaForward::StepFacts(int count, int64_t most_keys) const {
  CudaFacts facts = Facts(count, count);
  facts.decode = true;
  facts.most_keys = most_keys;
  fused_.Describe(&facts);
  return facts;
}

LayerStrategy& CudaForward::Layerwise(ForwardStrategy strategy) {
  switch (strategy) {
    case ForwardStrategy::kJoined:
      return joined_;
    case ForwardStrategy::kWgmma:
      return wgmma_;
    case ForwardStrategy::kCodes:
      return *codes_;
    case ForwardStrategy::kRows:
    case ForwardStrategy::kGemm:
      return *gemm_;
    case ForwardStrategy::kMatvec:
      return matvec_;
    case ForwardStrategy::kGeneral:
      return general_;
    case ForwardStrategy::kDecodeStep:
    case ForwardStrategy::kDecodeBatch:
      break;
  }
  CELER_CHECK(false);  // they have no layers
  return matvec_;
}

void CudaForward::Run(ForwardStrategy strategy, int count, int rows) {
  EmbedAndLayers(strategy, count);
  op_.Head(rows, /*gather=*/true);
  op_.JoinLogits(rows);
}

bool CudaForward::RunStep(ForwardStrategy strategy, int count, const cuda::GreedyTarget* choice) {
  if (strategy == ForwardStrategy::kDecodeStep) {
    const bool all = fused_.HasHead(count), chooses = all && choice;
    fused_.RunStep(count, chooses ? choice : nullptr);
    if (!all) op_.Head(count, /*gather=*/false);
    return chooses;
  }
  EmbedAndLayers(strategy, count);
  op_.Head(count, /*gather=*/false);
  op_.JoinLogits(count);
  return false;
}

void CudaForward::EmbedAndLayers(ForwardStrategy strategy, int count) {
  if (strategy == ForwardStrategy::kDecodeBatch) {
    Embed(count, fused_.BatchCounter(count));
    fused_.RunBatch(count);
  } else {
    Embed(count);
    Layers(Layerwise(strategy), count);
  }
}

void CudaForward::Embed(int count, uint32_t* step) {
  op_.wgmma_prepared = false;
  if (!op_.model.embedding) return;  // what the layers in front left is in its place
  op_.marks.Mark(Op::kEmbed);
  const DecoderConfig& c = op_.config();
  const CudaModel& model = op_.model;
  const bool with_positions = model.positions && op_.first_rank();  // a sum over the ranks has them once
  op_.Check(cuda::LaunchEmbed({.tokens = op_.memory.tokens,
                               .count = count,
                               .table = model.embedding,
                               .scale = c.embedding_scale,
                               .first_token = op_.first_token(),
                               .position_table = model.positions,
                               .positions = with_positions ? op_.memory.positions : nullptr,
                               .position_offset = static_cast<int>(c.position_offset),
                               .out = op_.Sum(CudaOperators::Part::kEmbedding),
                               .step = step},
                              op_.stream.get()));
  op_.JoinRanks(CudaOperators::Part::kEmbedding, count, op_.memory.x);
  if (op_.lora) op_.lora->AddEmbedding(op_.memory.tokens, op_.memory.x, count);
  if (!model.embedding_norm) return;
  op_.Check(cuda::LaunchNorm({.x = op_.memory.x,
                              .tokens = count,
                              .cols = static_cast<int>(c.hidden),
                              .layer = true,
                              .weight = model.embedding_norm,
                              .bias = model.embedding_norm_bias,
                              .eps = c.norm_eps,
                              .out = op_.memory.x},
                             op_.stream.get()));
}

void CudaForward::Layers(LayerStrategy& by, int count) {
  const cuda::DeviceBatch batch = op_.batch_state.OnDevice(count);
  by.Begin();
  Watch(-1, count);
  if (feeds_) op_.Check(feed_->Begin());
  for (int64_t i = 0; i < op_.config().layers; ++i) {
    const DeviceLayer& w = op_.model.layers[static_cast<size_t>(i)];
    if (around_.before) op_.Check(around_.before(i));
    const bool recurrent = op_.config().IsRecurrent(i);
    op_.marks.Mark(recurrent ? Op::kRecurrent : Op::kQkv);
    by.Qkv(w, batch, i);
    if (!recurrent) op_.marks.Mark(Op::kAttention);
    by.Attention(w, batch, i);
    const bool parallel = op_.config().parallel_block;
    const auto output = [&] {
      op_.marks.Mark(Op::kOutput);
      by.Output(w, batch);
    };
    if (!parallel) output();
    if (w.sparse()) {
      op_.marks.Mark(Op::kMoe);
      RunMoe(w, i, count);
    } else {
      op_.marks.Mark(Op::kGateUp);
      by.GateUp(w, batch, i);
      if (parallel) output();  // it has read the residual before attention adds to it
      op_.marks.Mark(Op::kDown);
      by.Down(w, batch, i);
    }
    if (around_.after) op_.Check(around_.after(i));
    Watch(i, count);
  }
}

void CudaForward::RunMoe(const DeviceLayer& w, int64_t layer, int count) {
  if (!w.experts_elsewhere) return op_.Moe(w, count);
  if (!feeds_) return ExpertsElsewhere(layer, count);
  op_.Check(feed_->Arrive(op_.stream));
  op_.Moe(op_.model.fed[static_cast<size_t>(layer)], count);
  op_.Check(feed_->Leave(op_.stream));
}

int64_t CudaForward::max_queued() const {
  return !op_.model.experts_elsewhere.empty() ? crossing_.floats() / op_.config().hidden
                                              : op_.shape.max_tokens;
}

// The GPU waits for every answer, so all are given, whatever became of those in front.
Status CudaForward::AnswerExperts(int count) {
  Status failed;
  std::exception_ptr thrown;
  for (int64_t i = 0; i < op_.config().layers; ++i) {
    if (!op_.model.layers[static_cast<size_t>(i)].experts_elsewhere) continue;
    CELER_RETURN_IF_ERROR(crossing_.Answer(op_.stream, [&](float* x) {
      if (!failed || thrown) return;
      try {
        failed = RunExperts(i, x, count);
      } catch (...) {
        thrown = std::current_exception();
      }
    }));
  }
  if (thrown) std::rethrow_exception(thrown);
  return failed;
}

Status CudaForward::RunExperts(int64_t layer, float* x, int64_t count) const {
  if (!experts_) return Error::Invalid("a batch before set_experts(): they are not here");
  return experts_(layer, x, count);
}

// The experts' layer waits for the GPU, and the GPU for it: both need the whole of x.
void CudaForward::ExpertsElsewhere(int64_t layer, int count) {
  if (!op_.fault.ok()) return;
  const int64_t values = count * op_.config().hidden;
  const float scale = op_.model.residual_scale;
  if (queued_) return op_.Check(crossing_.Launch(op_.memory.x, values, scale, op_.stream));
  const auto bytes = static_cast<size_t>(values) * 4;
  if (waiting_x_.size() < bytes) {
    auto made = Buffer::Allocate(
        PinnedAllocator(),
        std::max(bytes, static_cast<size_t>(op_.shape.max_tokens * op_.config().hidden) * 4));
    if (!made) return op_.Check(Status(made.error()));
    waiting_x_ = std::move(*made);
  }
  auto* const x = reinterpret_cast<float*>(waiting_x_.data());
  op_.Check(cudaMemcpyAsync(x, op_.memory.x, bytes, cudaMemcpyDeviceToHost, op_.stream.get()));
  op_.Check(op_.stream.Synchronize());
  if (!op_.fault.ok()) return;
  if (scale != 1)
    for (int64_t i = 0; i < values; ++i) x[i] *= scale;
  op_.Check(RunExperts(layer, x, count));
  if (scale != 1)
    for (int64_t i = 0; i < values; ++i) x[i] /= scale;
  op_.Check(cudaMemcpyAsync(op_.memory.x, x, bytes, cudaMemcpyHostToDevice, op_.stream.get()));
}

void CudaForward::Watch(int64_t layer, int count) {
  if (!watch_) return;
  std::vector<float> rows(static_cast<size_t>(count * op_.config().hidden));
  op_.Check(
      cudaMemcpyAsync(rows.data(), op_.memory.x, rows.size() * 4, cudaMemcpyDeviceToHost, op_.stream.get()));
  op_.Check(op_.stream.Synchronize());
  for (float& value : rows) value *= op_.model.residual_scale;
  if (op_.fault.ok()) watch_(layer, rows);
}

}  // namespace celer
