// celer: the table of commands. Each command prints its own `--help`.
#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/suggest.h"
#include "celer/log.h"
#include "celer/version.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/operators.h"
#include "device/variant.h"
#include "io/file/mapping_faults.h"
#include "report/exit_code.h"
#include "report/output.h"

namespace celer::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;                               // one line for `celer --help`
  int (*run)(const std::vector<std::string>& args);  // null: not in this build
};

// Not in the build that `make run` makes, so that a first answer takes minutes.
#if CELER_ONLY_RUN
#define CELER_FULL(command) nullptr
#else
#define CELER_FULL(command) command
#endif

constexpr Command kCommands[] = {
#if CELER_WITH_TEXT
    {"run", "one answer from a model", RunCommand},
    {"chat", "a conversation with a model", ChatCommand},
    {"batch", "answers to a file of requests", CELER_FULL(BatchCommand)},
    {"serve", "answer over HTTP, as OpenAI's API does", CELER_FULL(ServeCommand)},
    {"ppl", "perplexity of a model on a text", CELER_FULL(PplCommand)},
    {"eval", "how far from exact arithmetic a model runs here", CELER_FULL(EvalCommand)},
    {"quantize", "write a smaller form of a model", CELER_FULL(QuantizeCommand)},
    {"convert", "a model in another container: GGUF, a Hugging Face folder, llama2.c",
     CELER_FULL(ConvertCommand)},
    {"tokenize", "text to token ids and back", CELER_FULL(TokenizeCommand)},
#endif
    {"pull", "fetch a model", PullCommand},
    {"synth", "write a model file with random weights, for benchmarks", CELER_FULL(SynthCommand)},
    {"merge", "write a model with LoRA adapters added to its weights", CELER_FULL(MergeCommand)},
    {"inspect", "what a model file holds", CELER_FULL(InspectCommand)},
    {"graph", "run and inspect networks out of ONNX files", CELER_FULL(GraphCommand)},
    {"limits", "what is physically possible for a model on a machine", LimitsCommand},
    {"plan", "the cheapest machines that hold a load within its target", CELER_FULL(PlanCommand)},
    {"bench", "how fast a model runs here, and how near the limit that is", CELER_FULL(BenchCommand)},
    {"probe", "measure this machine's bandwidth and arithmetic peaks", ProbeCommand},
    {"kernels", "which kernel variants exist, and which run here", KernelsCommand},
};

void PrintHelp() {
  fmt::print("celer {} - inference as close to the hardware's limit as physics allows\n", celer::Version());
  fmt::print("  example: celer run smollm2 \"Why is the sky blue?\"\n\ncommands:\n");
  for (const Command& command : kCommands)
    fmt::print("  {:<10} {}{}\n", command.name, command.summary, command.run ? "" : " (*)");
  if (CELER_ONLY_RUN)
    fmt::print("\n(*) not in this build, which `make run` made; `make celer` builds every command.\n");
  fmt::print("\nceler COMMAND --help tells more.\n");
}

int Main(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    PrintHelp();
    return kOk;
  }
  if (args[0] == "--version" || args[0] == "-V") {
    fmt::print("celer {}\n", celer::Version());
    return kOk;
  }
  for (const Command& command : kCommands)
    if (args[0] == command.name) {
      if (command.run == nullptr)
        return Fail(Error::Unsupported("celer ", args[0], " is not in this build, which `make run` made; ",
                                       "`make celer` builds every command"));
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
  using namespace celer::cli;
  celer::SetLogSink(celer::StderrLog());
  PrepareStreams();
  HandleSignals();
  celer::ReportMappingFaults(kFailed);
  int code = kFailed;
  try {
    code = Main({argv + 1, argv + argc});
  } catch (const EndNow& end) {
    code = end.code;
  } catch (const std::bad_alloc&) {
    Say("error: out of memory\n");
  } catch (const std::exception& error) {
    if (!IsOutputError(error)) Say("error: {}\n", error.what());
  }
  return FinishOutput(code);
}
