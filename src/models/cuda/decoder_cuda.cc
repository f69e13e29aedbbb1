#include "models/cuda/decoder.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/log.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "device/gpu/gpu_code.h"
#include "device/gpu_turns.h"
#include "kernels/llm/exchange/peers_cuda.h"
#include "kernels/llm/latent/cuda/latent_cuda.h"
#include "models/cuda/batch.h"
#include "models/cuda/cuda_lora.h"
#include "models/cuda/forward.h"
#include "models/cuda/graphs.h"
#include "models/cuda/host/front.h"
#include "models/cuda/memory/kv.h"
#include "models/cuda/memory/states.h"
#include "models/cuda/memory/upload.h"
#include "models/cuda/memory/workspace.h"
#include "models/cuda/model.h"
#include "models/cuda/operators.h"
#include "models/cuda/outputs.h"
#include "models/step_work.h"

namespace celer {
namespace {

// Of one sequence, when the batch is done.
int64_t MostKeys(const RaggedBatch& batch) {
  return batch.positions.empty() ? 0 : *std::max_element(batch.positions.begin(), batch.positions.end()) + 1;
}

Status CheckHeads(const DecoderConfig& config, DType kv) {
  const cuda::DeviceKv shape = DeviceKvShape(config, kv);
  if (!config.IsLatent()) {
    if (shape.padded_dim <= 256) return {};
    return Error::Unsupported("heads of ", config.head_dim,
                              " do not run on the GPU (256 at most); use `device` cpu");
  }
  if (cuda::LatentRuns(shape, static_cast<int>(config.latent.kv_rank)) && config.sliding_window == 0)
    return {};
  return Error::Unsupported("latent attention with rows of ", config.latent.kv_rank, " and ",
                            config.latent.rope_dim, config.sliding_window > 0 ? " and a sliding window" : "",
                            " does not run on the GPU (", cuda::kMaxLatentRank, " and ",
                            cuda::kMaxLatentRow - cuda::kMaxLatentRank, " at most); use `device` cpu");
}

}  // namespace

// The components; each has a file of its own.
struct CudaDecoder::Impl {
  using WeightBytes = std::function<int64_t(const cuda::DeviceWeights&)>;

  Impl(const DecoderConfig& config, const CudaDecoderOptions& asked)
      : options(asked), runs(CheckRunsOnGpu(config, asked.context)), marks(asked.device, fault) {
    model.Configure(config);
  }
  ~Impl() {
    if (stream) (void)stream->Synchronize();
  }

  Status Start();
  Status PlanFree();
  void PlanFed(const Model& host);
  Status MakeFed(const Model& host);
  Status RunFront(const RaggedBatch& batch);
  Status PlanAndCheck(const WeightBytes& weight_bytes);
  Status PlanRows();
  void MakeGemm();
  Status Allocate();
  Status CheckBatch(const RaggedBatch& asked, std::span<const int32_t> slots) const;
  Status PrepareLora(const RaggedBatch& asked, Lora mixes, std::span<const int32_t> logit_rows);
  Status QueueDecode(ForwardStrategy strategy, int count, bool sampled, bool captured);
  Result<GpuTurns::Turn> TakeTurn() { return turns ? turns->Take() : GpuTurns::Turn(); }
  Status TakeInput(const RaggedBatch& batch);
  Status SendInput(const RaggedBatch& batch, const Input& from);
  Status QueueLayers(ForwardStrategy strategy, int count, int rows);
  // Whether a decode step of so many tokens may be a captured graph.
  bool Captures(int64_t count) const {
    return options.launch != StepLaunch::kEager && count <= DecodeGraphs::kMaxSequences &&
           count <= forward->max_queued();
  }
  Status LaunchGraph(const DecodeGraphs::Kind& kind, FunctionRef<Status()> queue);

