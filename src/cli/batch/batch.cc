// celer batch MODEL IN.jsonl -o OUT.jsonl: answers to a file of requests, resumable at any moment.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/device.h"
#include "cli/batch/run.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/engine_flags.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/trace_flag.h"
#include "cli/text/generate_flags.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

struct BatchFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string in, out, errors;
  int64_t window = 0;
  bool max_tokens_given = false;
  TraceFlag trace;
  bool restart = false, json = false, quiet = false;
};

// On a CPU few sequences saturate the arithmetic units, and the fewer are in flight, the less work a kill
// loses.
int64_t DefaultWindow(const DeviceOptions& device) {
  using Kind = DeviceOptions::Kind;
  const bool cpu = device.kind == Kind::kCpu || (device.kind == Kind::kAuto && CudaDeviceCount() == 0);
  return cpu ? 32 : 256;
}

Status CheckApart(const BatchFlags& flags) {
  const std::pair<const char*, fs::path> files[] = {
      {"IN", flags.in}, {"--out", flags.out}, {"--errors", flags.errors}};
  for (size_t i = 0; i < std::size(files); ++i)
    for (size_t k = i + 1; k < std::size(files); ++k) {
      std::error_code ignored;
      if (files[i].second.lexically_normal() == files[k].second.lexically_normal() ||
          fs::equivalent(files[i].second, files[k].second, ignored))
        return Error::Invalid(files[i].first, " and ", files[k].first, " are the same file, ",
                              files[i].second.string(), "; give different ones");
    }
  return {};
}

Result<BatchFiles> OpenFiles(const BatchFlags& flags) {
  CELER_RETURN_IF_ERROR(CheckApart(flags));
  CELER_ASSIGN(LinesFile in, LinesFile::Open(flags.in));
  LineSet answered, refused;
  CELER_ASSIGN(AppendedLines out, AppendedLines::Open(flags.out, flags.restart, /*by_key=*/true, &answered));
  CELER_ASSIGN(AppendedLines errors,
               AppendedLines::Open(flags.errors, flags.restart, /*by_key=*/false, &refused));
  if (!flags.quiet)
    for (const AppendedLines* file : {&out, &errors})
      if (file->repaired_bytes() > 0)
        Say("{}: a half-written last line of {} bytes was removed; its request is done again\n",
            file->path().string(), file->repaired_bytes());
  if (!flags.quiet && out.lines() + errors.lines() > 0)
    Say("resuming: {} answers are in {}, {} refused lines in {}\n", FormatCount(out.lines()), flags.out,
        FormatCount(errors.lines()), flags.errors);
  return BatchFiles{std::move(in), std::move(out), std::move(errors), std::move(answered),
                    std::move(refused)};
}

nlohmann::ordered_json SummaryJson(const BatchOutcome& o, const BatchFlags& flags) {
  const double seconds = std::max(o.seconds, 1e-9);
  nlohmann::ordered_json json = {
      {"requests", o.requests},
      {"requests_before", o.requests_before},
      {"refused", o.refused},
      {"refused_before", o.refused_before},
      {"complete", !o.interrupted && !o.failure},
      {"prompt_tokens", o.prompt_tokens},
      {"cached_tokens", o.cached_tokens},
      {"completion_tokens", o.new_tokens},
      {"seconds", o.seconds},
      {"completion_tokens_per_s", static_cast<double>(o.new_tokens) / seconds},
      {"total_tokens_per_s", static_cast<double>(o.prompt_tokens + o.new_tokens) / seconds}};
  json["ratio_to_limit"] = o.share_of_limit ? nlohmann::ordered_json(*o.share_of_limit) : nullptr;
  json["output"] = flags.out;
  json["errors"] = flags.errors;
  return json;
}

std::string SummaryText(const BatchOutcome& o, const BatchFlags& flags) {
  std::string text = fmt::format("{} requests answered", FormatCount(o.requests));
  if (o.requests_before > 0) text += fmt::format(" and {} before", FormatCount(o.requests_before));
  if (o.refused + o.refused_before > 0)
    text +=
        fmt::format(", {} lines refused: see {}", FormatCount(o.refused + o.refused_before), flags.errors);
  text += fmt::format("; {} prompt tokens", FormatCount(o.prompt_tokens));
  if (o.cached_tokens > 0) text += fmt::format(" ({} cached)", FormatCount(o.cached_tokens));
  text += fmt::format(" and {} new ones in {}: {} new tok/s", FormatCount(o.new_tokens), TimeText(o.seconds),
                      FormatNumber(static_cast<double>(o.new_tokens) / std::max(o.seconds, 1e-9)));
  if (o.share_of_limit) text += fmt::format(" = {:.0f} % of this machine's limit", 100 * *o.share_of_limit);
  return text;
}

