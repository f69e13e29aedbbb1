#include "cli/limits/options.h"

#include <algorithm>

#include "base/device.h"
#include "base/result.h"
#include "base/suggest.h"
#include "celer/options.h"
#include "cli/shared/resolve_model.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"

namespace celer::cli {
namespace {

constexpr int64_t kMaxPositions = int64_t(1) << 30;
constexpr int64_t kMaxSequences = 1'000'000;
constexpr int64_t kMaxDevices = 1024;
constexpr size_t kMaxItems = 16;  // of one list; a table with more is no longer read

Status CheckLength(const std::vector<std::string>& list, const char* flag) {
  if (list.size() <= kMaxItems) return {};
  return Error::Invalid(flag, ": ", list.size(), " values are too many, give at most ", kMaxItems);
}

Result<std::vector<double>> Bits(const std::vector<std::string>& texts, const char* flag) {
  CELER_RETURN_IF_ERROR(CheckLength(texts, flag));
  std::vector<double> bits;
  for (const std::string& text : texts) {
    CELER_ASSIGN(const double value, ParsePositive(text, 64, flag));
    if (value < 0.1) return Error::Invalid(flag, " ", text, ": must be at least 0.1");
    if (std::find(bits.begin(), bits.end(), value) == bits.end()) bits.push_back(value);
  }
  return bits;
}

Result<std::vector<int64_t>> Lengths(std::vector<std::string> texts, const char* flag,
                                     std::vector<std::string> fallback) {
  if (texts.empty()) texts = std::move(fallback);
  CELER_RETURN_IF_ERROR(CheckLength(texts, flag));
  std::vector<int64_t> lengths;
  for (const std::string& text : texts) {
    CELER_ASSIGN(const int64_t value, ParseCount(text, kMaxPositions, flag));
    lengths.push_back(value);
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

Result<Units> ParseUnits(const std::string& text) {
  if (text == "si") return Units::kSi;
  if (text == "binary") return Units::kBinary;
  const std::string names[] = {"si", "binary"};
  const std::string hint = DidYouMean(text, names);
  return Error::Invalid("--units '", text, "': must be si or binary", hint);
}

// What of the model is on a CPU beside `gpu`.
Result<LimitsRequest::Split> MakeSplit(const LimitsOptions& o, const LlmShape& shape, const Machine& gpu,
                                       Units units) {
  LimitsRequest::Split split{.gpu = gpu, .host = {}};
  if (!o.gpu_memory.empty()) {
    CELER_ASSIGN(const double bytes, ParseBytes(o.gpu_memory, units, "--gpu-memory"));
    split.gpu.memory_bytes = std::min(split.gpu.memory_bytes, bytes);
  }
  if (!o.gpu_layers.empty()) {
    CELER_ASSIGN(const int64_t layers, ParseGpuLayers(o.gpu_layers));
    if (layers > shape.layers)
      return Error::Invalid("--gpu-layers ", layers, ": the model has ", shape.layers, " layers");
    if (layers != PlacementOptions::kAuto) split.gpu_layers = layers;
  }
  if (!o.cpu_experts.empty()) {
    if (shape.experts == 0) return Error::Invalid("--cpu-experts: the model is no mixture of experts");
    CELER_ASSIGN(const int64_t layers, ParseCpuExperts(o.cpu_experts));
    split.cpu_experts = layers == PlacementOptions::kAll ? shape.layers : std::min(layers, shape.layers);
  }
  if (o.host.empty() || o.host == "this") {
    CELER_ASSIGN(split.host, LoadOrMeasureThisMachine(/*allow_measure=*/true, Device::Cpu()));
  } else {
    CELER_ASSIGN(const Machine preset, FindMachinePreset(o.host));
    split.host = InUnits(preset, units);
  }
  return split;
}

}  // namespace

Result<LimitsRequest> MakeLimitsRequest(const LimitsOptions& o) {
  LimitsRequest r;
  CELER_ASSIGN(r.units, ParseUnits(o.units));
  CELER_ASSIGN(const std::vector<double> weights, Bits(o.weight_bits, "--weights-bits"));
  CELER_ASSIGN(const std::vector<double> kvs, Bits(o.kv_bits, "--kv-bits"));
  CELER_ASSIGN(r.prompts, Lengths(o.prompts, "--prompt", {"128", "1024"}));
  CELER_ASSIGN(r.contexts, Lengths(o.contexts, "--context", {"1024", "4096", "16384"}));
  CELER_ASSIGN(const int64_t batch, ParseCount(o.batch, kMaxSequences, "--batch"));
  CELER_ASSIGN(r.devices, ParseCount(o.devices, kMaxDevices, "--devices"));
  CELER_ASSIGN(r.stages, ParseCount(o.stages, kMaxDevices, "--pipeline"));
  if (!o.speculate.empty()) {
    CELER_ASSIGN(r.draft, DraftAcceptance::Parse(o.speculate));
  }

  std::vector<std::pair<double, double>> pairs = {{16, 16}, {8, 16}, {4, 16}, {6, 16}, {4, 8}};
  if (!weights.empty() || !kvs.empty()) {
    pairs.clear();
    for (const double w : weights.empty() ? std::vector<double>{16, 8, 4} : weights)
      for (const double kv : kvs.empty() ? std::vector<double>{16} : kvs) pairs.emplace_back(w, kv);
  }
  for (const auto& [w, kv] : pairs) {
    LlmSetup setup;
    setup.weight_bits = w;
    setup.kv_bits = kv;
    setup.batch = batch;
    setup.compute = o.compute;
    r.setups.push_back(setup);
  }

  // Cheap checks of every flag come before the model is read and the machine is measured.
  if (o.model.empty())
    return Error::Invalid("--model is missing; give a name from celer limits --list, or a path");
  CELER_ASSIGN(r.shape, ResolveModel(o.model));
  CELER_ASSIGN(Machine machine, ResolveMachine(o.machine, r.units));
  if (r.stages > r.shape.layers)
    return Error::Invalid("--pipeline ", r.stages, ": the model has ", r.shape.layers, " layers");
  r.machine = InStages(Together(std::move(machine), r.devices), r.stages);
  if (!o.gpu_memory.empty() || !o.gpu_layers.empty() || !o.cpu_experts.empty()) {
    CELER_ASSIGN(r.split, MakeSplit(o, r.shape, r.machine, r.units));
  } else if (!o.host.empty()) {
    return Error::Invalid(
        "--host is the CPU beside a GPU; it needs --gpu-memory, --gpu-layers or --cpu-experts");
  }
  for (const LlmSetup& setup : r.setups) {
    if (PeakFlops(r.machine, setup)) continue;
    std::vector<std::string> known = {"auto"};
    for (const auto& [dtype, peak] : r.machine.flops) known.push_back(dtype);
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    if (o.compute == "auto")
      return Error::Invalid("machine '", r.machine.name, "' has no f32 peak, which ", SetupName(setup),
                            " needs; choose one with --compute: ", names);
    return Error::Invalid("--compute '", o.compute, "': machine '", r.machine.name, "' has peaks for ", names,
                          DidYouMean(o.compute, known));
  }
  return r;
}

}  // namespace celer::cli
