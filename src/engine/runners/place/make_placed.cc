#include "engine/runners/place/make_placed.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "device/cpu_allocator.h"
#include "engine/kv/kv_cache.h"
#include "engine/runners/cpu_runner.h"
#include "engine/runners/find_device.h"
#include "engine/runners/group/cpu_rank.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/place/cpu_experts.h"
#include "engine/runners/place/cpu_stage.h"
#include "engine/runners/place/front_kv.h"
#include "engine/runners/place/placed_runner.h"
#include "engine/runners/runner_options.h"
#include "limits/measured_machine.h"
#include "models/config/layer_range.h"
#include "models/config/plain_layers.h"

#if CELER_WITH_CUDA
#include "engine/runners/cuda_options.h"
#include "engine/runners/cuda_runner.h"
#include "engine/runners/place/cuda_stage.h"
#include "models/cuda/model.h"
#endif

namespace celer {
namespace {

// There must be room for so many: of the sequences that are expected, or for one.
int64_t LeastBlocks(const EngineOptions& options, const DecoderConfig& config, int64_t context) {
  const int64_t one = KvBlocksFor(context);
  if (options.kv_memory.bytes > 0)
    return std::max(one, options.kv_memory.bytes / KvBlockBytes(config, FormatOf(options.kv)));
  return one * std::max<int64_t>(1, options.sequences);
}

// Of options.placement.devices, or of the one device.
Result<std::vector<Device>> DevicesOf(const EngineOptions& options, const Device& device) {
  std::vector<Device> devices;
  for (const DeviceOptions& each : options.placement.devices) {
    CELER_ASSIGN(const Device found, FindDevice(each));
    devices.push_back(found);
  }
  if (devices.empty()) devices.push_back(device);
  const bool any_gpu =
      !options.placement.place.empty() ||  // which says itself where the layers are
      std::any_of(devices.begin(), devices.end(), [](const Device& d) { return !d.is_cpu(); });
  const PlacementOptions& asked = options.placement;
  if (!any_gpu && (asked.gpu_layers || asked.gpu_memory > 0 || asked.cpu_experts))
    return Error::Invalid("`",
                          asked.gpu_layers    ? "gpu_layers"
                          : asked.cpu_experts ? "cpu_experts"
                                              : "gpu_memory",
                          "`: the model is to run on the CPU alone, or there is no GPU here; leave it out");
  return devices;
}

#if CELER_WITH_CUDA
Result<CudaDecoderOptions> DecoderOptions(const EngineOptions& options, const DecoderConfig& config,
                                          int index) {
  CELER_ASSIGN(CudaDecoderOptions cuda, CudaOptionsFor(options, index));
  CELER_RETURN_IF_ERROR(FitCudaOptions(options, config, &cuda));
  cuda.row_copies = RowCopies::kOff;  // memory is what lacks
  return cuda;
}

Status MeasureGpus(const EngineOptions& options, const std::vector<Device>& devices, const Model& host,
                   PlacementFacts* facts) {
  for (const Device& device : devices) {
    if (device.is_cpu()) continue;
    CELER_ASSIGN(const CudaDecoderOptions cuda, DecoderOptions(options, host.config(), device.index));
    CELER_ASSIGN(const CudaMeasure measure, CudaDecoder::Measure(host, cuda));
    // Several decoders on one GPU each have a part of what may be taken.
    const auto times = std::count(devices.begin(), devices.end(), device);
    const int64_t each = (measure.room + measure.fixed) / times;
    facts->gpus.push_back({.index = device.index,
                           .room = each - measure.fixed,
                           .memory = times > 1 ? each : options.placement.gpu_memory});
    facts->fed_layers = measure.fed_layers;
    facts->fed_experts = measure.fed_experts;
    facts->embedding = measure.embedding;
    facts->head = measure.head;
    for (size_t i = 0; i < measure.layers.size(); ++i) {
      const CudaMeasure::Layer& layer = measure.layers[i];
      facts->layers[i] = {.weights = layer.weights, .experts = layer.experts, .kv_block = layer.kv_block};
    }
  }
  return {};
}
#else
Status MeasureGpus(const EngineOptions&, const std::vector<Device>&, const Model&, PlacementFacts*) {
  return {};
}
#endif

// Layers in front of a GPU's that it computes itself for long prompts.
struct Front {
  Front(Model model, std::vector<std::vector<int32_t>> key_order, ThreadPool& pool)
      : host(std::move(model)), kv(std::move(key_order), pool) {}
  const Model host;
  FrontKv kv;
  CpuStage* stage = nullptr;
};

// A stage with its weights, before the pool of blocks, which is the same size everywhere.
struct Loaded {
  std::unique_ptr<Model> model;  // of a CPU
#if CELER_WITH_CUDA
  CudaDecoderOptions options = {};
  std::unique_ptr<CudaDecoder> decoder;
#endif
  std::vector<std::unique_ptr<CpuExperts>> experts;  // of layers that follow each other, each
  int64_t block_bytes = 0;
  int64_t blocks = 0;  // that there is room for
};

class Maker {
 public:
  Maker(const EngineOptions& options, int64_t kv_host_blocks, const Placement& placement,
        std::unique_ptr<ThreadPool> pool)
      : options_(options),
        least_host_blocks_(kv_host_blocks),
        placement_(placement),
        pool_(std::move(pool)) {}

