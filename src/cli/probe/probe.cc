// celer probe: measures this machine, remembers the result, prints it with units.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/operators.h"
#include "device/cpu_features.h"
#include "device/variant.h"
#include "io/json/json.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/progress.h"
#include "report/table.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

bool IsBandwidth(const Rate& rate) {
  return rate.what == "copy" || rate.what.starts_with("read");
}

std::string Format(const Rate& rate, double value) {
  if (IsBandwidth(rate)) return FormatBandwidth(value);
  std::string text = FormatFlops(value);
  if (rate.what == "int8") text.replace(text.find("FLOP"), 4, "OP");
  return text;
}

// Operations that must be done per byte read for arithmetic, not memory, to be the limit.
double OpsPerByte(const DeviceProbe& probe, const Rate& rate) {
  return IsBandwidth(rate) ? 0 : rate.best / probe.machine.read_bytes_per_s;
}

std::string Label(const DeviceProbe& probe, const Rate& rate) {
  if (rate.what == "read_one") return "read";  // the column of cores says the rest
  return IsBandwidth(rate) || probe.device.is_cpu() ? rate.what : rate.what + " matrix product";
}

std::string PerCycle(const DeviceProbe& probe, const Rate& rate) {
  if (IsBandwidth(rate) || probe.clock_hz <= 0 || rate.cores <= 0) return "";
  return fmt::format("{:.1f}", rate.best / rate.cores / probe.clock_hz);
}

void PrintDevice(const Measured& measured) {
  const DeviceProbe& probe = measured.probe;
  const Machine& machine = probe.machine;
  std::string head = fmt::format("{}: {}, {} of memory", probe.device.ToString(), machine.name,
                                 FormatBytes(machine.memory_bytes, Units::kBinary));
  if (probe.clock_hz > 0) head += fmt::format(", {:.2f} GHz", probe.clock_hz * 1e-9);
  head += fmt::format("; {}{} in {:.1f} s{}", machine.source, probe.quick ? " (quick)" : "", probe.seconds,
                      measured.from_cache ? ", from the cache" : "");
  const bool cpu = probe.device.is_cpu();
  Table table;
  table.title = head;
  table.header = {"", "best", "median", "p90/p10", cpu ? "cores" : "SMs", "flop :byte"};
  if (cpu) table.header.emplace_back("flop/ cycle");
  table.header.emplace_back("variant");
  table.last_is_words = true;
  for (const Rate& rate : probe.rates) {
    const double balance = OpsPerByte(probe, rate);
    std::vector<std::string> row = {
        Label(probe, rate),         Format(rate, rate.best),
        Format(rate, rate.median),  fmt::format("{:.2f}", rate.spread()),
        std::to_string(rate.cores), balance > 0 ? fmt::format("{:.1f}", balance) : ""};
    if (cpu) row.push_back(PerCycle(probe, rate));
    row.push_back(rate.variant);
    table.rows.push_back(std::move(row));
  }
  if (cpu) table.notes.emplace_back("flop/cycle is that of one core.");
  const Rate* read = probe.Find("read");
  if (cpu && read != nullptr && read->median < 0.8 * read->best)
    table.notes.emplace_back(
        "note: the median is far below the best, so other programs were busy; run it again when idle");
  fmt::print("{}", TableText(table));
}

Json ToJson(const Measured& measured) {
  const DeviceProbe& probe = measured.probe;
  const Machine& m = probe.machine;
  Json rates = Json::object();
  for (const Rate& rate : probe.rates) {
    rates[rate.what] = {{"value", rate.best},
                        {"unit", IsBandwidth(rate)     ? "byte/s"
                                 : rate.what == "int8" ? "op/s"
                                                       : "flop/s"},
                        {"best", rate.best},
                        {"median", rate.median},
                        {"p90_over_p10", rate.spread()},
                        {"repetitions", rate.repetitions},
                        {"cores", rate.cores},
                        {"variant", rate.variant}};
    if (!IsBandwidth(rate)) rates[rate.what]["flop_per_byte"] = OpsPerByte(probe, rate);
  }
  return {{"device", probe.device.ToString()},
          {"name", m.name},
          {"source", m.source},
          {"memory_bytes", m.memory_bytes},
          {"clock_hz", probe.clock_hz > 0 ? Json(probe.clock_hz) : Json(nullptr)},
          {"cores", probe.cores},
          {"quick", probe.quick},
          {"from_cache", measured.from_cache},
          {"seconds", probe.seconds},
          {"rates", rates}};
}

