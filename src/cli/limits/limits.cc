// celer limits: what is physically possible for a model on a machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/limits/figures.h"
#include "cli/limits/machine.h"
#include "cli/limits/options.h"
#include "cli/limits/report.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/table.h"

namespace celer::cli {
namespace {

int PrintList() {
  fmt::print("models\n");
  for (const std::string& name : ModelPresetNames()) {
    const LlmShape shape = *FindModelPreset(name);
    const LlmParams params = CountParams(shape);
    fmt::print("  {:<20} {:>8} parameters{}\n", name, FormatParams(double(params.total)),
               shape.experts > 0 ? fmt::format(", {} active", FormatParams(double(params.active))) : "");
  }
  Table machines;
  machines.title = "machines";
  machines.header.resize(5);
  machines.last_is_words = true;
  for (const std::string& name : MachinePresetNames()) {
    const Machine machine = *FindMachinePreset(name);
    machines.rows.push_back({name, FormatBytes(machine.memory_bytes, Units::kBinary),
                             FormatBandwidth(machine.read_bytes_per_s),
                             FormatFlops(*PeakFlops(machine, LlmSetup{})), machine.source});
  }
  fmt::print("{}", TableText(machines));
  fmt::print("  {:<16} this machine, measured by celer probe\n", "this");
  return kOk;
}

Status Answer(const LimitsOptions& options) {
  CELER_ASSIGN(const LimitsRequest request, MakeLimitsRequest(options));
  // Files first: an answer followed by an error would look like success.
  if (!options.svg.empty()) CELER_RETURN_IF_ERROR(WriteFile(options.svg, LimitsSvg(request)));
  if (!options.html.empty()) CELER_RETURN_IF_ERROR(WriteFile(options.html, LimitsHtml(request)));
  if (options.json) {
    fmt::print("{}\n", JsonText(LimitsJson(request), 2));
  } else {
    fmt::print("{}", LimitsText(request, options.brief));
  }
  return {};
}

}  // namespace

int LimitsCommand(const std::vector<std::string>& args) {
  CommandLine app("limits", "what is physically possible for a model on a machine",
                  "celer limits --model llama-3.1-8b --machine h200 --html limits.html");
  app.option_defaults()->always_capture_default(false);
  LimitsOptions options;
  app.add_option("--model", options.model,
                 "built-in name (see --list), config.json, a folder with one, or a GGUF file");
  app.add_option("--machine", options.machine.machine, "built-in name (see --list) or 'this', the default");
  app.add_option("--memory", options.machine.memory,
                 "memory for weights and KV, e.g. 24GiB; overrides the machine's");
  app.add_option("--bandwidth", options.machine.bandwidth, "read bandwidth, e.g. 1008GB/s");
  app.add_option("--tflops", options.machine.tflops, "arithmetic peak in 1e12 FLOP/s, e.g. 82.58");
  const auto list = [&](const char* flag, std::vector<std::string>& into, const char* help) {
    app.add_option(flag, into, help)->delimiter(',')->allow_extra_args(false);
  };
  list("--weights-bits", options.weight_bits,
       "bits per weight, e.g. 16,8.5,4.5; with neither list: the pairs w16kv16 w8kv16 w4kv16 w6kv16 w4kv8");
  list("--kv-bits", options.kv_bits, "bits per KV value, e.g. 16,8; combined with every weight width");
  list("--prompt", options.prompts, "prompt lengths in tokens (default 128,1024)");
  list("--context", options.contexts, "context lengths in tokens (default 1024,4096,16384)");
  app.add_option("--batch", options.batch, "sequences that advance together (default 1)");
  app.add_option("--devices", options.devices,
                 "machines that share every layer, as tensor parallelism does (default 1)");
  app.add_option(
      "--pipeline", options.stages,
      "stages that have some of the layers each, of as many machines as --devices says (default 1)");
  app.add_option("--speculate", options.speculate,
                 "what speculative decoding gains at best: drafted tokens of a step and the share that is "
                 "accepted, e.g. 4,0.7");
  app.add_option(
      "--gpu-memory", options.gpu_memory,
      "what may be taken of the machine, a GPU, such as 8GiB: layers that do not fit are on --host");
  app.add_option("--gpu-layers", options.gpu_layers,
                 "likewise: so many layers, the last ones, are on the GPU, or auto");
  app.add_option("--cpu-experts", options.cpu_experts,
                 "likewise: the experts of the first so many layers, or of all, are on --host");
  app.add_option("--host", options.host, "the CPU of such a split: a built-in name or 'this', the default");
  app.add_option(
      "--compute", options.compute,
      "arithmetic: auto (best of f32, f16, bf16 up to 16-bit weights, else f32), f32, f16, bf16, int8, fp8");
  app.add_option("--units", options.units, "si (default) or binary: M, B, GB/s and TFLOPS as powers of 1024");
  app.add_flag("--json", options.json, "print one JSON object");
  app.add_flag("--brief", options.brief, "print only the facts and the decode table");
  app.add_option("--svg", options.svg, "write the curves and the roofline as one picture");
  app.add_option("--html", options.html, "write everything as one self-contained page");
  app.add_flag("--list", options.list, "list built-in models and machines");
  if (const auto stop = Parse(app, args)) return *stop;
  if (options.list) return PrintList();
  const Status status = Answer(options);
  return status ? kOk : Fail(status.error());
}

}  // namespace celer::cli
