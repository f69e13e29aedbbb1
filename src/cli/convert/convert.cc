// celer convert MODEL -o OUT: the same model in another container. docs/convert.md tells more.
#include "convert/convert.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/log.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "device/thread_pool.h"
#include "hub/model_path.h"
#include "io/file/atomic_file.h"
#include "limits/quantity.h"
#include "quantize/llm/target.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertFlags {
  std::string model, output;
  ConvertOptions options;
  bool no_tokenizer = false, force = false, verbose = false;
};

// What the output's name says.
ConvertTarget TargetOf(const fs::path& out) {
  std::string extension = out.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (extension == ".gguf") return ConvertTarget::kGguf;
  return extension == ".bin" ? ConvertTarget::kLlama2c : ConvertTarget::kHf;
}

Status CheckOutput(const ConvertFlags& flags, const fs::path& model, ConvertTarget target) {
  if (flags.output.empty()) return Error::Invalid("--output is empty; expected a name");
  const fs::path out(flags.output);
  std::error_code error;
  if (!fs::exists(out, error)) return {};
  if (fs::is_fifo(out, error) || fs::is_socket(out, error))
    return Error::Invalid(flags.output,
                          ": is a pipe, and what is written is read again; give the name of a file");
  if (fs::equivalent(out, model, error))
    return Error::Invalid("--output ", flags.output, ": is the model itself; give another name");
  const bool folder = target == ConvertTarget::kHf;
  if (!folder && !fs::is_regular_file(out, error)) return CheckWritable(out);
  if (!flags.force || folder)
    return Error::Invalid(flags.output, ": is there already; ",
                          folder ? "remove it or give another name" : "give --force to replace it");
  return {};
}

Status Run(const ConvertFlags& flags) {
  if (flags.verbose) log::SetLevel(log::Level::kInfo);
  CELER_ASSIGN(const fs::path model, ResolveModelPath(flags.model));
  const ConvertTarget target = TargetOf(flags.output);
  CELER_RETURN_IF_ERROR(CheckOutput(flags, model, target));
  ConvertOptions options = flags.options;
  options.tokenizer = !flags.no_tokenizer;
  std::optional<ProgressLine> line;
  options.progress = [&](int64_t done, int64_t total) -> Status {
    if (!line) line.emplace("writing", total);
    line->Update(done);
    if (InterruptGuard::Pending()) return Error::Cancelled(flags.output, ": interrupted, nothing is kept");
    return {};
  };
  const InterruptGuard guard;
  const auto start = std::chrono::steady_clock::now();
  CELER_ASSIGN(const Converted done, ConvertModel(model, flags.output, target, options, DefaultThreadPool()));
  line.reset();
  for (const std::string& note : done.notes) log::Warning("{}", note);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::string also;
  for (const std::string& file : done.files) also += " and " + file;
  Say("{}{}: {} as {}, {}, {} in {}\n", flags.output, also, done.model, Name(target), done.weights,
      FormatBytes(static_cast<double>(done.bytes)), FormatSeconds(seconds));
  return {};
}

}  // namespace

int ConvertCommand(const std::vector<std::string>& args) {
  ConvertFlags flags;
  CommandLine app("convert", "a model in another container: GGUF, a Hugging Face folder, llama2.c",
                  "celer convert qwen3-8b/ -o qwen3-8b.gguf --weights q8_0");
  app.add_option("MODEL", flags.model, "a Hugging Face folder, a GGUF file, or the name of a pulled model")
      ->required();
  app.add_option("-o,--output", flags.output,
                 "a name that ends with .gguf, one that ends with .bin for llama2.c, or a folder to make")
      ->required();
  app.add_option(
         "--weights", flags.options.weights,
         "f32, f16 or bf16, by default as the model has them (bf16 where it is quantized); in GGUF also what "
         "celer quantize writes there: q8_0, q4_k_m")
      ->type_name("FORMAT");
  app.add_option("--llama2c-version", flags.options.llama2c_version,
                 "0 (f32, for run.c), 1 (f32) or 2 (int8, for runq.c)")
      ->check(Between(0, 2))
      ->capture_default_str();
  app.add_flag("--no-tokenizer", flags.no_tokenizer, "the weights alone");
  app.add_flag(
      "--lossy", flags.options.lossy,
      "write a model that the output cannot describe in full, with a warning that says what it lacks");
  app.add_flag("--force", flags.force, "replace a file that is there");
  app.add_flag("-v,--verbose", flags.verbose, "say more");
  app.footer("Between folders, and between GGUF files, celer quantize changes formats.");
  if (const auto stop = Parse(app, args)) return *stop;
  if (const Status status = Run(flags); !status) {
    const int code = Fail(status.error());
    return status.error().code() == Error::Code::kCancelled ? InterruptGuard::ExitCode() : code;
  }
  return kOk;
}

}  // namespace celer::cli