  Result<std::unique_ptr<Runner>> Run() {
    for (const Placement::Stage& stage : placement_.stages)
      CELER_RETURN_IF_ERROR(stage.device.is_cpu() ? LoadCpu(stage) : LoadGpu(stage));
    int64_t blocks = loaded_[0].blocks;
    for (const Loaded& one : loaded_) blocks = std::min(blocks, one.blocks);
    const int64_t host_blocks = HostBlocks(options_, config_, least_host_blocks_);
    std::vector<std::unique_ptr<Stage>> stages;
    std::vector<std::unique_ptr<CpuExperts>> experts;
    for (size_t i = 0; i + 1 < loaded_.size(); ++i) {
      CELER_ASSIGN(std::unique_ptr<Stage> stage, MakeStage(&loaded_[i], i == 0, blocks, host_blocks));
      if (front_ && i == 0) {
        front_->stage = static_cast<CpuStage*>(stage.get());
        front_->kv.set_layers(front_->stage->kv());
      }
      stages.push_back(std::move(stage));
      std::ranges::move(loaded_[i].experts, std::back_inserter(experts));
    }
    Loaded last = std::move(loaded_.back());
    auto runner = std::make_unique<PlacedRunner>(config_, pool_, std::move(stages));
    for (std::shared_ptr<const void>& each : kept_) runner->Keep(std::move(each));
    CELER_ASSIGN(std::unique_ptr<Runner> with_head, MakeLast(&last, *runner, blocks, host_blocks));
    std::ranges::move(last.experts, std::back_inserter(experts));
    runner->set_last(std::move(with_head), KvBytesPerToken(config_, FormatOf(options_.kv)),
                     std::move(experts));
    return std::unique_ptr<Runner>(std::move(runner));
  }

 private:
  // Of the whole model, out of its first part.
  Status SetConfig(const Model& part) {
    if (!loaded_.empty()) return {};
    config_ = part.whole_config();
    CELER_ASSIGN(context_, ContextFor(options_, config_));
    return {};
  }

  // As a part of `kv_memory`, which is for the keys and values of all layers.
  KvBudget BudgetOf(const DecoderConfig& part) const {
    KvBudget budget = BudgetFor(options_, context_);
    const double share = static_cast<double>(KvBlockBytes(part, FormatOf(options_.kv))) /
                         static_cast<double>(KvBlockBytes(config_, FormatOf(options_.kv)));
    budget.bytes = static_cast<int64_t>(static_cast<double>(budget.bytes) * share);
    return budget;
  }

