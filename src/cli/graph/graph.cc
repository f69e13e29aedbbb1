// celer graph: networks out of ONNX and PNNX files.
#include "cli/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/suggest.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "graph/ir/operator_table.h"
#include "io/file/printable.h"
#include "report/output.h"

namespace celer::cli {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& args);
};
constexpr Subcommand kSubcommands[] = {
    {"inspect", "inputs, outputs, operators, parameters, flops and memory of a network; a drawing",
     GraphInspectCommand},
    {"run", "run a network on arrays and pictures", GraphRunCommand},
    {"bench", "how long it takes, operator by operator, beside the least it could take", GraphBenchCommand},
    {"check", "compare its values with those of ONNX Runtime, node by node, or f16 with f32",
     GraphCheckCommand},
    {"optimize", "rewrite it into fewer operators, or from ONNX to PNNX and back", GraphOptimizeCommand},
    {"operators", "every operator that can run, with its types and opsets", GraphOperatorsCommand},
};

}  // namespace

void AddPrecisionFlag(CLI::App& app, std::string* precision) {
  app.add_option(
         "--precision", *precision,
         "what a float network computes in: f32, or f16, which takes about half the time where the CPU "
         "has it (Arm, FEAT_FP16); celer graph check --precision f16 shows the error")
      ->check(CLI::IsMember({"f32", "f16"}))
      ->capture_default_str();
}

Result<std::map<std::string, std::string>> ByName(const std::vector<std::string>& given,
                                                  const std::string& flag,
                                                  const std::vector<std::string>& names) {
  std::map<std::string, std::string> out;
  for (const std::string& word : given) {
    const size_t equal = word.rfind('=');
    if (equal == std::string::npos || equal == 0)
      return Error::Invalid(flag, " ", Printable(word), ": expected NAME=VALUE");
    const std::string name = word.substr(0, equal);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string hint = DidYouMean(name, names);
      return Error::Invalid(flag, " ", Printable(word), ": the network has no input '", Printable(name), "'",
                            hint.empty() ? fmt::format("; it has {}", fmt::join(names, ", ")) : hint);
    }
    if (!out.emplace(name, word.substr(equal + 1)).second)
      return Error::Invalid(flag, " ", Printable(word), ": '", Printable(name), "' is given twice");
  }
  return out;
}

Result<std::vector<int64_t>> ParseDims(const std::string& text) {
  std::vector<int64_t> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0 || (next != end && *next != ',') ||
        (next != end && next + 1 == end))
      return Error::Invalid("'", Printable(text), "' is not a shape such as 1,3,224,224");
    out.push_back(number);
    at = next == end ? end : next + 1;
  }
  return out;
}

int GraphCommand(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    fmt::print(
        "celer graph - networks out of ONNX and PNNX files\n  example: celer graph run model.onnx --input "
        "x=x.npy\n\n");
    constexpr int kColumn = 13;
    for (const Subcommand& sub : kSubcommands)
      fmt::print("  {:<10} {}\n", sub.name, Wrap(sub.summary, OutputWidth(), kColumn, kColumn));
    fmt::print("\n{}\n",
               Wrap("celer graph COMMAND --help tells more. run, bench and check take --precision f16.",
                    OutputWidth(), 0));
    return kOk;
  }
  std::vector<std::string> names;
  for (const Subcommand& sub : kSubcommands) {
    if (args[0] == sub.name) return sub.run({args.begin() + 1, args.end()});
    names.emplace_back(sub.name);
  }
  const std::string hint = DidYouMean(args[0], names);
  return Fail(Error::Invalid("unknown command 'graph ", args[0], "'",
                             hint.empty() ? "; see celer graph --help" : hint));
}

int GraphOperatorsCommand(const std::vector<std::string>& args) {
  CommandLine app("graph operators", "every operator that can run", "celer graph operators --markdown");
  bool markdown = false;
  app.add_flag("--markdown", markdown, "as docs/operators.md");
  if (const auto stop = Parse(app, args)) return *stop;
  if (markdown) {
    fmt::print("{}", graph::OperatorsMarkdown());
    return kOk;
  }
  std::string names;
  for (const graph::Operator* const op : graph::Operators()) {
    const std::string name =
        (op->domain.empty() ? "" : std::string(op->domain) + ".") + std::string(op->name);
    if (!names.ends_with(" " + name)) names += " " + name;
  }
  fmt::print("{}\n", Wrap(names.substr(1), OutputWidth(), 0));
  return kOk;
}

}  // namespace celer::cli
