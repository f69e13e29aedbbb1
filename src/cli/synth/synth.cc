// celer synth: a model with random weights at a known model's shapes, for benchmarks and tests.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "device/thread_pool.h"
#include "formats/decode.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "models/config/presets.h"
#include "models/synth/synth.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

std::string FormatNames() {
  std::string out;
  for (const DType dtype : WeightTypes()) out += (out.empty() ? "" : ", ") + std::string(Name(dtype));
  return out;
}

// Flags that shrink (or grow) a model.
void AddSizes(CLI::App* app, SynthSizes* sizes) {
  const auto number = [app](const char* flag, int64_t* value, const char* what) {
    app->add_option(flag, *value, what)
        ->check(Between(1, int64_t{1} << 24))
        ->type_name("N")
        ->default_str("")
        ->group("Shapes, by default the model's");
  };
  number("--layers", &sizes->layers, "number of layers");
  number("--hidden", &sizes->hidden, "hidden size");
  number("--intermediate", &sizes->intermediate, "columns of the feed-forward part, or of one expert");
  number("--vocab", &sizes->vocab, "vocabulary size, at least 257");
  number("--heads", &sizes->heads, "query heads");
  number("--kv-heads", &sizes->kv_heads, "key and value heads");
  number("--head-dim", &sizes->head_dim, "elements of a head");
  number("--experts", &sizes->experts, "experts of a mixture");
  number("--experts-per-token", &sizes->experts_per_token, "experts that a token uses");
}

Status Apply(const SynthSizes& sizes, LlmShape* shape) {
  if ((sizes.experts > 0 || sizes.experts_per_token > 0) && shape->experts == 0)
    return Error::Invalid("--experts: ", shape->name, " is no mixture of experts; take a model that is one");
  const auto set = [](int64_t* field, int64_t value) {
    if (value > 0) *field = value;
  };
  set(&shape->layers, sizes.layers);
  set(&shape->hidden, sizes.hidden);
  set(&shape->intermediate, sizes.intermediate);
  set(&shape->vocab, sizes.vocab);
  set(&shape->heads, sizes.heads);
  set(&shape->kv_heads, sizes.kv_heads);
  set(&shape->head_dim, sizes.head_dim);
  set(&shape->experts, sizes.experts);
  set(&shape->experts_per_token, sizes.experts_per_token);
  return Validate(*shape);
}

// A model that is known by name, a config.json, or a folder with one.
Result<SynthModel> FindModel(const std::string& name, const SynthSizes& sizes, DType dtype, uint64_t seed) {
  fs::path path(name);
  std::error_code error;
  if (fs::is_directory(path, error)) path /= "config.json";
  std::optional<nlohmann::ordered_json> json = FindPresetJson(name);
  if (!json && fs::is_regular_file(path, error)) {
    CELER_RETURN_IF_ERROR(ReadJsonFile(path));  // for its error
    std::ifstream file(path);
    json = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  }
  if (json) {
    CELER_ASSIGN(const nlohmann::ordered_json resized, ResizeConfig(name, std::move(*json), sizes));
    return MakeSynthModel(name, resized, dtype, seed);
  }
  CELER_ASSIGN(LlmShape shape, FindModelPreset(name));
  CELER_RETURN_IF_ERROR(Apply(sizes, &shape));
  return MakeSynthModel(shape, dtype, seed);
}

// Existing output is replaced only when asked to; of a folder only the files that this command writes.
Status ClearOutput(const fs::path& out, bool gguf, bool force) {
  std::error_code error;
  const bool occupied =
      gguf ? fs::exists(out, error)
           : fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error));
  if (!occupied) return {};
  if (!force) return Error::Invalid(out.string(), ": is there already; give --force to replace it");
  if (gguf) return {};
  if (!fs::is_directory(out, error))
    return Error::Invalid(out.string(), ": is a file, expected a folder or a name that ends with .gguf");
  for (const fs::directory_entry& entry : fs::directory_iterator(out, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == "model.safetensors.index.json" ||
        (name.starts_with("model") && name.ends_with(".safetensors")))
      fs::remove(entry.path(), error);
  }
  return {};
}

Result<DType> ParseFormat(const std::string& text) {
  const auto dtype = ParseDType(text);
  if (!dtype || std::ranges::find(WeightTypes(), *dtype) == WeightTypes().end())
    return Error::Invalid("--weights '", text, "' is not one of ", FormatNames());
  return *dtype;
}

Status Synthesize(const SynthModel& model, const fs::path& out, bool gguf) {
  std::optional<ProgressLine> line;
  const SynthProgress progress = [&](int64_t done, int64_t total) -> Status {
    if (!line) line.emplace("writing", total);
    line->Update(done);
    if (InterruptGuard::Pending()) return Error::Cancelled(out.string(), ": interrupted, nothing is kept");
    return {};
  };
  auto& pool = DefaultThreadPool();
  return gguf ? WriteSynthGguf(model, out, pool, progress) : WriteSynthHf(model, out, pool, progress);
}

int64_t BytesOf(const fs::path& out) {
  std::error_code error;
  if (!fs::is_directory(out, error)) return static_cast<int64_t>(fs::file_size(out, error));
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(out, error))
    bytes += static_cast<int64_t>(entry.file_size(error));
  return bytes;
}

}  // namespace

int SynthCommand(const std::vector<std::string>& args) {
  CommandLine app("synth", "write a model with random weights at a known model's shapes",
                  "celer synth llama-3.1-8b --weights q4_0 -o llama-8b-random.gguf");
  std::string preset, format, out;
  uint64_t seed = 0;
  bool force = false;
  SynthSizes sizes;
  app.add_option("MODEL", preset, "a model from celer limits --list, or a config.json")->required();
  app.add_option("--weights", format, FormatNames())->required();
  app.add_option("-o,--output", out,
                 "a name that ends with .gguf, or a folder for config.json and safetensors")
      ->required();
  app.add_option("--seed", seed, "same seed, same weights, on every machine");
  app.add_flag("--force", force, "replace what is there");
  AddSizes(&app, &sizes);
  app.footer(
      "The files say that they are synthetic. Their text is noise; their speed is that of the real model.");
  if (const auto stop = Parse(app, args)) return *stop;

  const auto dtype = ParseFormat(format);
  if (!dtype) return Fail(dtype.error());
  const fs::path path(out);
  const bool gguf = path.extension() == ".gguf";
  if (path.extension() == ".safetensors")
    return Fail(Error::Invalid("--output ", out,
                               ": give the folder that will hold model.safetensors and config.json"));
  const auto model = FindModel(preset, sizes, *dtype, seed);
  if (!model) return Fail(model.error());
  if (const auto status = ClearOutput(path, gguf, force); !status) return Fail(status.error());

  const InterruptGuard guard;
  const auto start = std::chrono::steady_clock::now();
  const Status status = Synthesize(*model, path, gguf);
  if (!status) {
    const int code = Fail(status.error());
    return status.error().code() == Error::Code::kCancelled ? InterruptGuard::ExitCode() : code;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto bytes = static_cast<double>(BytesOf(path));
  const std::string line = fmt::format(
      "{}: {} as {} ({}), random weights, seed {}; {} in {}, {}/s", out, model->name, Name(*dtype),
      model->family->name, seed, FormatBytes(bytes), FormatSeconds(seconds), FormatBytes(bytes / seconds));
  Say("{}\n", Wrap(line, MessageWidth(), 2));
  return kOk;
}

}  // namespace celer::cli
