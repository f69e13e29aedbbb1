// With quantize/llm/layer/make_layer_worker.cc, the only file above the kernels that depends on whether CUDA
// was built in.
#include "engine/runners/make_runner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "base/device.h"
#include "base/log.h"
#include "device/cpu_allocator.h"
#include "device/thread_pool.h"
#include "engine/runners/cpu_predictor_runner.h"
#include "engine/runners/cpu_runner.h"
#include "engine/runners/find_device.h"
#include "models/config/presets.h"
#include "models/kv_budget.h"
#include "models/recurrent_state.h"

#if CELER_WITH_CUDA
#include "engine/runners/cuda_runner.h"
#endif

namespace celer {
namespace {

constexpr int64_t kDefaultContext = 4096;
// Other programs use a CPU's memory, too.
constexpr double kCpuShare = 0.5;
// Steps that are not the scheduler's, such as looking for a fault, may be larger than a small chunk.
constexpr int64_t kLeastStepTokens = 512;
// Default of the sequences in a decode step on a GPU; more take several batches.
[[maybe_unused]] constexpr int64_t kDefaultDecode = 256;
// "random:llama-2-7b": a shape without a file, for benchmarks.
constexpr std::string_view kRandomPrefix = "random:";

Status Check(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024)
    return Error::Invalid("`threads` ", options.threads, ": expected 1 to 1024, or 0 for all");
  if (options.chunk < 1 || options.chunk > 65536)
    return Error::Invalid("`chunk` ", options.chunk, ": expected 1 to 65536 tokens");
  if (options.sequences < 0 || options.sequences > 65536)
    return Error::Invalid("`sequences` ", options.sequences, ": expected 1 to 65536, or 0");
  if (options.mixed_chunk < 0 || options.mixed_chunk > 65536)
    return Error::Invalid("`mixed_chunk` ", options.mixed_chunk, ": expected 1 to 65536 tokens, or 0");
  if (options.kv_host_memory < 0)
    return Error::Invalid("`kv_host_memory` ", options.kv_host_memory, ": expected 0 or more bytes");
  if (options.kv_memory.bytes < 0 || !(options.kv_memory.share >= 0 && options.kv_memory.share <= 1) ||
      (options.kv_memory.bytes > 0 && options.kv_memory.share > 0))
    return Error::Invalid("`kv_memory` is a number of bytes, or a share from 0 to 1");
  if (options.threads > 0) return {};
  const auto from_environment = ThreadsFromEnvironment();
  return from_environment ? Status() : from_environment.error();
}

Result<int64_t> ContextFor(const EngineOptions& options, const DecoderConfig& config) {
  if (options.context < 0 || options.context > config.max_positions)
    return Error::Invalid("`context` ", options.context, ": the model has ", config.max_positions,
                          " positions; give 1 to ", config.max_positions, ", or 0 for at most ",
                          kDefaultContext);
  return options.context > 0 ? options.context : std::min(config.max_positions, kDefaultContext);
}

KvBudget BudgetFor(const EngineOptions& options, int64_t context) {
  return {.bytes = options.kv_memory.bytes,
          .share = options.kv_memory.share,
          .context = context,
          .sequences = options.sequences};
}

KvFormat FormatOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return DType::kF32;
    case KvType::kF16:
      return DType::kF16;
    case KvType::kBf16:
      return DType::kBf16;
    case KvType::kInt8:
      return DType::kI8;
    case KvType::kFp8:
      return DType::kFp8E4M3;
    case KvType::kInt8Channel:
      return {DType::kI8, true};
    case KvType::kInt4:
      return DType::kQ4_1;
  }
  return DType::kF16;
}

int64_t HostBlocks(const EngineOptions& options, const DecoderConfig& config, int64_t at_least) {
  const int64_t blocks =
      std::max(at_least, options.kv_host_memory / KvBlockBytes(config, FormatOf(options.kv)));
  return std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max());  // tables number them in 32 bits
}

// What is free once the weights are resident; a part of the mapping may not have been read yet.
int64_t CpuRoom(const Model& model) {
  int64_t mapped = -model.owned_bytes();
  for (const auto& [format, bytes] : model.bytes_by_format()) mapped += bytes;
  return static_cast<int64_t>(std::min(AvailableHostBytes(), TotalHostBytes())) -
         std::max<int64_t>(mapped, 0);
}

