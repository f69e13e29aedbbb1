// celer quantize NET.onnx -o OUT.onnx: a network of 8-bit integers in QDQ form, or with products that round
// their inputs as they come (--dynamic). docs/quantization.md explains.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "base/log.h"
#include "cli/graph/inputs.h"
#include "cli/quantize/network.h"
#include "cli/quantize/network_report.h"
#include "cli/quantize/samples.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "graph/load/load_network.h"
#include "graph/load/write_onnx.h"
#include "graph/run/public_graph.h"
#include "hub/model_path.h"
#include "io/file/printable.h"
#include "limits/quantity.h"
#include "quantize/llm/target.h"
#include "quantize/network/analyze.h"
#include "quantize/network/fall_back.h"
#include "quantize/network/islands.h"
#include "quantize/network/network_recipe.h"
#include "quantize/network/quantizer.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChecked = 64;  // samples of --evaluate that --max-error is checked on: outputs are kept

struct QuantizeNetworkFlags {
  std::string model, output, recipe, recipe_out, html;
  SampleFlags calibrate, evaluate;
  PictureFlags picture;
  ptq::NetworkOptions options;
  std::vector<std::string> keep;  // patterns of layers that stay float
  ptq::Bounds bounds;
  double max_error = -1, max_drop = -1;
  int64_t analyze = 8, rows = 12;
  bool per_tensor = false, no_bias_correction = false, report = false, layerwise = false, explain = false,
       force = false, by_name = false, islands = false;
  std::vector<std::string> static_only;  // flags that were given and mean nothing with --dynamic
};

ptq::Progress ShowProgress() {
  const auto line = std::make_shared<StatusLine>();
  return [line](const char* what, int64_t done, int64_t total) -> Status {
    if (InterruptGuard::Pending()) return Error::Cancelled("interrupted; nothing is kept");
    line->Show(done == total ? "" : fmt::format("{}: {} of {}", what, done, total));
    return {};
  };
}

// Flags about samples that ranges come from, about ranges, and about what ranges allow.
constexpr const char* kStaticOnly[] = {
    "--calibrate",          "--every",        "--samples",   "--method",           "--percentile",
    "--activations",        "--power-of-two", "--align-add", "--quantize-outputs", "--equalize",
    "--no-bias-correction", "--islands"};

Status CheckDynamic(const QuantizeNetworkFlags& flags) {
  if (flags.static_only.empty()) return {};
  return Error::Invalid(
      flags.static_only[0],
      " does not go with --dynamic: activations are rounded as they come, by the range that "
      "each has, and no samples or ranges are used");
}

Status CheckNetworkFlags(const QuantizeNetworkFlags& flags, const fs::path& model) {
  if (flags.options.dynamic) CELER_RETURN_IF_ERROR(CheckDynamic(flags));
  if (flags.output.empty()) {
    if (!flags.explain) return Error::Invalid("give -o OUT.onnx, or --explain to see the plan");
    return {};
  }
  const fs::path out(flags.output);
  if (out.extension() != ".onnx")
    return Error::Invalid("--output ", flags.output,
                          ": a network is written as ONNX; give a name that ends with .onnx");
  std::error_code error;
  if (fs::equivalent(out, model, error))
    return Error::Invalid("--output ", flags.output, ": is the network itself; give another name");
  if (fs::exists(out, error) && !flags.force)
    return Error::Invalid(flags.output, ": is there already; give --force to replace it");
  if (!flags.explain && !flags.options.dynamic && flags.calibrate.paths.empty() && flags.recipe.empty())
    return Error::Invalid(
        "give --calibrate with pictures, arrays or a folder of them: ranges of values come from samples; or "
        "--dynamic, which needs none and rounds products alone; or --recipe with a file of --recipe-out");
  return {};
}

