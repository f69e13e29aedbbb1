#include <optional>

#include "core/cuda_allocator.h"
#include "quantize/cuda_gptq.h"
#include "quantize/cuda_windows.h"
#include "quantize/layer_worker.h"

namespace celer {
namespace {

class CudaLayerWorker final : public LayerWorker {
 public:
  static Result<std::unique_ptr<LayerWorker>> Make(int device, const Model& model,
                                                   const CalibrationText& text, ThreadPool& pool) {
    const CudaDeviceScope scope(device);
    CELER_ASSIGN(Allocator * memory, CudaAllocator(device));
    CELER_ASSIGN(cuda::GemmF32 gemm, cuda::GemmF32::Create(device));
    std::unique_ptr<CudaLayerWorker> out(new CudaLayerWorker(device, *memory, std::move(gemm)));
    CELER_ASSIGN(out->windows_, CudaWindows::Make(model, text, out->gemm_, *memory, pool));
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

  Status Look(LayerSamples* samples) override {
    if (samples) return Error::Unsupported("samples of inputs are taken on the CPU alone");
    const CudaDeviceScope scope(device_);
    CELER_RETURN_IF_ERROR(UploadAll());
    statistics_.reset();
    prepared_.reset();
    return windows_->Look(on_gpu_, index_, &grams_);
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
      const CudaGram& gram = grams_[static_cast<size_t>(i)];
      AlignedVector<float> sums(static_cast<size_t>(gram.cols * gram.cols));
      std::vector<double> magnitudes(static_cast<size_t>(gram.cols));
      CELER_RETURN_IF_ERROR(gram.sums.Download(sums));
      CELER_RETURN_IF_ERROR(gram.magnitudes.Download(magnitudes));
      out[static_cast<size_t>(i)] =
          InputStatistics::From(windows_->tokens(), std::move(sums), std::move(magnitudes));
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

  Status Advance() override {
    const CudaDeviceScope scope(device_);
    CELER_RETURN_IF_ERROR(UploadAll());
    return windows_->Advance(on_gpu_, index_);
  }

 private:
  CudaLayerWorker(int device, Allocator& memory, cuda::GemmF32 gemm)
      : device_(device), memory_(memory), gemm_(std::move(gemm)), gptq_(gemm_, memory) {}

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
  Allocator& memory_;
  cuda::GemmF32 gemm_;
  std::unique_ptr<CudaWindows> windows_;
  CudaGptq gptq_;
  const LayerFloats* layer_ = nullptr;
  int64_t index_ = 0;
  CudaLayer on_gpu_;
  std::array<bool, kProjections> stale_ = {};  // on the GPU
  bool vectors_stale_ = true;
  std::array<CudaGram, kLayerInputs> grams_;
  std::optional<LayerStatistics> statistics_;  // grams_ in host memory; they count if they are there
  std::optional<LayerInput> prepared_;         // what gptq_ holds
};

}  // namespace

Result<std::unique_ptr<LayerWorker>> MakeCudaLayerWorker(int device, const Model& model,
                                                         const CalibrationText& text, ThreadPool& pool) {
  return CudaLayerWorker::Make(device, model, text, pool);
}

}  // namespace celer
