// celer run MODEL "prompt": one answer, streamed.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>

#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/trace_flag.h"
#include "cli/text/generate_flags.h"
#include "io/json/json.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr size_t kMaxPromptBytes = size_t{64} << 20;

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;  // "": an empty prompt, generation starts from BOS
  std::string file, system;
  TraceFlag trace;
  bool raw = false, json = false, ignore_end = false, quiet = false;
};

Result<std::string> ReadStandardInput() {
  std::string text;
  for (char buffer[65536]; std::cin.read(buffer, sizeof buffer) || std::cin.gcount() > 0;) {
    text.append(buffer, static_cast<size_t>(std::cin.gcount()));
    if (text.size() > kMaxPromptBytes)
      return Error::Invalid("the prompt on standard input has more than ", kMaxPromptBytes, " bytes");
  }
  return text;
}

Result<std::string> ReadPrompt(const RunFlags& flags) {
  if (!flags.file.empty()) {
    if (flags.prompt) return Error::Invalid("give a prompt or --file, not both");
    if (flags.file != "-") return ReadTextFile(flags.file, kMaxPromptBytes);
    return ReadStandardInput();
  }
  if (flags.prompt && *flags.prompt != "-") return *flags.prompt;
  if (!flags.prompt && isatty(STDIN_FILENO))
    return Error::Invalid(
        "no prompt; give one as in: celer run smollm2 \"Why is the sky blue?\", or pipe it in");
  return ReadStandardInput();
}

nlohmann::ordered_json LogprobsJson(const TextResult& result, const Prompter& prompter) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const auto entry = [&](int32_t token, float logprob) -> nlohmann::ordered_json {
    return {{"id", token}, {"token", prompter.Decode({&token, 1}, false)}, {"logprob", logprob}};
  };
  for (const TokenEvent& event : result.tokens) {
    nlohmann::ordered_json row = entry(event.token, event.logprob);
    row["top"] = nlohmann::ordered_json::array();
    for (const TokenLogprob& top : event.top) row["top"].push_back(entry(top.token, top.logprob));
    out.push_back(row);
  }
  return out;
}

Result<int> Run(RunFlags& flags) {
  CELER_ASSIGN(const std::string prompt, ReadPrompt(flags));
  CELER_RETURN_IF_ERROR(flags.trace.Open());
  CELER_ASSIGN(TextModel model, flags.model.Load());
  flags.trace.Attach(*model.engine);
  CELER_ASSIGN(TextRequest request, MakeRequest(flags.sampling, model));
  request.ignore_end = flags.ignore_end;
  if (flags.raw || !model.prompter.has_chat_template()) {
    if (!flags.system.empty())
      return Error::Invalid("--system needs a chat template, and ",
                            flags.raw ? "--raw turns it off" : "the model has none");
    request.prompt = model.prompter.EncodeText(prompt);
    if (request.prompt.empty()) {  // an empty prompt to a vocabulary that adds no BOS by itself
      const auto bos = model.prompter.bos();
      if (!bos) return Error::Invalid("the prompt is empty and the vocabulary has no token to begin with");
      request.prompt = {*bos};
    }
  } else {
    std::vector<ChatMessage> messages;
    if (!flags.system.empty()) messages.push_back({"system", flags.system});
    messages.push_back({"user", prompt});
    CELER_ASSIGN(request.prompt, model.prompter.EncodeChat(messages));
  }

  const InterruptGuard guard;
  const bool stream = !flags.json;
  bool shown = false;
  const auto show = [&](std::string_view text) {
    shown |= stream;
    return !stream || WriteOut(text);
  };
  const auto generated = Generate(model, request, show, [] { return !InterruptGuard::Pending(); });
  if (!generated && shown) WriteOut("\n");  // the error begins a line
  CELER_ASSIGN(const TextResult result, generated);
  if (flags.json) {
    nlohmann::ordered_json json = {
        {"text", result.text}, {"finish_reason", Name(result.finish)}, {"seed", request.sampling.seed}};
    json["tokens"] = nlohmann::ordered_json::array();
    for (const TokenEvent& event : result.tokens) json["tokens"].push_back(event.token);
    json["usage"] = SpeedJson(result, *model.engine, flags.model.options.engine.speculation);
    if (flags.sampling.logprobs >= 0) json["logprobs"] = LogprobsJson(result, model.prompter);
    fmt::print("{}\n", JsonText(json, 2));
  } else {
    const bool ended = !result.text.empty() && result.text.back() == '\n';
    if (WriteOut(ended ? "" : "\n") && !flags.quiet)
      SaySpeed(result, *model.engine, NoDraftNote(result, flags.model.options.engine.speculation));
  }
  CELER_RETURN_IF_ERROR(flags.trace.Close());
  return InterruptGuard::Pending() ? InterruptGuard::ExitCode() : int{kOk};
}

}  // namespace

int RunCommand(const std::vector<std::string>& args) {
  RunFlags flags;
  CommandLine app("run", "one answer from a model", "celer run smollm2 \"Why is the sky blue?\"");
  flags.model.AddTo(app);
  flags.model.AddChatTo(app);
  app.add_option("PROMPT", flags.prompt, "what to ask; '-' or none: standard input");
  app.add_option("--file", flags.file, "take the prompt from a file; '-': standard input");
  app.add_option("--system", flags.system, "system message");
  app.add_flag("--raw", flags.raw, "continue the text as it is, without the chat template");
  app.add_flag("--ignore-end", flags.ignore_end, "go on past the model's end of turn");
  app.add_flag("--json", flags.json, "one JSON object at the end instead of a stream");
  app.add_flag("-q,--quiet", flags.quiet, "no line about the speed");
  flags.trace.AddTo(app);
  flags.sampling.AddTo(app);
  app.add_option("--logprobs", flags.sampling.logprobs,
                 "with --json: report this many alternatives per token")
      ->check(Between(0, 100))
      ->default_str("");
  if (const auto stop = Parse(app, args)) return *stop;
  if (flags.sampling.logprobs >= 0 && !flags.json)
    return Fail(Error::Invalid("--logprobs is reported in JSON only; give --json too"));
  const auto code = Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
