// What every command shares: parsing with clear one-sentence errors.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "report/exit_code.h"

namespace celer::cli {

// Thrown where a command has nothing more to do: the program ends with this code.
struct EndNow {
  int code;
};

// An App whose help starts with an example: "celer limits - <summary>\n  example: <example>".
class CommandLine : public CLI::App {
 public:
  CommandLine(const std::string& name, const std::string& summary, const std::string& example);
};

// Parses; a value means "stop now with this exit code" (help was printed, or one sentence about what is
// wrong).
std::optional<int> Parse(CLI::App& app, const std::vector<std::string>& args);

// A whole number from `low` to `high`; anything else is refused with that range.
CLI::Validator Between(int64_t low, int64_t high);

// For --html and its like: writes the file and says so on stderr.
Status WriteFile(const std::string& path, const std::string& content);

// Messages of the library name options `like_this`; as flags: --like-this.
std::string WithFlags(std::string_view message);

// A flag whose words a function of the library reads. Its errors are those of the command line.
template <class T>
CLI::Option* AddParsed(CLI::App& app, const std::string& flag, T* into, Result<T> (*parse)(std::string_view),
                       const std::string& help, const std::string& shown_default) {
  const auto read = [into, parse](const std::string& text) {
    const Result<T> value = parse(text);
    if (!value) throw CLI::ValidationError(WithFlags(value.error().message()));
    *into = *value;
  };
  return app.add_option_function<std::string>(flag, read, help)->default_str(shown_default);
}

}  // namespace celer::cli
