// Runs another program with an argument list; no shell is involved, so nothing in an argument is interpreted.
// The program dies with us, however we end.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace celer::cli {

struct SubprocessOptions {
  std::string input = {};  // its standard input, at most 4096 bytes
  std::vector<std::pair<std::string, std::string>> environment = {};  // set in addition to ours
  bool capture_output = false;      // else its standard output goes to our stderr: our stdout is for results
  bool capture_errors = false;      // else its stderr is ours
  std::function<void()> tick = {};  // called at least every 100 ms while it runs
  std::function<bool()> give_up = {};  // asked after each tick; true ends the program
};

struct SubprocessResult {
  int exit_code = 0;   // 128 + the signal's number if one ended it
  std::string output;  // at most 64 MiB; more ends the program with an error
  std::string errors;  // the last 16 KiB
  bool given_up = false;
};

// NotFound when there is no such program.
Result<SubprocessResult> RunProgram(const std::vector<std::string>& argv,
                                    const SubprocessOptions& options = {});

// The last lines that are not empty, joined by " / ": what a program said before it failed.
std::string LastLines(const std::string& text, int lines);

}  // namespace celer::cli
