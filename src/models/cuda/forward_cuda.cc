#include "models/cuda/forward.h"

#include "base/check.h"
#include "kernels/llm/embed/embed_cuda.h"

namespace celer {

// The numbers that strategy.cc names are those of the kernels.
static_assert(cuda::kMaxStepTokens == 4);
static_assert(cuda::kMaxMatvecTokens == 8);
static_assert(cuda::kWgmmaJoined == 64);

CudaForward::CudaForward(CudaOperators& op) : op_(op), fused_(op), matvec_(op), wgmma_(op), joined_(op) {}

Status CudaForward::Make(int device, std::optional<cuda::Gemm> gemm) {
  if (!gemm) return {};
  if (op_.shape.codes) {
    codes_ = std::make_unique<CodesStrategy>(op_, std::move(*gemm), *op_.shape.codes);
    return {};
  }
  CELER_ASSIGN(gemm_, GemmStrategy::Make(device, op_, std::move(*gemm)));
  return {};
}

CudaFacts CudaForward::Facts(int count, int rows) const {
  return {.tokens = count,
          .logit_rows = rows,
          .profiled = op_.marks.on(),
          .deterministic = op_.shape.deterministic,
          .wgmma = op_.shape.wgmma,
          .gemm = gemm_ != nullptr,
          .rows = op_.shape.rows,
          .codes = codes_ != nullptr};
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
  op_.marks.Mark(Op::kEmbed);
  op_.Check(cuda::LaunchEmbed({.tokens = op_.memory.tokens,
                               .count = count,
                               .table = op_.model.embedding,
                               .out = op_.memory.x,
                               .step = step},
                              op_.stream.get()));
}

void CudaForward::Layers(LayerStrategy& by, int count) {
  const cuda::DeviceBatch batch = op_.batch_state.OnDevice(count);
  by.Begin();
  Watch(-1, count);
  for (int64_t i = 0; i < op_.config().layers; ++i) {
    const DeviceLayer& w = op_.model.layers[static_cast<size_t>(i)];
    op_.marks.Mark(Op::kQkv);
    by.Qkv(w, batch, i);
    op_.marks.Mark(Op::kAttention);
    by.Attention(w, batch, i);
    op_.marks.Mark(Op::kOutput);
    by.Output(w, batch);
    if (w.sparse()) {
      op_.marks.Mark(Op::kMoe);
      op_.Moe(w, count);
    } else {
      op_.marks.Mark(Op::kGateUp);
      by.GateUp(w, batch, i);
      op_.marks.Mark(Op::kDown);
      by.Down(w, batch, i);
    }
    Watch(i, count);
  }
}

void CudaForward::Watch(int64_t layer, int count) {
  if (!watch_) return;
  std::vector<float> rows(static_cast<size_t>(count * op_.config().hidden));
  op_.Check(
      cudaMemcpyAsync(rows.data(), op_.memory.x, rows.size() * 4, cudaMemcpyDeviceToHost, op_.stream.get()));
  op_.Check(op_.stream.Synchronize());
  if (op_.fault.ok()) watch_(layer, rows);
}

}  // namespace celer