  Status LoadCpu(const Placement::Stage& stage) {
    CELER_RETURN_IF_ERROR(CheckRunsOnCpu(options_));
    CELER_ASSIGN(
        Model model,
        Model::Load(options_.model,
                    {.weights = options_.weights, .pack_cache = options_.pack_cache, .layers = stage.layers},
                    *pool_));
    CELER_RETURN_IF_ERROR(SetConfig(model));
    Loaded loaded;
    loaded.model = std::make_unique<Model>(std::move(model));
    const DecoderConfig& part = loaded.model->config();
    const KvFormat format = FormatOf(options_.kv);
    CELER_RETURN_IF_ERROR(CheckKvFits(part, format));
    loaded.block_bytes = KvBlockBytes(part, format);
    // Several stages on the CPU share what is free there.
    const auto on_cpu = std::count_if(placement_.stages.begin(), placement_.stages.end(),
                                      [](const Placement::Stage& s) { return s.device.is_cpu(); });
    CELER_ASSIGN(loaded.blocks, BlocksWithin(BudgetOf(part), CpuRoom(*loaded.model, 1) / on_cpu, kCpuShare,
                                             loaded.block_bytes));
    loaded_.push_back(std::move(loaded));
    return {};
  }

#if CELER_WITH_CUDA
  Status LoadGpu(const Placement::Stage& stage) {
    const bool whole = placement_.stages.size() == 1;
    CELER_ASSIGN(Model loaded_host,
                 Model::Load(options_.model,
                             {.pack = false, .keep_fp8 = true, .layers = whole ? LayerRange() : stage.layers},
                             *pool_));
    const auto shared_host = std::make_shared<const Model>(std::move(loaded_host));
    const Model& host = *shared_host;
    CELER_RETURN_IF_ERROR(SetConfig(host));
    CELER_ASSIGN(CudaDecoderOptions cuda, DecoderOptions(options_, config_, stage.device.index));
    cuda.kv_budget = BudgetOf(host.config());
    cuda.experts_elsewhere = stage.cpu_experts;
    cuda.memory = stage.memory;
    if (placement_.stream_from > 0) {
      cuda.feed_pool = pool_.get();
      if (!stage.cpu_experts.empty()) {
        cuda.feed_experts_from = placement_.stream_from;
        kept_.push_back(shared_host);
      }
      if (!whole && placement_.stages[0].device.is_cpu()) CELER_RETURN_IF_ERROR(MakeFront(&cuda));
    }
    Loaded loaded;
    loaded.options = cuda;
    CELER_ASSIGN(loaded.decoder, MakeDecoder(host, &loaded.options));
    loaded.blocks = loaded.decoder->plan().kv_blocks;
    CELER_RETURN_IF_ERROR(LoadExperts(stage, &loaded));
    loaded_.push_back(std::move(loaded));
    return {};
  }

  // Without layers in front that cannot be there, unless that was asked for.
  Result<std::unique_ptr<CudaDecoder>> MakeDecoder(const Model& host, CudaDecoderOptions* cuda) const {
    auto made = CudaDecoder::Make(host, *cuda);
    if (made || !cuda->front.host || made.error().code() != Error::Code::kUnsupported ||
        options_.placement.stream_prompts != PlacementOptions::kAuto)
      return made;
    log::Info("{}; prompts of layers on the CPU are computed there", made.error().message());
    cuda->front = {};
    return CudaDecoder::Make(host, *cuda);
  }

  Status MakeFront(CudaDecoderOptions* cuda) {
    CELER_ASSIGN(
        Model model,
        Model::Load(options_.model, {.pack = false, .keep_fp8 = true, .layers = placement_.stages[0].layers},
                    *pool_));
    std::vector<std::vector<int32_t>> key_order;
    for (int64_t i = 0; i < model.config().layers; ++i)
      key_order.push_back(
          HeadRowOrder(model.config(), {.part = LoraPart::kK, .layer = i}, model.config().head_dim));
    front_ = std::make_shared<Front>(std::move(model), std::move(key_order), *pool_);
    kept_.push_back(front_);
    cuda->front = {.host = &front_->host,
                   .kv = &front_->kv,
                   .min_tokens = placement_.stream_from,
                   .embed = [front = front_.get()](const RaggedBatch& batch, float* x) -> Status {
                     front->stage->Embed(batch, x);
                     return {};
                   }};
    return {};
  }

  // Those of a GPU's layers that are on the CPU.
  Status LoadExperts(const Placement::Stage& stage, Loaded* loaded) {
    const std::vector<bool>& on_cpu = stage.cpu_experts;
    if (on_cpu.empty()) return {};
    CELER_RETURN_IF_ERROR(CheckRunsOnCpu(options_));
    struct Place {
      CpuExperts* experts = nullptr;
      int64_t layer = 0;  // of them
    };
    std::vector<Place> places(on_cpu.size());
    for (size_t first = 0; first < on_cpu.size();) {
      const auto end = static_cast<size_t>(
          std::find(on_cpu.begin() + static_cast<ptrdiff_t>(first), on_cpu.end(), !on_cpu[first]) -
          on_cpu.begin());
      if (on_cpu[first]) {
        const auto count = static_cast<int64_t>(end - first);
        CELER_ASSIGN(
            std::unique_ptr<CpuExperts> some,
            CpuExperts::Load(options_, {stage.layers.first + static_cast<int64_t>(first), count}, *pool_));
        for (size_t i = first; i < end; ++i) places[i] = {some.get(), static_cast<int64_t>(i - first)};
        loaded->experts.push_back(std::move(some));
      }
      first = end;
    }
    loaded->decoder->set_experts(
        [places = std::move(places)](int64_t layer, float* x, int64_t tokens) -> Status {
          const Place& place = places[static_cast<size_t>(layer)];
          place.experts->Add(place.layer, x, tokens);
          return {};
        });
    return {};
  }
#else
  Status LoadGpu(const Placement::Stage&) {
    return Error::Unsupported("celer was built without CUDA");
  }
#endif

