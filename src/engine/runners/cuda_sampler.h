// The state of each sequence that the GPU's sampling kernel needs: its sampling parameters and, for
// penalties, its token counts. What sampler.h is for the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "engine/sample/sampler.h"
#include "kernels/llm/sample/sample_cuda.h"
#include "models/cuda/decoder.h"

namespace celer {

class CudaSampler {
 public:
  explicit CudaSampler(CudaDecoder& decoder) : decoder_(decoder) {}

  // Typical-p needs tokens in the order of their surprise; the CPU does that.
  static bool CanSample(const SamplingParams& params, int64_t vocab) {
    return params.typical_p >= 1 && vocab <= cuda::kMaxSampleVocab;
  }

  // A sequence of which the next step chooses a token.
  struct Row {
    int64_t id = 0;
    const SamplingParams* params = nullptr;
    std::span<const int32_t> tokens;  // prompt and output as far as the host knows them
    int64_t prompt = 0;               // how many of them are the prompt
    int64_t position = 0;             // of the token whose successor is chosen
  };
  // For the steps queued from now on. Idempotent: a step that is queued again counts its tokens once.
  Status Prepare(std::span<const Row> rows);

  static Sampler::Choice ToChoice(int32_t token, const SamplingParams& params,
                                  const cuda::SampleLogprobs& logprobs);

 private:
  // The buffers of one sequence on the GPU; kept while it runs, then reused for another.
  struct Slot {
    int64_t id = -1;
    int64_t counted = 0;  // positions whose tokens are counted once the queued steps have run
    uint64_t used = 0;
    Buffer counts;   // [vocab] and the number of positions counted
    Buffer bias;     // [vocab]
    Buffer history;  // tokens on their way into the counts
  };
  Slot& SlotOf(int64_t id);
  Status Reserve(Buffer* buffer, int64_t bytes);
  Status LoadCounts(const Row& row, Slot* slot);
  Status LoadBias(const SamplingParams& params, Slot* slot);

  CudaDecoder& decoder_;
  std::vector<Slot> slots_;
  std::vector<cuda::SampleRow> rows_;  // as they are on the GPU
  uint64_t uses_ = 0;
};

}  // namespace celer
