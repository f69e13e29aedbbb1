// The LLM engine: give it token ids and get token ids back, one step of the whole batch at a time. A single
// stream is a batch of one on the same path. Text, templates and stop strings stand one level up (text.h).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "celer/error.h"
#include "celer/limits.h"
#include "celer/options.h"

namespace celer {

// How the next token is chosen from the logits. Applied in this order, as vLLM does: logit bias, repetition
// penalty, presence and frequency penalties; then temperature 0 takes the largest, else temperature, min-p,
// typical, top-k, top-p.
struct SamplingParams {
  float temperature = 0;  // 0: always the most likely token
  int top_k = 0;          // keep the k most likely; 0: all
  float top_p = 1;        // keep the most likely until they hold this probability
  float min_p = 0;        // keep what has at least this share of the most likely one's probability
  float typical_p = 1;    // locally typical sampling: keep the tokens whose surprise is nearest the entropy
  float repetition_penalty =
      1;  // divides (multiplies if negative) logits of tokens in the prompt or the output
  float presence_penalty = 0;   // subtracted once from tokens in the output
  float frequency_penalty = 0;  // subtracted per occurrence in the output
  std::map<int32_t, float> logit_bias = {};
  std::vector<int32_t> allowed_tokens = {};  // no other can be chosen; empty: all can
  uint64_t seed = 0;                         // same seed, same text
  int logprobs = -1;  // alternatives to report per token; 0: only the chosen one's; -1: none
};

// One sentence if a value is out of range, not finite, or names a token outside the vocabulary.
Status Validate(const SamplingParams& params, int64_t vocab);

// Constrained decoding: which tokens may come next in an answer, as a bit mask over the vocabulary. One
// thread at a time uses a mask; masks of different answers are used concurrently, so what they share must be
// constant or locked.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  virtual std::unique_ptr<TokenMask> Clone() const = 0;  // each answer of a request has its own
  // Computes the mask that Allow() returns next. The engine first calls it with a small limit on its own
  // thread. If that is not enough, it calls it again with kAnyWork on a worker thread, and the answer takes
  // no part in steps until then, so that no other answer waits. An error ends the request with kConstraint.
  static constexpr uint64_t kAnyWork = ~uint64_t{0};
  struct Prepared {
    bool ready = true;  // false: it takes more than max_work
    uint64_t work = 0;  // in steps of some nanoseconds
  };
  virtual Result<Prepared> Prepare([[maybe_unused]] uint64_t max_work) { return Prepared{}; }
  // Sets bit t % 32 of bits[t / 32] for each token t that may come next; all are clear before. If none is
  // set, the answer ends with kStop.
  virtual void Allow(std::span<uint32_t> bits) = 0;
  virtual void Accept(int32_t token) = 0;  // it was chosen
};

// Beam search instead of sampling, as `generate` of Hugging Face's transformers does with the same settings.
struct BeamSearch {
  int width = 0;             // 0: no beam search
  float length_penalty = 1;  // a text's score is its log-probability / length ^ this
  // When `width` texts have ended. kHeuristic: once no running one is likely to be better. kYes: at once.
  // kNever: once no running one can be better.
  enum class EarlyStopping : uint8_t { kHeuristic, kYes, kNever } early_stopping = EarlyStopping::kHeuristic;
};

// How the hidden states of a prompt's tokens, as they leave the model's last norm, become one vector.
enum class Pooling : uint8_t { kNone, kMean, kLast };

class LoraMix;  // celer/adapters.h

struct Request {
  std::vector<int32_t> prompt = {};
  // The answer's first tokens, which another engine chose before it was interrupted. The answer goes on behind them as it
  // would have there: draws, penalties, max_tokens and min_tokens count them, and no event reports them. The mask has
  // accepted them already. One answer only, and no beams.
  std::vector<int32_t> resumed = {};
  SamplingParams sampling = {};
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;  // before that many no stop token can be chosen
  std::vector<int32_t> stop_tokens = {};
  int n = 1;  // answers; answer i draws with seed + i
  int best_of =
      0;  // more than n: so many are drawn, and the n with the highest log-probability per token count
  BeamSearch beam = {};
  int prompt_logprobs = -1;  // as SamplingParams::logprobs, for the prompt's tokens from the second on
  std::shared_ptr<const TokenMask> mask = {};
  int priority = 0;  // lower goes first; ties: first come, first served
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  // Only requests with the same salt share what was computed for a common prefix.
  std::string cache_salt = {};
  // LoRA adapters, from Adapters::Mix(). Null: the model without any. Unset: Adapters::Standing().
  std::optional<std::shared_ptr<const LoraMix>> lora = {};
  // Not kNone: the prompt is read and nothing is generated. The only event is TokenEvent::embedding.
  Pooling pooling = Pooling::kNone;
};

// kRefused: it can never fit into the KV. kConstraint: its mask cannot be computed (TokenMask::Prepare).
// kError: the model's logits were not finite, and other requests go on; or the device failed, and all
// requests end so. The event says in a sentence what happened.
enum class FinishReason { kNone, kStop, kLength, kCancelled, kDeadline, kRefused, kConstraint, kError };
const char* Name(FinishReason reason);

struct TokenLogprob {
  int32_t token;
  float logprob;
};

struct TokenEvent {
  static constexpr int32_t kNoToken = -1;

