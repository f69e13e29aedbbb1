// One run of the quantizer from file to file: what the program and celer/quantize.h have in common.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/device.h"
#include "base/result.h"
#include "models/load/model.h"
#include "quantize/llm/quantize.h"

namespace celer {

// The file's table of tensors, whatever the container.
struct QuantizeSource {
  std::filesystem::path path;
  bool gguf = false;
  DecoderConfig config;
  std::unique_ptr<TensorSource> tensors;
  bool every_part = false;  // as OpenForQuantize() has it

  static Result<QuantizeSource> Open(const std::filesystem::path& path, bool every_part);

  // A GGUF file becomes a GGUF file, a folder a folder.
  Status CheckContainer(const std::filesystem::path& out) const;
  // A copy under another name is not what was asked for.
  Status CheckChanges(const QuantizePlan& plan) const;
  Result<Model> LoadForCalibration() const;
};

struct WriteJob {
  Method method = Method::kRtn;
  // kRtn takes importance from it, if there is one and no matrix; the other methods need it.
  std::optional<CalibrationText> text = {};
  std::optional<ImportanceMatrix> importance = {};
  bool dequantized = false;
  Device device = Device::Cpu();  // of calibration
  // Finished layers, which another run goes on from.
  std::filesystem::path work;
  QuantizeProgress on_layer = {}, on_bytes = {};
};
Status WriteQuantized(const QuantizeSource& source, const QuantizePlan& plan,
                      const std::filesystem::path& out, WriteJob job);

}  // namespace celer
