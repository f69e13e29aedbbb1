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
  // With the flag: creates the file, so that what is wrong with it is said before a model is loaded.
  Status Open();
  // The engine writes there from now on.
  void Attach(Engine& engine);
  // Once the engine has done its last step. Says where the trace is.
  Status Close();

 private:
  std::string path_;
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace celer::cli
