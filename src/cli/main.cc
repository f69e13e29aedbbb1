// celer: the table of commands. `celer COMMAND --help` is each command's own affair.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/operators.h"
#include "core/suggest.h"
#include "core/variant.h"
#include "io/mapping_faults.h"

namespace celer::cli {
namespace {

constexpr Command kCommands[] = {
#if CELER_WITH_TEXT
    {"run", "one answer from a model", RunCommand},
    {"chat", "a conversation with a model", ChatCommand},
    {"ppl", "perplexity of a model on a text", PplCommand},
    {"tokenize", "text to token ids and back", TokenizeCommand},
#endif
    {"pull", "fetch a model", PullCommand},
    {"synth", "write a model file with random weights, for benchmarks", SynthCommand},
    {"inspect", "what a model file holds", InspectCommand},
    {"limits", "what is physically possible for a model on a machine", LimitsCommand},
    {"bench", "how fast a model runs here, and how near the limit that is", BenchCommand},
    {"probe", "measure this machine's bandwidth and arithmetic peaks", ProbeCommand},
    {"kernels", "which kernel variants exist, and which run here", KernelsCommand},
};

void PrintHelp() {
  fmt::print("celer {} - inference as close to the hardware's limit as physics allows\n", CELER_VERSION);
  fmt::print("  example: celer run smollm2 \"Why is the sky blue?\"\n\ncommands:\n");
  for (const Command& command : kCommands) fmt::print("  {:<10} {}\n", command.name, command.summary);
  fmt::print("\nceler COMMAND --help tells more.\n");
}

int Main(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    PrintHelp();
    return kOk;
  }
  if (args[0] == "--version" || args[0] == "-V") {
    fmt::print("celer {}\n", CELER_VERSION);
    return kOk;
  }
  for (const Command& command : kCommands)
    if (args[0] == command.name) {
      if (ForceRequested())
        if (const Status valid = ValidateForce(AllOperators()); !valid) return Fail(valid.error());
      return command.run({args.begin() + 1, args.end()});
    }

  std::vector<std::string> names = {"--help", "--version"};
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::string hint = DidYouMean(args[0], names);
  return Fail(Error::Invalid("unknown command '", args[0], "'", hint.empty() ? "; see celer --help" : hint));
}

}  // namespace
}  // namespace celer::cli

int main(int argc, char** argv) {
  celer::ReportMappingFaults(celer::cli::kFailed);
  try {
    return celer::cli::Main({argv + 1, argv + argc});
  } catch (const std::bad_alloc&) {
    std::fputs("error: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  return celer::cli::kFailed;
}