  CudaDecoderOptions options;
  Status runs;  // whether it does
  std::string device_name;
  CudaMemoryPlan plan;
  CudaModel model;
  CudaShape shape;
  CudaFault fault;
  std::optional<Stream> stream;
  std::unique_ptr<GpuTurns>
      turns;  // of the stream; none where ranks share the GPU: their kernels wait for each other
  CudaMarks marks;
  CudaWorkspace workspace;
  CudaOutputs outputs;
  std::optional<UploadRing> uploads;
  CudaBatch batch;
  std::unique_ptr<CudaLora> lora;  // none: options.lora_memory is 0
  int64_t lora_version = 0;        // that the graphs were captured with
  std::optional<CudaOperators> operators;
  std::optional<cuda::Gemm> gemm;  // until forward has it
  std::string no_gemm;             // why there is none
  std::optional<CudaForward> forward;
  std::unique_ptr<cuda::WeightFeed> experts_feed;  // none: options.feed_experts_from is 0
  std::unique_ptr<CudaFront> front;
  DecodeGraphs graphs;
  bool embeds = true, heads = true;  // whether it has the embedding, and the output head
  Input input;                       // where it has no embedding
  bool has_kv = false;
  int64_t state_slots = 0;
  int64_t last_rows = 0, last_tokens = 0;
};

CudaDecoder::CudaDecoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaDecoder::~CudaDecoder() = default;

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::Make(const Model& host, const CudaDecoderOptions& options) {
  const CudaDeviceScope scope(options.device);
  auto impl = std::make_unique<Impl>(host.config(), options);
  impl->embeds = static_cast<bool>(host.weights().embedding);
  impl->heads = static_cast<bool>(host.weights().head);
  impl->model.experts_elsewhere = options.experts_elsewhere;
  CELER_RETURN_IF_ERROR(impl->Start());
  impl->model.weights->set_plan(host.plan().With(options.weights));
  impl->PlanFed(host);
  CELER_RETURN_IF_ERROR(impl->PlanAndCheck([&](const cuda::DeviceWeights& store) {
    return CudaModel::PlannedBytes(host, store, options.experts_elsewhere);
  }));
  if (const Status loaded = impl->model.Load(host); !loaded)
    return loaded.error().message().starts_with("tensor '") ? loaded.error().WithContext(host.path())
                                                            : loaded.error();
  CELER_RETURN_IF_ERROR(impl->PlanRows());
  CELER_RETURN_IF_ERROR(impl->Allocate());
  CELER_RETURN_IF_ERROR(impl->MakeFed(host));
  return std::unique_ptr<CudaDecoder>(new CudaDecoder(std::move(impl)));
}

// Places for weights that are sent for every prompt.
void CudaDecoder::Impl::PlanFed(const Model& host) {
  const cuda::DeviceWeights& store = *model.weights;
  if (options.feed_experts_from > 0)
    plan.fed +=
        cuda::WeightFeed::DeviceBytes(CudaModel::FedExpertsBytes(host, store, options.experts_elsewhere)) +
        model.config.layers * CudaModel::RouterBytes(model.config);
  if (options.front.host) plan.fed += CudaFront::Bytes(*options.front.host, store, shape, options.kv);
}

Status CudaDecoder::Impl::MakeFed(const Model& host) {
  if (options.feed_experts_from > 0) {
    CELER_ASSIGN(experts_feed, cuda::WeightFeed::Make(options.device,
                                                      CudaModel::FedExpertsBytes(host, *model.weights,
                                                                                 options.experts_elsewhere),
                                                      *options.feed_pool));
    CELER_RETURN_IF_ERROR(model.FeedExperts(host, experts_feed.get()));
    forward->set_feed(experts_feed.get());
  }
  if (!options.front.host) return {};
  CELER_ASSIGN(front, CudaFront::Make(options.device, options.front, options.kv, options.weights,
                                      *options.feed_pool, *operators, &batch));
  return CudaStatus(cudaStreamSynchronize(nullptr), "getting the GPU ready");
}

Result<CudaMeasure> CudaDecoder::Measure(const Model& host, const CudaDecoderOptions& options) {
  const CudaDeviceScope scope(options.device);
  Impl impl(host.config(), options);
  CELER_RETURN_IF_ERROR(impl.Start());
  impl.model.weights->set_plan(host.plan().With(options.weights));
  const cuda::DeviceWeights& store = *impl.model.weights;
  const DecoderWeights& w = host.weights();
  CudaMeasure measure;
  for (int64_t i = 0; i < host.config().layers; ++i) {
    const CudaModel::LayerBytes bytes =
        CudaModel::PlannedLayer(host, w.layers[static_cast<size_t>(i)], store);
    measure.layers.push_back(
        {.weights = bytes.all,
         .experts = bytes.experts,
         .kv_block = DeviceKvBlockBytes(SliceLayers(host.config(), {.first = i, .count = 1}), options.kv)});
  }
  const auto planned = [&](const WeightView& view) {
    return cuda::DeviceWeights::PlannedBytes(store.PlanMatrix(view, WeightRole::kVocabulary));
  };
  measure.embedding = planned(w.embedding);
  measure.head = planned(w.head);
  measure.fed_layers = CudaFront::Bytes(host, store, impl.shape, options.kv);
  const std::vector<bool> all(static_cast<size_t>(host.config().layers), true);
  measure.fed_experts = cuda::WeightFeed::DeviceBytes(CudaModel::FedExpertsBytes(host, store, all)) +
                        host.config().layers * CudaModel::RouterBytes(host.config());
  CELER_RETURN_IF_ERROR(impl.PlanFree());
  impl.plan.workspace = CudaWorkspace::Bytes(impl.shape);
  impl.plan.staging = 2 * cuda::DeviceWeights::kStagingBytes;
  measure.fixed = impl.plan.workspace + impl.plan.staging;
  measure.room = impl.plan.room();
  return measure;
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::Random(const DecoderConfig& config,
                                                         const CudaDecoderOptions& options) {
  const CudaDeviceScope scope(options.device);
  auto impl = std::make_unique<Impl>(config, options);
  CELER_RETURN_IF_ERROR(impl->Start());
  CELER_RETURN_IF_ERROR(impl->PlanAndCheck(
      [&](const cuda::DeviceWeights& store) { return CudaModel::PlannedBytes(config, store); }));
  CELER_RETURN_IF_ERROR(impl->model.LoadRandom());
  CELER_RETURN_IF_ERROR(impl->PlanRows());
  CELER_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<CudaDecoder>(new CudaDecoder(std::move(impl)));
}

Status CudaDecoder::Impl::Start() {
  const DecoderConfig& config = model.config;
  cudaDeviceProp properties;
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, options.device), "asking what the GPU is"));
  device_name = properties.name;
  const GpuCode& code = CodeOnGpu(options.device);
  CELER_RETURN_IF_ERROR(CheckGpuCode(options.device, device_name, code));
  if (options.kv != DType::kF16 && options.kv != DType::kBf16 && options.kv != DType::kI8 &&
      options.kv != DType::kFp8E4M3)
    return Error::Unsupported("keys and values on the GPU are f16, bf16, int8 or fp8, not ",
                              Name(options.kv));
  CELER_RETURN_IF_ERROR(CudaModel::CheckMoe(config));
  CELER_RETURN_IF_ERROR(runs);
  CELER_RETURN_IF_ERROR(CheckHeads(config, options.kv));
  CELER_RETURN_IF_ERROR(CheckStatesRunOnGpu(config.recurrent));
  const CudaRankOptions& ranks = options.ranks;
  if (ranks.peers && options.activations != Activations::k16Bit)
    return Error::Unsupported("`activations` ", CodeName(options.activations),
                              " does not run on several ranks yet; leave it out");
  // Ranks on one GPU wait for each other inside of kernels, so none of them may hold more of it than it needs: no kernel
  // whose blocks wait for each other, and no library whose kernels are loaded when they are first used.
  const bool alone = !ranks.shares_gpu();
  const bool wgmma = cuda::WgmmaRuns() && options.wgmma && !options.exact && ForceAllowsWgmma() && alone;
  shape = {.config = &config,
           .max_tokens = options.max_tokens,
           .context = KvBlocksFor(options.context) * kKvBlockTokens,
           .kv = options.kv,
           .exact = options.exact,
           .wgmma = wgmma,
           .gemm = !options.exact && !wgmma && !model.general && alone,
           .fused = options.launch == StepLaunch::kFused && !options.deterministic && !model.general &&
                    !ranks.peers && embeds && heads,
           .deterministic = options.deterministic,
           .general = model.general,
           .lora = options.lora_memory > 0,
           .sequences = std::clamp<int64_t>(options.sequences, 1, std::min(kMaxDecode, options.max_tokens)),
           .all_vocab = ranks.all_vocab(),
           .leads = ranks.peers && ranks.rank == 0};
  if (options.deterministic && !wgmma)
    return Error::Unsupported(
        "`deterministic` needs products of tiles, which `exact` and a CELER_FORCE of others exclude; use "
        "`device` cpu");
  CELER_ASSIGN(Stream made, Stream::Create(options.device, true));
  stream.emplace(std::move(made));
  if (alone) {
    CELER_ASSIGN(turns, GpuTurns::Join(options.device, *stream));
  }
  uploads.emplace(options.device, *stream);
  CELER_ASSIGN(cuda::DeviceWeights store, cuda::DeviceWeights::Create(options.device, options.weights));
  model.weights.emplace(std::move(store));
  return {};
}

