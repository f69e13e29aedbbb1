// The LLM engine: give it token ids and get token ids back, one step of the whole batch at a time. A single
// stream is a batch of one on the same path. Text, templates and stop strings stand one level up
// (src/engine/text_generator.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "celer/error.h"
#include "celer/limits.h"

namespace celer {

// How the next token is chosen from the logits. Applied in this order, as vLLM does: logit bias, repetition
// penalty, presence and frequency penalties; then temperature 0 takes the largest, else temperature, min-p,
// typical, top-k, top-p.
struct SamplingParams {
  float temperature = 0;  // 0: always the most likely token
  int top_k = 0;          // keep the k most likely; 0: all
  float top_p = 1;        // keep the most likely until they hold this probability
  float min_p = 0;        // keep what has at least this share of the most likely one's probability
  float typical_p = 1;    // keep the tokens whose surprise is nearest the expected one
  float repetition_penalty =
      1;  // divides (multiplies if negative) logits of tokens in the prompt or the output
  float presence_penalty = 0;   // subtracted once from tokens in the output
  float frequency_penalty = 0;  // subtracted per occurrence in the output
  std::map<int32_t, float> logit_bias = {};
  uint64_t seed = 0;  // same seed, same text
  int logprobs = -1;  // alternatives to report per token; 0: only the chosen one's; -1: none
};

// One sentence if a value is out of range, not finite, or names a token outside the vocabulary.
Status Validate(const SamplingParams& params, int64_t vocab);

struct EngineOptions {
  std::string model = {};          // a Hugging Face folder, a GGUF file, a llama2.c checkpoint
  std::string weights = "stored";  // stored, f32, f16, bf16, int8[-gN], int4[-gN]
  std::string kv = "f16";          // f32 (CPU), f16, bf16, int8, fp8 (CUDA)
  std::string device = "cpu";      // cpu, cuda, cuda:N, or auto: cuda if there is one
  std::string launch =
      "fused";  // how a GPU's decode steps start: eager, graph, fused (see docs/performance.md)
  std::string pack_cache = {};  // a folder to keep packed weights in, for CPUs; empty: they are not kept
  int threads = 0;              // 0: as many as this process may use
  int64_t context = 0;          // positions that fit in the KV cache; 0: the model's own, at most 4096
  int64_t chunk = 512;          // tokens of one step at most; longer prompts are prefilled in pieces
  int64_t sequences = 1;        // full contexts that the KV cache has room for at once
};

struct Request {
  std::vector<int32_t> prompt = {};
  SamplingParams sampling = {};
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_tokens = {};
  bool keep = false;  // keep the keys and values when it is done, for a later request to go on from
  std::optional<int64_t> continue_from =
      {};  // such an earlier request; the prefix in common is not computed again
};

enum class FinishReason { kNone, kStop, kLength, kCancelled };
const char* Name(FinishReason reason);

struct TokenLogprob {
  int32_t token;
  float logprob;
};

struct TokenEvent {
  int64_t request = 0;
  int32_t token = 0;
  FinishReason finish = FinishReason::kNone;
  float logprob = 0;  // of the model, before penalties and temperature; with SamplingParams::logprobs
  std::vector<TokenLogprob> top = {};
};

// Where the time of profiled steps went.
struct OperatorTime {
  std::string name;  // as in OperatorWork
  int64_t calls = 0;
  double seconds = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  ~Engine();

  struct Info {
    std::string architecture;
    int64_t vocab = 0;
    int64_t context = 0;        // positions that fit
    int64_t max_positions = 0;  // of the model
    LlmShape shape;
    int64_t weight_bytes = 0;  // read by one decode step
    int64_t kv_bytes_per_token = 0;
    std::map<std::string, int64_t> bytes_by_format;
    int threads = 0;
    std::string device;  // "cpu", "cuda:0 (NVIDIA H200)"
  };
  const Info& info() const;

  // Checks the request and queues it. The id names it in events.
  Result<int64_t> Submit(Request request);
  bool HasWork() const;
  // schedule -> run -> commit: at most one new token for each running request.
  // After a fault of the device everything running is cancelled and fault() says what happened.
  std::vector<TokenEvent> Step();
  const std::optional<Error>& fault() const;
  void Cancel(int64_t request);
  void Release(int64_t request);  // drops what `keep` kept
  int64_t KeptRequests() const;   // how many Release() could drop; the KV's room bounds them
  // Prompt tokens of this request that were found in kept keys and values, not computed. Known while it is
  // worked on or kept; 0 after that.
  int64_t ReusedTokens(int64_t request) const;

  // log p(tokens[i] | tokens[0..i)) for i in [first, tokens.size()), in a sequence of its own.
  Result<std::vector<float>> Score(std::span<const int32_t> tokens, int64_t first);

  // What a step of this shape must read and compute at least, for the operators that the model has.
  std::vector<OperatorWork> Work(const StepShape& shape) const;

  // Times the operators of the steps from now on, from zero. Profile() has the sums so far.
  void StartProfile();
  void StopProfile();
  std::vector<OperatorTime> Profile() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
