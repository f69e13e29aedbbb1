#include "limits/measured_machine.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/log.h"
#include "device/cpu_features.h"
#include "device/gpu/gpu_code.h"
#include "io/file/atomic_file.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// One more whenever the loops or what they count change, so that older results are not mixed with new ones.
constexpr int kProbeVersion = 6;
constexpr uintmax_t kMaxCacheFile = 1 << 20;

uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Reads members of a JSON object; the first missing or odd one is remembered, and everything after is
// skipped.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {
    if (!object.is_object()) problem_ = "an object is missing";
  }

  void Read(const char* name, std::string& out) {
    if (const Json* value = Member(name, &Json::is_string)) out = value->get<std::string>();
  }
  void Read(const char* name, bool& out) {
    if (const Json* value = Member(name, &Json::is_boolean)) out = value->get<bool>();
  }
  void Read(const char* name, double& out) {
    const Json* value = Member(name, &Json::is_number);
    if (value == nullptr) return;
    out = value->get<double>();
    if (!std::isfinite(out) || out < 0) problem_ = fmt::format("'{}' is not a rate", name);
  }
  void Read(const char* name, int& out) {
    double number = 0;
    Read(name, number);
    if (!problem_.empty()) return;
    if (number > 1e9 || number != std::floor(number))
      problem_ = fmt::format("'{}' is not a count", name);
    else
      out = static_cast<int>(number);
  }
  const Json* Array(const char* name) { return Member(name, &Json::is_array); }
  const Json* Object(const char* name) { return Member(name, &Json::is_object); }
  const std::string& problem() const { return problem_; }

 private:
  const Json* Member(const char* name, bool (Json::*is_type)() const noexcept) {
    if (!problem_.empty()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end() && ((*found).*is_type)()) return &*found;
    problem_ = fmt::format("'{}' is missing or of the wrong type", name);
    return nullptr;
  }

  const Json& object_;
  std::string problem_;
};

Json ToJson(const DeviceProbe& probe) {
  Json rates = Json::array();
  for (const Rate& rate : probe.rates)
    rates.push_back({{"what", rate.what},
                     {"variant", rate.variant},
                     {"cores", rate.cores},
                     {"repetitions", rate.repetitions},
                     {"best", rate.best},
                     {"median", rate.median},
                     {"p10", rate.p10},
                     {"p90", rate.p90}});
  const Machine& m = probe.machine;
  return {{"device", probe.device.ToString()},
          {"quick", probe.quick},
          {"cores", probe.cores},
          {"clock_hz", probe.clock_hz},
          {"seconds", probe.seconds},
          {"machine",
           {{"name", m.name},
            {"source", m.source},
            {"memory_bytes", m.memory_bytes},
            {"read_bytes_per_s", m.read_bytes_per_s},
            {"read_bytes_per_s_one", m.read_bytes_per_s_one},
            {"copy_bytes_per_s", m.copy_bytes_per_s},
            {"host_bytes_per_s", m.host_bytes_per_s},
            {"crossing_s", m.crossing_s},
            {"flops", m.flops}}},
          {"rates", rates}};
}

Result<DeviceProbe> FromJson(const Json& json) {
  DeviceProbe probe;
  std::string device;
  Reader reader(json);
  reader.Read("device", device);
  reader.Read("quick", probe.quick);
  reader.Read("cores", probe.cores);
  reader.Read("clock_hz", probe.clock_hz);
  reader.Read("seconds", probe.seconds);
  const Json* machine_json = reader.Object("machine");
  const Json* rates_json = reader.Array("rates");
  if (!reader.problem().empty()) return Error::Corrupt(reader.problem());
  CELER_ASSIGN(probe.device, Device::Parse(device));

  Machine& machine = probe.machine;
  Reader fields(*machine_json);
  fields.Read("name", machine.name);
  fields.Read("source", machine.source);
  fields.Read("memory_bytes", machine.memory_bytes);
  fields.Read("read_bytes_per_s", machine.read_bytes_per_s);
  fields.Read("read_bytes_per_s_one", machine.read_bytes_per_s_one);
  fields.Read("copy_bytes_per_s", machine.copy_bytes_per_s);
  fields.Read("host_bytes_per_s", machine.host_bytes_per_s);
  fields.Read("crossing_s", machine.crossing_s);
  if (const Json* flops = fields.Object("flops")) {
    Reader each(*flops);
    for (const auto& item : flops->items()) each.Read(item.key().c_str(), machine.flops[item.key()]);
    if (!each.problem().empty()) return Error::Corrupt(each.problem());
  }
  if (!fields.problem().empty()) return Error::Corrupt(fields.problem());
  if (machine.read_bytes_per_s <= 0 || machine.memory_bytes <= 0)
    return Error::Corrupt("a bandwidth or memory size is zero");

  for (const Json& rate_json : *rates_json) {
    Rate rate;
    Reader r(rate_json);
    r.Read("what", rate.what);
    r.Read("variant", rate.variant);
    r.Read("cores", rate.cores);
    r.Read("repetitions", rate.repetitions);
    r.Read("best", rate.best);
    r.Read("median", rate.median);
    r.Read("p10", rate.p10);
    r.Read("p90", rate.p90);
    if (!r.problem().empty()) return Error::Corrupt(r.problem());
    probe.rates.push_back(std::move(rate));
  }
  return probe;
}

Result<std::string> ReadFile(const fs::path& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return Error::NotFound(path.string(), ": ", error.message());
  if (size > kMaxCacheFile)
    return Error::Corrupt(path.string(), ": ", size, " bytes are too many for a cache file");
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) return Error::Io(path.string(), ": cannot be read");
  return text;
}

