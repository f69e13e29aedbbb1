// celer synth: a model with random weights at a preset's shapes, for benchmarks and tests.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "device/thread_pool.h"
#include "formats/decode.h"
#include "limits/quantity.h"
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

// Flags that shrink (or grow) a preset.
struct Overrides {
  int64_t layers = 0, hidden = 0, intermediate = 0, vocab = 0, heads = 0, kv_heads = 0, head_dim = 0,
          experts = 0, experts_per_token = 0;

  void AddTo(CLI::App* app) {
    const auto number = [app](const char* flag, int64_t* value, const char* what) {
      app->add_option(flag, *value, what)
          ->check(Between(1, int64_t{1} << 24))
          ->type_name("N")
          ->default_str("")
          ->group("Shapes, by default the preset's");
    };
    number("--layers", &layers, "number of layers");
    number("--hidden", &hidden, "hidden size");
    number("--intermediate", &intermediate, "columns of the feed-forward part, or of one expert");
    number("--vocab", &vocab, "vocabulary size, at least 257");
    number("--heads", &heads, "query heads");
    number("--kv-heads", &kv_heads, "key and value heads");
    number("--head-dim", &head_dim, "elements of a head");
    number("--experts", &experts, "experts of a mixture");
    number("--experts-per-token", &experts_per_token, "experts that a token uses");
  }

  Status Apply(LlmShape* shape) const {
    if ((experts > 0 || experts_per_token > 0) && shape->experts == 0)
      return Error::Invalid("--experts: ", shape->name,
                            " is no mixture of experts; take a preset that is one");
    const auto set = [](int64_t* field, int64_t value) {
      if (value > 0) *field = value;
    };
    set(&shape->layers, layers);
    set(&shape->hidden, hidden);
    set(&shape->intermediate, intermediate);
    set(&shape->vocab, vocab);
    set(&shape->heads, heads);
    set(&shape->kv_heads, kv_heads);
    set(&shape->head_dim, head_dim);
    set(&shape->experts, experts);
    set(&shape->experts_per_token, experts_per_token);
    return Validate(*shape);
  }
};

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
  CommandLine app("synth", "write a model with random weights at a preset's shapes",
                  "celer synth llama-3.1-8b --weights q4_0 -o llama-8b-random.gguf");
  std::string preset, format, out;
  uint64_t seed = 0;
  bool force = false;
  Overrides overrides;
  app.add_option("PRESET", preset, "a model from celer limits --list")->required();
  app.add_option("--weights", format, FormatNames())->required();
  app.add_option("-o,--output", out,
                 "a name that ends with .gguf, or a folder for config.json and safetensors")
      ->required();
  app.add_option("--seed", seed, "same seed, same weights, on every machine");
  app.add_flag("--force", force, "replace what is there");
  overrides.AddTo(&app);
  app.footer(
      "The files say that they are synthetic. Their text is noise; their speed is that of the real model.");
  if (const auto stop = Parse(app, args)) return *stop;

  auto shape = FindModelPreset(preset);
  if (!shape) return Fail(shape.error());
  if (const auto status = overrides.Apply(&*shape); !status) return Fail(status.error());
  const auto dtype = ParseFormat(format);
  if (!dtype) return Fail(dtype.error());
  const fs::path path(out);
  const bool gguf = path.extension() == ".gguf";
  if (path.extension() == ".safetensors")
    return Fail(Error::Invalid("--output ", out,
                               ": give the folder that will hold model.safetensors and config.json"));
  const auto model = MakeSynthModel(*shape, *dtype, seed);
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
      "{}: {} as {} ({}), random weights, seed {}; {} in {}, {}/s", out, shape->name, Name(*dtype),
      model->family->name, seed, FormatBytes(bytes), FormatSeconds(seconds), FormatBytes(bytes / seconds));
  Say("{}\n", Wrap(line, MessageWidth(), 2));
  return kOk;
}

}  // namespace celer::cli
