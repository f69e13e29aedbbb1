// celer quantize MODEL -o OUT: a smaller model file. docs/quantization.md explains the methods.
#include "quantize/llm/quantize.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "base/log.h"
#include "cli/quantize/budget.h"
#include "cli/quantize/calibration_text.h"
#include "cli/quantize/explain.h"
#include "cli/quantize/network.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "engine/runners/find_device.h"
#include "hub/model_path.h"
#include "limits/quantity.h"
#include "quantize/llm/job/job.h"
#include "report/output.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

struct QuantizeFlags {
  std::string model, output, weights, recipe, method = "rtn", imatrix, imatrix_out, memory, recipe_out;
  std::vector<std::string> tensors, among;
  TextChoice text;
  DeviceOptions device = DeviceOptions::Auto();
  double target_bpw = 0;
  bool explain = false, dequantized = false, force = false, verbose = false;
};

// Whether layers are run on a text, and so are its matrices one by one.
bool Calibrates(const QuantizeFlags& flags, Method method) {
  return method != Method::kRtn || (!flags.text.file.empty() && flags.imatrix.empty()) ||
         flags.target_bpw > 0 || !flags.memory.empty();
}

Result<Recipe> MakeRecipe(const QuantizeFlags& flags, bool gguf) {
  Recipe recipe;
  // With a budget, formats are chosen later, and fewer columns will do.
  const bool budget = flags.target_bpw > 0 || !flags.memory.empty();
  recipe.weights = gguf ? "q4_k_m" : budget ? "int4-g32" : "int4-g128";
  if (!flags.recipe.empty()) {
    CELER_ASSIGN(recipe, Recipe::Read(flags.recipe));
  }
  if (!flags.weights.empty()) recipe.weights = flags.weights;
  for (const std::string& rule : flags.tensors) CELER_RETURN_IF_ERROR(recipe.AddRule(rule));
  CELER_RETURN_IF_ERROR(recipe.Check());
  return recipe;
}

Status CheckOutput(const QuantizeFlags& flags, const QuantizeSource& source, const QuantizePlan& plan) {
  const fs::path out(flags.output);
  const bool gguf = source.gguf;
  if (gguf && plan.has_ints() && !flags.dequantized)
    return Error::Invalid("--weights ", flags.weights,
                          ": a GGUF file holds no such integers; take q4_k_m, q4_1 or q8_0, or quantize the "
                          "Hugging Face folder");
  std::error_code error;
  if (!fs::exists(out, error)) return {};
  if (fs::equivalent(out, source.path, error))
    return Error::Invalid("--output ", flags.output, ": is the model itself; give another name");
  if (!flags.force || !gguf)
    return Error::Invalid(flags.output, ": is there already; ",
                          gguf ? "give --force to replace it" : "remove it or give another name");
  return {};
}

// Rounded values that are rounded again lose twice.
void WarnRequantizing(const QuantizeSource& source, const QuantizePlan& plan) {
  std::set<std::string> from;
  std::vector<std::string> decoded;
  int64_t count = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.requantized()) {
      ++count;
      from.insert(tensor.scheme.empty() ? std::string(Name(tensor.dtype)) : tensor.scheme);
    } else if (!tensor.scheme.empty()) {
      decoded.push_back(fmt::format("'{}' becomes {}", tensor.name, tensor.target.Name()));
    }
  }
  if (count > 0)
    log::Warning(
        "{}: {} of {} tensors are quantized already ({}): what that lost stays lost, and rounding again "
        "loses "
        "more; quantize the original weights if you have them",
        source.path.string(), count, plan.tensors.size(), fmt::join(from, ", "));
  if (!decoded.empty())
    log::Info("{}: quantized tensors that are decoded and no more: {}", source.path.string(),
              fmt::join(decoded, ", "));
}

// --target-bpw and --memory: the plan's formats are chosen by what they cost.
Status FitBudget(const QuantizeFlags& flags, const QuantizeSource& source, const Recipe& recipe,
                 QuantizePlan* plan) {
  CELER_ASSIGN(const std::optional<Budget> budget, ParseBudget(flags.target_bpw, flags.memory));
  if (!budget) {
    if (!flags.among.empty()) return Error::Invalid("--among goes with --target-bpw or --memory");
    return {};
  }
  if (!flags.weights.empty())
    return Error::Invalid(budget->name, ": chooses the formats itself; leave out --weights ", flags.weights,
                          ", or name those to choose from with --among");
  // What cannot be met is refused before the model is loaded and measured.
  CELER_ASSIGN(std::vector<TensorPrices> formats,
               FormatsWithin(*budget, source.gguf, recipe, flags.among, *plan));
  CELER_ASSIGN(const Model model, source.LoadForCalibration());
  return FitToBudget(model, *budget, std::move(formats), flags.text, plan);
}

