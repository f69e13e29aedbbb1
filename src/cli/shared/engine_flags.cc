#include "cli/shared/engine_flags.h"

#include <filesystem>

#include "cli/shared/parallel_flags.h"
#include "hub/model_path.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "limits/split.h"

namespace celer::cli {
namespace {

Result<int64_t> ParseHostMemory(std::string_view text) {
  const auto bytes = ParseBytes(std::string(text), Units::kSi, "`kv_host_memory`");
  if (!bytes) return bytes.error();
  return static_cast<int64_t>(*bytes);
}

// docs/placement.md
void AddPlacementFlags(CLI::App& app, EngineOptions* options) {
  options->device = DeviceOptions::Auto();
  PlacementOptions& placement = options->placement;
  app.add_option_function<std::string>(
         "--device",
         [options](const std::string& text) {
           const auto devices = ParseDevices(text);
           if (!devices) throw CLI::ValidationError(WithFlags(devices.error().message()));
           options->device = devices->front();
           if (devices->size() > 1) options->placement.devices = *devices;
         },
         "cpu, cuda, cuda:N, or auto: cuda if there is one; several share the layers: cuda:0,cuda:1")
      ->default_str(options->device.ToString());
  AddParsed(
      app, "--split", &placement.split, ParseSplit,
      "with several devices, how many layers each has, as proportions: 3,1 (default: by what is free there)",
      "");
  AddParsed(
      app, "--gpu-memory", &placement.gpu_memory, ParseGpuMemory,
      "what may be taken of each GPU, such as 8GiB; layers that do not fit run on the CPU (default: what is "
      "free)",
      "");
  app.add_option_function<std::string>(
      "--gpu-layers",
      [options](const std::string& text) {
        const auto layers = ParseGpuLayers(text);
        if (!layers) throw CLI::ValidationError(WithFlags(layers.error().message()));
        options->placement.gpu_layers = *layers;
      },
      "how many layers are on the GPU, the last ones; the others run on the CPU: a number, or auto for as "
      "many as "
      "fit beside their keys and values");
  app.add_option_function<std::string>(
      "--cpu-experts",
      [options](const std::string& text) {
        const auto layers = ParseCpuExperts(text);
        if (!layers) throw CLI::ValidationError(WithFlags(layers.error().message()));
        options->placement.cpu_experts = *layers;
      },
      "of a mixture on a GPU, the experts of the first so many layers, or of all, run on the CPU");
  app.add_option_function<std::vector<std::string>>(
         "--place",
         [options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             const auto place = ParsePlace(text);
             if (!place) throw CLI::ValidationError(WithFlags(place.error().message()));
             options->placement.place.insert(options->placement.place.end(), place->begin(), place->end());
           }
         },
         "PATTERN=DEVICE, several times: layers, or experts of layers, whose tensors a regular expression "
         "finds: 'blk\\.[0-9]\\.ffn_.*_exps=cpu'; the first pattern that finds a tensor counts")
      ->expected(1)
      ->take_all();
  AddParsed(app, "--stream-prompts", &placement.stream_prompts, ParseStreamPrompts,
            "of layers and experts on the CPU: batches of at least so many tokens are computed on the GPU, "
            "which is sent the weights; auto (where that is faster), off, or a number of tokens",
            "auto");
}

}  // namespace

