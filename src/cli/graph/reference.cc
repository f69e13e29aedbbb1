#include "cli/graph/reference.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "hub/subprocess.h"
#include "io/file/atomic_file.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "io/onnx/onnx_wire.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Arguments: model, what is appended to it, inputs.npz, the names of the inputs as JSON, outputs.npz, and as
// JSON the columns of outputs that are maps. Strings become their places in the array "texts" of inputs.npz.
// Repeated fields of two protobuf messages in one file join, so appended outputs are the graph's, too.
constexpr const char* kScript = R"(
import json, os, sys
import numpy as np
import onnxruntime as ort
model, extra, inputs, names, outputs, classes = sys.argv[1:7]
classes = json.loads(classes)
options = ort.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.model_external_initializers_file_folder_path",
                                 os.path.dirname(os.path.abspath(model)))
with np.load(inputs) as arrays:
    feeds = {name: arrays[str(i)] for i, name in enumerate(json.loads(names))}
    places = {text: i for i, text in enumerate(arrays["texts"].tolist())} if "texts" in arrays else {}
with open(model, "rb") as file:
    data = file.read()
with open(extra, "rb") as file:
    more = file.read()
def run(data, level):
    options.graph_optimization_level = level
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    wanted = [output.name for output in session.get_outputs()]
    return wanted, session.run(wanted, feeds)
plain, optimized = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
note = ""
try:
    wanted, results = run(data + more, plain)
except Exception as error:
    if not more:
        sys.exit(str(error).splitlines()[0])
    note = str(error).splitlines()[0]
    try:
        wanted, results = run(data, plain)
    except Exception as error:
        sys.exit(str(error).splitlines()[0])
try:
    again = run(data, optimized)
except Exception:
    again = [], []
def numbers(name, result):
    if isinstance(result, np.ndarray) and result.dtype.kind in "OU":
        return np.array([places.get(t, -1) for t in result.ravel()], np.int64).reshape(result.shape)
    if isinstance(result, list) and name in classes:
        rows = [{str(k): v for k, v in row.items()} for row in result]
        return np.array([[row[k] for k in classes[name]] for row in rows], np.float32)
    return result
def arrays(wanted, results):
    results = [numbers(n, r) for n, r in zip(wanted, results)]
    return [(n, r) for n, r in zip(wanted, results) if isinstance(r, np.ndarray) and r.dtype.kind in "fiub"]
kept, again = arrays(wanted, results), arrays(*again)
np.savez(outputs, **{str(i): np.ascontiguousarray(r).reshape(r.shape) for i, (_, r) in enumerate(kept + again)})
print(json.dumps({"names": [n for n, _ in kept], "optimized": [n for n, _ in again], "note": note}))
)";

// A ModelProto with nothing but outputs of its graph.
std::string ExtraOutputs(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  WireWriter graph, model;
  for (const std::string& name : names) {
    WireWriter value;
    value.Bytes(1, name);
    graph.Message(12, value);
  }
  model.Message(7, graph);
  return model.Take();
}

}  // namespace

Result<TemporaryFolder> TemporaryFolder::Make() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  std::string name = ((error ? fs::path("/tmp") : base) / "celer-XXXXXX").string();
  if (!mkdtemp(name.data())) return Error::Io(name, ": cannot be made; set TMPDIR to a folder with space");
  return TemporaryFolder(name);
}

Result<ReferencePython> FindReference(const std::string& asked) {
  std::vector<std::string> programs;
  if (!asked.empty()) {
    programs.push_back(asked);
  } else {
    if (const char* const venv = std::getenv("VIRTUAL_ENV"); venv && *venv)
      programs.push_back(std::string(venv) + "/bin/python");
    programs.emplace_back(".venv/bin/python");
    programs.emplace_back("python3");
  }
  for (const std::string& program : programs) {
    const auto result = RunProgram(
        {program, "-c", "import numpy, onnxruntime; print('onnxruntime', onnxruntime.__version__)"},
        {.capture_output = true, .capture_errors = true});
    if (!result || result->exit_code != 0) continue;
    std::string version = LastLines(result->output, 1);
    if (!version.starts_with("onnxruntime ")) continue;
    return ReferencePython{program, Printable(version.substr(12))};
  }
  return Error::NotFound("no Python with ONNX Runtime was found (tried ",
                         fmt::format("{}", fmt::join(programs, ", ")),
                         "); `pip install onnxruntime` adds it to one, and --python says which that is");
}

