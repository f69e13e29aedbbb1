// Lines that a person types: with editing, arrow keys and a history on a terminal, plain elsewhere and in a
// build without libedit.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace celer::cli {

class LineReader {
 public:
  enum class Outcome {
    kLine,
    kEnd,          // of the input, or Ctrl-D on an empty line
    kInterrupted,  // Ctrl-C on an empty line, or where lines are plain
    kDiscarded,    // Ctrl-C on a line with something on it
  };

  // The history is kept in `history`, which only its owner may read; empty: none is kept.
  explicit LineReader(const std::filesystem::path& history);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  static bool CanEdit();                       // whether this build has libedit
  bool terminal() const { return terminal_; }  // interactive, so prompts are shown

  // Needs an InterruptGuard. The line comes without its end.
  Outcome Read(const char* prompt, std::string* line);

 private:
  class Editor;
  Outcome ReadPlain(const char* prompt, std::string* line) const;

  bool terminal_;
  std::unique_ptr<Editor> editor_;  // empty: plain
};

// The last lines of a history file, oldest first. A file with many more is cut down to them.
std::vector<std::string> LoadHistory(const std::filesystem::path& path);
// Best effort: a conversation goes on even if its history cannot be kept.
void AppendHistory(const std::filesystem::path& path, const std::string& line);

}  // namespace celer::cli