Status CollectTo(const QuantizeFlags& flags, const QuantizeSource& source) {
  CELER_ASSIGN(const CalibrationText text, ReadCalibration(flags.text, source.path.string()));
  CELER_ASSIGN(const Model model, source.LoadForCalibration());
  CELER_ASSIGN(ImportanceMatrix importance,
               CollectImportance(model, text, DefaultThreadPool(), Progress("collecting", true)));
  importance.datasets = {flags.text.file.empty() ? "built-in" : flags.text.file};
  CELER_RETURN_IF_ERROR(importance.Write(flags.imatrix_out));
  Say("{}: importance of {} tensors from {} tokens\n", flags.imatrix_out, importance.entries().size(),
      text.tokens.size());
  return {};
}

// Where calibration runs. "auto" is a GPU only for what it can do.
Result<Device> DeviceFor(const QuantizeFlags& flags, Method method) {
  if (flags.device == DeviceOptions::Auto() && !RunsOnGpu(method)) return Device::Cpu();
  CELER_ASSIGN(const Device device, FindDevice(flags.device));
  if (!device.is_cpu() && !RunsOnGpu(method))
    return Error::Unsupported("--device ", device.ToString(), ": --method ", Name(method),
                              " runs on the CPU alone; leave the flag out");
  return device;
}

// Of this process so far, mapped files included.
double PeakBytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

Status Quantize(const QuantizeFlags& flags, const QuantizeSource& source, const QuantizePlan& plan,
                Method method, const Device& device) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path work = flags.output + ".work";
  WriteJob job{.method = method, .dequantized = flags.dequantized, .device = device, .work = work};
  if (!flags.imatrix.empty()) {
    CELER_ASSIGN(job.importance, ImportanceMatrix::Read(flags.imatrix));
  } else if (method != Method::kRtn || !flags.text.file.empty()) {
    CELER_ASSIGN(job.text, ReadCalibration(flags.text, source.path.string()));
    if (method == Method::kRtn) {
      job.on_layer = Progress("collecting", true);
    } else {
      InterruptGuard::Note(InterruptedText(work.string()));
      job.on_layer = Progress(flags.method, true, work.string());
    }
  }
  job.on_bytes = Progress("writing", false);
  CELER_RETURN_IF_ERROR(WriteQuantized(source, plan, flags.output, std::move(job)));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Say("{}: {}, was {}; {:.2f} bits per weight; {} in {}, with {} of memory at most\n", flags.output,
      FormatBytes(static_cast<double>(plan.bytes_after())),
      FormatBytes(static_cast<double>(plan.bytes_before())), plan.bits_per_weight(),
      device.is_cpu() ? flags.method : flags.method + " on " + device.ToString(), FormatSeconds(seconds),
      FormatBytes(PeakBytes()));
  return {};
}

Status Run(const QuantizeFlags& flags) {
  if (flags.verbose) log::SetLevel(log::Level::kInfo);
  if (flags.output.empty() && flags.imatrix_out.empty() && !flags.explain)
    return Error::Invalid("give -o OUT, --imatrix-out FILE or --explain");
  CELER_ASSIGN(const Method method, ParseMethod(flags.method));
  if (method != Method::kRtn && !flags.imatrix.empty())
    return Error::Invalid("--imatrix is for --method rtn; ", flags.method,
                          " measures importance itself, from --calibration");
  CELER_ASSIGN(const Device device, DeviceFor(flags, method));
  CELER_ASSIGN(const fs::path path, ResolveModelPath(flags.model));
  CELER_ASSIGN(const QuantizeSource source, QuantizeSource::Open(path, Calibrates(flags, method)));
  if (!flags.output.empty()) CELER_RETURN_IF_ERROR(source.CheckContainer(flags.output));
  CELER_ASSIGN(const Recipe recipe, MakeRecipe(flags, source.gguf));
  CELER_ASSIGN(QuantizePlan plan,
               MakePlan(*source.tensors, source.config.layers, source.config.tied_embeddings, recipe));
  if (!flags.output.empty()) CELER_RETURN_IF_ERROR(CheckOutput(flags, source, plan));
  const InterruptGuard guard;
  CELER_RETURN_IF_ERROR(FitBudget(flags, source, recipe, &plan));
  CELER_RETURN_IF_ERROR(CheckMethod(method, plan));
  if (!flags.output.empty() && !flags.explain) CELER_RETURN_IF_ERROR(source.CheckChanges(plan));
  if (!flags.output.empty() || flags.explain) WarnRequantizing(source, plan);
  if (!flags.recipe_out.empty()) CELER_RETURN_IF_ERROR(WriteRecipe(plan, flags.recipe_out));
  if (flags.explain) {
    CELER_ASSIGN(const std::string text, ExplainPlan(plan, *source.tensors));
    fmt::print("{}", text);
    return {};
  }
  if (!flags.imatrix_out.empty()) CELER_RETURN_IF_ERROR(CollectTo(flags, source));
  return flags.output.empty() ? Status() : Quantize(flags, source, plan, method, device);
}

}  // namespace

