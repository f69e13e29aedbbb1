#include "celer/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <regex>

#include "limits/quantity.h"

namespace celer {
namespace {

template <class T>
struct Named {
  T value;
  const char* name;
};

constexpr Named<KvType> kKvTypes[] = {{KvType::kF32, "f32"},   {KvType::kF16, "f16"},
                                      {KvType::kBf16, "bf16"}, {KvType::kInt8, "int8"},
                                      {KvType::kFp8, "fp8"},   {KvType::kInt8Channel, "int8-channel"},
                                      {KvType::kInt4, "int4"}};
constexpr Named<RowCopies> kRowCopies[] = {
    {RowCopies::kAuto, "auto"}, {RowCopies::kOn, "on"}, {RowCopies::kOff, "off"}};
constexpr Named<Activations> kActivations[] = {
    {Activations::k16Bit, "16bit"}, {Activations::kFp8, "fp8"}, {Activations::kInt8, "int8"}};
constexpr Named<StepLaunch> kLaunches[] = {
    {StepLaunch::kEager, "eager"}, {StepLaunch::kGraph, "graph"}, {StepLaunch::kFused, "fused"}};

template <class T, size_t N>
const T* Find(const Named<T> (&table)[N], std::string_view name) {
  for (const Named<T>& row : table)
    if (name == row.name) return &row.value;
  return nullptr;
}

template <class T, size_t N>
const char* NameIn(const Named<T> (&table)[N], T value) {
  for (const Named<T>& row : table)
    if (value == row.value) return row.name;
  return "?";
}

template <class T, size_t N>
Result<T> ParseIn(const Named<T> (&table)[N], std::string_view text, const char* option) {
  if (const T* found = Find(table, text)) return *found;
  std::string names;
  for (const Named<T>& row : table) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return Error::Invalid("`", option, "` '", text, "' is not one of ", names);
}

template <class T>
bool IsNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<KvType> ParseKvType(std::string_view text) {
  return ParseIn(kKvTypes, text, "kv");
}
const char* Name(KvType type) {
  return NameIn(kKvTypes, type);
}

Result<RowCopies> ParseRowCopies(std::string_view text) {
  return ParseIn(kRowCopies, text, "row_copies");
}
const char* Name(RowCopies copies) {
  return NameIn(kRowCopies, copies);
}

Result<Activations> ParseActivations(std::string_view text) {
  return ParseIn(kActivations, text, "activations");
}
const char* Name(Activations activations) {
  return NameIn(kActivations, activations);
}

Result<StepLaunch> ParseStepLaunch(std::string_view text) {
  return ParseIn(kLaunches, text, "launch");
}
const char* Name(StepLaunch launch) {
  return NameIn(kLaunches, launch);
}

Result<DeviceOptions> DeviceOptions::Parse(std::string_view text) {
  constexpr std::string_view kCuda = "cuda", kCudaN = "cuda:";
  if (text == "auto") return Auto();
  if (text == "cpu") return DeviceOptions();
  if (text == kCuda) return Cuda();
  int index = -1;
  if (text.starts_with(kCudaN) && IsNumber(text.substr(kCudaN.size()), &index) && index >= 0)
    return Cuda(index);
  return Error::Invalid("`device` '", text, "' is not one of auto, cpu, cuda, cuda:N");
}

std::string DeviceOptions::ToString() const {
  if (kind == Kind::kAuto) return "auto";
  return kind == Kind::kCpu ? "cpu" : "cuda:" + std::to_string(index);
}

Result<std::vector<DeviceOptions>> ParseDevices(std::string_view text) {
  std::vector<DeviceOptions> devices;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    CELER_ASSIGN(const DeviceOptions one, DeviceOptions::Parse(text.substr(from, comma - from)));
    devices.push_back(one);
    from = comma + 1;
  }
  if (devices.size() > 1)
    for (const DeviceOptions& device : devices)
      if (device == DeviceOptions::Auto())
        return Error::Invalid("`device` '", text, "': auto is for one device; name each of several");
  return devices;
}

Result<std::vector<double>> ParseSplit(std::string_view text) {
  std::vector<double> split;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    double share = 0;
    if (!IsNumber(text.substr(from, comma - from), &share) || !(share > 0) || !std::isfinite(share))
      return Error::Invalid("`split` '", text, "': expected a number above 0 for each device, such as 3,1");
    split.push_back(share);
    from = comma + 1;
  }
  return split;
}

Result<int64_t> ParseGpuMemory(std::string_view text) {
  const auto bytes = ParseBytes(std::string(text), Units::kSi, "`gpu_memory`");
  if (!bytes) return bytes.error();
  return static_cast<int64_t>(*bytes);
}

Result<int64_t> ParseGpuLayers(std::string_view text) {
  int64_t layers = 0;
  if (text == "auto") return PlacementOptions::kAuto;
  if (IsNumber(text, &layers) && layers >= 0) return layers;
  return Error::Invalid("`gpu_layers` '", text, "': expected a number of layers, or auto");
}

Result<int64_t> ParseCpuExperts(std::string_view text) {
  int64_t layers = 0;
  if (text == "all") return PlacementOptions::kAll;
  if (IsNumber(text, &layers) && layers >= 0) return layers;
  return Error::Invalid("`cpu_experts` '", text, "': expected a number of layers, or all");
}