// What may be taken, with the margin.
Status CudaDecoder::Impl::PlanFree() {
  // Memory that the caching pool holds from earlier models of this process is free, too.
  CELER_ASSIGN(CachingPool * pool, CudaPool(options.device));
  pool->Trim();
  size_t free = 0, total = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
  plan.free = options.ranks.peers ? options.ranks.free_bytes : static_cast<int64_t>(free);
  plan.held = static_cast<int64_t>(total - free);
  constexpr int64_t kLeastMargin = int64_t{512} << 20;
  plan.margin = std::max(kLeastMargin, static_cast<int64_t>(total) / 50);
  if (options.memory > 0) plan.free = std::min(plan.free, options.memory + plan.margin);
  return {};
}

// `weight_bytes`: what the model's matrices take in a store.
Status CudaDecoder::Impl::PlanAndCheck(const WeightBytes& weight_bytes) {
  plan.weights = weight_bytes(*model.weights);
  plan.kv_block_bytes = DeviceKvBlockBytes(model.config, options.kv);
  plan.workspace = CudaWorkspace::Bytes(shape);
  if (shape.lora)
    plan.lora =
        options.lora_memory + CudaLora::FixedBytes(model.config, shape.max_tokens, shape.logit_rows());
  plan.staging = 2 * cuda::DeviceWeights::kStagingBytes;
  CELER_RETURN_IF_ERROR(PlanFree());
  KvBudget budget = options.kv_budget;
  budget.context = shape.context;
  plan.state_bytes = DeviceStateBytes(model.config.recurrent);
  const Result<KvPlan> planned =
      PlanWithin(budget, plan.room(), /*default_share=*/1, plan.kv_block_bytes, plan.state_bytes);
  plan.kv_blocks = planned ? planned->blocks : KvBlocksFor(shape.context);
  plan.state_slots = planned ? planned->states : 0;
  log::Info("cuda:{}: {}; {} tokens of KV would fit", options.device, plan.ToString(),
            std::max<int64_t>(0, plan.room()) / std::max<int64_t>(1, plan.kv_block_bytes) * kKvBlockTokens);
  if (planned) return {};
  if (plan.kv() <= plan.room())  // the KV budget itself is too small or too large
    return Error::OutOfMemory("cuda:", options.device, ": ", planned.error().message());
  std::vector<std::pair<std::string, int64_t>> lighter;
  for (const char* name : {"int8", "int4"}) {
    CELER_ASSIGN(const WeightOptions format, WeightOptions::Parse(name));
    CELER_ASSIGN(const cuda::DeviceWeights store, cuda::DeviceWeights::Create(options.device, format));
    lighter.emplace_back(name, weight_bytes(store));
  }
  return Error::OutOfMemory("cuda:", options.device, ": ", plan.ToString(), "; ",
                            plan.Remedy(lighter, DeviceKvBlockBytes(model.config, DType::kI8)));
}