  Result<KvCache> MakeKv(const Loaded& loaded, int64_t blocks, int64_t host_blocks) const {
    auto kv =
        KvCache::Make(loaded.model->config(), FormatOf(options_.kv), blocks, CpuAllocator(), host_blocks);
    if (!kv)
      return kv.error().WithContext("keys and values of " + std::to_string(blocks * kKvBlockTokens) +
                                    " tokens (lower `kv_memory` or `context`)");
    return std::move(*kv);
  }

  Result<std::unique_ptr<Stage>> MakeStage(Loaded* loaded, bool first, int64_t blocks, int64_t host_blocks) {
#if CELER_WITH_CUDA
    if (loaded->decoder) {
      CELER_ASSIGN(std::unique_ptr<CudaStage> stage,
                   CudaStage::Make(std::move(loaded->decoder), loaded->options, blocks, host_blocks));
      return std::unique_ptr<Stage>(std::move(stage));
    }
#endif
    CELER_ASSIGN(KvCache kv, MakeKv(*loaded, blocks, host_blocks));
    return std::unique_ptr<Stage>(std::make_unique<CpuStage>(std::move(loaded->model), std::move(kv),
                                                             FormatOf(options_.kv), first, *pool_));
  }

  Result<std::unique_ptr<Runner>> MakeLast(Loaded* last, PlacedRunner& placed, int64_t blocks,
                                           int64_t host_blocks) {
    const bool has_front = loaded_.size() > 1;
#if CELER_WITH_CUDA
    if (last->decoder) {
      if (has_front)
        last->decoder->set_input(
            [&placed](const RaggedBatch& batch, float* x) { return placed.Input(batch, x); });
      CELER_ASSIGN(
          std::unique_ptr<CudaRunner> runner,
          CudaRunner::Make(std::move(last->decoder), last->options, host_blocks, pool_->size(), blocks));
      return std::unique_ptr<Runner>(std::move(runner));
    }
#endif
    CELER_CHECK(has_front);
    CELER_ASSIGN(KvCache kv, MakeKv(*last, blocks, host_blocks));
    auto runner = std::make_unique<CpuRunner>(
        MakeWholeRank(pool_, std::move(*last->model), std::move(kv), FormatOf(options_.kv), context_));
    // What it makes of an input that failed is not used: PlacedRunner::Take() gives the error instead.
    runner->set_input([&placed](const RaggedBatch& batch, float* x) { (void)placed.Input(batch, x); });
    return std::unique_ptr<Runner>(std::move(runner));
  }