void AddEngineFlags(CLI::App& app, std::string* model, EngineOptions* options) {
  app.add_option("MODEL", *model,
                 "a pulled name (smollm2), a GGUF file, a Hugging Face folder or a llama2.c .bin")
      ->required();
  AddParsed(app, "--weights", &options->weights, WeightOptions::Parse,
            "stored, or convert while loading: f32, f16, bf16, int8[-gN], int4[-gN]; on CUDA also fp8[-gN]",
            options->weights.ToString());
  AddParsed(
      app, "--kv", &options->kv, ParseKvType,
      "type of keys and values: f16, bf16, int8 with a scale per head and token, fp8; on the CPU also f32, "
      "int8-channel (a scale to 16 values, of keys by channel) and int4 (a scale and a minimum to 32: the "
      "smallest, and the least exact)",
      Name(options->kv));
  AddParsed(
      app, "--kv-memory", &options->kv_memory, KvMemory::Parse,
      "what keys and values may take, of all sequences together: 40GiB, or 80% of what is free once the "
      "weights are loaded (default: what the sequences need, or what is left)",
      "");
  AddPlacementFlags(app, options);
  app.add_option_function<std::string>(
         "--speculate",
         [options](const std::string& text) {
           const auto wanted = Speculation::Parse(text);
           if (!wanted) throw CLI::ValidationError(WithFlags(wanted.error().message()));
           options->speculation.kind = wanted->kind;
           options->speculation.draft = wanted->draft;
         },
         "speculative decoding: off, lookup (prompt lookup: what followed an earlier occurrence of the last "
         "tokens), "
         "mtp (the model's own layer for multi-token prediction: docs/models.md says which have one), "
         "self:int4 (the same model at fewer bits) or a smaller MODEL with the same vocabulary")
      ->default_str(options->speculation.ToString());
  app.add_option("--draft-depth", options->speculation.depth,
                 "with --speculate: drafted tokens per step at most (0: adaptive)")
      ->check(Between(0, 15));
  app.add_flag("--speculate-always", options->speculation.always,
               "with --speculate: draft also where that is predicted or measured to be slower");
  app.add_option("--chunk", options->chunk, "prompt tokens computed in one step")->check(Between(1, 65536));
  app.add_option("--mixed-chunk", options->mixed_chunk,
                 "likewise, while other sequences decode (default: where the step becomes compute-bound)")
      ->check(Between(1, 65536));
  AddParsed(
      app, "--kv-host-memory", &options->kv_host_memory, ParseHostMemory,
      "host memory for sequences that are swapped out when the KV is full, such as 8GiB (default: none, "
      "they are recomputed)",
      "");
  app.add_flag_callback(
      "--no-prefix-cache", [options] { options->prefix_cache = false; },
      "no prefix caching: compute every prompt from its beginning");
  app.add_flag("--deterministic", options->deterministic,
               "batch-invariant: tokens do not depend on what else runs (always so on a CPU)");
  AddParsed(app, "--row-copies", &options->row_copies, ParseRowCopies,
            "on a GPU, weights of 16 bits a second time, row by row, which makes prompts and large batches "
            "faster: auto (where that takes at most a fifth of its memory), on, off",
            Name(options->row_copies));
  AddParsed(app, "--activations", &options->activations, ParseActivations,
            "on a GPU, what prompts and more than 8 sequences at once are computed with: 16bit, or fp8 or "
            "int8 with a scale per token and weights of the same kind, which is faster and less exact",
            Name(options->activations));
  AddParallelFlags(app, &options->parallel);
  app.add_option("--threads", options->threads, "0: all that this process may use")->check(Between(0, 1024));
  app.add_flag_function(
         "--pack-cache",
         [options](int64_t wanted) {
           const std::filesystem::path cache = DefaultCacheDir();
           if (wanted > 0 && cache.empty())
             throw CLI::ValidationError("--pack-cache: set CELER_CACHE to a folder");
           options->pack_cache = wanted > 0 ? cache / "packed" : std::filesystem::path();
         },
         "keep weights as packed for this CPU in the cache folder and map them at the next start; off by "
         "default: it takes as much disk as the model again")
      ->envname("CELER_PACK_CACHE");
}

Status ResolveModels(const std::string& model, EngineOptions* options) {
  CELER_ASSIGN(const std::filesystem::path path, ResolveModelPath(model));
  options->model = path.string();
  if (options->speculation.always && options->speculation.kind == Speculation::Kind::kNone)
    return Error::Invalid("--speculate-always needs --speculate, which says where drafts come from");
  CELER_RETURN_IF_ERROR(FindRank(&options->parallel));
  std::string& draft = options->speculation.draft;
  if (!draft.empty() && draft != "mtp" && !draft.starts_with("self:")) {
    CELER_ASSIGN(const std::filesystem::path draft_path, ResolveModelPath(draft));
    draft = draft_path.string();
  }
  FollowIfNotFirst(*options);
  return {};
}

namespace {

// Of "cuda:0 (NVIDIA H200)".
Device DeviceNamed(std::string_view name) {
  const auto device = Device::Parse(name.substr(0, name.find(' ')));
  return device ? *device : Device::Cpu();
}

}  // namespace

Device DeviceOf(const Engine::Info& info) {
  return DeviceNamed(info.device);
}

Result<Machine> MachineOf(const Engine::Info& info, bool allow_measure) {
  if (info.parts.empty()) return LoadOrMeasureThisMachine(allow_measure, DeviceOf(info), info.threads);
  std::vector<MachineShare> shares;
  double crossing = 0;  // seconds of one
  for (const Engine::Info::Part& part : info.parts) {
    CELER_ASSIGN(Machine machine,
                 LoadOrMeasureThisMachine(allow_measure, DeviceNamed(part.device), info.threads));
    if (!DeviceNamed(part.device).is_cpu()) crossing = CrossingSeconds(machine);
    shares.push_back({std::move(machine),
                      static_cast<double>(part.weight_bytes) / static_cast<double>(info.weight_bytes)});
  }
  return TakingTurns(shares,
                     static_cast<double>(info.crossings) * crossing / static_cast<double>(info.weight_bytes));
}

}  // namespace celer::cli
