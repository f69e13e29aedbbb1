// celer chat MODEL: a conversation. The prefix cache keeps the keys and values of what was said, so a turn
// computes what is new.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "cli/chat/line_reader.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "cli/text/generate_flags.h"
#include "io/file/atomic_file.h"
#include "io/json/json.h"
#include "limits/measured_machine.h"
#include "report/output.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHelp =
    "  /help          this list\n"
    "  /reset         forget the conversation (the system message stays)\n"
    "  /system TEXT   set the system message and start over; without TEXT, remove it\n"
    "  /retry         answer the last question again\n"
    "  /save FILE     write the conversation as JSON\n"
    "  /exit          leave (also Ctrl-D)\n"
    "A line that ends with \\ goes on in the next one. Arrow keys edit it and bring back\n"
    "earlier ones, Ctrl-R searches them. Ctrl-C stops an answer; at the prompt, twice\n"
    "leaves.\n";

std::filesystem::path HistoryFile() {
  const std::filesystem::path cache = DefaultCacheDir();
  return cache.empty() ? cache : cache / "chat_history";
}

class Chat {
 public:
  Chat(TextModel model, SamplingFlags sampling, std::string system)
      : reader_(HistoryFile()),
        model_(std::move(model)),
        sampling_(std::move(sampling)),
        system_(std::move(system)) {
    Reset();
  }

  int Loop() {
    const InterruptGuard guard(InterruptGuard::Mode::kAnswer);
    if (reader_.terminal()) Say("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves\n");
    bool warned = false;  // the first Ctrl-C at the prompt warns, the second leaves
    while (true) {
      std::string line;
      const LineReader::Outcome outcome = Ask(&line);
      if (Terminated()) return InterruptGuard::ExitCode();
      InterruptGuard::Clear();
      if (outcome == LineReader::Outcome::kEnd) break;
      if (outcome == LineReader::Outcome::kInterrupted) {
        if (warned) break;
        warned = true;
        Say("\nCtrl-C again or Ctrl-D leaves\n");
        continue;
      }
      warned = false;
      if (outcome == LineReader::Outcome::kDiscarded) {
        Say("^C\n");
        continue;
      }
      if (line.empty()) continue;
      if (line[0] == '/') {
        if (!Command(line)) return kOk;
      } else {
        messages_.push_back({"user", line});
        Answer();
      }
      if (Terminated()) return InterruptGuard::ExitCode();
      if (std::ferror(stdout)) return kOk;  // stdout is closed; main() reports it
    }
    if (reader_.terminal()) Say("\n");
    return failed_ && !reader_.terminal() ? kFailed : kOk;
  }

 private:
  static bool Terminated() { return InterruptGuard::Pending() && InterruptGuard::Terminated(); }

  // A question may go over several lines.
  LineReader::Outcome Ask(std::string* line) {
    for (bool more = true; more;) {
      std::string part;
      const LineReader::Outcome outcome = reader_.Read(line->empty() ? "> " : "  ", &part);
      const bool ended = outcome == LineReader::Outcome::kEnd && !line->empty();
      if (outcome != LineReader::Outcome::kLine) return ended ? LineReader::Outcome::kLine : outcome;
      more = !part.empty() && part.back() == '\\';
      if (more) part.back() = '\n';
      *line += part;
    }
    return LineReader::Outcome::kLine;
  }

  void Reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
  }

  // False: leave.
  bool Command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space),
                      rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      Say("{}", kHelp);
    } else if (name == "/reset") {
      Reset();
    } else if (name == "/system") {
      system_ = rest;
      Reset();
    } else if (name == "/retry") {
      if (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
      if (messages_.empty() || messages_.back().role != "user")
        Say("there is no question yet\n");
      else
        Answer();
    } else if (name == "/save") {
      if (rest.empty())
        Say("give a file name, as in /save talk.json\n");
      else if (const Status saved = WriteWholeFile(rest, JsonText(SavedJson(), 2) + "\n"); saved)
        Say("saved {} messages to '{}'\n", messages_.size(), rest);
      else
        Say("{}\n", saved.error().message());
    } else {
      Say("unknown command '{}'; /help lists them\n", name);
    }
    return true;
  }

  Json SavedJson() const {
    Json out = Json::array();
    for (const ChatMessage& message : messages_)
      out.push_back({{"role", message.role}, {"content", message.content}});
    return out;
  }

  void Answer() {
    const auto result = Generate();
    if (!result) {
      failed_ |= Fail(result.error()) == kFailed;
      messages_.pop_back();  // the question that could not be answered
      return;
    }
    if (!Terminated()) InterruptGuard::Clear();
    messages_.push_back({"assistant", result->text});
    if (!WriteOut("\n")) return;
    SaySpeed(*result, *model_.engine, result->finish == FinishReason::kCancelled ? ", stopped" : "");
  }

  Result<TextResult> Generate() {
    CELER_ASSIGN(TextRequest request, MakeRequest(sampling_, model_));
    CELER_ASSIGN(request.prompt, model_.prompter.EncodeChat(messages_));
    return celer::Generate(
        model_, request, [](std::string_view text) { return WriteOut(text); },
        [] { return !InterruptGuard::Pending(); });
  }

  LineReader reader_;
  TextModel model_;
  SamplingFlags sampling_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  bool failed_ = false;  // an answer failed, and not because of the question
};

}  // namespace

int ChatCommand(const std::vector<std::string>& args) {
  ModelFlags model;
  SamplingFlags sampling;
  sampling.max_tokens = 1024;
  std::string system;
  CommandLine app("chat", "a conversation with a model", "celer chat smollm2 --system \"Answer briefly.\"");
  model.AddTo(app);
  model.AddChatTo(app);
  app.add_option("--system", system, "system message");
  sampling.AddTo(app);
  if (LineReader::CanEdit())
    app.footer(
        "On a terminal a line can be edited, and the arrow keys and Ctrl-R bring back what was typed before, "
        "in "
        "this conversation or an earlier one. It is kept in $CELER_CACHE/chat_history, by default "
        "~/.cache/celer/chat_history.");
  if (const auto stop = Parse(app, args)) return *stop;
  auto loaded = model.Load();
  if (!loaded) return Fail(loaded.error());
  if (!loaded->prompter.has_chat_template())
    return Fail(Error::Invalid(
        model.model,
        ": the model has no chat template; give one with --chat-template FILE, or use celer run"));
  return Chat(std::move(*loaded), sampling, system).Loop();
}

}  // namespace celer::cli