  const EngineOptions& options_;
  int64_t least_host_blocks_;
  const Placement& placement_;
  std::shared_ptr<ThreadPool> pool_;
  DecoderConfig config_;
  int64_t context_ = 0;
  std::vector<Loaded> loaded_;
  std::shared_ptr<Front> front_;
  std::vector<std::shared_ptr<const void>> kept_;
};

// What the patterns of the options find in the model.
Result<PlacedTensors> PlacedOf(const EngineOptions& options, const Device& rest, const Model& host) {
  const std::vector<PlacePattern>& patterns = options.placement.place;
  if (patterns.empty()) return PlacedTensors();
  std::vector<Device> devices;
  for (const PlacePattern& each : patterns) {
    CELER_ASSIGN(const Device device, FindDevice(each.device));
    devices.push_back(device);
  }
  const DecoderWeights& w = host.weights();
  PlaceQuery query{.patterns = patterns,
                   .devices = devices,
                   .rest = rest,
                   .layers = {},
                   .embedding = std::string(w.embedding.name),
                   .head = std::string(w.head.name)};
  for (const LayerWeights& layer : w.layers) query.layers.push_back(TensorsOf(layer));
  return PlaceByPatterns(query);
}

// Whether the GPU behind them computes layers of the CPU with the same kernels, and has keys and values of the same kind.
bool StreamableLayers(const EngineOptions& options, const DecoderConfig& config, const Placement& placement) {
  const KvType kv = options.kv;
  if (placement.stages.size() != 2 || config.IsLatent() || options.activations != Activations::k16Bit ||
      (kv != KvType::kF16 && kv != KvType::kBf16))
    return false;
  return HasPlainLayers(SliceLayers(config, placement.stages[0].layers)) ==
         HasPlainLayers(SliceLayers(config, placement.stages[1].layers));
}

int64_t Weights(const ExpertWeights& expert) {
  int64_t count = 0;
  for (const WeightView* w : {&expert.gate, &expert.up, &expert.down}) count += w->rows * w->cols;
  return count;
}

// As measured, or what is usual where nothing was.
StreamSpeeds SpeedsOf(const Placement& placement, const PlacementFacts& facts, const Model& host,
                      int threads) {
  constexpr double kBus = 20e9, kFlopsOfThread = 40e9;
  constexpr double kReached = 0.5;  // of the CPU's peak, by products
  StreamSpeeds speeds{.host_bytes_per_s = kBus, .cpu_flops = kFlopsOfThread * threads};
  const auto add = [&](const LayerWeights& l, bool whole) {
    for (const WeightView* w : {&l.q, &l.k, &l.v, &l.o})
      if (whole) speeds.macs += static_cast<double>(w->rows * w->cols);
    if (whole) speeds.macs += static_cast<double>(Weights(l.dense));
    speeds.macs += static_cast<double>(Weights(l.shared));
    if (!l.experts.empty())
      speeds.macs += static_cast<double>(Weights(l.experts[0]) * host.config().moe.experts_per_token);
  };
  for (const Placement::Stage& stage : placement.stages)
    for (int64_t i = stage.layers.first; i < stage.layers.end(); ++i) {
      const auto at = static_cast<size_t>(i), of_stage = static_cast<size_t>(i - stage.layers.first);
      const bool whole = stage.device.is_cpu();
      if (!whole && (stage.cpu_experts.empty() || !stage.cpu_experts[of_stage])) continue;
      add(host.weights().layers[at], whole);
      speeds.sent_bytes += static_cast<double>(whole ? facts.layers[at].weights : facts.layers[at].experts);
    }
  for (const PlacementFacts::Gpu& gpu : facts.gpus)
    if (const auto machine = LoadOrMeasureThisMachine(false, Device::Cuda(gpu.index));
        machine && machine->host_bytes_per_s > 0)
      speeds.host_bytes_per_s = machine->host_bytes_per_s;
  if (const auto machine = LoadOrMeasureThisMachine(false, Device::Cpu(), threads)) {
    double most = 0;
    for (const auto& peak : machine->flops) most = std::max(most, peak.second);
    if (most > 0) speeds.cpu_flops = most * kReached;
  }
  if (speeds.macs == 0) speeds.macs = 1;
  return speeds;
}

}  // namespace

Result<Placement> PlanFor(const EngineOptions& asked, const Device& device, ThreadPool& pool) {
  EngineOptions options = asked;
  if (options.model.starts_with(kRandomModel))
    return Error::Unsupported(options.model,
                              ": made-up weights are on one GPU; write a file with celer synth instead");
  if (DraftsWithPredictor(options.speculation))
    return Error::Unsupported(
        "`speculation` mtp does not run with layers on several devices; use lookup or a draft "
        "model");
  CELER_ASSIGN(const Model host, Model::Load(options.model, {.pack = false, .keep_fp8 = true}, pool));
  CELER_ASSIGN(const PlacedTensors placed, PlacedOf(options, device, host));
  CELER_ASSIGN(options.placement, WithPlacedLayers(options.placement, placed));
  CELER_ASSIGN(const std::vector<Device> devices, DevicesOf(options, device));
  const DecoderConfig& config = host.config();
  CELER_RETURN_IF_ERROR(CheckLayersPart(config));
  CELER_ASSIGN(const int64_t context, ContextFor(options, config));
  PlacementFacts facts;
  facts.tied = config.tied_embeddings;
  facts.kv_blocks = LeastBlocks(options, config, context);
  const KvFormat kv = FormatOf(options.kv);
  for (int64_t i = 0; i < config.layers; ++i)
    facts.layers.push_back({.kv_block = KvBlockBytes(SliceLayers(config, {.first = i, .count = 1}), kv)});
  CELER_RETURN_IF_ERROR(MeasureGpus(options, devices, host, &facts));
  CELER_ASSIGN(Placement placement, PlanPlacement(options.placement, facts, placed));
  if (!StreamableLayers(options, config, placement)) facts.fed_layers = 0;
  const int64_t from = options.placement.stream_prompts > 0
                           ? options.placement.stream_prompts
                           : StreamFrom(SpeedsOf(placement, facts, host, pool.size()));
  CELER_ASSIGN(placement, WithStreaming(placement, options.placement, facts, placed, from, options.chunk));
  log::Info("{}", placement.ToString(facts));
  return placement;
}

Result<std::unique_ptr<Runner>> MakePlacedRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                                 const Placement& placement,
                                                 std::unique_ptr<ThreadPool> pool) {
  return Maker(options, kv_host_blocks, placement, std::move(pool)).Run();
}

}  // namespace celer