Result<std::vector<Device>> ParseDevices(const std::string& text) {
  std::vector<Device> devices;
  if (text == "all") {
    devices.push_back(Device::Cpu());
    for (int i = 0, count = CudaDeviceCount(); i < count; ++i) devices.push_back(Device::Cuda(i));
    return devices;
  }
  Result<Device> one = Device::Parse(text);
  if (!one) return Error::Invalid("--device '", text, "' is not one of all, cpu, cuda, cuda:N");
  devices.push_back(*one);
  return devices;
}

}  // namespace

int ProbeCommand(const std::vector<std::string>& args) {
  CommandLine app("probe", "measure this machine's bandwidth and arithmetic peaks",
                  "celer probe --device cuda:0");
  bool json = false;
  bool no_cache = false;
  std::string device_text = "all";
  MeasureOptions options;
  app.add_flag("--json", json, "one JSON object instead of the table");
  app.add_option("--device", device_text, "all, cpu, cuda or cuda:N");
  app.add_flag("--quick", options.probe.quick, "a third of the time, less exact");
  app.add_option("--threads", options.probe.cores,
                 "this many of the CPU's cores; 0: all that this process may use")
      ->check(Between(0, 1024));
  app.add_flag("--force", options.remeasure, "measure again even if the result is known");
  app.add_flag("--no-cache", no_cache, "neither use nor keep a result");
  if (const auto stop = Parse(app, args)) return *stop;
  options.use_cache = !no_cache;
  const Result<std::vector<Device>> devices = ParseDevices(device_text);
  if (!devices) return Fail(devices.error());

  const CpuFeatures& cpu = HostCpu();
  if (!json) {
    const std::string line =
        fmt::format("{} x {}, caches {} + {} per core, last level {}; {}", cpu.usable_cores, cpu.model,
                    FormatBytes(static_cast<double>(cpu.l1d_bytes), Units::kBinary),
                    FormatBytes(static_cast<double>(cpu.l2_bytes), Units::kBinary),
                    FormatBytes(static_cast<double>(cpu.last_level_bytes), Units::kBinary), cpu.FlagList());
    if (!WriteOut(Wrap(line, OutputWidth(), 2) + "\n"))
      return kFailed;  // stdout is closed, so nothing is measured
  }
  Json list = Json::array();
  std::filesystem::path cache_file;
  std::optional<Error> first_error;  // one device's fault does not hide what the others can do
  const StatusLine progress;
  for (const Device device : *devices) {
    options.probe.progress = [&](std::string_view what) {
      progress.Show(fmt::format("measuring {}: {}", device.ToString(), what));
    };
    const Result<Measured> measured = LoadOrMeasure(device, options);
    progress.Show("");
    if (!measured) {
      if (first_error)
        Fail(measured.error());
      else
        first_error = measured.error();
      continue;
    }
    if (!measured->cache_file.empty()) cache_file = measured->cache_file;
    if (json)
      list.push_back(ToJson(*measured));
    else
      PrintDevice(*measured);
  }
  const std::string file = cache_file.string();
  if (json) {
    const Json out = {{"cpu",
                       {{"model", cpu.model},
                        {"physical_cores", cpu.physical_cores},
                        {"logical_cores", cpu.logical_cores},
                        {"usable_cores", cpu.usable_cores},
                        {"cache_line", cpu.cache_line},
                        {"l1d_bytes", cpu.l1d_bytes},
                        {"l2_bytes", cpu.l2_bytes},
                        {"last_level_bytes", cpu.last_level_bytes},
                        {"features", cpu.FlagList()}}},
                      {"devices", list},
                      {"cache_file", file.empty() ? Json(nullptr) : Json(file)}};
    fmt::print("{}\n", JsonText(out, 2));
  } else if (!file.empty()) {
    fmt::print("\nkept in {}\n", file);
  } else if (!list.empty() || !first_error) {
    fmt::print("\nnot kept\n");
  }
  return first_error ? Fail(*first_error) : kOk;
}

}  // namespace celer::cli