// Once the weights are there, whose formats decide.
Status CudaDecoder::Impl::PlanRows() {
  const bool codes = options.activations != Activations::k16Bit;
  const bool demanded = codes || options.row_copies == RowCopies::kOn;
  if (model.general) {
    if (!demanded) return {};
    return Error::Unsupported("`", codes ? "activations" : "row_copies",
                              "` is for models whose layers are those of Llama; leave it out");
  }
  if (codes) CELER_RETURN_IF_ERROR(CudaModel::CheckCodes(model.config, options.activations));
  CudaRowFacts facts{.copies = options.row_copies,
                     .activations = options.activations,
                     .wgmma = shape.wgmma,
                     .fp8 = CodeOnGpu(options.device).stands_for >= 89,
                     .deterministic = shape.deterministic,
                     .keepable = model.CanKeepRows() && !options.ranks.shares_gpu()};
  CELER_ASSIGN(const bool wanted, WantsRows(facts));
  if (!wanted) return {};
  size_t free = 0, total = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
  CudaMemoryPlan with = plan;
  CudaShape wider = shape;
  wider.gemm = true;
  if (codes)
    wider.codes = options.activations == Activations::kInt8 ? cuda::Code::kInt8 : cuda::Code::kFp8;
  else
    wider.rows = true;
  with.rows = codes ? CudaModel::CodeBytes(model.config) : CudaModel::RowBytes(model.config);
  with.workspace = CudaWorkspace::Bytes(wider);
  constexpr int64_t kShare = 5;
  if (!demanded && with.rows > static_cast<int64_t>(total) / kShare) return {};
  MakeGemm();
  facts.no_cublaslt = no_gemm;
  CELER_ASSIGN(const bool possible, WantsRows(facts));
  if (!possible) {
    log::Info("cuda:{}: weights are not kept as rows: {}", options.device, no_gemm);
    return {};
  }
  KvBudget budget = options.kv_budget;
  budget.context = shape.context;
  const Result<int64_t> blocks = BlocksWithin(budget, with.room(), /*default_share=*/1, plan.kv_block_bytes);
  if (!blocks && demanded)
    return Error::OutOfMemory("cuda:", options.device, ": ", with.ToString(), "; leave out `",
                              codes ? "activations" : "row_copies", "`");
  if (!blocks) return {};
  with.kv_blocks = *blocks;
  plan = with;
  shape = wider;
  log::Info("cuda:{}: weights are also kept as rows for cuBLASLt: {}", options.device, plan.ToString());
  return codes ? model.KeepCodes(options.device, *shape.codes, nullptr)
               : model.KeepRows(options.device, nullptr);
}

void CudaDecoder::Impl::MakeGemm() {
  if (gemm || !no_gemm.empty()) return;
  if (auto made = cuda::Gemm::Create(options.device))
    gemm.emplace(std::move(*made));
  else
    no_gemm = made.error().message();
}

