#include "engine/runners/cuda_options.h"

#include <algorithm>

#include "engine/runners/make_runner.h"
#include "engine/runners/runner_options.h"

namespace celer {
namespace {

// Steps that are not the scheduler's, such as looking for a fault, may be larger than a small chunk.
constexpr int64_t kLeastStepTokens = 512;
// Default of the sequences in a decode step on a GPU; more take several batches.
constexpr int64_t kDefaultDecode = 256;

}  // namespace

Result<CudaDecoderOptions> CudaOptionsFor(const EngineOptions& options, int device) {
  // Not a reason to run the whole model on the CPU.
  if (DraftsWithPredictor(options.speculation))
    return Error::Invalid(
        "`speculation` mtp runs on the CPU only; use lookup or a draft model, or `device` cpu");
  if (options.kv == KvType::kInt4 || options.kv == KvType::kInt8Channel)
    return Error::Unsupported("`kv` ", Name(options.kv),
                              " runs on the CPU only; int8 and fp8 are the smallest on CUDA");
  return CudaDecoderOptions{.device = device,
                            .weights = options.weights,
                            .kv = FormatOf(options.kv).dtype,
                            .max_tokens = std::max(options.chunk, kLeastStepTokens),
                            .sequences = options.sequences > 0 ? options.sequences : kDefaultDecode,
                            .deterministic = options.deterministic,
                            .row_copies = options.row_copies,
                            .activations = options.activations,
                            .launch = options.launch,
                            .memory = options.placement.gpu_memory,
                            .lora_memory = options.lora.memory};
}

Status FitCudaOptions(const EngineOptions& options, const DecoderConfig& config, CudaDecoderOptions* cuda) {
  CELER_ASSIGN(cuda->context, ContextFor(options, config));
  cuda->kv_budget = BudgetFor(options, cuda->context);
  return {};
}

}  // namespace celer
