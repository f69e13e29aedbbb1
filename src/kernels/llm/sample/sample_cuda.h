// Sampling on the GPU as engine/sample/sampler.h does it on the CPU: same order of the steps, same random number, so
// that the same seed gives the same text. Parameters are read from the GPU's memory: a captured graph serves
// every setting.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

constexpr int kMaxSampleVocab = 1 << 18;
constexpr int kMaxLogprobs = 100;
constexpr uint32_t kInPrompt = 0x80000000u;

// How one row is sampled; in the GPU's memory. As it is made it takes the largest logit.
struct SampleRow {
  float temperature = 0;  // 0: the largest
  float top_p = 1;
  int32_t top_k = 0;             // 0: all
  uint32_t reach = 0xffffffffu;  // min-p: the farthest from the largest that is kept, see Reach()
  float repetition = 1, presence = 0, frequency = 0;
  int32_t logprobs = -1;        // how many to report; -1: none, not even the chosen one's
  uint64_t seed = 0;            // of the draws, hashed
  int32_t first = 0;            // the position whose successor is draw 0
  int32_t* counted = nullptr;   // positions whose tokens are in `counts`; with counts
  uint32_t* counts = nullptr;   // [vocab], how often in the output, with kInPrompt if in the prompt; or none
  const float* bias = nullptr;  // [vocab] or none
  bool operator==(const SampleRow&) const = default;
};

// SampleRow::reach of a min-p.
uint32_t Reach(float min_p);

// SplitMix64. Counter-based: a draw is a hash of seed and number, so that no draw needs the state of another.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr uint64_t
    HashDraw(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct SampleLogprobs {
  float chosen;
  int32_t count;
  int32_t tokens[kMaxLogprobs];  // most likely first
  float values[kMaxLogprobs];
};

struct SampleArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int rows = 0;
  int vocab = 0;                            // kMaxSampleVocab at most
  const SampleRow* sampling = nullptr;      // [rows]
  const int32_t* token_of = nullptr;        // [rows], which of `tokens` a row follows; null: its own number
  int32_t* tokens = nullptr;                // the batch's own
  int32_t* positions = nullptr;             // the batch's own
  bool advance = true;                      // the choice becomes the next input, positions move on by one
  int32_t* host_tokens = nullptr;           // mapped host memory [host_slots, host_stride]; or kNoToken
  SampleLogprobs* host_logprobs = nullptr;  // the same
  int host_stride = 0;
  int host_slots = 1;  // the token after position p goes to slot p % host_slots
};
cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream);

// Adds tokens [count] of a sequence, of which the first `prompt` are its prompt, to SampleRow::counts.
cudaError_t LaunchCountTokens(const int32_t* tokens, int prompt, int count, uint32_t* counts,
                              cudaStream_t stream);

}  // namespace celer::cuda
