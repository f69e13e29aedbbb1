// celer chat MODEL: a conversation. The keys and values of what was said stay in the KV, so a turn computes
// what is new.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/interrupt.h"
#include "io/json.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHelp =
    "  /help          this list\n"
    "  /reset         forget the conversation (the system message stays)\n"
    "  /system TEXT   set the system message and begin anew; without TEXT, remove it\n"
    "  /retry         answer the last question again\n"
    "  /save FILE     write the conversation as JSON\n"
    "  /exit          leave (also Ctrl-D)\n"
    "A line that ends with \\ goes on in the next one. Ctrl-C stops an answer; at the prompt, twice "
    "leaves.\n";

class Chat {
 public:
  Chat(TextModel model, SamplingFlags sampling, std::string system)
      : model_(std::move(model)), sampling_(std::move(sampling)), system_(std::move(system)) {
    Reset();
  }

  int Loop() {
    const InterruptGuard guard;
    const bool tty = isatty(STDIN_FILENO);
    if (tty) fmt::print(stderr, "/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves\n");
    bool warned = false;  // the first Ctrl-C at the prompt warns, the second leaves
    while (true) {
      std::string line;
      if (!Ask(tty, &line)) {
        if (!InterruptGuard::Pending()) break;
        InterruptGuard::Clear();
        if (warned) break;
        warned = true;
        fmt::print(stderr, "\nCtrl-C again or Ctrl-D leaves\n");
        continue;
      }
      warned = false;
      if (line.empty()) continue;
      if (line[0] == '/') {
        if (!Command(line)) return kOk;
        continue;
      }
      messages_.push_back({{"role", "user"}, {"content", line}});
      Answer();
    }
    if (tty) fmt::print(stderr, "\n");
    return kOk;
  }

 private:
  static bool Ask(bool tty, std::string* line) {
    line->clear();
    for (bool more = true; more;) {
      if (tty) fmt::print(stderr, "{}", line->empty() ? "> " : "  ");
      std::string part;
      if (!std::getline(std::cin, part)) {
        std::cin.clear();
        std::clearerr(stdin);
        return !line->empty() && !InterruptGuard::Pending();
      }
      more = !part.empty() && part.back() == '\\';
      if (more) part.back() = '\n';
      *line += part;
    }
    return true;
  }

  void Reset() {
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  // False: leave.
  bool Command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space),
                      rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else if (name == "/reset") {
      Reset();
    } else if (name == "/system") {
      system_ = rest;
      Reset();
    } else if (name == "/retry") {
      if (!messages_.empty() && messages_.back()["role"] == "assistant")
        messages_.erase(messages_.size() - 1);
      if (messages_.empty() || messages_.back()["role"] != "user")
        fmt::print(stderr, "there is no question yet\n");
      else
        Answer();
    } else if (name == "/save") {
      std::ofstream out(rest);
      out << JsonText(messages_, 2) << "\n";
      if (rest.empty())
        fmt::print(stderr, "give a file name, as in /save talk.json\n");
      else if (out)
        fmt::print(stderr, "saved {} messages to '{}'\n", messages_.size(), rest);
      else
        fmt::print(stderr, "could not write to '{}'\n", rest);
    } else {
      fmt::print(stderr, "unknown command '{}'; /help lists them\n", name);
    }
    return true;
  }

  void Answer() {
    const auto result = Generate();
    if (!result) {
      fmt::print(stderr, "error: {}\n", result.error().message());
      messages_.erase(messages_.size() - 1);  // the question that could not be answered
      return;
    }
    InterruptGuard::Clear();
    kept_ = result->request;
    messages_.push_back({{"role", "assistant"}, {"content", result->text}});
    fmt::print("\n");
    std::fflush(stdout);
    fmt::print(stderr, "[{}{}]\n", SpeedLine(*result, model_.engine()),
               result->finish == FinishReason::kCancelled ? ", stopped" : "");
  }

  Result<TextResult> Generate() {
    CELER_ASSIGN(TextRequest request, MakeRequest(sampling_, model_));
    CELER_ASSIGN(request.prompt, model_.EncodeChat(messages_, nullptr));
    request.keep = true;
    request.continue_from = kept_;
    return model_.Generate(request, [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
      return !InterruptGuard::Pending();
    });
  }

  TextModel model_;
  SamplingFlags sampling_;
  std::string system_;
  Json messages_;
  std::optional<int64_t> kept_;
};

}  // namespace

int ChatCommand(const std::vector<std::string>& args) {
  ModelFlags model;
  SamplingFlags sampling;
  sampling.max_tokens = 1024;
  std::string system;
  CommandLine app("chat", "a conversation with a model", "celer chat smollm2 --system \"Answer briefly.\"");
  model.AddTo(app);
  app.add_option("--system", system, "system message");
  sampling.AddTo(app);
  if (const auto stop = Parse(app, args)) return *stop;
  auto loaded = model.Load();
  if (!loaded) return Fail(loaded.error());
  if (!loaded->has_chat_template())
    return Fail(Error::Invalid(
        model.model,
        ": the model has no chat template; give one with --chat-template FILE, or use celer run"));
  return Chat(std::move(*loaded), sampling, system).Loop();
}

}  // namespace celer::cli
