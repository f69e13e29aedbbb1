// The forward pass of cpu_decoder.h on a GPU. The five operators of a layer are the same, but batch, weights,
// activations and KV live in the GPU's memory and a decode step is one captured CUDA graph; so it has a class
// of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "celer/options.h"
#include "device/stream.h"
#include "kernels/llm/batch.h"
#include "models/cuda/host/front_options.h"
#include "models/cuda/memory/memory_plan.h"
#include "models/cuda/ranks.h"
#include "models/kv_budget.h"
#include "models/layer_watch.h"
#include "models/load/model.h"
#include "models/op_profile.h"

namespace celer {

class CudaKv;
class CudaStates;
class LoraMix;

namespace cuda {
struct SampleRow;
struct SampleLogprobs;
}  // namespace cuda

struct CudaDecoderOptions {
  int device = 0;
  WeightOptions weights = {};
  DType kv = DType::kF16;    // f16, bf16, i8 or fp8 e4m3
  int64_t context = 4096;    // the longest sequence in tokens
  int64_t max_tokens = 512;  // of one batch
  int64_t sequences = 64;    // of a decode step, kMaxDecode at most
  // Batch-invariant: a token's results do not depend on the rest of the batch or on chunked prefill. Needs
  // warpgroup products.
  bool deterministic = false;
  bool exact = false;  // every product by the decode kernels, also for long prompts
  bool wgmma = true;   // warpgroup products where the GPU has them; else as on a GPU without
  RowCopies row_copies = RowCopies::kOff;
  Activations activations = Activations::k16Bit;
  StepLaunch launch = StepLaunch::kFused;
  KvBudget kv_budget = {};  // its context is the one above
  int64_t memory = 0;       // of the GPU, that this decoder and its keys and values may take; 0: what is free
  // Of which of its layers the experts run elsewhere (set_experts); empty: of none. Their weights are not uploaded.
  std::vector<bool> experts_elsewhere = {};
  // Of batches of at least so many tokens those experts come here; 0: they never do. `host` of Make() outlives the decoder
  // then, and nobody uses the pool while a batch runs.
  int64_t feed_experts_from = 0;
  // Layers in front, likewise.
  CudaFrontOptions front = {};
  ThreadPool* feed_pool = nullptr;
  CudaRankOptions ranks = {};
  int64_t lora_memory = 0;  // bytes for adapters; 0: sequences have none
};

// What a plan of several devices needs to know of one, in bytes.
struct CudaMeasure {
  struct Layer {
    int64_t weights = 0, experts = 0;  // experts: of weights
    int64_t kv_block = 0;
  };
  std::vector<Layer> layers;
  int64_t embedding = 0, head = 0;
  int64_t fixed = 0;  // workspace and staging
  // Places for weights of layers, or of experts, that are sent for every prompt, if they are.
  int64_t fed_layers = 0, fed_experts = 0;
  int64_t room = 0;  // for weights, keys and values: what may be taken, less those
};

class CudaDecoder {
 public:
  // Of a decoder with these options, without its memory. An error if the GPU does not run the model.
  static Result<CudaMeasure> Measure(const Model& host, const CudaDecoderOptions& options);
  // Uploads the weights of `host`, which holds them as its file does and is not needed afterwards. Of a host with some of
  // the layers (LoadOptions::layers) the decoder runs those: without the embedding it needs set_input(), without the head
  // it has no logits, and Residual() instead.
  static Result<std::unique_ptr<CudaDecoder>> Make(const Model& host, const CudaDecoderOptions& options);
  // The same architecture with random weights made on the GPU, for benchmarks.
  static Result<std::unique_ptr<CudaDecoder>> Random(const DecoderConfig& config,
                                                     const CudaDecoderOptions& options);
  ~CudaDecoder();

  const DecoderConfig& config() const;  // of a rank's part: its own heads, widths, tokens
  int64_t vocab() const;                // of all ranks
  int64_t active_bytes() const;
  int64_t device_bytes() const;     // weights
  int64_t peak_load_bytes() const;  // weights and staging while loading
  const CudaMemoryPlan& plan() const;
  int64_t buffer_bytes() const;  // workspace, without what sampling may add
  const std::map<std::string, int64_t>& bytes_by_format() const;
  const std::string& device_name() const;
  int device() const;
  // Whether other devices run a part of each step: the host has to be there for that.
  bool needs_host() const;