Status CudaDecoder::Impl::Allocate() {
  CELER_RETURN_IF_ERROR(workspace.Allocate(options.device, shape));
  CELER_RETURN_IF_ERROR(outputs.Make(options.device, shape));
  const CudaMemory& memory = workspace.memory();
  batch.Use(memory, shape);
  if (shape.lora) {
    lora = std::make_unique<CudaLora>(options.device, model, *stream, fault, options.lora_memory);
    CELER_RETURN_IF_ERROR(lora->Allocate(shape.max_tokens, shape.logit_rows()));
  }
  operators.emplace(CudaOperators{.model = model,
                                  .shape = shape,
                                  .memory = memory,
                                  .batch_state = batch,
                                  .stream = *stream,
                                  .fault = fault,
                                  .marks = marks,
                                  .ranks = options.ranks.peers ? &options.ranks : nullptr});
  if (options.ranks.shares_gpu())  // while others wait on the GPU nothing should be allocated
    CELER_RETURN_IF_ERROR(
        uploads->Reserve(4 * (8 * shape.max_tokens + shape.sequences * shape.table_width())));
  if (options.ranks.peers)
    options.ranks.peers->Publish(options.ranks.rank, {.parts = memory.rank_parts,
                                                      .logits = memory.logits,
                                                      .logits_width = static_cast<int>(model.config.vocab),
                                                      .lists = memory.rank_lists});
  if (shape.gemm) MakeGemm();
  if (shape.gemm && !gemm)
    log::Info("{}; prompts are computed {} tokens at a time", no_gemm, kMaxMatvecTokens);
  if (!shape.gemm) gemm.reset();  // there was no room for rows
  forward.emplace(*operators);
  CELER_RETURN_IF_ERROR(forward->Make(options.device, std::move(gemm)));
  // Clearing and copying went to the default stream, which the decoder's own does not wait for, and both
  // return before they are done. Not for the whole device: another decoder may be capturing a graph.
  return CudaStatus(cudaStreamSynchronize(nullptr), "getting the GPU ready");
}

Status CudaDecoder::UseKv(const CudaKv& kv, const CudaStates* states) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  if (d.has_kv) return Error::Invalid("UseKv() was called before");
  const cuda::DeviceKv shape = DeviceKvShape(d.model.config, d.options.kv);
  std::vector<DeviceLayer>& layers = d.model.layers;
  if (kv.layers().size() != layers.size() || kv.layers()[0].dtype != shape.dtype ||
      kv.layers()[0].block_bytes() != shape.block_bytes())
    return Error::Invalid("keys and values of another model");
  if (d.plan.state_bytes > 0 && (!states || states->layers().size() != layers.size() ||
                                 states->stride() * int64_t{4} != d.plan.state_bytes))
    return Error::Invalid("no states of this model's recurrent layers");
  for (size_t i = 0; i < layers.size(); ++i) layers[i].kv = kv.layers()[i];
  for (size_t i = 0; d.plan.state_bytes > 0 && i < layers.size(); ++i) {
    layers[i].recurrent.states = states->layers()[i];
    layers[i].recurrent.slot_stride = states->stride();
  }
  if (d.plan.state_bytes > 0) d.state_slots = states->slots();
  d.has_kv = true;
  CELER_RETURN_IF_ERROR(d.forward->UseKv());
  // What it copied went to the default stream.
  return CudaStatus(cudaStreamSynchronize(nullptr), "getting the GPU ready");
}

Status CudaDecoder::Impl::CheckBatch(const RaggedBatch& asked, std::span<const int32_t> slots) const {
  if (!has_kv) return Error::Invalid("a batch before UseKv(): there are no keys and values yet");
  if (state_slots > 0) {
    if (static_cast<int64_t>(slots.size()) != asked.seqs())
      return Error::Invalid(slots.size(), " states of ", asked.seqs(), " sequences");
    for (const int32_t slot : slots)
      if (slot < 0 || slot >= state_slots) return Error::Invalid("state ", slot, " of ", state_slots);
  }
  return batch.Check(asked);
}

// Where results must not depend on the batch, tokens without adapters take the way of the others, too.
Status CudaDecoder::Impl::PrepareLora(const RaggedBatch& asked, Lora mixes,
                                      std::span<const int32_t> logit_rows) {
  operators->lora = nullptr;
  if (mixes.empty() && !(lora && shape.deterministic)) return {};
  CELER_CHECK(lora != nullptr);  // CheckLora() has passed none
  CELER_RETURN_IF_ERROR(lora->Prepare(mixes, asked.seq_start, logit_rows, *uploads));
  operators->lora = lora.get();
  if (std::exchange(lora_version, lora->version()) != lora->version()) graphs.ForgetAdapted();
  return {};
}

