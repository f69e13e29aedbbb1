// Runs ONNX's backend tests, all in one process: every folder with a model.onnx and test_data_set_N, and the
// "light" models, whose input is made by a rule.
//   onnx_backend DATA --passing FILE --skips FILE [--update] [--only TEXT] [--verbose]
// DATA is onnx/backend/test/data. A case listed in --passing must pass; each line of --skips is a pattern and
// the reason why such a case cannot. Fails when a listed case does not pass, or when one fails without a
// reason.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/load/load_onnx.h"
#include "graph/ops/quant/small_types.h"
#include "graph/run/program.h"
#include "graph/run/session.h"
#include "io/file/mapped_file.h"
#include "io/onnx/onnx.h"

namespace {

namespace fs = std::filesystem;
using celer::DType;
using celer::Error;
using celer::Result;
using celer::Status;
using celer::graph::Data;

constexpr double kRelative = 1e-3, kAbsolute = 1e-7;  // as onnx.backend.test has it

struct Skip {
  std::string pattern;
  std::string reason;
  int used = 0;
};

struct Options {
  fs::path data, passing, skips;
  std::string only;
  bool update = false, verbose = false;
};

Result<Data> ToData(celer::OnnxFile& reader, const celer::OnnxTensor& tensor) {
  CELER_ASSIGN(const auto elements, reader.Read(tensor));
  CELER_ASSIGN(Data out, celer::graph::NewTensor(elements.dtype, elements.shape));
  if (!elements.bytes.empty()) std::memcpy(out.tensor.data, elements.bytes.data(), elements.bytes.size());
  return out;
}

// Strings as the network has them: their places in its list.
Result<Data> ToPlaces(const celer::OnnxTensor& tensor, const celer::graph::TextPorts& texts) {
  constexpr uint32_t kStringData = 6;
  CELER_ASSIGN(const auto shape, celer::graph::MakeShape(tensor.dims));
  CELER_ASSIGN(Data out, celer::graph::NewTensor(DType::kI64, shape));
  int64_t* at = out.tensor.as<int64_t>();
  for (const auto& field : tensor.typed) {
    if (field.number != kStringData || at == out.tensor.as<int64_t>() + *shape.elements()) continue;
    *at = -1;
    for (size_t i = 0; texts.all && i < texts.all->size(); ++i)
      if ((*texts.all)[i] == field.text()) *at = static_cast<int64_t>(i);
    ++at;
  }
  return out;
}

// The file does not say what it holds; the graph does.
Result<Data> ReadValue(const fs::path& path, const celer::graph::ValueType& type, celer::OnnxFile& reader,
                       const celer::graph::TextPorts& texts = {}, bool text = false) {
  std::error_code ignored;
  std::vector<std::byte> bytes(fs::file_size(path, ignored));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(bytes.data()), static_cast<long>(bytes.size()));
  using K = celer::graph::ValueType::Kind;
  if (type.kind == K::kTensor) {
    CELER_ASSIGN(const auto tensor, celer::ParseOnnxTensor(bytes, path.string()));
    if (text) return ToPlaces(tensor, texts);
    return ToData(reader, tensor);
  }
  bool is_sequence = true;
  auto sequence = type.kind == K::kSequence ? celer::ParseOnnxSequence(bytes, path.string())
                                            : celer::ParseOnnxOptional(bytes, path.string(), &is_sequence);
  if (!sequence) return sequence.error();
  if (!sequence->present) return Data{};
  std::vector<Data> items;
  for (const auto& tensor : sequence->tensors) {
    CELER_ASSIGN(Data item, ToData(reader, tensor));
    items.push_back(std::move(item));
  }
  if (!is_sequence) return items.empty() ? Data{} : items[0];
  return Data::Sequence(std::move(items));
}

double Element(const celer::TensorView& tensor, int64_t i) {
  return celer::graph::ReadElement(tensor, i);
}

Status Compare(const Data& got, const Data& want, bool only_shapes) {
  if (got.kind != want.kind) return Error::Invalid("another kind of value");
  if (got.kind == Data::Kind::kNone) return {};
  if (got.kind == Data::Kind::kSequence) {
    if (got.items->size() != want.items->size())
      return Error::Invalid("a sequence of ", got.items->size(), ", not ", want.items->size());
    for (size_t i = 0; i < got.items->size(); ++i)
      CELER_RETURN_IF_ERROR(Compare((*got.items)[i], (*want.items)[i], only_shapes));
    return {};
  }
  if (got.tensor.dtype != want.tensor.dtype)
    return Error::Invalid("elements are ", Name(got.tensor.dtype), ", not ", Name(want.tensor.dtype));
  if (!(got.tensor.shape == want.tensor.shape))
    return Error::Invalid("the shape is ", got.tensor.shape.ToString(), ", not ",
                          want.tensor.shape.ToString());
  if (only_shapes) return {};
  for (int64_t i = 0; i < *got.tensor.shape.elements(); ++i) {
    const double a = Element(got.tensor, i), b = Element(want.tensor, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b || std::abs(a - b) <= kAbsolute + kRelative * std::abs(b)) continue;
    return Error::Invalid("element ", i, " is ", a, ", not ", b);
  }
  return {};
}

