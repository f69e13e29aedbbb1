// celer graph run: a network on arrays from files.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "celer/graph.h"
#include "cli/command.h"
#include "cli/graph.h"
#include "cli/output.h"
#include "core/dtype.h"
#include "io/npy.h"
#include "io/printable.h"

namespace celer::cli {
namespace {

struct RunFlags {
  std::string model, output;
  std::vector<std::string> inputs;
  int threads = 0;
  int repeat = 1;
};

std::string ShapeText(const std::vector<int64_t>& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

// NumPy has no such types, so they are written as f32.
std::vector<float> Widened(const GraphTensor& tensor) {
  std::vector<float> out(tensor.bytes.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t bits =
        (static_cast<uint32_t>(tensor.bytes[2 * i]) | static_cast<uint32_t>(tensor.bytes[2 * i + 1]) << 8)
        << 16;
    __builtin_memcpy(&out[i], &bits, 4);
  }
  return out;
}

Status RunGraph(const RunFlags& flags) {
  CELER_ASSIGN(const GraphModel model, GraphModel::Load(flags.model));
  std::vector<std::string> names;
  for (const GraphPort& port : model.inputs()) names.push_back(port.name);
  CELER_ASSIGN(const auto files, ByName(flags.inputs, "--input", names));
  std::map<std::string, NpyArray> arrays;
  std::map<std::string, GraphTensor> inputs;
  for (const auto& [name, path] : files) {
    CELER_ASSIGN(arrays[name], ReadNpy(path));
    const NpyArray& array = arrays[name];
    inputs[name] = {
        std::string(Name(array.dtype)), {array.shape.dims().begin(), array.shape.dims().end()}, array.bytes};
  }
  for (const std::string& name : names)
    if (!inputs.contains(name))
      return Error::Invalid("the input '", Printable(name), "' is not given; add --input ", Printable(name),
                            "=FILE.npy");
  GraphSession session(model, flags.threads);
  std::vector<GraphTensor> outputs;
  std::vector<double> times;
  for (int i = 0; i < flags.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CELER_ASSIGN(outputs, session.Run(inputs));
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    fmt::print("{}  {}{}\n", Printable(model.outputs()[i].name), outputs[i].dtype,
               ShapeText(outputs[i].shape));
  std::sort(times.begin(), times.end());
  Say("{:.2f} ms{}\n", times[times.size() / 2] * 1e3,
      flags.repeat > 1 ? fmt::format(", median of {}", flags.repeat) : "");
  if (flags.output.empty()) return {};

  std::vector<std::vector<float>> widened(outputs.size());
  std::vector<NpzEntry> entries;
  for (size_t i = 0; i < outputs.size(); ++i) {
    NpzEntry entry{model.outputs()[i].name, *ParseDType(outputs[i].dtype),
                   Shape(std::span<const int64_t>(outputs[i].shape)), outputs[i].bytes};
    if (entry.dtype == DType::kBf16) {
      widened[i] = Widened(outputs[i]);
      entry.dtype = DType::kF32;
      entry.bytes = std::as_bytes(std::span(widened[i]));
    }
    // A name may be a path inside the network; in a zip it is a file name.
    std::replace(entry.name.begin(), entry.name.end(), '/', '_');
    entries.push_back(std::move(entry));
  }
  if (flags.output.ends_with(".npy")) {
    if (entries.size() != 1)
      return Error::Invalid("--output ", flags.output, ": the network has ", entries.size(),
                            " outputs; name an .npz file");
    return WriteNpy(flags.output, entries[0]);
  }
  return WriteNpz(flags.output, entries);
}

}  // namespace

int GraphRunCommand(const std::vector<std::string>& args) {
  CommandLine app("graph run", "run a network on arrays from .npy files",
                  "celer graph run model.onnx --input x=x.npy --output out.npz");
  RunFlags flags;
  app.add_option("MODEL", flags.model, "an ONNX file")->required();
  app.add_option("--input", flags.inputs, "NAME=FILE.npy, once per input")->allow_extra_args(false);
  app.add_option("--output", flags.output,
                 "write the outputs by name to this .npz, or a single one to an .npy");
  app.add_option("--threads", flags.threads, "0: as many as there are cores")
      ->check(Between(0, 1024))
      ->capture_default_str();
  app.add_option("--repeat", flags.repeat, "run so often and print the median time")
      ->check(Between(1, 1000000))
      ->capture_default_str();
  if (const auto stop = Parse(app, args)) return *stop;
  const Status status = RunGraph(flags);
  return status ? kOk : Fail(status.error());
}

}  // namespace celer::cli
