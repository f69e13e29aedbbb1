// The backend of the heavy work of a calibrated method: the text through a layer, the statistics of its
// inputs, and GPTQ. On the CPU, or on a GPU; parts.cc does not know which.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "device/thread_pool.h"
#include "models/load/model.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/fold.h"
#include "quantize/llm/int_tensor.h"
#include "quantize/llm/quantize.h"
#include "quantize/llm/smooth_quant.h"

namespace celer {

class LayerWorker {
 public:
  virtual ~LayerWorker() = default;

  // The layer that the calls below are about. It outlives them; a caller that changes it calls Changed(), or
  // Load() again.
  virtual Status Load(LayerFloats* layer, int64_t index) = 0;
  virtual void Changed(Projection p) = 0;

  // The text passes through the layer, and the statistics of its matrices' inputs are summed up. The hidden
  // states stay in front of the layer. `samples`: also some tokens of each input; may be null, and is on a
  // GPU.
  virtual Status Observe(LayerSamples* samples) = 0;
  // What Observe() saw: the mean squares of an input's columns, or all of it in host memory, where it may be
  // changed; Gptq() then uses that.
  virtual Result<std::vector<float>> MeanSquares(LayerInput input) = 0;
  virtual Result<LayerStatistics*> Statistics() = 0;

  // Quantizes a matrix. Advance() then uses the dequantized result; the layer's own copy of it is undefined.
  virtual Result<IntTensor> Gptq(Projection p, const Target& target, const std::string& name) = 0;
  // The matrix as GGUF blocks with a grid, row by row. The layer stays as it is: a caller that dequantizes
  // the blocks into it calls Changed(). Always on the CPU.
  virtual Result<std::vector<std::byte>> GptqBlocks(Projection p, DType dtype, const std::string& name) = 0;

  // The hidden states become those behind the layer.
  virtual Status Advance() = 0;

  // Behind the last layer: the statistics of the head's input.
  virtual Result<InputStatistics> ObserveHead() = 0;
};

// A GPU does what RunsOnGpu() says. An error if it is not there, or too small.
Result<std::unique_ptr<LayerWorker>> MakeLayerWorker(const Device& device, const Model& model,
                                                     const CalibrationText& text, ThreadPool& pool);

// The two of them; the second only in builds with CUDA.
Result<std::unique_ptr<LayerWorker>> MakeCpuLayerWorker(const Model& model, const CalibrationText& text,
                                                        ThreadPool& pool);
Result<std::unique_ptr<LayerWorker>> MakeCudaLayerWorker(int device, const Model& model,
                                                         const CalibrationText& text, ThreadPool& pool);

}  // namespace celer
