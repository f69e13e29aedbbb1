// A decoder with random weights and a pool of keys and values of its own, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "models/cuda/decoder.h"
#include "models/cuda/memory/kv.h"

namespace celer {

struct DecoderWithKv {
  std::unique_ptr<CudaKv> kv;  // outlives the decoder
  std::unique_ptr<CudaDecoder> decoder;

  explicit operator bool() const { return decoder != nullptr; }
  CudaDecoder* operator->() const { return decoder.get(); }
};

// Empty, and a failure of the test, if it cannot be made.
inline DecoderWithKv MakeRandomDecoder(const DecoderConfig& config, const CudaDecoderOptions& options,
                                       int64_t blocks) {
  auto decoder = CudaDecoder::Random(config, options);
  if (!decoder) {
    ADD_FAILURE() << decoder.error().message();
    return {};
  }
  auto kv = CudaKv::Make(options.device, config, options.kv, blocks, 0);
  if (!kv) {
    ADD_FAILURE() << kv.error().message();
    return {};
  }
  if (const Status used = (*decoder)->UseKv(**kv); !used) {
    ADD_FAILURE() << used.error().message();
    return {};
  }
  return {std::move(*kv), std::move(*decoder)};
}

}  // namespace celer
