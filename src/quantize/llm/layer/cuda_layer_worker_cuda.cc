#include <optional>

#include "device/cuda_allocator.h"
#include "quantize/llm/layer/cuda_calibration.h"
#include "quantize/llm/layer/cuda_gptq.h"
#include "quantize/llm/layer/layer_worker.h"

namespace celer {
namespace {

class CudaLayerWorker final : public LayerWorker {
 public:
  static Result<std::unique_ptr<LayerWorker>> Make(int device, const Model& model,
                                                   const CalibrationText& text, ThreadPool& pool) {
    const CudaDeviceScope scope(device);
    CELER_ASSIGN(Allocator * memory, CudaAllocator(device));
    CELER_ASSIGN(cuda::GemmF32 gemm, cuda::GemmF32::Create(device));
    std::unique_ptr<CudaLayerWorker> out(new CudaLayerWorker(device, model, *memory, std::move(gemm), pool));
    CELER_ASSIGN(out->windows_, CudaCalibration::Make(model, text, out->gemm_, *memory, pool));
    return std::unique_ptr<LayerWorker>(std::move(out));
  }

  Status Load(LayerFloats* layer, int64_t index) override {
    layer_ = layer;
    index_ = index;
    stale_.fill(true);
    vectors_stale_ = true;
    return {};
  }
  void Changed(Projection p) override { stale_[static_cast<size_t>(p)] = true; }

  Status Observe(LayerSamples* samples) override {
    if (samples) return Error::Unsupported("samples of inputs are taken on the CPU alone");
    const CudaDeviceScope scope(device_);
    CELER_RETURN_IF_ERROR(UploadAll());
    statistics_.reset();
    prepared_.reset();
    return windows_->Observe(on_gpu_, index_, &grams_);
  }

  Result<std::vector<float>> MeanSquares(LayerInput input) override {
    if (statistics_) return (*statistics_)[static_cast<size_t>(input)].MeanSquares();
    const CudaDeviceScope scope(device_);
    return MeanSquaresOf(grams_[static_cast<size_t>(input)], windows_->tokens());
  }

  Result<LayerStatistics*> Statistics() override {
    prepared_.reset();
    if (statistics_) return &*statistics_;
    const CudaDeviceScope scope(device_);
    LayerStatistics out;
    for (int i = 0; i < kLayerInputs; ++i) {
      const CudaGram& gram = grams_[i];
      AlignedVector<float> sums(static_cast<size_t>(gram.cols * gram.cols));
      std::vector<double> magnitudes(static_cast<size_t>(gram.cols));
      CELER_RETURN_IF_ERROR(gram.sums.Download(sums));
      CELER_RETURN_IF_ERROR(gram.magnitudes.Download(magnitudes));
      out[i] = InputStatistics::From(windows_->tokens(), std::move(sums), std::move(magnitudes));
    }
    statistics_ = std::move(out);
    return &*statistics_;
  }

  Result<IntTensor> Gptq(Projection p, const Target& target, const std::string& name) override {
    const CudaDeviceScope scope(device_);
    const LayerInput input = InputOf(p);
    if (prepared_ != input) {
      CudaGram& gram = grams_[static_cast<size_t>(input)];
      if (statistics_)  // they may have been changed there
        CELER_RETURN_IF_ERROR(gram.sums.Upload(memory_, (*statistics_)[static_cast<size_t>(input)].gram()));
      CELER_RETURN_IF_ERROR(gptq_.Prepare(gram, windows_->tokens(), {}, name));
      prepared_ = input;
    }
    CELER_RETURN_IF_ERROR(Upload(p));
    return gptq_.Quantize(&on_gpu_.matrices[static_cast<size_t>(p)], target);
  }

  Result<std::vector<std::byte>> GptqBlocks(Projection p, DType dtype, const std::string& name) override {
    const LayerInput input = InputOf(p);
    if (solver_input_ != input) {
      solver_.reset();  // before the next one takes as much memory
      solver_input_.reset();
      CELER_ASSIGN(const LayerStatistics* statistics, Statistics());
      CELER_ASSIGN(solver_, GptqSolver::Make((*statistics)[static_cast<size_t>(input)], {}, name, pool_));
      solver_input_ = input;
    }
    const LayerFloats::Matrix& m = (*layer_)[p];
    return solver_->QuantizeBlocks(m.values.data(), m.rows, dtype, pool_);
  }

  Status Advance() override {
    const CudaDeviceScope scope(device_);
    solver_.reset();
    solver_input_.reset();
    CELER_RETURN_IF_ERROR(UploadAll());
    return windows_->Advance(on_gpu_, index_);
  }

  Result<InputStatistics> ObserveHead() override {
    const CudaDeviceScope scope(device_);
    CELER_ASSIGN(const AlignedVector<float> states, windows_->States());
    return HeadStatistics(model_, states, pool_);
  }

 private:
  CudaLayerWorker(int device, const Model& model, Allocator& memory, cuda::GemmF32 gemm, ThreadPool& pool)
      : device_(device),
        model_(model),
        memory_(memory),
        pool_(pool),
        gemm_(std::move(gemm)),
        gptq_(gemm_, memory) {}

  Status Upload(Projection p) {
    bool& stale = stale_[static_cast<size_t>(p)];
    if (stale) CELER_RETURN_IF_ERROR(on_gpu_.UploadMatrix(*layer_, p, memory_));
    stale = false;
    return {};
  }
  Status UploadAll() {
    for (int p = 0; p < kProjections; ++p) CELER_RETURN_IF_ERROR(Upload(static_cast<Projection>(p)));
    if (vectors_stale_) CELER_RETURN_IF_ERROR(on_gpu_.UploadVectors(*layer_, memory_));
    vectors_stale_ = false;
    return {};
  }

  int device_;
  const Model& model_;
  Allocator& memory_;
  ThreadPool& pool_;
  cuda::GemmF32 gemm_;
  std::unique_ptr<CudaCalibration> windows_;
  CudaGptq gptq_;
  const LayerFloats* layer_ = nullptr;
  int64_t index_ = 0;
  CudaLayer on_gpu_;
  std::array<bool, kProjections> stale_ = {};  // on the GPU
  bool vectors_stale_ = true;
  std::array<CudaGram, kLayerInputs> grams_;
  std::optional<LayerStatistics> statistics_;  // grams_ in host memory; they count if they are there
  std::optional<LayerInput> prepared_;         // what gptq_ holds
  std::optional<GptqSolver> solver_;           // of GptqBlocks()
  std::optional<LayerInput> solver_input_;
};

}  // namespace

Result<std::unique_ptr<LayerWorker>> MakeCudaLayerWorker(int device, const Model& model,
                                                         const CalibrationText& text, ThreadPool& pool) {
  return CudaLayerWorker::Make(device, model, text, pool);
}

}  // namespace celer
