// The flags of every command that loads a model into an engine. No text module is needed for them.
#pragma once

#include <string>

#include "celer/engine.h"
#include "cli/command.h"
#include "core/device.h"

namespace celer::cli {

// MODEL goes to `model`; ResolveModelPath (cli/model_path.h) finds it.
void AddEngineFlags(CLI::App& app, std::string* model, EngineOptions* options);

// Where the engine runs; its description begins with the device's name: "cuda:0 (NVIDIA H200)".
Device DeviceOf(const Engine::Info& info);

}  // namespace celer::cli
