// --trace FILE: what the engine did and when, for Perfetto.
#pragma once

#include <memory>
#include <string>

#include "celer/engine.h"
#include "cli/shared/command.h"
#include "engine/loop/step_trace.h"

namespace celer::cli {

class TraceFlag {
 public:
  void AddTo(CLI::App& app);
  // With the flag: the engine that is loaded with these options writes there.
  Status Open(EngineOptions* options);
  // Once the engine has done its last step. Says where the trace is.
  Status Close();

 private:
  std::string path_;
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace celer::cli