Result<int> Run(BatchFlags& flags) {
  CELER_ASSIGN(BatchFiles files, OpenFiles(flags));
  CELER_RETURN_IF_ERROR(flags.trace.Open());
  CELER_ASSIGN(TextModel model, flags.model.Load());
  flags.trace.Attach(*model.engine);
  const Engine::Info info = model.engine->info();
  BatchSettings settings;
  settings.window = flags.window;
  settings.quiet = flags.quiet;
  CELER_ASSIGN(settings.defaults.sampling,
               flags.sampling.Apply(model.prompter.default_sampling(), info.vocab));
  settings.defaults.stop = flags.sampling.stop;
  if (flags.max_tokens_given) settings.defaults.max_tokens = flags.sampling.max_tokens;
  settings.seed = flags.sampling.seed.value_or(0);
  std::string name = fs::path(flags.model.model).filename().string();
  if (name.empty()) name = flags.model.model;
  CELER_ASSIGN(server::ServedModel served, server::MakeServedModel(std::move(name), model.prompter, info,
                                                                   flags.model.options.chat_template));
  if (const auto machine = MachineOf(info, /*allow_measure=*/false)) model.engine->SetMachine(*machine);

  const InterruptGuard guard(InterruptGuard::Mode::kDrain);
  EngineThread thread(std::move(model.engine));
  served.adapters = thread.adapters();
  const BatchOutcome outcome = RunBatch(thread, served, files, settings);
  const Status traced = flags.trace.Close();
  if (flags.json) fmt::print("{}\n", JsonText(SummaryJson(outcome, flags), 2));
  if (!flags.quiet && !flags.json) Say("{}\n", Wrap(SummaryText(outcome, flags), MessageWidth(), 0));
  if (outcome.failure || outcome.interrupted) Say("not all was done; the same command goes on from here\n");
  if (outcome.failure) return *outcome.failure;
  for (AppendedLines* file : {&files.out, &files.errors}) file->Keep();
  if (!traced) return traced.error();
  if (outcome.interrupted) return InterruptGuard::ExitCode();
  return int{outcome.refused + outcome.refused_before > 0 ? kPartly : kOk};
}

}  // namespace

int BatchCommand(const std::vector<std::string>& args) {
  BatchFlags flags;
  CommandLine app("batch", "answers to a file of requests",
                  "celer batch smollm2 requests.jsonl -o answers.jsonl");
  flags.model.AddTo(app);
  flags.model.AddChatTo(app);
  app.add_option("IN", flags.in, "a file with a JSON object on each line")->required();
  app.add_option(
         "-o,--out", flags.out,
         "file that answers are appended to, as they come; requests that are answered there are skipped")
      ->required();
  app.add_option("--errors", flags.errors, "file for lines that have no answer (default: OUT.errors.jsonl)")
      ->default_str("");
  app.add_flag("--restart", flags.restart, "empty OUT and the error file first, instead of resuming");
  app.add_option("--window", flags.window, "lines in flight at once (0: 32 on a CPU, 256 on a GPU)")
      ->check(Between(0, 65536));
  app.add_flag("--json", flags.json, "a summary as one JSON object at the end");
  app.add_flag("-q,--quiet", flags.quiet, "no progress and no summary");
  flags.trace.AddTo(app);
  flags.sampling.AddTo(app);
  app.get_option("--lora")->description(
      "NAME=PATH[:SCALE]: a LoRA adapter, a PEFT folder or a GGUF file; may be repeated. A line gets the one "
      "that its "
      "model names, or those that its lora lists, else the sum of all");
  CLI::Option* const max_tokens = app.get_option("--max-tokens");
  max_tokens->description(
      "tokens to generate at most (default: what the context holds; in /v1/completions 16)");
  max_tokens->default_str("");
  app.get_option("--seed")->description(
      "a line without a seed has one made of this and its number, so that a batch can be repeated (default "
      "0)");
  app.footer(
      "A line is a request in OpenAI's batch format (custom_id, method, url, body), or simply {\"prompt\": "
      "...} or {\"messages\": [...]} with an id and sampling parameters beside it. The flags hold where a "
      "line "
      "says nothing. The batch may be killed at any moment: the same command goes on, loses no answer and "
      "gives none twice. It ends with 0 if every line was answered, 3 if some were refused. See "
      "docs/batch.md.");
  if (const auto stop = Parse(app, args)) return *stop;
  flags.max_tokens_given = max_tokens->count() > 0;
  if (flags.errors.empty()) flags.errors = flags.out + ".errors.jsonl";
  if (flags.window == 0) flags.window = DefaultWindow(flags.model.options.engine.device);
  flags.model.options.engine.sequences = flags.window;
  const auto code = Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
