// celer graph run: a network on arrays and pictures from files.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/dtype.h"
#include "celer/graph.h"
#include "cli/graph/graph.h"
#include "cli/graph/inputs.h"
#include "cli/graph/outputs.h"
#include "cli/graph/picture_output.h"
#include "cli/shared/command.h"
#include "hub/model_path.h"
#include "io/file/printable.h"
#include "io/npy/npy.h"
#include "report/output.h"

namespace celer::cli {
namespace {

struct GraphRunFlags {
  std::string model, output, labels, boxes, precision = "f32";
  InputFlags input;
  DetectFlags detect;
  int threads = 0, repeat = 1, top = 5;
  bool no_optimize = false;
};

std::string ShapeText(const std::vector<int64_t>& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

// The name says what is written; nothing is written under a name of something else.
Status CheckOutputName(const std::string& path) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  if (path.empty() || suffix.empty() || suffix == ".npz" || suffix == ".npy" || IsWritablePicture(path))
    return {};
  return Error::Invalid("--output ", Printable(path),
                        LooksLikePicture(path) ? ": pictures are written as .png, .jpg, .bmp or .tga"
                                               : ": give a name that ends with .npz or .npy, or with .png or "
                                                 ".jpg for a picture");
}

Status WriteOutputs(const std::string& path, const std::vector<GraphPort>& ports,
                    const std::vector<GraphTensor>& outputs, const PictureFlags& picture) {
  if (IsWritablePicture(path)) return WriteOutputPicture(path, ports, outputs, picture);
  std::vector<std::vector<float>> widened(outputs.size());
  std::vector<std::vector<std::byte>> characters(outputs.size());
  std::vector<NpzEntry> entries;
  for (size_t i = 0; i < outputs.size(); ++i) {
    NpzEntry entry{ports[i].name, *ParseDType(outputs[i].dtype),
                   Shape(std::span<const int64_t>(outputs[i].shape)), outputs[i].bytes};
    if (ports[i].texts)
      entry = TextEntry(entry.name, entry.shape, TextsOf(outputs[i], ports[i]), &characters[i]);
    if (entry.dtype == DType::kBf16) {  // which NumPy does not have
      CELER_ASSIGN(widened[i], FloatsOf(outputs[i], ports[i].name));
      entry.dtype = DType::kF32;
      entry.bytes = std::as_bytes(std::span(widened[i]));
    }
    // A name may be a path inside the network; in a zip it is a file name.
    std::replace(entry.name.begin(), entry.name.end(), '/', '_');
    entries.push_back(std::move(entry));
  }
  if (!path.ends_with(".npy")) return WriteNpz(path, entries);
  if (entries.size() != 1)
    return Error::Invalid("--output ", path, ": the network has ", entries.size(),
                          " outputs; name an .npz file");
  return WriteNpy(path, entries[0]);
}

void PrintClasses(const std::vector<float>& scores, int count, const std::vector<std::string>& labels) {
  for (const Class& one : BestClasses(scores, count))
    fmt::print("  {:6.2f} %  {}{}\n", 100 * one.probability, one.index,
               labels.empty() ? "" : "  " + LabelOf(labels, one.index));
}

constexpr int64_t kRowsShown = 10;

// Rows of a classifier: what each was found to be.
void PrintTexts(const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size() && i < kRowsShown; ++i) fmt::print("  {}\n", Printable(texts[i]));
  if (texts.size() > kRowsShown) fmt::print("  and {} more\n", texts.size() - kRowsShown);
}
// [rows, classes] with names of the classes: the best of each row.
void PrintRows(const GraphTensor& tensor, const GraphPort& port, int top) {
  const auto scores = FloatsOf(tensor, port.name);
  const auto columns = static_cast<int64_t>(port.classes.size());
  if (!scores || tensor.shape.size() != 2 || tensor.shape[1] != columns || columns == 0) return;
  for (int64_t r = 0; r < tensor.shape[0] && r < kRowsShown; ++r) {
    std::vector<std::pair<float, int64_t>> row;
    for (int64_t k = 0; k < columns; ++k) row.emplace_back((*scores)[r * columns + k], k);
    std::stable_sort(row.begin(), row.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string line;
    for (size_t k = 0; k < row.size() && k < static_cast<size_t>(top); ++k)
      line += fmt::format("  {} {:.4f}", Printable(port.classes[row[k].second]), row[k].first);
    fmt::print("{}\n", line);
  }
  if (tensor.shape[0] > kRowsShown) fmt::print("  and {} more\n", tensor.shape[0] - kRowsShown);
}

Status PrintBoxes(const GraphRunFlags& flags, const Inputs& inputs, const std::vector<GraphPort>& ports,
                  const std::vector<GraphTensor>& outputs, const std::vector<std::string>& labels) {
  if (!inputs.picture)
    return Error::Invalid("--boxes ", flags.boxes, ": no input is a picture that they could be drawn on");
  CELER_ASSIGN(std::vector<Detection> boxes, FindBoxes(outputs[0], ports[0].name, flags.detect));
  CELER_RETURN_IF_ERROR(DrawBoxes(*inputs.picture, &boxes, labels, flags.boxes));
  for (const Detection& box : boxes)
    fmt::print("  {:6.2f} %  {}  at {:.0f},{:.0f} to {:.0f},{:.0f}\n", 100 * box.score,
               LabelOf(labels, box.label), box.left, box.top, box.right, box.bottom);
  Say("{} {} drawn into {}\n", boxes.size(), boxes.size() == 1 ? "box" : "boxes", flags.boxes);
  return {};
}

Status RunGraph(const GraphRunFlags& flags) {
  CELER_RETURN_IF_ERROR(CheckOutputName(flags.output));
  CELER_ASSIGN(const std::vector<std::string> labels, ReadLabels(flags.labels));
  CELER_ASSIGN(const auto path, ResolveModelPath(flags.model));
  CELER_ASSIGN(const GraphModel model,
               GraphModel::Load(path, {.optimize = !flags.no_optimize,
                                       .precision = flags.precision == "f16" ? GraphPrecision::kF16
                                                                             : GraphPrecision::kF32}));
  CELER_ASSIGN(const Inputs inputs, ReadInputs(model.inputs(), flags.input, false));
  GraphSession session(model, flags.threads);
  std::vector<GraphTensor> outputs;
  std::vector<double> times;
  const auto views = Views(inputs);
  for (int i = 0; i < flags.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CELER_ASSIGN(outputs, session.Run(views));
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const GraphPort& port = model.outputs()[i];
    fmt::print("{}  {}{}\n", Printable(port.name), port.texts ? "string" : outputs[i].dtype,
               ShapeText(outputs[i].shape));
    if (port.texts) PrintTexts(TextsOf(outputs[i], port));
    if (!port.classes.empty()) PrintRows(outputs[i], port, flags.top);
    // A row of scores for a picture, or for whatever names are given, is an answer.
    if ((inputs.picture || !labels.empty()) && flags.boxes.empty() && IsOneRow(outputs[i]))
      if (const auto scores = FloatsOf(outputs[i], model.outputs()[i].name); scores)
        PrintClasses(*scores, flags.top, labels);
  }
  if (!flags.boxes.empty())
    CELER_RETURN_IF_ERROR(PrintBoxes(flags, inputs, model.outputs(), outputs, labels));
  Say("{:.2f} ms{}\n", times[times.size() / 2] * 1e3,
      flags.repeat > 1 ? fmt::format(", median of {}", flags.repeat) : "");
  return flags.output.empty() ? Status()
                              : WriteOutputs(flags.output, model.outputs(), outputs, flags.input.picture);
}

}  // namespace

int GraphRunCommand(const std::vector<std::string>& args) {
  CommandLine app("graph run", "run a network on arrays and pictures",
                  "celer graph run model.onnx --input image=cat.jpg --mean 0.485,0.456,0.406 --std "
                  "0.229,0.224,0.225 --labels names.txt");
  GraphRunFlags flags;
  app.add_option("MODEL", flags.model, "an ONNX file, NAME.param of PNNX, or a name from celer pull --list")
      ->required();
  AddInputFlags(app, &flags.input);
  app.add_option(
      "--output", flags.output,
      "write the outputs by name to this .npz, a single one to an .npy, or one that is a picture or a "
      "map of classes to a .png or .jpg");
  app.add_option("--labels", flags.labels, "a file with the name of one class per line");
  app.add_option("--top", flags.top, "so many classes, the best first")
      ->check(Between(1, 1000))
      ->capture_default_str();
  app.add_option("--boxes", flags.boxes,
                 "draw what a YOLO head found onto the picture, and write it to this .png or .jpg");
  app.add_option("--head", flags.detect.head, "of --boxes: auto, yolov5 or yolov8")
      ->check(CLI::IsMember({"auto", "yolov5", "yolov8"}))
      ->capture_default_str();
  app.add_option("--score", flags.detect.score, "of --boxes: the least that a box is drawn with")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--overlap", flags.detect.overlap,
                 "of --boxes: a box that covers more of a better one of its class is left out")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--threads", flags.threads, "0: as many as there are cores")
      ->check(Between(0, 1024))
      ->capture_default_str();
  app.add_option("--repeat", flags.repeat, "run so often and print the median time")
      ->check(Between(1, 1000000))
      ->capture_default_str();
  AddPrecisionFlag(app, &flags.precision);
  app.add_flag("--no-optimize", flags.no_optimize, "run the nodes as they stand in the file");
  if (const auto stop = Parse(app, args)) return *stop;
  const Status status = RunGraph(flags);
  return status ? kOk : Fail(status.error());
}

}  // namespace celer::cli
