#include "cli/shared/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/escape.h"
#include "base/suggest.h"
#include "io/file/atomic_file.h"
#include "report/output.h"

namespace celer::cli {
namespace {

// Example first, then the options with their defaults.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string header) : header_(std::move(header)) {}
  std::string make_description(const CLI::App*) const override { return header_; }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return CLI::Formatter::make_usage(app, "celer " + name);
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    constexpr int kColumn = 32;
    std::string left = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    const bool fits = left.size() + 1 < kColumn;
    left += fits ? std::string(kColumn - left.size(), ' ') : "\n" + std::string(kColumn, ' ');
    return left + Wrap(make_option_desc(option), OutputWidth(), kColumn, kColumn) + "\n";
  }
  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = app->get_footer();
    return footer.empty() ? "" : "\n" + Wrap(footer, OutputWidth(), 0) + "\n";
  }

 private:
  std::string header_;
};

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string Expected(const CLI::Option& option, std::string_view value = "") {
  const std::string type = option.get_type_name();
  const bool digits = !value.empty() && value.find_first_not_of("+-0123456789") == std::string_view::npos;
  if (type == "INT" && digits) return "a whole number up to 9223372036854775807";
  if (type == "INT") return "a whole number";
  if (type == "UINT") return "a whole number from 0 to 18446744073709551615";
  return type == "FLOAT" ? "a number" : "a value";
}

// A value that is missing or of another kind: CLI11's own words are about its types. Empty for other errors.
std::string AboutAValue(const CLI::App& app, const CLI::ParseError& error) {
  const std::string message = error.what();
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (const std::string start = "Could not convert: " + name + " = "; message.starts_with(start)) {
      const std::string value = message.substr(start.size());
      return fmt::format("{} '{}': expected {}", name, value, Expected(*option, value));
    }
    if (message.starts_with(name + ": '")) return name + message.substr(name.size() + 1);  // of Between()
    if (message.starts_with(name + ": ") && message.ends_with(" missing"))
      return fmt::format("{} needs {} after it; see celer {} --help", name, Expected(*option),
                         app.get_name());
  }
  return "";
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
  if (const std::string about = AboutAValue(app, error); !about.empty()) return about;
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  while (!message.empty() && (message.back() == ' ' || message.back() == '.')) message.pop_back();
  return missing ? message + help : message;
}

// CLI11 takes -1 for the largest number, and what is larger than any for the largest.
Status CheckNumbers(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type != "UINT" && type != "INT") continue;
    for (const std::string& text : option->results()) {
      int64_t number = 0;
      uint64_t natural = 0;
      const char *begin = text.data() + (text.starts_with("+") ? 1 : 0), *end = text.data() + text.size();
      const std::errc error =
          type == "INT" ? std::from_chars(begin, end, number).ec : std::from_chars(begin, end, natural).ec;
      if (error != std::errc())
        return Error::Invalid(option->get_name(), " '", text, "': expected ", Expected(*option, text));
    }
  }
  return {};
}

// An option with one value that was given twice is ambiguous, and an error.
Status CheckGivenOnce(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& given = option->results();
    if (option->get_expected_max() > 1 || given.size() < 2 || option->check_lname("verbose")) continue;
    const bool is_switch = option->get_expected_max() == 0;
    return Error::Invalid(option->get_name(), " was given ",
                          given.size() == 2 ? "twice" : fmt::format("{} times", given.size()),
                          is_switch ? "" : fmt::format(", as '{}'", fmt::join(given, "' and '")),
                          "; give it once");
  }
  return {};
}

bool IsOnOrOff(std::string_view word) {
  constexpr std::string_view kSwitchWords[] = {"0", "1", "true", "false", "on", "off", "yes", "no"};
  return std::find(std::begin(kSwitchWords), std::end(kSwitchWords), word) != std::end(kSwitchWords);
}

// What becomes of a switch with another word, `--raw=maybe` or in its variable, depends on the version of
// CLI11: an error of the parser, an exception of the standard library, or nothing at all.
Status CheckSwitches(const CLI::App& app, const std::vector<std::string>& args) {
  const auto end = std::find(args.begin(), args.end(), "--");
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() != 0) continue;
    const std::string variable = option->get_envname(), start = option->get_name() + "=";
    if (const char* value = variable.empty() ? nullptr : std::getenv(variable.c_str()))
      if (*value != '\0' && !IsOnOrOff(value))
        return Error::Invalid(variable, "='", value, "': expected 0 or 1");
    for (auto arg = args.begin(); arg != end; ++arg)
      if (arg->starts_with(start) && !IsOnOrOff(std::string_view(*arg).substr(start.size())))
        return Error::Invalid(option->get_name(), " '", arg->substr(start.size()),
                              "': expected nothing, true or false");
  }
  return {};
}