Status CudaDecoder::CheckLora(const LoraMix& mix) const {
  if (mix.uses().empty()) return {};
  if (impl_->lora) return impl_->lora->Check(mix);
  return Error::Unsupported(
      "no GPU memory was set aside for LoRA adapters; load one with the model, or set "
      "`lora_memory`");
}

bool CudaDecoder::LoraFits(Lora lora) const {
  return lora.empty() || (impl_->lora && impl_->lora->FitTogether(lora));
}

// Behind whatever still reads x: the copy is in order with the steps.
Status CudaDecoder::Impl::TakeInput(const RaggedBatch& of) {
  if (embeds) return {};
  if (!input) return Error::Invalid("a batch before set_input(): there is no embedding here");
  return SendInput(of, input);
}

Status CudaDecoder::Impl::SendInput(const RaggedBatch& of, const Input& from) {
  const int64_t values = std::ssize(of.positions) * model.config.hidden;
  CELER_ASSIGN(std::byte * piece, uploads->Begin(values * 4));
  auto* const x = reinterpret_cast<float*>(piece);
  CELER_RETURN_IF_ERROR(from(of, x));
  if (model.residual_scale != 1)
    for (int64_t i = 0; i < values; ++i) x[i] /= model.residual_scale;
  CELER_RETURN_IF_ERROR(uploads->Copy(workspace.memory().x, x, values * 4));
  return uploads->End();
}

// In the place of what the host would send.
Status CudaDecoder::Impl::RunFront(const RaggedBatch& of) {
  CELER_RETURN_IF_ERROR(SendInput(of, front->options().embed));
  CELER_ASSIGN(const ForwardStrategy strategy,
               ChooseForward(front->Facts(static_cast<int>(of.token_count()), MostKeys(of))));
  return front->Run(strategy, of, *uploads);
}

// A batch on the stream, operator by operator.
Status CudaDecoder::Impl::QueueLayers(ForwardStrategy strategy, int count, int rows) {
  forward->Run(strategy, count, rows);
  return fault.Take("running the model on the GPU");
}

// With the host's part of it.
Status CudaDecoder::Impl::LaunchGraph(const DecodeGraphs::Kind& kind, FunctionRef<Status()> queue) {
  forward->set_queued(true);
  const Status launched = graphs.Launch(kind, *stream, queue);
  forward->set_queued(false);
  CELER_RETURN_IF_ERROR(launched);
  return !options.experts_elsewhere.empty() ? forward->AnswerExperts(kind.sequences) : Status();
}

Status CudaDecoder::Forward(const RaggedBatch& batch, std::span<const int32_t> slots, Lora lora) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const int64_t count = batch.token_count(), rows = static_cast<int64_t>(batch.logit_rows.size());
  if (count > d.options.max_tokens || rows > max_logit_rows())
    return Error::Invalid("a batch of ", count, " tokens and ", rows,
                          " rows of logits; the GPU was set up for ", d.options.max_tokens, " and ",
                          max_logit_rows());
  if (rows > 0 && !d.heads) return Error::Invalid("logits of layers that have no output head behind them");
  CELER_RETURN_IF_ERROR(d.CheckBatch(batch, slots));
  CELER_RETURN_IF_ERROR(d.PrepareLora(batch, lora, batch.logit_rows));
  // Of layers in front of others, a step of single tokens: what Decode() does for the last ones.
  const bool step = !d.heads && batch.seqs() == count && count <= max_decode() && !d.forward->watched();
  const int64_t keys = MostKeys(batch);
  CELER_ASSIGN(
      const ForwardStrategy strategy,
      ChooseForward(step ? d.forward->StepFacts(static_cast<int>(count), keys)
                         : d.forward->BatchFacts(static_cast<int>(count), static_cast<int>(rows), keys)));
  const bool in_front = !step && d.front && d.front->Takes(batch);
  GpuTurns::Turn turn;
  if (in_front) {
    CELER_ASSIGN(turn, d.TakeTurn());
    d.marks.Begin(*d.stream, /*captured=*/false);
    CELER_RETURN_IF_ERROR(d.RunFront(batch));
  }
  CELER_RETURN_IF_ERROR(
      d.batch.Send(batch, d.state_slots > 0 ? slots : std::span<const int32_t>(), *d.uploads));
  if (!in_front) {
    CELER_RETURN_IF_ERROR(d.TakeInput(batch));
    CELER_ASSIGN(turn, d.TakeTurn());
  }
  d.last_rows = rows;
  d.last_tokens = count;
  if (step && d.Captures(count) && !d.marks.on())
    return d.LaunchGraph({.strategy = strategy,
                          .sampled = false,
                          .adapted = d.operators->lora != nullptr,
                          .sequences = static_cast<int>(count)},
                         [&] { return d.QueueLayers(strategy, static_cast<int>(count), 0); });
  if (!in_front) d.marks.Begin(*d.stream, /*captured=*/false);
  d.forward->set_feeds(d.experts_feed && count >= d.options.feed_experts_from && !d.forward->watched());
  const Status queued = d.QueueLayers(strategy, static_cast<int>(count), static_cast<int>(rows));
  d.forward->set_feeds(false);
  d.marks.Mark(Op::kLogits);  // where they end
  if (in_front) CELER_RETURN_IF_ERROR(d.front->Finish());
  CELER_RETURN_IF_ERROR(queued);
  return d.marks.Take();
}

