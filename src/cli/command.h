// What every command shares: parsing with clear one-sentence errors, and the exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"

namespace celer::cli {

// 0: done. 1: the work failed (a device fault, say). 2: what the user asked for cannot be: a wrong flag, an
// unknown name, an unreadable or corrupt file.
enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

struct Command {
  const char* name;
  const char* summary;  // one line for `celer --help`
  int (*run)(const std::vector<std::string>& args);
};

// An App whose help starts with an example: "celer limits - <summary>\n  example: <example>".
class CommandLine : public CLI::App {
 public:
  CommandLine(const std::string& name, const std::string& summary, const std::string& example);
};

// Parses; a value means "stop now with this exit code" (help was printed, or one sentence about what is
// wrong).
std::optional<int> Parse(CLI::App& app, const std::vector<std::string>& args);

// For --html and its like: writes the file and says so on stderr.
Status WriteFile(const std::string& path, const std::string& content);

// Prints "error: <message>" and gives the exit code for it.
int Fail(const Error& error);

}  // namespace celer::cli
