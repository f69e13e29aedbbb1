// Smaller forms of language models and of networks, as `celer quantize` writes them.
//
//   celer::QuantizeOptions options{.weights = "q4_k_m"};
//   auto report = celer::QuantizeModel("model.gguf", "small.gguf", options);
//
// An output appears by rename when it is complete. A progress function that gives an error ends the work with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "celer/error.h"
#include "celer/graph.h"

namespace celer {

struct QuantizeReport {
  int64_t bytes_before = 0, bytes_after = 0;
  double bits_per_weight = 0;  // of a model; over the tensors with two dimensions or more
  // Of a network: layers that are integers, and those that could be.
  int64_t layers = 0, candidates = 0;
};

struct QuantizeOptions {
  std::string weights = {};  // "q4_k_m", "int4-g128", ...; "": q4_k_m of a GGUF, int4-g128 of a folder
  std::vector<std::string> tensors = {};  // "*.attn_v.weight=q6_k"; the last one that fits counts
  std::string method = "rtn";             // "rtn", "gptq", "awq", "awq+gptq", "smoothquant"
  // A text as tokens of the model, of which whole windows are read. With "rtn" it may be empty; else the importance
  // of each column counts. The other methods need it. They keep finished layers in OUT.work, so that a call that
  // was ended goes on there.
  std::vector<int32_t> calibration = {};
  int64_t window = 512;
  bool replace = false;  // a GGUF file that is there
  // Layers while a text is read ("calibrating"), then bytes ("writing").
  std::function<Status(const char* what, int64_t done, int64_t total)> progress = {};
};

// A GGUF file becomes a GGUF file, a Hugging Face folder a folder that is not there yet. Runs on the CPU.
Result<QuantizeReport> QuantizeModel(const std::filesystem::path& model, const std::filesystem::path& out,
                                     const QuantizeOptions& options = {});

// Inputs by name. Their bytes hold until the next call.
using NetworkSamples = std::function<Result<std::map<std::string, GraphTensor>>(int64_t index)>;

struct QuantizeNetworkOptions {
  // Products round their inputs as they come; needs no samples.
  bool dynamic = false;
  NetworkSamples samples = {};  // [0, count), on which ranges of values are measured
  int64_t count = 0;
  std::string method = "minmax";   // "minmax", "average", "percentile", "kl", "mse": how a range is chosen
  std::string activations = "u8";  // "u8", "i8", "i8-sym"
  bool per_channel = true;         // weights have a scale for each output channel
  // Layers between float operators, where converting costs more time than integers save, stay float.
  bool skip_islands = true;
  bool replace = false;
  std::function<Status(const char* what, int64_t done, int64_t total)> progress = {};
};

// An ONNX file, or NAME.param of PNNX, becomes an ONNX file in QDQ form.
Result<QuantizeReport> QuantizeNetwork(const std::filesystem::path& network, const std::filesystem::path& out,
                                       const QuantizeNetworkOptions& options);

}  // namespace celer
