// The only file of the quantizer that knows whether CUDA was built in.
#include "quantize/llm/layer/layer_worker.h"

namespace celer {

Result<std::unique_ptr<LayerWorker>> MakeLayerWorker(const Device& device, const Model& model,
                                                     const CalibrationText& text, ThreadPool& pool) {
  if (device.is_cpu()) return MakeCpuLayerWorker(model, text, pool);
#if CELER_WITH_CUDA
  return MakeCudaLayerWorker(device.index, model, text, pool);
#else
  return Error::Unsupported("--device ", device.ToString(),
                            ": celer was built without CUDA; build it with -DCELER_CUDA=ON, or leave it out");
#endif
}

}  // namespace celer
