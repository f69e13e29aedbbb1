// What an engine is made of: formats, devices and memory as types, with the names people write for them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "celer/error.h"

namespace celer {

// The format that weights are held in: as the file stores them, or converted while they are loaded. kFp8
// (e4m3) runs on CUDA only.
enum class WeightFormat : uint8_t { kAsStored, kF32, kF16, kBf16, kInt8, kInt4, kFp8 };

struct WeightOptions {
  WeightFormat format = WeightFormat::kAsStored;
  // Columns that share a scale: 32, 64 or 128; int8 and fp8: 0 = a whole row; int4: 0 = 32.
  int64_t group = 0;

  // "stored", "f32", "f16", "bf16", "int8", "int8-g64", "int4", "int4-g128", "fp8"
  static Result<WeightOptions> Parse(std::string_view text);
  std::string ToString() const;
};

// The type of keys and values. int8 has a scale per head and token; int8-channel one for 16 values, of keys
// along the tokens; int4 a scale and a minimum for 32. f32, int8-channel and int4 run on the CPU only.
enum class KvType : uint8_t { kF32, kF16, kBf16, kInt8, kFp8, kInt8Channel, kInt4 };
Result<KvType> ParseKvType(
    std::string_view text);  // "f32", "f16", "bf16", "int8", "fp8", "int8-channel", "int4"
const char* Name(KvType type);

struct DeviceOptions {
  // kAuto: a GPU if there is one that runs the model, else the CPU.
  enum class Kind : uint8_t { kAuto, kCpu, kCuda } kind = Kind::kCpu;
  int index = 0;  // of the GPU

  static constexpr DeviceOptions Cuda(int index = 0) { return {Kind::kCuda, index}; }
  static constexpr DeviceOptions Auto() { return {Kind::kAuto, 0}; }
  static Result<DeviceOptions> Parse(std::string_view text);  // "auto", "cpu", "cuda", "cuda:1"
  std::string ToString() const;
  bool operator==(const DeviceOptions&) const = default;
};

// How the kernels of a decode step get to a GPU.
enum class StepLaunch : uint8_t {
  kEager,  // one by one, each time
  kGraph,  // as one captured graph
  kFused,  // as a graph, with all layers in one kernel where there is one that can run them
};
Result<StepLaunch> ParseStepLaunch(std::string_view text);  // "eager", "graph", "fused"
const char* Name(StepLaunch launch);

// What keys and values may take: bytes, or a share of what is free once the weights are loaded. Neither: on a
// GPU nearly all that is left, on a CPU half of it; less if EngineOptions::sequences need less.
struct KvMemory {
  int64_t bytes = 0;
  double share = 0;  // 0 to 1

  static Result<KvMemory> Parse(std::string_view text);  // "40GiB", "512MiB", "80%"
};

// Weights of 16 bits a second time, row by row, on a GPU: prompts and batches of more than 24 sequences
// become faster, for as much memory as the layers take.
enum class RowCopies : uint8_t {
  kAuto,  // where that is at most a fifth of the GPU's memory
  kOn,
  kOff,
};
Result<RowCopies> ParseRowCopies(std::string_view text);  // "auto", "on", "off"
const char* Name(RowCopies copies);

// What the products of prompts and large batches read on a GPU, beside the weights.
enum class Activations : uint8_t {
  k16Bit,
  // 8 bits with a scale for each token, and weights of 8 bits with a scale for each row: faster, and less
  // exact (docs/quantization.md). Steps of up to 8 sequences are not concerned.
  kFp8,   // e4m3
  kInt8,  // rounded after a rotation of every 64 columns, which spreads outliers; weights are, too
};
Result<Activations> ParseActivations(std::string_view text);  // "16bit", "fp8", "int8"
const char* Name(Activations activations);

// What happens to a sequence that is preempted because the KV is full.
enum class Preemption : uint8_t {
  kAuto,       // whichever is predicted to cost less
  kSwap,       // its blocks are swapped out to host memory and back in; recomputed where there is no room
  kRecompute,  // its blocks are freed, and it is recomputed later
};

// Speculative decoding: tokens are drafted, and several are verified in one step. The output is distributed
// as without.
struct Speculation {
  enum class Kind : uint8_t {
    kNone,
    kLookup,  // prompt lookup: what followed an earlier occurrence of the last tokens
    kDraft,   // a draft model
  } kind = Kind::kNone;
  // A model with the same vocabulary, or "self:int4": the same one in a smaller weight format.
  std::string draft = {};
  int depth = 0;        // drafted tokens at most; 0: adaptive
  bool always = false;  // draft also where it makes decoding slower; depth 0 is then 4

  static Result<Speculation> Parse(std::string_view text);  // "off", "lookup", "self:int4", a model's path
  std::string ToString() const;
};

// A LoRA adapter of a model: a PEFT folder or a GGUF file.
struct LoraSpec {
  std::string name = {};  // what requests call it
  std::filesystem::path path = {};
  float scale = 1;  // 1: as it was trained

