#include <optional>

#include "quantize/llm/gptq.h"
#include "quantize/llm/layer/layer_worker.h"

namespace celer {
namespace {

class CpuLayerWorker final : public LayerWorker {
 public:
  CpuLayerWorker(const Model& model, Calibration calibration, ThreadPool& pool)
      : model_(model), calibration_(std::move(calibration)), pool_(pool) {}

  Status Load(LayerFloats* layer, int64_t index) override {
    layer_ = layer;
    index_ = index;
    return {};
  }
  void Changed(Projection) override {}

  Status Observe(LayerSamples* samples) override {
    statistics_ = {};
    solver_.reset();
    return calibration_.Observe(
        *layer_, index_, [&](LayerInput input, const float* x, int64_t tokens, int64_t cols) {
          statistics_[static_cast<size_t>(input)].Add(x, tokens, cols, pool_);
          if (samples) (*samples)[static_cast<size_t>(input)].Add(x, tokens, cols, calibration_.tokens());
        });
  }

  Result<std::vector<float>> MeanSquares(LayerInput input) override {
    return statistics_[static_cast<size_t>(input)].MeanSquares();
  }
  Result<LayerStatistics*> Statistics() override {
    solver_.reset();
    return &statistics_;
  }

  Result<IntTensor> Gptq(Projection p, const Target& target, const std::string& name) override {
    CELER_RETURN_IF_ERROR(Prepare(p, name));
    LayerFloats::Matrix& m = (*layer_)[p];
    IntTensor ints = solver_->Quantize(m.values.data(), m.rows, target, pool_);
    ints.Decode(m.values.data(), pool_);
    return ints;
  }

  Result<std::vector<std::byte>> GptqBlocks(Projection p, DType dtype, const std::string& name) override {
    CELER_RETURN_IF_ERROR(Prepare(p, name));
    const LayerFloats::Matrix& m = (*layer_)[p];
    return solver_->QuantizeBlocks(m.values.data(), m.rows, dtype, pool_);
  }

  Status Advance() override {
    solver_.reset();
    statistics_ = {};
    return calibration_.Advance(*layer_, index_);
  }

  Result<InputStatistics> ObserveHead() override {
    return HeadStatistics(model_, calibration_.states(), pool_);
  }

 private:
  // solver_ becomes that of the matrix' input.
  Status Prepare(Projection p, const std::string& name) {
    const LayerInput input = InputOf(p);
    if (solver_ && solver_input_ == input) return {};
    solver_.reset();  // before the next one takes as much memory
    CELER_ASSIGN(solver_, GptqSolver::Make(statistics_[static_cast<size_t>(input)], {}, name, pool_));
    solver_input_ = input;
    return {};
  }

  const Model& model_;
  Calibration calibration_;
  ThreadPool& pool_;
  LayerFloats* layer_ = nullptr;
  int64_t index_ = 0;
  LayerStatistics statistics_;
  std::optional<GptqSolver> solver_;  // of one input
  LayerInput solver_input_ = LayerInput::kQkv;
};

}  // namespace

Result<std::unique_ptr<LayerWorker>> MakeCpuLayerWorker(const Model& model, const CalibrationText& text,
                                                        ThreadPool& pool) {
  CELER_ASSIGN(Calibration calibration, Calibration::Make(model, text.tokens, text.window, pool));
  return std::unique_ptr<LayerWorker>(std::make_unique<CpuLayerWorker>(model, std::move(calibration), pool));
}

}  // namespace celer
