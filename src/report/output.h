// The two streams of a command: results on standard output, where a failed write is an error of the command,
// and messages on stderr, where it is ignored.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace celer::cli {

// First thing in main(). A stream that is closed stays one that cannot be used, instead of lending its number
// to the next file opened; a closed pipe or a full disk becomes an error of the write instead of a signal.
void PrepareStreams();

// Last thing in main(): whether all of standard output has arrived. If not, says so and turns kOk into
// kFailed.
int FinishOutput(int code);

// fmt::print() throws when standard output cannot be written. True for such an exception: FinishOutput()
// reports it.
bool IsOutputError(const std::exception& error);

// Writes to standard output at once. False when that is no longer possible, so that the caller
// can stop; FinishOutput() says why.
bool WriteOut(std::string_view text);

// A message on stderr.
template <class... T>
void Say(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// Columns that a line may fill: $COLUMNS, else the terminal's, else 80.
int OutputWidth();
int MessageWidth();  // on stderr

// Characters, which is columns for all but the rarest texts.
size_t Columns(std::string_view text);

// Breaks at spaces so that no line is wider than `width`, unless a single word is. Every line but the first
// begins with `indent` spaces; the first is taken to begin at column `at`.
std::string Wrap(std::string_view text, int width, int indent, int at = 0);

// "name       value" with the value wrapped in its own column.
std::string FactLine(std::string_view name, std::string_view value, int width);
using Facts = std::vector<std::pair<std::string, std::string>>;
std::string FactsText(const Facts& facts);  // a line for each

}  // namespace celer::cli
