// What other engines reach on a GPU, as bench/peers/gpu_estimates.py found it. Its file, peer_speeds.json, is
// compiled in, so that benches can print it where nothing can be installed.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "celer/limits.h"

namespace celer {

struct PeerRow {
  std::string model;    // a preset's name
  std::string weights;  // "bf16"; "fp8": activations too
  bool prefill = false;
  int64_t prompt = 0;                          // tokens of it, or in the KV before decoding
  int64_t batch = 1;                           // sequences
  std::map<std::string, double> tokens_per_s;  // by the engine's key in PeerSpeeds::engines

  struct Best {
    std::string engine;  // its key
    double tokens_per_s = 0;
  };
  Best best() const;
};

struct PeerSpeeds {
  std::string source;                          // "aisimulate 0.13"
  std::string gpu;                             // "NVIDIA H200"
  std::map<std::string, std::string> engines;  // "vllm": "vLLM 0.24.0"
  std::vector<PeerRow> rows;

  static Result<PeerSpeeds> Parse(std::string_view json);
  static const PeerSpeeds& BuiltIn();

  // The rows of a model on a device: none if the GPU, the shape or the weights are others. `device` is
  // described as in Engine::Info, "cuda:0 (NVIDIA H200)"; weights of 8 bits stand beside fp8.
  std::vector<PeerRow> Find(std::string_view device, const LlmShape& shape,
                            const std::map<std::string, int64_t>& bytes_by_format) const;
};

// The one of them for this work.
const PeerRow* FindWork(std::span<const PeerRow> rows, bool prefill, int64_t prompt, int64_t batch);

// A file that was compiled in (cmake/CelerEmbed.cmake).
struct PeerFile {
  std::string_view path, content_type, etag, body;
};
std::span<const PeerFile> PeerFiles();

}  // namespace celer
