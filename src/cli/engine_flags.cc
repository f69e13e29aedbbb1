#include "cli/engine_flags.h"

#include <filesystem>

#include "limits/measured_machine.h"

namespace celer::cli {

void AddEngineFlags(CLI::App& app, std::string* model, EngineOptions* options) {
  app.add_option("MODEL", *model,
                 "a pulled name (smollm2), a GGUF file, a Hugging Face folder or a llama2.c .bin")
      ->required();
  app.add_option("--weights", options->weights,
                 "stored, or convert while loading: f32, f16, bf16, int8[-gN], int4[-gN]");
  app.add_option(
      "--kv", options->kv,
      "type of keys and values: f16, bf16, f32 (CPU), int8 with a scale per head and token, fp8 (CUDA)");
  options->device = "auto";
  app.add_option("--device", options->device, "cpu, cuda, cuda:N, or auto: cuda if there is one");
  app.add_option("--chunk", options->chunk, "prompt tokens computed in one step");
  app.add_option("--threads", options->threads, "0: all that this process may use");
  app.add_flag_function(
         "--pack-cache",
         [options](int64_t wanted) {
           const std::filesystem::path cache = DefaultCacheDir();
           if (wanted > 0 && cache.empty())
             throw CLI::ValidationError("--pack-cache: set CELER_CACHE to a folder");
           options->pack_cache = wanted > 0 ? (cache / "packed").string() : "";
         },
         "keep weights as packed for this CPU in the cache folder and map them at the next start; off by "
         "default: it takes as much disk as the model again")
      ->envname("CELER_PACK_CACHE");
}

Device DeviceOf(const Engine::Info& info) {
  const auto device = Device::Parse(std::string_view(info.device).substr(0, info.device.find(' ')));
  return device ? *device : Device::Cpu();
}

}  // namespace celer::cli
