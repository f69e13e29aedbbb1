#include "engine/runners/group/cuda_group.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/device.h"
#include "device/cuda_status.h"
#include "device/group/thread_group.h"
#include "engine/kv/kv_cache.h"
#include "engine/runners/cuda_options.h"
#include "engine/runners/cuda_runner.h"
#include "engine/runners/group/guarded.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/runner_options.h"
#include "models/config/presets.h"
#include "models/load/shard.h"

namespace celer {
namespace {

// What a rank needs to begin.
struct Start {
  EngineOptions options;
  int64_t kv_host_blocks = 0;
  int threads = 0;  // that load its part
  int64_t free_bytes = 0;
  cuda::CudaPeers* peers = nullptr;
};

Result<std::unique_ptr<CudaDecoder>> LoadPart(const Start& start, CudaDecoderOptions* cuda,
                                              DecoderConfig* whole) {
  const EngineOptions& options = start.options;
  const ShardOf of = {cuda->ranks.rank, start.peers->ranks()};
  if (options.model.starts_with(kRandomModel)) {
    CELER_ASSIGN(*whole, FindConfigPreset(std::string_view(options.model).substr(kRandomModel.size())));
    CELER_ASSIGN(Shard shard, PlanShard(*whole, of));
    cuda->ranks.vocab_parts = std::move(shard.vocab);
    CELER_RETURN_IF_ERROR(FitCudaOptions(options, shard.config, cuda));
    return CudaDecoder::Random(shard.config, *cuda);
  }
  ThreadPool pool(ThreadPool::Options{.threads = start.threads});
  CELER_ASSIGN(const Model host,
               Model::Load(options.model, {.pack = false, .keep_fp8 = true, .shard = of}, pool));
  *whole = host.whole_config();
  cuda->ranks.vocab_parts = host.vocab_parts();
  CELER_RETURN_IF_ERROR(FitCudaOptions(options, host.config(), cuda));
  return CudaDecoder::Make(host, *cuda);
}

// All ranks at once.
Result<CudaRank> LoadCudaRank(const Start& start, Communicator& group, CudaDecoderOptions* cuda) {
  const int device = start.peers->device(group.rank());
  CELER_ASSIGN(*cuda, CudaOptionsFor(start.options, device));
  cuda->lora_memory = 0;  // adapters are refused
  cuda->ranks = {
      .peers = start.peers, .rank = group.rank(), .vocab_parts = {}, .free_bytes = start.free_bytes};
  CudaRank out;
  CELER_ASSIGN(out.decoder, LoadPart(start, cuda, &out.config));
  // Until the slowest one has read its part.
  CELER_RETURN_IF_ERROR(group.Barrier(Communicator::Wait::kIdle));
  const DecoderConfig& own = out.decoder->config();
  CELER_ASSIGN(const int64_t blocks, LeastOfNumbers(group, out.decoder->plan().kv_blocks));
  CELER_ASSIGN(const int64_t host_blocks,
               LeastOfNumbers(group, HostBlocks(start.options, own, start.kv_host_blocks)));
  CELER_ASSIGN(out.kv, CudaKv::Make(device, own, cuda->kv, blocks, host_blocks));
  CELER_RETURN_IF_ERROR(out.decoder->UseKv(*out.kv));
  CELER_ASSIGN(out.weight_bytes, SumOfNumbers(group, out.decoder->active_bytes()));
  CELER_ASSIGN(out.kv_bytes_per_token, SumOfNumbers(group, KvBytesPerToken(own, cuda->kv)));
  // All ranks have the same formats, because the plan of the whole model says which.
  for (const auto& [format, bytes] : out.decoder->bytes_by_format()) {
    CELER_ASSIGN(out.bytes_by_format[format], SumOfNumbers(group, bytes));
  }
  return out;
}

Status FollowOnGpu(CudaRank* rank, Communicator& group) {
  CudaDecoder& decoder = *rank->decoder;
  const cudaStream_t stream = decoder.stream();
  const GroupCommand::Limits limits = {.vocab = rank->config.vocab,
                                       .kv_blocks = rank->kv->blocks(),
                                       .host_blocks = rank->kv->host_blocks(),
                                       .context = rank->config.max_positions + kKvBlockTokens};
  for (;;) {
    CELER_ASSIGN(const std::vector<std::byte> message, ReceiveMessage(group, 0, Communicator::Wait::kIdle));
    CELER_ASSIGN(GroupCommand command, GroupCommand::Decode(message, limits));
    RaggedBatch batch = command.step.View();
    switch (command.kind) {
      case GroupCommand::Kind::kStep:
        CELER_RETURN_IF_ERROR(decoder.Forward(batch));
        break;
      case GroupCommand::Kind::kDecodeOn:
      case GroupCommand::Kind::kDecode:
        if (command.kind == GroupCommand::Kind::kDecodeOn) batch.tokens = {};
        batch.logit_rows = {};
        CELER_RETURN_IF_ERROR(decoder.Decode(batch));
        break;
      case GroupCommand::Kind::kCopy:
        CELER_RETURN_IF_ERROR(rank->kv->Copy(command.copies, stream));
        break;
      case GroupCommand::Kind::kSwapOut:
        CELER_RETURN_IF_ERROR(rank->kv->SwapOut(command.copies, stream));
        break;
      case GroupCommand::Kind::kSwapIn:
        CELER_RETURN_IF_ERROR(rank->kv->SwapIn(command.copies, stream));
        break;
      case GroupCommand::Kind::kClear:
        CELER_RETURN_IF_ERROR(rank->kv->Clear(command.blocks, stream));
        break;
      case GroupCommand::Kind::kDiscard:
        break;
      case GroupCommand::Kind::kEnd:
        CELER_RETURN_IF_ERROR(decoder.Synchronize());
        return group.Barrier();
    }
  }
}

void LoadAndFollow(const Start& start, Communicator& group) {
  const CudaDeviceScope scope(start.peers->device(group.rank()));
  const Status ended = Guarded(group, [&]() -> Status {
    CudaDecoderOptions cuda;
    CELER_ASSIGN(CudaRank rank, LoadCudaRank(start, group, &cuda));
    const Status followed = FollowOnGpu(&rank, group);
    if (!followed) start.peers->Abort();  // or the rank could not end: its last steps wait for others
    return followed;
  });
  // Rank 0 gets the error from its own calls.
  if (!ended) start.peers->Abort();
}

bool Is(const char* name, const char* expected) {
  const char* const value = std::getenv(name);
  return value && std::strcmp(value, expected) == 0;
}

Result<std::vector<int>> DevicesFor(int ranks, int first) {
  std::vector<int> devices(static_cast<size_t>(ranks), first);
  if (Is("CELER_RANKS_SHARE_GPU", "1")) {
    // Loading a kernel while another rank's waits on the same GPU would wait for that one, forever.
    if (!Is("CUDA_MODULE_LOADING", "EAGER"))
      return Error::Invalid(
          "CELER_RANKS_SHARE_GPU=1 needs CUDA_MODULE_LOADING=EAGER (and CUDA_DEVICE_MAX_CONNECTIONS=32) in "
          "the environment");
    return devices;
  }
  std::iota(devices.begin(), devices.end(), first);
  if (const int found = CudaDeviceCount(); first + ranks > found)
    return Error::Unsupported("`tensor_parallel_size` ", ranks, ": GPUs cuda:", first,
                              " to cuda:", first + ranks - 1, " are needed, ", found,
                              found == 1 ? " was found" : " were found",
                              "; CELER_RANKS_SHARE_GPU=1 puts all ranks on one, to test them");
  return devices;
}

// Of the GPU's memory, for one of the ranks that are there.
Result<int64_t> FreeBytes(const std::vector<int>& devices, int device) {
  const CudaDeviceScope scope(device);
  size_t free = 0, total = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
  return static_cast<int64_t>(free) / std::count(devices.begin(), devices.end(), device);
}

}  // namespace

std::string CudaGroup::Describe(const std::string& gpu) const {
  const int first = peers_->device(0), last = peers_->device(size() - 1);
  return Device::Cuda(first).ToString() + " (" + gpu + ", " + std::to_string(size()) + " ranks" +
         (last > first ? " to " + Device::Cuda(last).ToString() : "") + ")";
}

Status CudaGroup::Combine(Status own) {
  // What the GPUs know says more than an error that followed from it.
  if (const Status missing = peers_->status(); !missing) own = missing;
  if (own) return leader_->status();
  peers_->Abort();
  leader_->communicator().Abort(own.error());
  return leader_->status();
}

Result<std::unique_ptr<Runner>> MakeCudaGroupRunner(const EngineOptions& given, int64_t kv_host_blocks,
                                                    int first) {
  const auto ranks = static_cast<int>(given.parallel.tensor_parallel_size);
  if (given.parallel.rank >= 0)
    return Error::Unsupported(
        "ranks on GPUs are threads of one process so far: start it once, without mpirun, torchrun or "
        "--hosts, or use `device` cpu");
  CELER_ASSIGN(const std::vector<int> devices, DevicesFor(ranks, first));
  CELER_ASSIGN(std::unique_ptr<cuda::CudaPeers> peers,
               cuda::CudaPeers::Make(devices, std::chrono::seconds(given.parallel.watchdog_seconds)));
  if (peers->shared() && given.speculation.kind == Speculation::Kind::kDraft)
    return Error::Unsupported("a draft model does not run beside ranks that share a GPU");
  EngineOptions options = given;
  // Each rank has its share of every block.
  options.kv_memory.bytes /= ranks;
  options.kv_host_memory /= ranks;
  const auto start_of = [&](int rank) -> Result<Start> {
    CELER_ASSIGN(const int64_t free, FreeBytes(devices, devices[static_cast<size_t>(rank)]));
    return Start{.options = options,
                 .kv_host_blocks = kv_host_blocks,
                 .threads = std::max(1, (options.threads > 0 ? options.threads : UsableCpus()) / ranks),
                 .free_bytes = free,
                 .peers = peers.get()};
  };
  std::vector<Start> starts;  // before the first of them takes any memory
  for (int r = 0; r < ranks; ++r) {
    CELER_ASSIGN(starts.emplace_back(), start_of(r));
  }
  ThreadGroupOptions meeting{.ranks = ranks,
                             .watchdog = std::chrono::seconds(options.parallel.watchdog_seconds)};
  if (2 * ranks > UsableCpus()) meeting.spin = {};
  std::vector<std::unique_ptr<Communicator>> communicators = MakeThreadGroup(meeting);
  std::vector<std::thread> followers;
  for (size_t r = 1; r < starts.size(); ++r)
    followers.emplace_back(
        [start = starts[r], own = std::move(communicators[r])] { LoadAndFollow(start, *own); });
  // From here on the followers end with it.
  auto group = std::make_unique<CudaGroup>(
      std::move(peers), std::make_unique<GroupLeader>(std::move(communicators[0]), std::move(followers)));
  CudaRank rank;
  CudaDecoderOptions cuda;
  CELER_RETURN_IF_ERROR(Guarded(group->communicator(), [&]() -> Status {
    CELER_ASSIGN(rank, LoadCudaRank(starts[0], group->communicator(), &cuda));
    return {};
  }));
  return std::unique_ptr<Runner>(
      std::make_unique<CudaRunner>(std::move(rank), cuda, starts[0].threads * ranks, std::move(group)));
}

}  // namespace celer