// Layers whose names fit a pattern that was given.
Status KeepPatterns(const QuantizeNetworkFlags& flags, const ptq::NetworkQuantizer& quantizer,
                    ptq::FloatLayers* floats) {
  const ptq::QuantizerPlan plan = quantizer.PlanWithout({});
  for (const std::string& pattern : flags.keep) {
    bool fits = false;
    for (const ptq::Layer& layer : plan.layers) {
      const bool by_op = quantizer.network().graph.nodes[layer.node].op == pattern;
      if (!by_op && !MatchesPattern(pattern, layer.name)) continue;
      (*floats)[layer.name] = "asked for";
      fits = true;
    }
    if (!fits) return Error::Invalid("--float ", Printable(pattern), ": fits no layer; --explain lists them");
  }
  return {};
}

class Command {
 public:
  explicit Command(const QuantizeNetworkFlags& flags) : flags_(flags) {}

  Status Run() {
    const auto start = std::chrono::steady_clock::now();
    CELER_RETURN_IF_ERROR(Open());
    LeaveIslands();
    if (flags_.explain) {
      fmt::print("{}", ExplainNetwork(*quantizer_, quantizer_->PlanWithout(floats_), floats_));
      return {};
    }
    CELER_RETURN_IF_ERROR(Calibrate());
    if (quantizer_->equalized().pairs > 0)
      Say("{} pairs of convolutions are equalized; {} of {} channels reach the bound of a Clip and stay\n",
          quantizer_->equalized().pairs, quantizer_->equalized().held, quantizer_->equalized().channels);
    CELER_RETURN_IF_ERROR(Analyze());
    const ptq::QuantizerPlan plan = quantizer_->PlanWithout(floats_);
    if (plan.empty()) return Error::Invalid("every layer stays float; there is nothing to write");
    CELER_ASSIGN(ptq::Inserted built, quantizer_->Build(plan));
    report_.bytes_before = ptq::ConstantBytes(quantizer_->original().graph);
    report_.bytes_after = ptq::ConstantBytes(built.network.graph);
    report_.floats = floats_;
    CELER_RETURN_IF_ERROR(Compare(plan, built));
    CELER_RETURN_IF_ERROR(Write(built.network));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    int64_t layers = 0;
    for (const ptq::Layer& layer : plan.layers) layers += layer.kind != ptq::Layer::Kind::kPassive ? 1 : 0;
    Say("{}: {} of {} layers as integers; constants {}, was {}; {}\n", flags_.output, layers, plan.candidates,
        FormatBytes(static_cast<double>(report_.bytes_after)),
        FormatBytes(static_cast<double>(report_.bytes_before)), FormatSeconds(seconds));
    return {};
  }

 private:
  Status Open() {
    CELER_ASSIGN(const fs::path path, ResolveModelPath(flags_.model));
    CELER_RETURN_IF_ERROR(CheckNetworkFlags(flags_, path));
    report_.path = path.filename().string();
    CELER_ASSIGN(graph::Network network, graph::LoadNetwork(path));
    ports_ = graph::InputPorts(network);
    ptq::NetworkOptions options = flags_.options;
    if (!flags_.recipe.empty()) {
      CELER_ASSIGN(recipe_, ptq::NetworkRecipe::Read(flags_.recipe));
      if (flags_.options.dynamic && !recipe_->options.dynamic)
        return Error::Invalid("--dynamic: ", flags_.recipe, " is a recipe for a network with ranges");
      options = recipe_->options;
      if (options.dynamic) CELER_RETURN_IF_ERROR(CheckDynamic(flags_));
      floats_ = recipe_->floats;
    }
    CELER_ASSIGN(quantizer_, ptq::NetworkQuantizer::Open(std::move(network), options));
    return KeepPatterns(flags_, *quantizer_, &floats_);
  }

  // Layers that would be slower as integers stay float, unless --islands or a recipe decides.
  void LeaveIslands() {
    if (flags_.islands || recipe_ || quantizer_->options().dynamic) return;
    const ptq::QuantizerPlan plan = quantizer_->PlanWithout(floats_);
    const ptq::FloatLayers islands = ptq::FindIslands(quantizer_->network().graph, plan);
    if (islands.empty()) return;
    ptq::FloatLayers floats = floats_;
    floats.insert(islands.begin(), islands.end());
    if (quantizer_->PlanWithout(floats).empty()) {
      log::Warning("{}: no layer is faster as integers ({}); they are quantized because nothing else is left",
                   report_.path, islands.begin()->second);
      return;
    }
    floats_ = std::move(floats);
    Say("{} {} float: {}{}; --islands quantizes {} too\n", Printable(islands.begin()->first),
        islands.size() == 1 ? "stays" : fmt::format("and {} more stay", islands.size() - 1),
        islands.begin()->second, islands.size() == 1 ? "" : " (the first of them)",
        islands.size() == 1 ? "it" : "them");
  }

