// Messages for people, a line each; control characters are escaped. They go where celer/log.h is told: programs say
// stderr. Quiet by default: warnings and errors; -v adds info, -vv debug.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace celer::log {

enum class Level { kDebug, kInfo, kWarning, kError };

void SetLevel(Level level);
bool Enabled(Level level);
void Write(Level level, std::string_view message);
// Deduplication: false if it was asked about the same message before.
bool IsNew(std::string_view message);
std::vector<std::string> Seen();  // by IsNew(), for a process that goes on where another one ended

template <class... T>
void Debug(fmt::format_string<T...> format, T&&... args) {
  if (Enabled(Level::kDebug)) Write(Level::kDebug, fmt::format(format, std::forward<T>(args)...));
}
template <class... T>
void Info(fmt::format_string<T...> format, T&&... args) {
  if (Enabled(Level::kInfo)) Write(Level::kInfo, fmt::format(format, std::forward<T>(args)...));
}
template <class... T>
void Warning(fmt::format_string<T...> format, T&&... args) {
  Write(Level::kWarning, fmt::format(format, std::forward<T>(args)...));
}
// For what is wrong with a file or the environment: a command may open the same file several times.
template <class... T>
void WarningOnce(fmt::format_string<T...> format, T&&... args) {
  if (const std::string text = fmt::format(format, std::forward<T>(args)...); IsNew(text))
    Write(Level::kWarning, text);
}

}  // namespace celer::log