  // "NAME=PATH", "NAME=PATH:SCALE". Without a name it is called as its folder, or as its file without .gguf.
  static Result<LoraSpec> Parse(std::string_view text);
};

struct LoraOptions {
  std::vector<LoraSpec> adapters = {};  // loaded with the model; more may be later (celer/adapters.h)
  // Requests that say nothing of adapters get the sum of those in the list, with their scales; else the model alone.
  bool standing = true;
  int64_t max_adapters = 0;  // in memory at once; 0: any number
  int64_t max_rank = 0;      // that an adapter may have; 0: any
  // Bytes of a GPU for adapters, from which the least recently used ones go. 0: what `adapters` take, and 1 GiB more
  // if `grows`: others are loaded later.
  int64_t memory = 0;
  bool grows = false;
};

// Ranks that run one model together, each with a part of its weights and of its keys and values. On GPUs they are threads
// of this process.
struct ParallelOptions {
  int64_t tensor_parallel_size = 1;    // ranks that share every layer
  int64_t pipeline_parallel_size = 1;  // stages that have some of the layers each, with as many ranks
  int64_t micro_batch =
      0;  // tokens that a step of a pipeline is cut into at least; 0: what suits this machine
  // -1: all ranks are threads of this process. Else it is this one of the processes of the group; rank 0 answers
  // requests, and waits for the others at host:port.
  int rank = -1;
  std::string host = {};
  uint16_t port = 0;
  int64_t hosts = 0;              // that were named; 0: a launcher knows them
  int64_t ranks_here = 1;         // processes of the group on this machine: they share its memory
  int64_t join_seconds = 60;      // until all have come
  bool rejoin = false;            // a process that is not rank 0 joins again after the group has failed
  int64_t watchdog_seconds = 30;  // a rank that does not answer for so long has failed, and the group with it

  int64_t ranks() const { return tensor_parallel_size * pipeline_parallel_size; }
  bool operator==(const ParallelOptions&) const = default;
};

// Where the layers of a model are, if not all on one device (docs/placement.md). What is left out here is planned.
// Layers, or experts of layers, whose tensors a pattern finds.
struct PlacePattern {
  std::string pattern = {};  // a regular expression, found anywhere in a tensor's name
  DeviceOptions device = {};
  bool operator==(const PlacePattern&) const = default;
};

struct PlacementOptions {
  static constexpr int64_t kAuto =
      -1;                              // of gpu_layers: as many as fit; of stream_prompts: where it is faster
  static constexpr int64_t kAll = -1;  // of cpu_experts

  // Devices that share the layers, in order: the first one has the first layers. Empty: EngineOptions::device.
  std::vector<DeviceOptions> devices = {};
  std::vector<double> split =
      {};                  // how many layers each of them has, as proportions; empty: by what is free there
  int64_t gpu_memory = 0;  // bytes of each GPU that may be taken; 0: what is free
  std::optional<int64_t> gpu_layers = {};   // the last so many on the GPUs, those in front of them on the CPU
  std::optional<int64_t> cpu_experts = {};  // of the first so many layers, the experts on the CPU
  std::vector<PlacePattern> place = {};     // for each tensor the first one counts that finds it
  // Batches of at least so many tokens are computed on the GPU, which is sent the weights of layers and experts on the CPU
  // for that; 0: none are.
  int64_t stream_prompts = kAuto;

  bool any() const {
    return !devices.empty() || !split.empty() || gpu_memory > 0 || gpu_layers || cpu_experts ||
           !place.empty();
  }
  bool operator==(const PlacementOptions&) const = default;
};
// "cuda:0", or several: "cuda:0,cuda:1", "cpu,cuda:0".
Result<std::vector<DeviceOptions>> ParseDevices(std::string_view text);
Result<std::vector<double>> ParseSplit(std::string_view text);  // "3,1"
Result<int64_t> ParseGpuMemory(std::string_view text);          // "8GiB"
Result<int64_t> ParseGpuLayers(std::string_view text);          // "20", "auto"
Result<int64_t> ParseCpuExperts(std::string_view text);         // "20", "all"
// "ffn_.*_exps=cpu", or several with commas between them. Devices also as llama.cpp writes them: CPU, CUDA0.
Result<std::vector<PlacePattern>> ParsePlace(std::string_view text);
Result<int64_t> ParseStreamPrompts(std::string_view text);  // "64", "auto", "off"

struct EngineOptions {
  std::string model = {};  // a Hugging Face folder, a GGUF file, a llama2.c checkpoint
  WeightOptions weights = {};
  KvType kv = KvType::kF16;
  DeviceOptions device = {};
  StepLaunch launch = StepLaunch::kFused;
  std::filesystem::path pack_cache = {};  // a folder to keep packed weights in, for CPUs; empty: none is kept
  int threads = 0;                        // 0: as many as this process may use
  int64_t context = 0;  // tokens of the longest sequence; 0: the model's own limit, at most 4096
  int64_t chunk = 512;  // tokens of one step at most; longer prompts are computed in several steps
  // Likewise, of a step in which other sequences wait for their next token. 0: where this model on this
  // machine stops being bound by reading its weights, so that cutting prompts there costs next to nothing.
  int64_t mixed_chunk = 0;
  KvMemory kv_memory = {};     // of all sequences together
  int64_t kv_host_memory = 0;  // bytes for swapped-out blocks
  int64_t sequences = 0;       // how many long ones are expected at once; 0: as many as there is memory for
  bool prefix_cache = true;    // automatic prefix caching
  Preemption preemption = Preemption::kAuto;
  Speculation speculation = {};
  // Batch-invariant: a request's tokens do not depend on the rest of the batch, on chunked prefill, on cached
  // prefixes and on preemption. Always so on a CPU; a GPU is slower for it (docs/serving.md) and rejects what
  // it cannot do.
  bool deterministic = false;
  RowCopies row_copies = RowCopies::kAuto;
  Activations activations = Activations::k16Bit;
  LoraOptions lora = {};
  ParallelOptions parallel = {};
  PlacementOptions placement = {};
};

// Device and placement as they are written above; what is empty stays as it is.
struct PlacementTexts {
  std::string_view device = {}, split = {}, gpu_memory = {}, gpu_layers = {}, cpu_experts = {}, place = {};
};
Status SetPlacement(const PlacementTexts& texts, EngineOptions* options);

}  // namespace celer