  Status Calibrate() {
    if (!flags_.calibrate.paths.empty()) {
      CELER_ASSIGN(SampleSet set, OpenSamples(ports_, flags_.calibrate, flags_.picture, "--calibrate"));
      calibration_ = std::move(set.samples);
      RangeWatch watch(ports_);
      CELER_RETURN_IF_ERROR(quantizer_->Calibrate(watch.Watched(calibration_), progress_));
      for (const std::string& line : watch.Warnings("--calibrate")) log::Warning("{}", line);
    } else if (!quantizer_->options().dynamic) {
      CELER_ASSIGN(ptq::Calibration known, recipe_->For(*quantizer_));
      CELER_RETURN_IF_ERROR(quantizer_->Use(std::move(known)));
    }
    if (!flags_.evaluate.paths.empty()) {
      CELER_ASSIGN(evaluation_, OpenSamples(ports_, flags_.evaluate, flags_.picture, "--evaluate"));
    }
    return {};
  }

  // A few samples, spread over those that there are.
  Result<ptq::Samples> Few() const {
    const ptq::Samples& from = calibration_.count > 0 ? calibration_ : evaluation_.samples;
    if (from.count == 0)
      return Error::Invalid("errors are measured on samples; give ",
                            quantizer_->options().dynamic ? "--evaluate" : "--calibrate or --evaluate",
                            " with arrays or pictures");
    return Spread(from, flags_.analyze);
  }

  static ptq::Samples Spread(const ptq::Samples& from, int64_t most) {
    ptq::Samples out = from;
    out.count = std::min(from.count, most);
    const auto at = [all = from.count, few = out.count](int64_t i) { return i * all / few; };
    out.get = [at, get = from.get](int64_t i) { return get(at(i)); };
    out.name = [at, name = from.name](int64_t i) { return name(at(i)); };
    return out;
  }

  // Which layers stay float.
  Status Analyze() {
    ptq::Bounds bounds = flags_.bounds;
    if (flags_.max_error >= 0) bounds.max_error = flags_.max_error;
    if (flags_.max_drop >= 0) bounds.max_drop = flags_.max_drop;
    if (!bounds.any() && !flags_.layerwise) return {};
    CELER_ASSIGN(const ptq::Samples few, Few());
    CELER_ASSIGN(const ptq::Reference reference, ptq::Reference::Make(quantizer_->original(), few));
    // Errors of layers need few samples; a bound should hold on more.
    std::optional<ptq::Reference> more;
    if (bounds.any() && evaluation_.samples.count > 0) {
      CELER_ASSIGN(more,
                   ptq::Reference::Make(quantizer_->original(),
                                        Spread(evaluation_.samples, std::max(flags_.analyze, kChecked))));
    }
    std::optional<ptq::Answers> answers;
    if (bounds.max_drop) {
      const bool other = evaluation_.samples.count > 0;
      const ptq::Truth truth = other && flags_.by_name ? evaluation_.class_by_name : ptq::Truth();
      CELER_ASSIGN(answers, ptq::Answers::Make(quantizer_->original(),
                                               other ? evaluation_.samples : calibration_, truth, progress_));
    }
    const auto fall_back = [&] {
      return ptq::FallBack(*quantizer_, alone_, floats_, bounds, more ? *more : reference,
                           answers ? &*answers : nullptr, progress_);
    };
    // Without single layers there is nothing to leave: whether the bounds hold as it is.
    if (bounds.worst == 0 && bounds.any() && !flags_.layerwise) {
      const auto holds = fall_back();
      if (holds) return {};
      if (holds.error().code() != Error::Code::kInvalid) return holds.error();
    }
    const ptq::QuantizerPlan plan = quantizer_->PlanWithout(floats_);
    for (const ptq::Layer& layer : plan.layers)
      if (layer.kind != ptq::Layer::Kind::kPassive)
        alone_.push_back({.name = layer.name, .op = quantizer_->network().graph.nodes[layer.node].op});
    CELER_RETURN_IF_ERROR(ptq::Layerwise(*quantizer_, reference, &alone_, progress_));
    if (!bounds.any()) return {};
    CELER_ASSIGN(ptq::Dispatch dispatch, fall_back());
    floats_ = std::move(dispatch.floats);
    for (const std::string& step : dispatch.steps) fmt::print("{}\n", step);
    return {};
  }