Status WriteFile(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return Error::Io(path.parent_path().string(), ": ", error.message());
  return WriteWholeFile(path, text);
}

bool ProbeIsForced() {
  for (const auto& [op, variant] : internal::ForceFromEnvironment())
    if (op.starts_with("probe_")) return true;
  return false;
}

std::string EnvironmentOr(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

fs::path DefaultCacheDir() {
  if (const std::string dir = EnvironmentOr("CELER_CACHE", ""); !dir.empty()) return dir;
  if (const std::string dir = EnvironmentOr("XDG_CACHE_HOME", ""); !dir.empty())
    return fs::path(dir) / "celer";
  if (const std::string home = EnvironmentOr("HOME", ""); !home.empty())
    return fs::path(home) / ".cache" / "celer";
  return {};
}

std::string MachineDescription() {
  const CpuFeatures& cpu = HostCpu();
  // Memory in units of 256 MiB: a kernel update moves the exact figure.
  std::string text =
      fmt::format("probe {}; {}; {} of {} cores; {} MiB; {}", kProbeVersion, cpu.model, cpu.usable_cores,
                  cpu.physical_cores, (cpu.memory_bytes >> 28) * 256, cpu.FlagList());
  for (const GpuInfo& gpu : ListGpus())
    text += fmt::format("; {}, {} multiprocessors, {} MiB", gpu.name, gpu.multiprocessors,
                        gpu.memory_bytes >> 20);
  return text;
}

namespace internal {

std::string PrintMachineCache(const MachineCache& cache) {
  Json devices = Json::array();
  for (const DeviceProbe& probe : cache.devices) devices.push_back(ToJson(probe));
  const Json json = {
      {"celer_probe", kProbeVersion}, {"description", cache.description}, {"devices", devices}};
  // Names come from the system; a broken byte in one must not throw.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<MachineCache> ParseMachineCache(const std::string& text, const std::string& description) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error::Corrupt("it is not JSON");
  MachineCache cache;
  int version = 0;
  Reader reader(json);
  reader.Read("celer_probe", version);
  reader.Read("description", cache.description);
  const Json* devices = reader.Array("devices");
  if (!reader.problem().empty()) return Error::Corrupt(reader.problem());
  if (version != kProbeVersion) return Error::Corrupt("it is from version ", version, " of the probe");
  if (cache.description != description)
    return Error::Corrupt("it is about another machine: ", cache.description);
  for (const Json& device : *devices) {
    CELER_ASSIGN(DeviceProbe probe, FromJson(device));
    cache.devices.push_back(std::move(probe));
  }
  return cache;
}

std::string MachineCacheFileName(const std::string& description) {
  return fmt::format("machine-{:016x}.json", Fnv1a(description));
}

}  // namespace internal

Result<Measured> LoadOrMeasure(Device device, const MeasureOptions& options) {
  if (!device.is_cpu()) CELER_RETURN_IF_ERROR(CheckGpu(device.index));
  const fs::path dir = options.cache_dir.empty() ? DefaultCacheDir() : options.cache_dir;
  const bool cached = options.use_cache && !dir.empty() && !ProbeIsForced();
  internal::MachineCache cache;
  cache.description = MachineDescription();
  const fs::path file = dir / internal::MachineCacheFileName(cache.description);
  std::error_code ignored;
  if (cached && fs::exists(file, ignored)) {
    Result<std::string> text = ReadFile(file);
    Result<internal::MachineCache> parsed = text ? internal::ParseMachineCache(*text, cache.description)
                                                 : Result<internal::MachineCache>(text.error());
    if (parsed)
      cache = *std::move(parsed);
    else
      log::Info("{}: {}; measuring this machine again", file.string(), parsed.error().message());
  }
  // Each number of cores is measured by itself: bandwidth does not grow with it evenly.
  const int cores = device.is_cpu() ? CoresToProbe(options.probe) : 0;
  const auto is_wanted = [&](const DeviceProbe& probe) {
    return probe.device == device && probe.cores == cores;
  };
  for (const DeviceProbe& probe : cache.devices)
    if (is_wanted(probe) && !options.remeasure && (!probe.quick || options.probe.quick))
      return Measured{probe, true, file};

  if (!options.allow_measure)
    return Error::NotFound(device.ToString(), ": this machine has not been measured yet; run celer probe");
  CELER_ASSIGN(DeviceProbe fresh,
               device.is_cpu() ? ProbeCpu(options.probe) : ProbeGpu(device.index, options.probe));
  Measured measured{std::move(fresh), false, {}};
  if (!cached) return measured;
  std::erase_if(cache.devices, is_wanted);
  cache.devices.push_back(measured.probe);
  if (const Status saved = WriteFile(file, internal::PrintMachineCache(cache)); !saved)
    log::WarningOnce("{}; the result is not kept (set CELER_CACHE to a folder that can be written)",
                     saved.error().message());
  else
    measured.cache_file = file;
  return measured;
}

Result<Machine> LoadOrMeasureThisMachine(bool allow_measure, std::optional<Device> device, int cores) {
  if (!device) device = CudaDeviceCount() > 0 ? Device::Cuda(0) : Device::Cpu();
  MeasureOptions options;
  options.allow_measure = allow_measure;
  options.probe.cores = cores;
  CELER_ASSIGN(Measured measured, LoadOrMeasure(*device, options));
  return std::move(measured.probe.machine);
}

}  // namespace celer
