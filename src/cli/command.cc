#include "cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "core/suggest.h"

namespace celer::cli {
namespace {

// Example first, then the options with their defaults.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string header) : header_(std::move(header)) { column_width(34); }
  std::string make_description(const CLI::App*) const override { return header_; }

 private:
  std::string header_;
};

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string Sentence(const CLI::App& app, const CLI::ParseError& error,
                     const std::vector<std::string>& args) {
  const std::string help = "; see celer " + app.get_name() + " --help";
  const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  // A mistyped flag may be why something is missing, so it comes first.
  const std::vector<std::string> rest = app.remaining();
  const auto flag =
      std::find_if(rest.begin(), rest.end(), [](const auto& arg) { return arg.starts_with("-"); });
  if ((extra || missing) && flag != rest.end()) {
    const std::string bare = flag->substr(0, flag->find('='));
    const std::vector<std::string> names = FlagNames(app);
    const std::string hint = DidYouMean(bare, names);
    return fmt::format("unknown flag '{}'{}", bare, hint.empty() ? help : hint);
  }
  if (extra)
    return fmt::format("unexpected argument '{}'{}", rest.empty() ? args.back() : rest.front(), help);
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  while (!message.empty() && (message.back() == ' ' || message.back() == '.')) message.pop_back();
  return missing ? message + help : message;
}

}  // namespace

CommandLine::CommandLine(const std::string& name, const std::string& summary, const std::string& example)
    : CLI::App("", name) {
  formatter(
      std::make_shared<HelpFormatter>(fmt::format("celer {} - {}\n  example: {}\n", name, summary, example)));
  option_defaults()->always_capture_default();
}

std::optional<int> Parse(CLI::App& app, const std::vector<std::string>& args) {
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // CLI11 consumes from the back
  try {
    app.parse(reversed);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return kOk;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "error: {}\n", Sentence(app, error, args));
    return kUsage;
  }
}

Status WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  if (!file) return Error::Io(path, ": cannot be opened for writing");
  file << content;
  file.close();
  if (!file) return Error::Io(path, ": could not be written in full");
  fmt::print(stderr, "wrote {}\n", path);
  return {};
}

int Fail(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.message());
  const bool ours = error.code() == Error::Code::kDevice || error.code() == Error::Code::kOutOfMemory;
  return ours ? kFailed : kUsage;
}

}  // namespace celer::cli