void CudaDecoder::set_input(Input input) {
  impl_->input = std::move(input);
}

void CudaDecoder::set_experts(Experts experts) {
  impl_->forward->set_experts(std::move(experts));
}

Result<std::span<const float>> CudaDecoder::Residual() {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  return d.outputs.Residual(d.workspace.memory(), d.last_tokens * d.model.config.hidden,
                            d.model.residual_scale, *d.stream);
}

Result<std::span<const float>> CudaDecoder::Logits() {
  const CudaDeviceScope scope(impl_->options.device);
  return impl_->outputs.Logits(impl_->workspace.memory(), impl_->last_rows, *impl_->stream);
}

Result<std::span<const float>> CudaDecoder::Hidden() {
  const Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const DecoderConfig& config = d.model.config;
  return impl_->outputs.Hidden(d.workspace.memory(), d.last_tokens,
                               {.weight = d.model.norm,
                                .bias = d.model.norm_bias,
                                .layer = config.norm == NormKind::kLayer,
                                .hidden = config.hidden,
                                .eps = config.norm_eps},
                               *d.stream);
}

// The step, often a single kernel, with the choice of the tokens at its end.
Status CudaDecoder::Impl::QueueDecode(ForwardStrategy strategy, int count, bool sampled, bool captured) {
  const CudaMemory& memory = workspace.memory();
  const cuda::GreedyTarget choice = outputs.Greedy(memory);
  marks.Begin(*stream, captured);
  const bool chosen = forward->RunStep(strategy, count, sampled ? nullptr : &choice);
  if (!chosen && operators->first_rank()) {
    marks.Mark(Op::kSampling);
    fault.Check(sampled ? cuda::LaunchSample(outputs.Sampled(memory, count), stream->get())
                        : cuda::LaunchGreedy({.logits = memory.Chosen(),
                                              .rows = count,
                                              .vocab = static_cast<int>(shape.vocab()),
                                              .best = memory.greedy_best,
                                              .tickets = memory.greedy_tickets,
                                              .to = choice},
                                             stream->get()));
  }
  operators->ShareTokens(count);
  marks.Mark(Op::kSampling);  // where it ends
  return fault.Take("queueing a decode step");
}

Status CudaDecoder::Decode(const RaggedBatch& batch, Choose choose, std::span<const int32_t> slots,
                           Lora lora) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const auto count = static_cast<int64_t>(batch.positions.size());
  if (count < 1 || count > max_decode())
    return Error::Invalid("a decode step of ", count, " sequences; 1 to ", max_decode(), " are possible");
  if (batch.seqs() != count || batch.seq_start[0] != 0 || batch.seq_start.back() != count)
    return Error::Invalid("a decode step has one token of each sequence, not ", count, " tokens of ",
                          batch.seqs(), " sequences");
  if (!d.heads) return Error::Invalid("a decode step of layers that have no output head behind them");
  if (!d.embeds && batch.tokens.empty())
    return Error::Invalid("a decode step whose tokens the layers in front have not seen");
  CELER_RETURN_IF_ERROR(d.CheckBatch(batch, slots));
  const bool sampled = choose == Choose::kSampled;
  const int rows = static_cast<int>(count);
  CELER_RETURN_IF_ERROR(d.PrepareLora(batch, lora, {}));
  CELER_ASSIGN(const ForwardStrategy strategy, ChooseForward(d.forward->StepFacts(rows, MostKeys(batch))));
  CELER_RETURN_IF_ERROR(
      d.batch.SendStep(batch, d.state_slots > 0 ? slots : std::span<const int32_t>(), *d.uploads));
  CELER_RETURN_IF_ERROR(d.TakeInput(batch));
  d.last_rows = count;
  CELER_ASSIGN(const GpuTurns::Turn turn, d.TakeTurn());
  const auto queue = [&] { return d.QueueDecode(strategy, rows, sampled, /*captured=*/true); };
  const bool hosted = !d.options.experts_elsewhere.empty();
  if (d.marks.on() && !hosted)  // a graph of its own, with the events inside
    CELER_RETURN_IF_ERROR(DecodeGraphs::LaunchOnce(*d.stream, queue));
  // Larger steps take so long that the host is ahead of them without a graph.
  else if (!d.Captures(count) || d.marks.on())
    CELER_RETURN_IF_ERROR(d.QueueDecode(strategy, rows, sampled, /*captured=*/false));
  else
    CELER_RETURN_IF_ERROR(d.LaunchGraph({.strategy = strategy,
                                         .sampled = sampled,
                                         .adapted = d.operators->lora != nullptr,
                                         .sequences = rows},
                                        queue));
  CELER_RETURN_IF_ERROR(d.outputs.StepDone(batch.positions[0]).Record(*d.stream));
  return d.marks.Take();
}

