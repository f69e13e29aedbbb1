// With place/make_placed.cc and quantize/llm/layer/make_layer_worker.cc, the only file above the kernels that depends on
// whether CUDA was built in.
#include "engine/runners/make_runner.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/device.h"
#include "base/log.h"
#include "device/cpu_allocator.h"
#include "device/thread_pool.h"
#include "engine/runners/cpu_predictor_runner.h"
#include "engine/runners/cpu_runner.h"
#include "engine/runners/find_device.h"
#include "engine/runners/group/cpu_group.h"
#include "engine/runners/place/make_placed.h"
#include "engine/runners/runner_options.h"
#include "models/config/presets.h"

#if CELER_WITH_CUDA
#include "engine/runners/cuda_options.h"
#include "engine/runners/cuda_runner.h"
#include "engine/runners/group/cuda_group.h"
#endif

namespace celer {
namespace {

Status Check(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024)
    return Error::Invalid("`threads` ", options.threads, ": expected 1 to 1024, or 0 for all");
  if (options.chunk < 1 || options.chunk > 65536)
    return Error::Invalid("`chunk` ", options.chunk, ": expected 1 to 65536 tokens");
  if (options.sequences < 0 || options.sequences > 65536)
    return Error::Invalid("`sequences` ", options.sequences, ": expected 1 to 65536, or 0");
  if (options.mixed_chunk < 0 || options.mixed_chunk > 65536)
    return Error::Invalid("`mixed_chunk` ", options.mixed_chunk, ": expected 1 to 65536 tokens, or 0");
  if (options.lora.memory < 0)
    return Error::Invalid("`lora_memory` ", options.lora.memory, ": expected 0 or more bytes");
  if (options.kv_host_memory < 0)
    return Error::Invalid("`kv_host_memory` ", options.kv_host_memory, ": expected 0 or more bytes");
  if (options.kv_memory.bytes < 0 || !(options.kv_memory.share >= 0 && options.kv_memory.share <= 1) ||
      (options.kv_memory.bytes > 0 && options.kv_memory.share > 0))
    return Error::Invalid("`kv_memory` is a number of bytes, or a share from 0 to 1");
  const ParallelOptions& parallel = options.parallel;
  constexpr int64_t kMostRanks = 64, kMostSeconds = 86'400;
  if (parallel.tensor_parallel_size < 1 || parallel.tensor_parallel_size > kMostRanks)
    return Error::Invalid("`tensor_parallel_size` ", parallel.tensor_parallel_size, ": expected 1 to ",
                          kMostRanks);
  if (parallel.pipeline_parallel_size < 1 || parallel.pipeline_parallel_size > kMostRanks)
    return Error::Invalid("`pipeline_parallel_size` ", parallel.pipeline_parallel_size, ": expected 1 to ",
                          kMostRanks);
  if (parallel.ranks() > kMostRanks)
    return Error::Invalid("`pipeline_parallel_size` ", parallel.pipeline_parallel_size,
                          " times `tensor_parallel_size` ", parallel.tensor_parallel_size, " are ",
                          parallel.ranks(), " ranks; at most ", kMostRanks, " work together");
  if (parallel.micro_batch < 0)
    return Error::Invalid("`micro_batch` ", parallel.micro_batch, ": expected 1 or more tokens, or 0");
  if (parallel.watchdog_seconds < 1 || parallel.watchdog_seconds > kMostSeconds ||
      parallel.join_seconds < 1 || parallel.join_seconds > kMostSeconds)
    return Error::Invalid("ranks wait for each other for 1 to ", kMostSeconds, " seconds");
  if (parallel.rank >= parallel.ranks() || parallel.ranks_here < 1)
    return Error::Invalid("`rank` ", parallel.rank, ": expected 0 to ", parallel.ranks() - 1);
  if (options.threads > 0) return {};
  const auto from_environment = ThreadsFromEnvironment();
  return from_environment ? Status() : from_environment.error();
}

Result<std::unique_ptr<Runner>> MakeCpuRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                              std::unique_ptr<ThreadPool> pool, SharedWeights* shared) {
  CELER_ASSIGN(CpuRank rank, LoadCpuRank(options, kv_host_blocks, std::move(pool), {}, shared));
  std::unique_ptr<Runner> drafts;
  if (rank.predictor) {
    CELER_ASSIGN(KvCache own,
                 KvCache::Make(rank.predictor->config, rank.kv_format, rank.kv.blocks(), CpuAllocator()));
    drafts = std::make_unique<CpuPredictorRunner>(rank.predictor, *rank.pool, std::move(own), rank.kv_format,
                                                  rank.context);
  }
  auto runner = std::make_unique<CpuRunner>(std::move(rank));
  runner->set_predictor(std::move(drafts));
  return std::unique_ptr<Runner>(std::move(runner));
}