  // What the result is worth.
  Status Compare(const ptq::QuantizerPlan& plan, const ptq::Inserted& built) {
    const bool wanted = flags_.report || flags_.layerwise || !flags_.html.empty();
    if (wanted) {
      CELER_ASSIGN(const ptq::Samples few, Few());
      CELER_ASSIGN(report_.layers, ptq::Graphwise(*quantizer_, plan, built, few, progress_));
      for (ptq::LayerError& layer : report_.layers)
        for (const ptq::LayerError& alone : alone_)
          if (alone.name == layer.name) layer.layerwise = alone.layerwise;
      CELER_ASSIGN(const ptq::Reference reference, ptq::Reference::Make(quantizer_->original(), few));
      CELER_ASSIGN(report_.scores, reference.Compare(built.network));
      report_.samples = few.count;
      if (flags_.report || flags_.layerwise) {
        fmt::print("{}", TableText(LayerTable(report_, static_cast<size_t>(flags_.rows))).substr(1));
        fmt::print("outputs, {}\n", ScoresText(*report_.scores, report_.samples));
      }
    }
    if (evaluation_.samples.count > 0) {
      const ptq::Truth truth = flags_.by_name ? evaluation_.class_by_name : ptq::Truth();
      CELER_ASSIGN(report_.evaluated, ptq::Evaluate(quantizer_->original(), built.network,
                                                    evaluation_.samples, truth, progress_));
      report_.evaluated_samples = evaluation_.samples.count;
      fmt::print("evaluated, {}\n", ScoresText(*report_.evaluated, report_.evaluated_samples));
    }
    return {};
  }

  Status Write(const graph::Network& network) {
    CELER_RETURN_IF_ERROR(graph::WriteOnnx(network, flags_.output));
    if (!flags_.recipe_out.empty())
      CELER_RETURN_IF_ERROR(
          WriteFile(flags_.recipe_out, ptq::NetworkRecipe::Of(*quantizer_, floats_).ToJson()));
    if (!flags_.html.empty()) CELER_RETURN_IF_ERROR(WriteFile(flags_.html, NetworkReportHtml(report_)));
    return {};
  }

  const QuantizeNetworkFlags& flags_;
  ptq::Progress progress_ = ShowProgress();
  std::vector<GraphPort> ports_;
  std::optional<ptq::NetworkRecipe> recipe_;
  std::optional<ptq::NetworkQuantizer> quantizer_;
  ptq::FloatLayers floats_;
  ptq::Samples calibration_;
  SampleSet evaluation_;
  std::vector<ptq::LayerError> alone_;
  NetworkReport report_;
};