Status CudaDecoder::ChosenTokens(std::span<const int32_t> positions, std::span<int32_t> tokens) {
  CudaOutputs& outputs = impl_->outputs;
  CELER_RETURN_IF_ERROR(outputs.StepDone(positions[0]).Synchronize());
  for (size_t i = 0; i < positions.size(); ++i)
    tokens[i] = outputs.StepToken(static_cast<int64_t>(i), positions[i]);
  return {};
}

const cuda::SampleLogprobs& CudaDecoder::ChosenLogprobs(int64_t row, int64_t position) const {
  return impl_->outputs.StepLogprobs(row, position);
}

Status CudaDecoder::SetSampling(std::span<const cuda::SampleRow> rows) {
  return Upload(impl_->workspace.memory().sample_rows, rows.data(), static_cast<int64_t>(rows.size_bytes()));
}

Status CudaDecoder::Upload(void* to, const void* from, int64_t bytes) {
  const CudaDeviceScope scope(impl_->options.device);
  return impl_->uploads->Upload(to, from, bytes);
}

Status CudaDecoder::Sample(std::span<int32_t> tokens) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  d.marks.Begin(*d.stream, /*captured=*/false);
  d.marks.Mark(Op::kSampling);
  d.fault.Check(cuda::LaunchSample(d.outputs.SampledRows(d.workspace.memory(), static_cast<int>(d.last_rows)),
                                   d.stream->get()));
  d.marks.Mark(Op::kSampling);
  CELER_RETURN_IF_ERROR(d.fault.Take("sampling on the GPU"));
  CELER_RETURN_IF_ERROR(d.stream->Synchronize());
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = d.outputs.RowToken(static_cast<int64_t>(i));
  return d.marks.Take();
}

const cuda::SampleLogprobs& CudaDecoder::SampledLogprobs(int64_t row) const {
  return impl_->outputs.RowLogprobs(row);
}

const DecoderConfig& CudaDecoder::config() const {
  return impl_->model.config;
}
int64_t CudaDecoder::vocab() const {
  return impl_->shape.vocab();
}
int64_t CudaDecoder::active_bytes() const {
  return impl_->model.active_bytes();
}
int64_t CudaDecoder::device_bytes() const {
  return impl_->model.weights->device_bytes();
}
int64_t CudaDecoder::peak_load_bytes() const {
  return impl_->model.weights->peak_bytes();
}
const CudaMemoryPlan& CudaDecoder::plan() const {
  return impl_->plan;
}
int64_t CudaDecoder::buffer_bytes() const {
  return impl_->workspace.allocated();
}
const std::map<std::string, int64_t>& CudaDecoder::bytes_by_format() const {
  return impl_->model.weights->bytes_by_format();
}
const std::string& CudaDecoder::device_name() const {
  return impl_->device_name;
}
bool CudaDecoder::needs_host() const {
  return !impl_->embeds || !impl_->options.experts_elsewhere.empty();
}
int CudaDecoder::device() const {
  return impl_->options.device;
}
int64_t CudaDecoder::max_logit_rows() const {
  return impl_->shape.logit_rows();
}
int64_t CudaDecoder::max_decode() const {
  return impl_->shape.sequences;
}
bool CudaDecoder::decodes_in_one_kernel() const {
  return impl_->forward->decodes_in_one_kernel();
}
cudaStream_t CudaDecoder::stream() const {
  return impl_->stream->get();
}
void CudaDecoder::set_profile(OpProfile* profile) {
  impl_->marks.set_profile(profile);
}
std::vector<OperatorWork> CudaDecoder::Work(const StepShape& shape) const {
  const CudaModel& model = impl_->model;
  return CountStep(model.config, model.Matrices(),
                   DeviceKvBlockBytes(model.config, impl_->options.kv) / kKvBlockTokens, shape);
}
void CudaDecoder::set_watch(LayerWatch watch) {
  impl_->forward->set_watch(std::move(watch));
}
Status CudaDecoder::Synchronize() {
  return impl_->stream->Synchronize();
}

}  // namespace celer