Status RunSet(celer::graph::Session& session, const celer::graph::TextPorts& texts, const fs::path& folder,
              bool only_shapes) {
  const celer::graph::Graph& graph = session.program().graph();
  // A model whose bytes are empty stands in for the reader of loose tensors.
  static const std::byte kEmptyGraph[] = {std::byte{0x3a}, std::byte{0}};
  CELER_ASSIGN(auto reader, celer::OnnxFile::FromBytes(kEmptyGraph, folder.string()));
  std::vector<Data> inputs;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    CELER_ASSIGN(Data value, ReadValue(folder / fmt::format("input_{}.pb", i),
                                       graph.value(graph.inputs[i]).type, reader, texts, texts.inputs[i]));
    inputs.push_back(std::move(value));
  }
  CELER_ASSIGN(const auto outputs, session.Run(std::move(inputs)));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const fs::path path = folder / fmt::format("output_{}.pb", i);
    CELER_ASSIGN(const Data want,
                 ReadValue(path, graph.value(graph.outputs[i]).type, reader, texts, texts.outputs[i]));
    if (const Status same = Compare(outputs[i], want, only_shapes); !same)
      return same.error().WithContext(fmt::format("output {}", i));
  }
  return {};
}

Status RunCase(const fs::path& folder, bool only_shapes) {
  CELER_ASSIGN(auto network, celer::graph::LoadOnnx(folder / "model.onnx"));
  const celer::graph::TextPorts texts = network.texts;
  CELER_ASSIGN(auto program, celer::graph::Program::Make(std::move(network)));
  celer::graph::Session session(program);
  int sets = 0;
  for (;; ++sets) {
    const fs::path set = folder / fmt::format("test_data_set_{}", sets);
    if (!fs::exists(set)) break;
    // Twice: the second run finds the plan and the memory of the first.
    CELER_RETURN_IF_ERROR(RunSet(session, texts, set, only_shapes));
    CELER_RETURN_IF_ERROR(RunSet(session, texts, set, only_shapes));
  }
  if (sets == 0) return Error::Invalid("no data");
  return {};
}

// The input counts up from 0 to 1.
Status RunLight(const fs::path& model) {
  CELER_ASSIGN(auto network, celer::graph::LoadOnnx(model));
  CELER_ASSIGN(auto program, celer::graph::Program::Make(std::move(network)));
  celer::graph::Session session(program);
  const celer::graph::Graph& graph = program->graph();
  std::vector<Data> inputs;
  for (const auto id : graph.inputs) {
    std::vector<int64_t> dims;
    for (const auto& dim : *graph.value(id).type.shape) dims.push_back(dim.fixed() ? dim.size : 1);
    CELER_ASSIGN(Data input,
                 celer::graph::NewTensor(DType::kF32, celer::Shape(std::span<const int64_t>(dims))));
    const int64_t n = *input.tensor.shape.elements();
    for (int64_t i = 0; i < n; ++i)
      input.tensor.as<float>()[i] = static_cast<float>(static_cast<double>(i) / static_cast<double>(n));
    inputs.push_back(std::move(input));
  }
  CELER_ASSIGN(const auto outputs, session.Run(std::move(inputs)));
  static const std::byte kEmptyGraph[] = {std::byte{0x3a}, std::byte{0}};
  CELER_ASSIGN(auto reader, celer::OnnxFile::FromBytes(kEmptyGraph, model.string()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const fs::path path = model.parent_path() / fmt::format("{}_output_{}.pb", model.stem().string(), i);
    if (!fs::exists(path)) continue;
    CELER_ASSIGN(const Data want, ReadValue(path, graph.value(graph.outputs[i]).type, reader));
    CELER_RETURN_IF_ERROR(Compare(outputs[i], want, false));
  }
  return {};
}

// '*' stands for anything.
bool Matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (size_t i = 0; i <= text.size(); ++i)
      if (Matches(pattern.substr(1), text.substr(i))) return true;
    return false;
  }
  return !text.empty() && pattern[0] == text[0] && Matches(pattern.substr(1), text.substr(1));
}

std::vector<std::string> Lines(const fs::path& path) {
  std::vector<std::string> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') out.push_back(line);
  return out;
}