Result<ReferenceRun> ReferenceRun::Run(const ReferencePython& python, const fs::path& model,
                                       const std::vector<std::string>& input_names, const Inputs& inputs,
                                       const std::vector<std::string>& values,
                                       const std::vector<GraphPort>& outputs, const fs::path& folder) {
  std::vector<NpzEntry> entries;
  std::vector<std::vector<std::byte>> characters(input_names.size() + 1);
  Json classes = Json::object();
  for (const GraphPort& port : outputs) {
    if (!port.classes.empty()) classes[port.name] = port.classes;
    if (port.texts && entries.empty())  // one list for all
      entries.push_back(TextEntry("texts", Shape{static_cast<int64_t>(port.texts->size())}, *port.texts,
                                  &characters.back()));
  }
  for (size_t i = 0; i < input_names.size(); ++i) {
    const NpyArray& array = inputs.arrays.at(input_names[i]);
    if (const auto texts = inputs.texts.find(input_names[i]); texts != inputs.texts.end()) {
      entries.push_back(TextEntry(std::to_string(i), array.shape, texts->second, &characters[i]));
      continue;
    }
    entries.push_back({std::to_string(i), array.dtype, array.shape, array.bytes});
  }
  const fs::path given = folder / "inputs.npz", extra = folder / "extra.pb", made = folder / "outputs.npz";
  CELER_RETURN_IF_ERROR(WriteNpz(given, entries));
  CELER_RETURN_IF_ERROR(WriteWholeFile(extra, ExtraOutputs(values)));
  CELER_ASSIGN(const SubprocessResult result,
               RunProgram({python.program, "-c", kScript, model.string(), extra.string(), given.string(),
                           JsonText(Json(input_names)), made.string(), JsonText(classes)},
                          {.capture_output = true, .capture_errors = true}));
  if (result.exit_code != 0)
    return Error::Unsupported(model.string(),
                              ": ONNX Runtime cannot run it: ", Printable(LastLines(result.errors, 1), 400));
  ReferenceRun out;
  const Json said = Json::parse(LastLines(result.output, 1), nullptr, false);
  if (!said.is_object() || !said.contains("names") || !said.contains("optimized") || !said.contains("note"))
    return Error::Io(python.program,
                     " did not answer as expected: ", Printable(LastLines(result.output, 1), 200));
  for (const Json& name : said["names"]) out.names_.push_back(name.get<std::string>());
  for (const Json& name : said["optimized"]) out.optimized_.push_back(name.get<std::string>());
  out.note_ = Printable(said["note"].get<std::string>(), 300);
  CELER_ASSIGN(out.arrays_, StoreZip::Open(made));
  return out;
}

Result<std::optional<NpyArray>> ReferenceRun::Find(const std::string& name) const {
  return Read(names_, 0, name);
}
Result<std::optional<NpyArray>> ReferenceRun::FindOptimized(const std::string& name) const {
  return Read(optimized_, names_.size(), name);
}

Result<std::optional<NpyArray>> ReferenceRun::Read(const std::vector<std::string>& names, size_t first,
                                                   const std::string& name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::optional<NpyArray>();
  const auto at = first + static_cast<size_t>(found - names.begin());
  const StoreZip::Entry* const entry = arrays_->Find(std::to_string(at) + ".npy");
  if (!entry) return std::optional<NpyArray>();
  CELER_ASSIGN(NpyArray array, ParseNpy(entry->bytes, "'" + Printable(name) + "' of ONNX Runtime"));
  return std::optional<NpyArray>(std::move(array));
}

}  // namespace celer::cli
