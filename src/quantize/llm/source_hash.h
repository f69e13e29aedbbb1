// What a calibrated run depends on, as a key: a work folder with another key belongs to another run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "device/thread_pool.h"
#include "quantize/llm/quantize.h"

namespace celer {

// Tokenizer, chat template and their like, in the order of their names: all files of a folder but the
// weights, config.json, and what describes how the weights are quantized. A quantized folder gets copies of
// them.
Result<std::vector<std::filesystem::path>> FilesBesideWeights(const std::filesystem::path& folder);

// 64 hexadecimal digits that stand for the whole content of a model: name, type, shape and every byte of each
// tensor; all metadata of a GGUF file; config.json and FilesBesideWeights() of a folder. Reads the model
// once; pages leave memory again.
Result<std::string> HashModel(const std::filesystem::path& model, ThreadPool& pool);

// HashModel(), the plan, the method, the text's tokens and its window, the kind of device, celer's version
// and that of the files in a work folder.
Result<std::string> PartsKey(const std::filesystem::path& model, const QuantizePlan& plan, Method method,
                             const CalibrationText& text, const Device& device, ThreadPool& pool);

}  // namespace celer
