// Messages for people, on stderr, a line each; control characters are escaped. Quiet by default: warnings and
// errors; -v adds info, -vv debug.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace celer::log {

enum class Level { kDebug, kInfo, kWarning, kError };

void SetLevel(Level level);
bool Enabled(Level level);
void Write(Level level, std::string_view message);

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

}  // namespace celer::log