void AddFlags(CLI::App& app, QuantizeNetworkFlags* flags) {
  app.add_option("NETWORK", flags->model, "an ONNX file, NAME.param of PNNX, or the name of a pulled network")
      ->required();
  app.add_option("-o,--output", flags->output, "the ONNX file to write");
  app.add_flag("--dynamic", flags->options.dynamic,
               "Gemm and MatMul with constant weights round their inputs as they come; needs no samples");
  app.add_option("--calibrate", flags->calibrate.paths,
                 "samples that ranges are taken from: pictures, .npy or .npz arrays, folders of them");
  app.add_option("--every", flags->calibrate.every, "calibrate with one sample of so many")
      ->check(Between(1, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--samples", flags->calibrate.most, "calibrate with at most so many; 0: all")
      ->check(Between(0, int64_t{1} << 40))
      ->capture_default_str();
  AddPictureFlags(app, &flags->picture);
  ptq::NetworkOptions& options = flags->options;
  AddParsed<ptq::RangeMethod>(app, "--method", &options.range.method, ptq::ParseRangeMethod,
                              "how a range is chosen: minmax, average, percentile, kl or mse",
                              Name(options.range.method));
  app.add_option("--percentile", options.range.percentile, "of --method percentile: what stays inside")
      ->check(CLI::Range(50.0, 100.0))
      ->capture_default_str();
  AddParsed<ptq::ActivationType>(app, "--activations", &options.range.type, ptq::ParseActivationType,
                                 "u8 or i8 with a zero point, or i8-sym around zero",
                                 Name(options.range.type));
  app.add_flag("--per-tensor", flags->per_tensor,
               "one scale for all weights of a layer, not one per channel");
  app.add_flag("--power-of-two", options.range.power_of_two, "scales that are powers of two");
  app.add_flag("--align-add", options.align_add, "the inputs of an Add share a scale");
  app.add_flag("--quantize-outputs", options.quantize_outputs, "round the outputs of the network, too");
  app.add_flag("--equalize", options.equalize, "cross-layer equalization: for --per-tensor");
  app.add_flag("--no-bias-correction", flags->no_bias_correction,
               "biases do not take back what rounding the weights adds on average");
  app.add_option("--float", flags->keep,
                 "layers that stay float: a name, a pattern such as 'head.*', an operator")
      ->allow_extra_args(false);
  app.add_flag("--islands", flags->islands,
               "quantize layers between float operators even where converting costs more than integers save");
  app.add_option("--auto", flags->bounds.worst, "leave so many of the worst layers float")
      ->check(Between(0, 1 << 20));
  app.add_option("--max-error", flags->max_error,
                 "leave layers float, the worst first, until noise to signal at the outputs is at most this")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-drop", flags->max_drop,
                 "likewise, until at most so many percent of the samples have another best class; with "
                 "--classes-by-name, until at most so many points of right answers are lost")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--evaluate", flags->evaluate.paths,
                 "samples to compare the result with the float network on");
  app.add_flag("--classes-by-name", flags->by_name,
               "of --evaluate: a file's name begins with the number of its class, as in 0042.jpg");
  app.add_flag("--report", flags->report, "the error at every layer");
  app.add_flag("--layerwise", flags->layerwise, "and the error of each layer alone");
  app.add_option("--analyze", flags->analyze, "samples that errors of layers are measured on")
      ->check(Between(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--rows", flags->rows, "of the table of layers")
      ->check(Between(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--html", flags->html, "a page with the errors of all layers as a picture");
  app.add_option("--recipe-out", flags->recipe_out, "write all decisions to a JSON file");
  app.add_option("--recipe", flags->recipe,
                 "take all decisions from there: the same network without samples");
  app.add_flag("--explain", flags->explain, "say what would be done, and do nothing");
  app.add_flag("--force", flags->force, "replace a file that is there");
}

}  // namespace

int QuantizeNetworkCommand(const std::vector<std::string>& args) {
  QuantizeNetworkFlags flags;
  CommandLine app("quantize", "write a network with 8-bit integers, as ONNX with quantizers",
                  "celer quantize net.onnx -o net-int8.onnx --calibrate pictures/ --method mse");
  AddFlags(app, &flags);
  if (const auto stop = Parse(app, args)) return *stop;
  flags.options.per_channel = !flags.per_tensor;
  flags.options.correct_bias = !flags.no_bias_correction;
  for (const char* const name : kStaticOnly)
    if (app.get_option(name)->count() > 0) flags.static_only.emplace_back(name);
  const InterruptGuard guard;
  if (const Status status = Command(flags).Run(); !status) {
    const int code = Fail(status.error());
    return status.error().code() == Error::Code::kCancelled ? InterruptGuard::ExitCode() : code;
  }
  return kOk;
}

bool IsNetworkToQuantize(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    const std::string ending = fs::path(arg).extension().string();
    if (ending == ".onnx" || ending == ".param") return true;
  }
  return false;
}

}  // namespace celer::cli
