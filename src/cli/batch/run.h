// Works through a batch: one thread reads lines and makes tokens of them, the engine's thread runs them
// together, and the caller's thread gathers and writes the answers. At most a window of lines is in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "celer/engine_thread.h"
#include "celer/text.h"
#include "cli/batch/files.h"
#include "cli/batch/line.h"
#include "cli/batch/progress.h"

namespace celer::cli {

struct BatchFiles {
  LinesFile in;
  AppendedLines out, errors;
  LineSet answered;  // in `out`, from before
  LineSet refused;   // in `errors`, likewise
};

struct BatchSettings {
  BodyDefaults defaults;
  uint64_t seed = 0;     // a line without its own has one made of this and its number
  int64_t window = 256;  // lines in flight
  bool quiet = false;
};

struct BatchOutcome {
  int64_t requests = 0, requests_before = 0;  // answered
  int64_t refused = 0, refused_before = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;  // of those answered in this run
  double seconds = 0;
  std::optional<double> share_of_limit;
  bool interrupted = false;
  // Why the run ended before all was done: a fault of the device, a full disk.
  std::optional<Error> failure;
};

// Needs an InterruptGuard. The first Ctrl-C drains: requests in flight are finished. The second stops at
// once.
BatchOutcome RunBatch(EngineThread& thread, const server::ServedModel& model, BatchFiles& files,
                      const BatchSettings& settings);

}  // namespace celer::cli
