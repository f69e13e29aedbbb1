// The forward pass of cpu_decoder.h on a GPU. The five operators of a layer are the same, but batch, weights,
// activations and KV live in the GPU's memory and a decode step is one captured CUDA graph; so it has a class
// of its own.
#pragma once

#include <cstdint>
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
#include "models/cuda/memory/memory_plan.h"
#include "models/kv_budget.h"
#include "models/layer_watch.h"
#include "models/load/model.h"
#include "models/op_profile.h"

namespace celer {

class CudaKv;
class CudaStates;

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
};

class CudaDecoder {
 public:
  // Uploads the weights of `host`, which holds them as its file does and is not needed afterwards.
  static Result<std::unique_ptr<CudaDecoder>> Make(const Model& host, const CudaDecoderOptions& options);
  // The same architecture with random weights made on the GPU, for benchmarks.
  static Result<std::unique_ptr<CudaDecoder>> Random(const DecoderConfig& config,
                                                     const CudaDecoderOptions& options);
  ~CudaDecoder();

  const DecoderConfig& config() const;
  int64_t active_bytes() const;
  int64_t device_bytes() const;     // weights
  int64_t peak_load_bytes() const;  // weights and staging while loading
  const CudaMemoryPlan& plan() const;
  int64_t buffer_bytes() const;  // workspace, without what sampling may add
  const std::map<std::string, int64_t>& bytes_by_format() const;
  const std::string& device_name() const;
  int device() const;

  // Where keys and values are, for all batches from the first on. `kv` is of this model and device, and
  // outlives the decoder.
  // And the states of recurrent layers, which a model that has some needs.
  Status UseKv(const CudaKv& kv, const CudaStates* states = nullptr);

  // Runs a batch; the logits of batch.logit_rows stay on the GPU until Logits() copies them.
  // `slots`: of each sequence's state, of a model with recurrent layers.
  Status Forward(const RaggedBatch& batch, std::span<const int32_t> slots = {});
  // [rows, vocab] of the last Forward or Decode; waits for it. Valid until the next call.
  Result<std::span<const float>> Logits();

  // [tokens, hidden] of the last Forward: each token's hidden state after the last norm; waits for it. Valid
  // until the next call.
  Result<std::span<const float>> Hidden();

  // Queues one step of decoding: a batch with one token of each of up to max_decode() sequences. The next
  // tokens, the most likely ones or sampled as SetSampling() said, become the next step's input on the GPU.
  // `batch.tokens` may be empty: those that the step before chose. `batch.logit_rows` is not read: every
  // token has logits.
  enum class Choose { kMostLikely, kSampled };
  Status Decode(const RaggedBatch& batch, Choose choose = Choose::kMostLikely,
                std::span<const int32_t> slots = {});
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
