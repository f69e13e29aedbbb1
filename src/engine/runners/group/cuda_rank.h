// A model on a GPU with its memory: the whole of it, or one rank's part.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "models/cuda/decoder.h"
#include "models/cuda/memory/kv.h"
#include "models/cuda/memory/states.h"

namespace celer {

struct CudaRank {
  DecoderConfig config;      // of all ranks together, as are the following
  int64_t weight_bytes = 0;  // read by one decode step
  int64_t kv_bytes_per_token = 0;
  std::map<std::string, int64_t> bytes_by_format;
  // Both outlive the decoder, which waits for its last step.
  std::unique_ptr<CudaKv> kv;
  std::unique_ptr<CudaStates> states;  // none: the model has no recurrent layers
  std::unique_ptr<CudaDecoder> decoder;
};

}  // namespace celer
