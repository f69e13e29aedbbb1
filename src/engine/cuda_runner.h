// Runs pieces of sequences on a GPU: what model_runner.h is for the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/function_ref.h"
#include "core/result.h"
#include "engine/cuda_sampler.h"
#include "engine/model_runner.h"
#include "models/cuda_decoder.h"

namespace celer {

class CudaRunner {
 public:
  explicit CudaRunner(std::unique_ptr<CudaDecoder> decoder)
      : decoder_(std::move(decoder)), sampler_(*decoder_) {}

  // Logits [rows, vocab] in the order of the pieces. Valid until the next call.
  Result<std::span<const float>> Run(std::span<const Piece> pieces);
  // A token for each piece that asks for its last row, chosen on the GPU; `rows` says how, in their order.
  Result<std::vector<Sampler::Choice>> RunAndChoose(std::span<const Piece> pieces,
                                                    std::span<const CudaSampler::Row> rows);

  // One token for each of several sequences.
  struct Decoding {
    CudaSampler::Row row;
    int32_t token = 0;  // the last one, whose successor is wanted; it stands at row.position
    std::span<const int32_t> block_table;
  };
  // Queues the step, unless StartNext() has done so already.
  Status Start(std::span<const Decoding> step);
  // Queues the step after the one just started, before its tokens are known to the host. Block tables must
  // cover one position more. What it computes for a sequence that turns out to have ended is thrown away.
  Status StartNext(std::span<const Decoding> step);
  // The tokens of a started step.
  Result<std::vector<Sampler::Choice>> Choices(std::span<const Decoding> step);

  const CudaDecoder& decoder() const { return *decoder_; }
  CudaDecoder& decoder() { return *decoder_; }

 private:
  // Runs as many pieces at once as the decoder has rows of logits for; `done` takes them after each run.
  Status RunInGroups(std::span<const Piece> pieces, FunctionRef<Status(int64_t rows)> done);
  Status Queue(std::span<const Decoding> step, int64_t ahead);

  std::unique_ptr<CudaDecoder> decoder_;
  CudaSampler sampler_;
  std::vector<std::pair<int64_t, int64_t>>
      queued_;  // id and position of each sequence of the step queued last
  std::vector<int32_t> tokens_, positions_, seq_start_, block_table_, logit_rows_;
  std::vector<float> logits_;
};

}  // namespace celer