int QuantizeCommand(const std::vector<std::string>& args) {
  if (IsNetworkToQuantize(args)) return QuantizeNetworkCommand(args);
  QuantizeFlags flags;
  CommandLine app("quantize", "write a smaller form of a model",
                  "celer quantize m.gguf -o q4.gguf --weights q4_k_m --calibration t.txt");
  app.add_option("MODEL", flags.model, "a GGUF file, a Hugging Face folder, or the name of a pulled model")
      ->required();
  app.add_option("-o,--output", flags.output, "a .gguf file from a GGUF, a folder from a folder");
  app.add_option("--weights", flags.weights,
                 TargetNames() + "; by default q4_k_m in a GGUF and int4-g128 in a folder")
      ->type_name("FORMAT");
  app.add_option("--tensor", flags.tensors, "a format for the tensors of a pattern: '*.attn_v.weight=q6_k'")
      ->type_name("PATTERN=FORMAT")
      ->default_str("");
  app.add_option("--recipe", flags.recipe, "a JSON file with \"weights\" and \"tensors\"");
  app.add_option("--recipe-out", flags.recipe_out, "write what each tensor becomes there, for --recipe");
  app.add_option(
         "--target-bpw", flags.target_bpw,
         "choose the format of each matrix by its measured sensitivity, so that all take this many bits "
         "per weight")
      ->check(CLI::Range(1.0, 32.0))
      ->default_str("");
  app.add_option("--memory", flags.memory, "the same, so that all weights take at most this much: 6GiB")
      ->type_name("BYTES");
  app.add_option("--among", flags.among, "formats that --target-bpw and --memory choose from")
      ->delimiter(',')
      ->type_name("FORMAT,...")
      ->default_str("");
  app.add_option("--method", flags.method, "rtn (round to nearest), gptq, awq, awq+gptq or smoothquant")
      ->capture_default_str();
  AddParsed(app, "--device", &flags.device, DeviceOptions::Parse,
            "where gptq and awq calibrate: cpu, cuda, cuda:N, or auto: cuda if there is one",
            flags.device.ToString());
  app.add_option("--calibration", flags.text.file,
                 "a text to learn importance from; by default a built-in one where the method needs it");
  app.add_option("--samples", flags.text.samples, "windows of that text")
      ->check(Between(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--window", flags.text.window, "tokens of a window")
      ->check(Between(16, 1 << 16))
      ->capture_default_str();
  app.add_option("--imatrix", flags.imatrix, "importance from a file, as llama.cpp writes it");
  app.add_option("--imatrix-out", flags.imatrix_out,
                 "write the importance from --calibration there: .gguf, or .dat for the older form");
  app.add_option("--tokenizer", flags.text.tokenizer, "tokenizer file or folder, if not the model's own");
  app.add_flag("--explain", flags.explain, "say what would be done, and do nothing");
  app.add_flag("--dequantized", flags.dequantized,
               "write the rounded values as f32: to measure what rounding costs with any program");
  app.add_flag("--force", flags.force, "replace a GGUF file that is there");
  app.add_flag("-v,--verbose", flags.verbose, "say more");
  app.footer("Networks have flags of their own: celer quantize NET.onnx --help");
  if (const auto stop = Parse(app, args)) return *stop;
  if (const Status status = Run(flags); !status) {
    const int code = Fail(status.error());
    return status.error().code() == Error::Code::kCancelled ? InterruptGuard::ExitCode() : code;
  }
  return kOk;
}

}  // namespace celer::cli