Result<std::unique_ptr<Runner>> MakeCpuRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                              std::unique_ptr<ThreadPool> pool, SharedWeights* shared) {
  if (options.model.starts_with(kRandomPrefix))
    return Error::Unsupported(options.model,
                              ": weights are made up on a GPU only; write a file with celer synth instead");
  if (options.activations != Activations::k16Bit)
    return Error::Unsupported("`activations` ", Name(options.activations), " runs on CUDA only");
  if (options.weights.format == WeightFormat::kFp8)
    return Error::Unsupported("`weights` ", options.weights.ToString(),
                              " runs on CUDA only; int8 takes as many bits on the CPU");
  if (!shared->model) {
    CELER_ASSIGN(
        Model loaded,
        Model::Load(options.model, {.weights = options.weights, .pack_cache = options.pack_cache}, *pool));
    shared->model = std::make_shared<const Model>(std::move(loaded));
  }
  const Model& model = *shared->model;
  CELER_ASSIGN(const int64_t context, ContextFor(options, model.config()));
  const KvFormat format = FormatOf(options.kv);
  const DecoderConfig& config = model.config();
  const int64_t block = Info(format.dtype).block;
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.HeadDim(i) % block != 0)
      return Error::Unsupported("`kv` int4 shares a scale among ", block,
                                " values, and the heads of this model have ", config.HeadDim(i),
                                "; take `kv` int8");
  int64_t block_bytes = KvBlockBytes(model.config(), format);
  const bool predicts = DraftsWithPredictor(options.speculation);
  if (predicts) {
    if (!shared->predictor) {
      CELER_ASSIGN(Predictor loaded, LoadPredictor(model, options.weights, *pool));
      shared->predictor = std::make_shared<const Predictor>(std::move(loaded));
    }
    block_bytes += KvBlockBytes(shared->predictor->config, format);
  }
  // Before the first of them takes its part: pages count as taken only once they are written.
  if (!shared->room) shared->room = CpuRoom(model);
  const RecurrentConfig& recurrent = model.config().recurrent;
  CELER_ASSIGN(const KvPlan plan, PlanWithin(BudgetFor(options, context), *shared->room / shared->replicas,
                                             kCpuShare, block_bytes, StateBytes(recurrent)));
  const int64_t blocks = plan.blocks;
  auto kv = KvCache::Make(model.config(), format, blocks, CpuAllocator(),
                          HostBlocks(options, model.config(), kv_host_blocks));
  if (!kv)
    return kv.error().WithContext("keys and values of " + std::to_string(blocks * kKvBlockTokens) +
                                  " tokens (lower `kv_memory` or `context`)");
  auto states = StateCache::Make(recurrent, plan.states, CpuAllocator());
  if (!states)
    return states.error().WithContext("states of " + std::to_string(plan.states) +
                                      " sequences (lower `kv_memory`)");
  std::unique_ptr<Runner> drafts;
  if (predicts) {
    CELER_ASSIGN(KvCache own, KvCache::Make(shared->predictor->config, format, blocks, CpuAllocator()));
    drafts = std::make_unique<CpuPredictorRunner>(shared->predictor, *pool, std::move(own), format, context);
  }
  auto runner = std::make_unique<CpuRunner>(std::move(pool), shared->model, std::move(*kv), format, context,
                                            std::move(*states));
  runner->set_predictor(std::move(drafts));
  return std::unique_ptr<Runner>(std::move(runner));
}

#if CELER_WITH_CUDA
Result<std::unique_ptr<Runner>> MakeCudaRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                               int device, ThreadPool& pool) {
  // Not a reason to run the whole model on the CPU.
  if (DraftsWithPredictor(options.speculation))
    return Error::Invalid(
        "`speculation` mtp runs on the CPU only; use lookup or a draft model, or `device` cpu");
  if (options.kv == KvType::kInt4 || options.kv == KvType::kInt8Channel)
    return Error::Unsupported("`kv` ", Name(options.kv),
                              " runs on the CPU only; int8 and fp8 are the smallest on CUDA");
  CudaDecoderOptions cuda{.device = device,
                          .weights = options.weights,
                          .kv = FormatOf(options.kv).dtype,
                          .max_tokens = std::max(options.chunk, kLeastStepTokens),
                          .sequences = options.sequences > 0 ? options.sequences : kDefaultDecode,
                          .deterministic = options.deterministic,
                          .row_copies = options.row_copies,
                          .activations = options.activations,
                          .launch = options.launch};
  const auto ready = [&](const DecoderConfig& config) -> Status {
    CELER_ASSIGN(cuda.context, ContextFor(options, config));
    cuda.kv_budget = BudgetFor(options, cuda.context);
    return {};
  };
  std::unique_ptr<CudaDecoder> decoder;
  if (options.model.starts_with(kRandomPrefix)) {
    CELER_ASSIGN(const DecoderConfig config,
                 FindConfigPreset(std::string_view(options.model).substr(kRandomPrefix.size())));
    CELER_RETURN_IF_ERROR(ready(config));
    CELER_ASSIGN(decoder, CudaDecoder::Random(config, cuda));
  } else {
    CELER_ASSIGN(const Model host, Model::Load(options.model, {.pack = false, .keep_fp8 = true}, pool));
    CELER_RETURN_IF_ERROR(ready(host.config()));
    CELER_ASSIGN(decoder, CudaDecoder::Make(host, cuda));
  }
  const int64_t host_blocks = HostBlocks(options, decoder->config(), kv_host_blocks);
  CELER_ASSIGN(std::unique_ptr<CudaRunner> runner,
               CudaRunner::Make(std::move(decoder), cuda, host_blocks, pool.size()));
  return std::unique_ptr<Runner>(std::move(runner));
}
#endif

}  // namespace

Result<std::unique_ptr<Runner>> MakeRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                           SharedWeights* shared) {
  CELER_RETURN_IF_ERROR(Check(options));
  CELER_ASSIGN([[maybe_unused]] const Device device, FindDevice(options.device));
  auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = options.threads});
#if CELER_WITH_CUDA
  if (!device.is_cpu()) {
    auto made = MakeCudaRunner(options, kv_host_blocks, device.index, *pool);
    // "auto" falls back: a model that the GPU's kernels do not support runs on the CPU.
    if (made || options.device != DeviceOptions::Auto() || made.error().code() != Error::Code::kUnsupported)
      return made;
    log::Info("{}; running on the CPU", made.error().message());
  }
#endif
  SharedWeights alone;
  return MakeCpuRunner(options, kv_host_blocks, std::move(pool), shared ? shared : &alone);
}

}  // namespace celer
