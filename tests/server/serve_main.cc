// celer with the two commands that the tests of the server need. A sanitizer compiles it in a third of the
// time that the whole program takes; `celer serve` and `celer synth` are the program's own.
#include <algorithm>
#include <string>
#include <vector>

#include "celer/log.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "io/file/mapping_faults.h"
#include "report/exit_code.h"
#include "report/output.h"

int main(int argc, char** argv) {
  using namespace celer::cli;
  celer::SetLogSink(celer::StderrLog());
  PrepareStreams();
  HandleSignals();
  celer::ReportMappingFaults(kFailed);
  const std::string command = argc > 1 ? argv[1] : "";
  const std::vector<std::string> args(argv + std::min(argc, 2), argv + argc);
  if (command == "serve") return FinishOutput(ServeCommand(args));
  if (command == "synth") return FinishOutput(SynthCommand(args));
  Say("usage: {} serve|synth ...\n", argv[0]);
  return kUsage;
}
