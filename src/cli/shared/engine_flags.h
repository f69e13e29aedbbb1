// The flags of every command that loads a model into an engine. No text module is needed for them.
#pragma once

#include <string>

#include "base/device.h"
#include "celer/engine.h"
#include "celer/limits.h"
#include "cli/shared/command.h"

namespace celer::cli {

// MODEL goes to `model`; ResolveModels() finds it.
void AddEngineFlags(CLI::App& app, std::string* model, EngineOptions* options);
// Fills in where the model and its draft are (hub/model_path.h). Of several processes that run the model, those
// that are not the first one serve it from here on, and do not return (parallel_flags.h).
Status ResolveModels(const std::string& model, EngineOptions* options);

// Where the engine runs; its description begins with the device's name: "cuda:0 (NVIDIA H200)".
Device DeviceOf(const Engine::Info& info);

// What that device can do at best: of a CPU, as many cores as the engine has threads.
Result<Machine> MachineOf(const Engine::Info& info, bool allow_measure);

}  // namespace celer::cli