#if CELER_WITH_CUDA
Result<std::unique_ptr<Runner>> MakeCudaRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                               int device, ThreadPool& pool) {
  CELER_ASSIGN(CudaDecoderOptions cuda, CudaOptionsFor(options, device));
  std::unique_ptr<CudaDecoder> decoder;
  if (options.model.starts_with(kRandomModel)) {
    CELER_ASSIGN(const DecoderConfig config,
                 FindConfigPreset(std::string_view(options.model).substr(kRandomModel.size())));
    CELER_RETURN_IF_ERROR(FitCudaOptions(options, config, &cuda));
    CELER_ASSIGN(decoder, CudaDecoder::Random(config, cuda));
  } else {
    CELER_ASSIGN(const Model host, Model::Load(options.model, {.pack = false, .keep_fp8 = true}, pool));
    CELER_RETURN_IF_ERROR(FitCudaOptions(options, host.config(), &cuda));
    CELER_ASSIGN(decoder, CudaDecoder::Make(host, cuda));
  }
  const int64_t host_blocks = HostBlocks(options, decoder->config(), kv_host_blocks);
  CELER_ASSIGN(std::unique_ptr<CudaRunner> runner,
               CudaRunner::Make(std::move(decoder), cuda, host_blocks, pool.size()));
  return std::unique_ptr<Runner>(std::move(runner));
}
#endif

#if CELER_WITH_CUDA
// Stages on the GPUs from `first` on, one behind the other.
Result<std::unique_ptr<Runner>> MakeCudaPipeline(const EngineOptions& given, int64_t kv_host_blocks,
                                                 int first) {
  const auto stages = static_cast<int>(given.parallel.pipeline_parallel_size);
  const std::string option = "`pipeline_parallel_size` " + std::to_string(stages);
  if (given.parallel.tensor_parallel_size > 1)
    return Error::Unsupported(option, " and `tensor_parallel_size` together run on CPUs alone so far");
  if (given.parallel.rank >= 0)
    return Error::Unsupported(option,
                              ": stages on GPUs are of one process so far: start it once, without mpirun, "
                              "torchrun or --hosts, or use `device` cpu");
  if (const int found = CudaDeviceCount(); first + stages > found)
    return Error::Unsupported(option, ": GPUs cuda:", first, " to cuda:", first + stages - 1, " are needed, ",
                              found, found == 1 ? " was found" : " were found");
  EngineOptions placed = given;
  placed.parallel = {};
  for (int i = 0; i < stages; ++i) placed.placement.devices.push_back(DeviceOptions::Cuda(first + i));
  return MakeRunner(placed, kv_host_blocks);
}
#endif

// Several ranks.
Result<std::unique_ptr<Runner>> MakeGroupRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                                [[maybe_unused]] const Device& device) {
  const ParallelOptions& parallel = options.parallel;
  PlacementOptions others = options.placement;
  if (parallel.pipeline_parallel_size > 1) others.split.clear();
  if (others.any() && parallel.pipeline_parallel_size > 1)
    return Error::Unsupported("`pipeline_parallel_size` ", parallel.pipeline_parallel_size,
                              " says where layers are, and of the options for layers on several devices goes "
                              "with `split` alone");
  if (others.any())
    return Error::Unsupported("`tensor_parallel_size` ", parallel.tensor_parallel_size,
                              " splits every layer, and does not go with layers on several devices");
#if CELER_WITH_CUDA
  if (!device.is_cpu()) {
    const bool automatic = options.device == DeviceOptions::Auto();
    auto made = parallel.pipeline_parallel_size > 1
                    ? MakeCudaPipeline(options, kv_host_blocks, device.index)
                    : MakeCudaGroupRunner(options, kv_host_blocks, device.index);
    if (made || !automatic || made.error().code() != Error::Code::kUnsupported) return made;
    log::Info("{}; running on the CPU", made.error().message());
  }
#endif
  return MakeCpuGroupRunner(options, kv_host_blocks);
}

}  // namespace

Result<std::unique_ptr<Runner>> MakeRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                           SharedWeights* shared) {
  CELER_RETURN_IF_ERROR(Check(options));
  CELER_ASSIGN([[maybe_unused]] const Device device, FindDevice(options.device));
  if (options.parallel.ranks() > 1) return MakeGroupRunner(options, kv_host_blocks, device);
  auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = options.threads});
  Device on = device;
  if (options.placement.any()) {
    if (shared && shared->replicas > 1)
      return Error::Unsupported(
          "several replicas do not have layers on several devices; start a server for each");
    CELER_ASSIGN(const Placement placement, PlanFor(options, device, *pool));
    if (!placement.alone()) return MakePlacedRunner(options, kv_host_blocks, placement, std::move(pool));
    on = placement.stages[0].device;
  }
#if CELER_WITH_CUDA
  if (!on.is_cpu()) {
    auto made = MakeCudaRunner(options, kv_host_blocks, on.index, *pool);
    const bool any = options.device == DeviceOptions::Auto() && !options.placement.any();
    if (!made && any && made.error().code() == Error::Code::kOutOfMemory) {
      EngineOptions placed = options;
      placed.placement.gpu_layers = PlacementOptions::kAuto;
      log::Info("{}; so a part of the model runs on the CPU", made.error().message());
      auto parts = MakeRunner(placed, kv_host_blocks, shared);
      if (parts || parts.error().code() != Error::Code::kUnsupported) return parts;
    }
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