int Main(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  std::set<std::string> passing;
  for (std::string& line : Lines(options.passing)) passing.insert(std::move(line));
  std::vector<Skip> skips;
  std::set<std::string> only_shapes;
  for (const std::string& line : Lines(options.skips)) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      fmt::print("error: {}: '{}' has no reason\n", options.skips.string(), line);
      return 2;
    }
    skips.push_back({line.substr(0, space), line.substr(line.find_first_not_of(' ', space))});
  }

  struct Kind {
    int cases = 0, passed = 0, skipped = 0;
  };
  std::map<std::string, Kind> kinds;
  std::vector<std::string> passed, broken, unexplained, unlisted;
  std::map<std::string, std::vector<std::string>> by_message;
  for (const char* kind_name : {"node", "simple", "pytorch-operator", "pytorch-converted", "light"}) {
    std::vector<fs::path> cases;
    for (const auto& entry : fs::directory_iterator(options.data / kind_name))
      if (entry.is_directory() || entry.path().extension() == ".onnx") cases.push_back(entry.path());
    std::sort(cases.begin(), cases.end());
    Kind& kind = kinds[kind_name];
    for (const fs::path& path : cases) {
      const std::string name = std::string(kind_name) + "/" + path.stem().string();
      if (name.find(options.only) == std::string::npos) continue;
      ++kind.cases;
      const Skip* reason = nullptr;
      bool shapes = false;
      for (Skip& skip : skips) {
        if (!Matches(skip.pattern, name)) continue;
        ++skip.used;
        if (skip.reason.starts_with("shapes only"))
          shapes = true;
        else
          reason = &skip;
        break;
      }
      if (reason) {
        ++kind.skipped;
        if (options.verbose) fmt::print("skip  {}: {}\n", name, reason->reason);
        continue;
      }
      if (options.verbose) {
        fmt::print("run   {}\n", name);
        std::fflush(stdout);
      }
      const Status status = path.extension() == ".onnx" ? RunLight(path) : RunCase(path, shapes);
      if (status) {
        ++kind.passed;
        passed.push_back(name);
        if (!passing.contains(name)) unlisted.push_back(name);
        continue;
      }
      (passing.contains(name) ? broken : unexplained).push_back(name);
      fmt::print("fail  {}: {}\n", name, status.error().message());
    }
  }

  fmt::print("\n{:<18} {:>6} {:>7} {:>8} {:>7}\n", "", "cases", "passed", "skipped", "failed");
  int cases = 0, all_passed = 0;
  for (const auto& [name, kind] : kinds) {
    fmt::print("{:<18} {:>6} {:>7} {:>8} {:>7}\n", name, kind.cases, kind.passed, kind.skipped,
               kind.cases - kind.passed - kind.skipped);
    cases += kind.cases;
    all_passed += kind.passed;
  }
  std::map<std::string, int> reasons;
  for (const Skip& skip : skips)
    if (!skip.reason.starts_with("shapes only")) reasons[skip.reason] += skip.used;
  fmt::print("\nskipped, by reason\n");
  for (const auto& [reason, count] : reasons) fmt::print("  {:>4}  {}\n", count, reason);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print("\n{} of {} cases pass, in {:.1f} s\n", all_passed, cases, took.count());
  if (options.update) {
    std::ofstream out(options.passing);
    out << "# Cases of onnx.backend.test (onnx 1.22) that pass and must keep passing. Written by --update.\n";
    for (const std::string& name : passed) out << name << "\n";
    return 0;
  }
  int gone = 0;
  if (options.only.empty())
    for (const std::string& name : passing)
      if (!std::binary_search(passed.begin(), passed.end(), name) &&
          std::find(passed.begin(), passed.end(), name) == passed.end()) {
        ++gone;
        fmt::print("error: {} is in {} and did not pass\n", name, options.passing.filename().string());
      }
  for (const std::string& name : unexplained)
    fmt::print("error: {} fails and has no reason in {}\n", name, options.skips.filename().string());
  for (const std::string& name : unlisted)
    fmt::print("note: {} passes and is not in {}; --update adds it\n", name,
               options.passing.filename().string());
  return gone > 0 || !broken.empty() || !unexplained.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto next = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (word == "--passing")
      options.passing = next();
    else if (word == "--skips")
      options.skips = next();
    else if (word == "--only")
      options.only = next();
    else if (word == "--update")
      options.update = true;
    else if (word == "--verbose")
      options.verbose = true;
    else
      options.data = word;
  }
  if (options.data.empty() || !fs::exists(options.data / "node")) {
    fmt::print(stderr,
               "usage: onnx_backend DATA --passing FILE --skips FILE [--update] [--only TEXT] [--verbose]\n");
    return 2;
  }
  return Main(options);
}