  // Where keys and values are, for all batches from the first on. `kv` is of this model and device, and
  // outlives the decoder.
  // And the states of recurrent layers, which a model that has some needs.
  Status UseKv(const CudaKv& kv, const CudaStates* states = nullptr);

  // Runs a batch; the logits of batch.logit_rows stay on the GPU until Logits() copies them.
  // `slots`: of each sequence's state, of a model with recurrent layers. `lora`: the adapters of each, which CheckLora()
  // has passed; empty if none has any.
  using Lora = std::span<const std::shared_ptr<const LoraMix>>;
  Status Forward(const RaggedBatch& batch, std::span<const int32_t> slots = {}, Lora lora = {});
  // [rows, vocab] of the last Forward or Decode; waits for it. Valid until the next call.
  Result<std::span<const float>> Logits();

  // What the first layer reads of a batch, x[tokens, hidden] in pinned memory, where there is no embedding here. The batch
  // has its tokens then, in decode steps as well.
  using Input = std::function<Status(const RaggedBatch& batch, float* x)>;
  void set_input(Input input);
  // Adds to x[tokens, hidden], in pinned memory, what the experts of layer `layer` make of it: of those layers whose
  // experts run elsewhere.
  using Experts = std::function<Status(int64_t layer, float* x, int64_t tokens)>;
  void set_experts(Experts experts);
  // [tokens, hidden], what the last layer left of the last Forward; waits for it. Valid until the next call.
  Result<std::span<const float>> Residual();

  // [tokens, hidden] of the last Forward: each token's hidden state after the last norm; waits for it. Valid
  // until the next call.
  Result<std::span<const float>> Hidden();

  // Queues one step of decoding: a batch with one token of each of up to max_decode() sequences. The next
  // tokens, the most likely ones or sampled as SetSampling() said, become the next step's input on the GPU.
  // `batch.tokens` may be empty: those that the step before chose. `batch.logit_rows` is not read: every
  // token has logits.
  enum class Choose { kMostLikely, kSampled };
  Status Decode(const RaggedBatch& batch, Choose choose = Choose::kMostLikely,
                std::span<const int32_t> slots = {}, Lora lora = {});

  // A sentence if sequences cannot run with these adapters here. Thread-safe.
  Status CheckLora(const LoraMix& mix) const;
  // Whether one batch can have all of them.
  bool LoraFits(Lora lora) const;
  // Waits for the tokens that the step at these positions chose; at most a few steps back.
  Status ChosenTokens(std::span<const int32_t> positions, std::span<int32_t> tokens);
  // Of row `row` of that step, once its tokens are here; for rows that ask for logprobs.
  const cuda::SampleLogprobs& ChosenLogprobs(int64_t row, int64_t position) const;

  // How the rows of what is queued from now on are sampled.
  Status SetSampling(std::span<const cuda::SampleRow> rows);
  // Chooses a token for each row of logits of the last Forward, and waits for them.
  Status Sample(std::span<int32_t> tokens);
  const cuda::SampleLogprobs& SampledLogprobs(int64_t row) const;
  // Copies to the GPU's memory, in order with the steps; `from` may change at once.
  Status Upload(void* to, const void* from, int64_t bytes);
  cudaStream_t stream() const;

  // Adds up the time of each operator from now on, each on its own: the layers' kernels do not overlap.
  // nullptr ends it.
  void set_profile(OpProfile* profile);
  // What a step must read and compute, by operator.
  std::vector<OperatorWork> Work(const StepShape& shape) const;

  static constexpr int64_t kMaxDecode = 512;
  int64_t max_decode() const;
  int64_t max_logit_rows() const;
  bool decodes_in_one_kernel() const;  // known from UseKv() on

  // What CpuDecoder::set_watch does; for Forward().
  void set_watch(LayerWatch watch);

  Status Synchronize();

 private:
  struct Impl;
  explicit CudaDecoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
