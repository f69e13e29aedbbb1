// Runs pieces of sequences on a GPU: what model_runner.h is for the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/model_runner.h"
#include "models/cuda_decoder.h"

namespace celer {

class CudaRunner {
 public:
  explicit CudaRunner(std::unique_ptr<CudaDecoder> decoder) : decoder_(std::move(decoder)) {}

  // Logits [rows, vocab] in the order of the pieces. Valid until the next call.
  Result<std::span<const float>> Run(std::span<const Piece> pieces);

  // One token for each of several sequences that decode greedily.
  struct Decoding {
    int64_t id = 0;
    int32_t token = 0;  // the last one, whose successor is wanted
    int64_t position = 0;
    std::span<const int32_t> block_table;
  };
  // Queues the step, unless StartNext() has done so already.
  Status Start(std::span<const Decoding> step);
  // Queues the step after the one just started, before its tokens are known to the host. Block tables must
  // cover one position more. What it computes for a sequence that turns out to have ended is thrown away.
  Status StartNext(std::span<const Decoding> step);
  // The tokens of a started step.
  Status Tokens(std::span<const Decoding> step, std::span<int32_t> tokens);

  const CudaDecoder& decoder() const { return *decoder_; }

 private:
  Status Queue(std::span<const Decoding> step, int64_t ahead);

  std::unique_ptr<CudaDecoder> decoder_;
  std::vector<std::pair<int64_t, int64_t>>
      queued_;  // id and position of each sequence of the step queued last
  std::vector<int32_t> tokens_, positions_, seq_start_, block_table_, logit_rows_;
  std::vector<float> logits_;
};

}  // namespace celer