// vLLM's -tp and -pp, which are too long for CLI11's short names.
void ReplaceShortNames(const CLI::App& app, std::vector<std::string>* reversed) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"-tp", "--tensor-parallel-size"},
                                                                      {"-pp", "--pipeline-parallel-size"}};
  const auto end = std::find(reversed->rbegin(), reversed->rend(), "--");
  for (const auto& [shorter, longer] : kNames) {
    if (!app.get_option_no_throw(std::string(longer))) continue;
    for (auto arg = reversed->rbegin(); arg != end; ++arg)
      if (*arg == shorter || (arg->starts_with(shorter) && (*arg)[shorter.size()] == '='))
        arg->replace(0, shorter.size(), longer);
  }
}

// In as many lines as it takes, which a shell takes for one.
std::string ExampleText(const std::string& example) {
  constexpr std::string_view kStart = "  example: ";
  std::string text(kStart);
  for (const char c : Wrap(example, OutputWidth() - 2, 4, static_cast<int>(kStart.size())))
    text += c == '\n' ? " \\\n" : std::string(1, c);
  return text + "\n";
}

}  // namespace

CommandLine::CommandLine(const std::string& name, const std::string& summary, const std::string& example)
    : CLI::App("", name) {
  formatter(std::make_shared<HelpFormatter>(
      Wrap(fmt::format("celer {} - {}", name, summary), OutputWidth(), 2) + "\n" + ExampleText(example)));
  option_defaults()->always_capture_default();
}

std::optional<int> Parse(CLI::App& app, const std::vector<std::string>& args) {
  if (auto checked = CheckSwitches(app, args); !checked) return Fail(checked.error());
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // CLI11 consumes from the back
  ReplaceShortNames(app, &reversed);
  try {
    app.parse(reversed);
    if (auto checked = CheckGivenOnce(app); !checked) return Fail(checked.error());
    if (auto checked = CheckNumbers(app); !checked) return Fail(checked.error());
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    WriteOut(app.help());
    return kOk;
  } catch (const CLI::ParseError& error) {
    if (auto checked = CheckGivenOnce(app); !checked) return Fail(checked.error());
    Say("error: {}\n", Sentence(app, error, args));
    return kUsage;
  }
}

CLI::Validator Between(int64_t low, int64_t high) {
  const auto check = [low, high](const std::string& text) {
    int64_t number = 0;
    const char *begin = text.data() + (text.starts_with("+") ? 1 : 0), *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, number);
    if (error == std::errc() && stop == end && number >= low && number <= high) return std::string();
    return fmt::format("'{}': expected a whole number from {} to {}", text, low, high);
  };
  return {[check](std::string& text) { return check(text); }, ""};
}

Status WriteFile(const std::string& path, const std::string& content) {
  CELER_RETURN_IF_ERROR(WriteWholeFile(path, content));
  Say("wrote {}\n", path);
  return {};
}

std::string WithFlags(std::string_view message) {
  constexpr std::string_view kOptions[] = {"weights",
                                           "kv",
                                           "device",
                                           "launch",
                                           "threads",
                                           "context",
                                           "chunk",
                                           "kv_memory",
                                           "pack_cache",
                                           "verbose",
                                           "tokenizer",
                                           "chat_template",
                                           "row_copies",
                                           "activations",
                                           "tensor_parallel_size",
                                           "pipeline_parallel_size",
                                           "micro_batch",
                                           "split",
                                           "rank",
                                           "data_parallel_size",
                                           "split",
                                           "gpu_memory",
                                           "gpu_layers",
                                           "cpu_experts",
                                           "place",
                                           "stream_prompts"};
  std::string out(message);
  for (const std::string_view option : kOptions) {
    const std::string quoted = fmt::format("`{}`", option);
    std::string flag = fmt::format("--{}", option);
    std::replace(flag.begin(), flag.end(), '_', '-');
    for (size_t at = 0; (at = out.find(quoted, at)) != std::string::npos; at += flag.size())
      out.replace(at, quoted.size(), flag);
  }
  return out;
}

int Fail(const Error& error) {
  Say("error: {}\n", Escaped(WithFlags(error.message())));  // names from files may be in it
  const bool ours = error.code() == Error::Code::kDevice || error.code() == Error::Code::kOutOfMemory ||
                    error.code() == Error::Code::kNotFinite;
  return ours ? kFailed : kUsage;
}

}  // namespace celer::cli