  int64_t request = 0;
  int answer = 0;                             // of the request's n. With best_of and beams 0 is the best
  int32_t token = kNoToken;                   // none if the answer ends for another reason than a token
  FinishReason finish = FinishReason::kNone;  // of the answer
  bool last = false;                          // the request's last event
  float logprob = 0;  // of the model, before penalties and temperature; with SamplingParams::logprobs
  std::vector<TokenLogprob> top = {};
  // With the first event of a request.
  int64_t cached_tokens = 0;  // of the prompt: their keys and values were there already
  std::chrono::steady_clock::time_point begun = {};  // when the first step with it began
  struct PromptToken {
    float logprob;
    std::vector<TokenLogprob> top;
  };
  std::vector<PromptToken> prompt = {};  // from the second token on, with Request::prompt_logprobs
  // With the last token of an answer that was chosen among several: the figure they were compared by.
  double score = 0;
  std::vector<float> embedding = {};  // [hidden], not normalised; with Request::pooling
  std::string error = {};             // with kRefused, kConstraint and kError
};

// Counts since the engine was made, and how it stands now.
struct EngineStats {
  int64_t steps = 0;
  int64_t requests = 0, finished = 0;             // submitted, and of those ended
  int64_t running = 0, waiting = 0, swapped = 0;  // sequences now; `waiting` holds those swapped out, too
  int64_t computed_tokens = 0;                    // prompts and answers
  int64_t generated_tokens = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0;  // of the requests begun, and of those found in the KV
  int64_t kv_blocks = 0, kv_blocks_used = 0;     // used: by a sequence. The others are free
  int64_t kv_blocks_cached = 0;                  // free ones that the prefix cache holds
  int64_t kv_host_blocks = 0, kv_host_blocks_used = 0;
  int64_t evictions = 0;                  // of cached blocks
  int64_t swaps = 0, recomputations = 0;  // preemptions of either kind
  int64_t copied_blocks = 0;              // copy-on-write
  int64_t looked_up_tokens = 0;           // of the requests begun: prompt tokens looked for in the KV
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  int64_t deferred_masks = 0;                    // token masks that were prepared by worker threads
  std::vector<int64_t> accepted = {};            // [i]: verified drafts of which i tokens were accepted
  std::array<int64_t, 24> steps_by_tokens = {};  // [i]: steps of up to 2^i tokens and more than half of that
  // What the steps had to read and compute by the limits model, the time that takes on the machine that
  // SetMachine() named, and the time with work to do.
  double work_bytes = 0, work_flops = 0, limit_seconds = 0, busy_seconds = 0;
};

// Where the time of profiled steps went.
struct OperatorTime {
  std::string name;  // as in OperatorWork
  int64_t calls = 0;
  double seconds = 0;
};

class Adapters;  // celer/adapters.h

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  ~Engine();

  struct Info {
    std::string architecture;
    int64_t vocab = 0;
    int64_t context = 0;        // tokens of the longest sequence
    int64_t kv_tokens = 0;      // that the KV has room for, of all sequences together
    int64_t max_positions = 0;  // of the model
    LlmShape shape;
    int64_t weight_bytes = 0;  // read by one decode step
    int64_t kv_bytes_per_token = 0;
    std::map<std::string, int64_t> bytes_by_format;
    int threads = 0;
    std::string device;  // "cpu", "cuda:0 (NVIDIA H200)"
    // Where the layers are on several devices: what each of them reads of weight_bytes; else none.
    struct Part {
      std::string device;
      int64_t weight_bytes = 0;
    };
    std::vector<Part> parts = {};
    int64_t crossings = 0;  // of each decode step, from one device to another
    // Speedup of decoding with the draft model over plain decoding, as predicted before anything was
    // measured; 0: there is no draft.
    double predicted_gain = 0;
  };
  const Info& info() const;

  // Checks the request and queues it. The id names it in events.
  Result<int64_t> Submit(Request request);
  bool HasWork() const;
  // schedule -> run -> commit: a new token for each running answer; several if drafted tokens were accepted.
  //
  // A fault of the device ends every request with kError. From then on fault() says what happened, Submit()
  // and Score() refuse with the same sentence, and HasWork() is false once the events are taken.
  std::vector<TokenEvent> Step();
  const std::optional<Error>& fault() const;
  void Cancel(int64_t request);
  EngineStats stats() const;
  // For EngineStats::limit_seconds, from now on.
  void SetMachine(const Machine& machine);
  // LoRA adapters by name (celer/adapters.h). They may be loaded and unloaded while requests run. Never null; when the
  // engine is gone, no more can be loaded.
  const std::shared_ptr<Adapters>& adapters() const;

  // log p(tokens[i] | tokens[0..i)) for i in [first, tokens.size()). An error if the model computes what is
  // not finite. Other requests go on meanwhile; the next Step() has their events.
  Result<std::vector<float>> Score(std::span<const int32_t> tokens, int64_t first);
  // The logits [vocab] that predict tokens[i], for the same i, one after the other.
  using LogitsVisitor = std::function<void(int64_t i, std::span<const float> logits)>;
  Status VisitLogits(std::span<const int32_t> tokens, int64_t first, const LogitsVisitor& visit);

  // The least that a step of this shape must read and compute, for the operators that the model has.
  std::vector<OperatorWork> Work(const StepShape& shape) const;

  // Times the operators of the steps from now on, from zero. Profile() has the sums so far.
  void StartProfile();
  void StopProfile();
  std::vector<OperatorTime> Profile() const;

  // Opaque: the implementation.
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
