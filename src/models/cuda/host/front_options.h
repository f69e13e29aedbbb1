// What a decoder needs to run layers in front of its own (front.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "kernels/llm/batch.h"

namespace celer {

class Model;

// The host's pool of these layers: whole blocks, as cuda::DeviceKv lays them out, one after the other. Layers are counted
// from the first one in front.
class HostKv {
 public:
  virtual ~HostKv() = default;
  virtual void Read(int64_t layer, std::span<const int32_t> blocks, std::byte* k, std::byte* v) = 0;
  virtual void Write(int64_t layer, std::span<const int32_t> blocks, const std::byte* k,
                     const std::byte* v) = 0;
};

struct CudaFrontOptions {
  const Model* host = nullptr;  // these layers as the file has them; outlives the decoder
  HostKv* kv = nullptr;         // likewise
  int64_t min_tokens = 0;       // of a batch
  // x[tokens, hidden]: what the first of these layers reads.
  std::function<Status(const RaggedBatch& batch, float* x)> embed;
};

}  // namespace celer