Result<std::vector<PlacePattern>> ParsePlace(std::string_view text) {
  std::vector<PlacePattern> place;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string_view one = text.substr(from, comma - from);
    const size_t equals = one.rfind('=');
    if (equals == std::string_view::npos || equals == 0)
      return Error::Invalid("`place` '", one, "': expected PATTERN=DEVICE, such as ffn_.*_exps=cpu");
    std::string name(one.substr(equals + 1));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    constexpr std::string_view kCuda = "cuda";
    if (name.starts_with(kCuda) && name.size() > kCuda.size() && name[kCuda.size()] != ':')
      name.insert(kCuda.size(), ":");
    const auto device = DeviceOptions::Parse(name);
    if (!device || *device == DeviceOptions::Auto())
      return Error::Invalid("`place` '", one, "': the device is cpu, cuda or cuda:N");
    PlacePattern& added = place.emplace_back(std::string(one.substr(0, equals)), *device);
    try {
      const std::regex compiled(added.pattern);
    } catch (const std::regex_error& error) {
      return Error::Invalid("`place` '", added.pattern, "' is no regular expression: ", error.what());
    }
    from = comma + 1;
  }
  return place;
}

Result<int64_t> ParseStreamPrompts(std::string_view text) {
  int64_t tokens = 0;
  if (text == "auto") return PlacementOptions::kAuto;
  if (text == "off") return 0;
  if (IsNumber(text, &tokens) && tokens >= 1) return tokens;
  return Error::Invalid("`stream_prompts` '", text, "': expected a number of tokens, auto or off");
}

Status SetPlacement(const PlacementTexts& texts, EngineOptions* options) {
  PlacementOptions& placement = options->placement;
  if (!texts.device.empty()) {
    CELER_ASSIGN(const std::vector<DeviceOptions> devices, ParseDevices(texts.device));
    options->device = devices.front();
    placement.devices = devices.size() > 1 ? devices : std::vector<DeviceOptions>();
  }
  if (!texts.split.empty()) {
    CELER_ASSIGN(placement.split, ParseSplit(texts.split));
  }
  if (!texts.gpu_memory.empty()) {
    CELER_ASSIGN(placement.gpu_memory, ParseGpuMemory(texts.gpu_memory));
  }
  if (!texts.gpu_layers.empty()) {
    CELER_ASSIGN(placement.gpu_layers, ParseGpuLayers(texts.gpu_layers));
  }
  if (!texts.cpu_experts.empty()) {
    CELER_ASSIGN(placement.cpu_experts, ParseCpuExperts(texts.cpu_experts));
  }
  if (!texts.place.empty()) {
    CELER_ASSIGN(placement.place, ParsePlace(texts.place));
  }
  return {};
}

Result<Speculation> Speculation::Parse(std::string_view text) {
  if (text == "off") return Speculation();
  if (text == "lookup") return Speculation{.kind = Kind::kLookup};
  if (text.empty())
    return Error::Invalid("`speculation` is empty; give off, lookup, mtp, self:int4 or a model");
  return Speculation{.kind = Kind::kDraft, .draft = std::string(text)};
}

std::string Speculation::ToString() const {
  if (kind == Kind::kNone) return "off";
  return kind == Kind::kLookup ? "lookup" : draft;
}

Result<LoraSpec> LoraSpec::Parse(std::string_view text) {
  LoraSpec spec;
  std::string_view path = text;
  if (const size_t at = text.find('='); at != std::string_view::npos) {
    spec.name = text.substr(0, at);
    path = text.substr(at + 1);
    if (spec.name.empty()) return Error::Invalid("`lora` '", text, "' has no name before '='");
  }
  if (const size_t at = path.rfind(':'); at != std::string_view::npos)
    if (IsNumber(path.substr(at + 1), &spec.scale)) path = path.substr(0, at);
  if (path.empty())
    return Error::Invalid("`lora` '", text, "' has no path; give NAME=PATH or NAME=PATH:SCALE");
  if (!std::isfinite(spec.scale)) return Error::Invalid("`lora` '", text, "': the scale is no finite number");
  spec.path = path;
  if (!spec.name.empty()) return spec;
  const std::filesystem::path last = spec.path.has_filename() ? spec.path : spec.path.parent_path();
  spec.name = (last.extension() == ".gguf" ? last.stem() : last.filename()).string();
  if (spec.name.empty() || spec.name == "." || spec.name == "..")
    return Error::Invalid("`lora` '", text, "' tells no name; give NAME=PATH");
  return spec;
}

Result<KvMemory> KvMemory::Parse(std::string_view text) {
  KvMemory memory;
  if (text.ends_with('%')) {
    double percent = 0;
    if (!IsNumber(text.substr(0, text.size() - 1), &percent) || !(percent > 0 && percent <= 100))
      return Error::Invalid("`kv_memory` '", text, "': a share is above 0 % and at most 100 %");
    memory.share = percent / 100;
    return memory;
  }
  const auto bytes = ParseBytes(std::string(text), Units::kSi, "`kv_memory`");
  if (!bytes) return bytes.error();
  memory.bytes = static_cast<int64_t>(*bytes);
  return memory;
}

}  // namespace celer
