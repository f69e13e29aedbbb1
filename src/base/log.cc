#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <set>
#include <string>

#include "base/escape.h"

namespace celer::log {
namespace {

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made =
        std::make_shared<spdlog::logger>("celer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%l:%$ %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

struct SeenMessages {
  std::mutex mutex;
  std::set<std::string, std::less<>> texts;
};
SeenMessages& AllSeen() {
  static auto* const seen = new SeenMessages;
  return *seen;
}

}  // namespace

void SetLevel(Level level) {
  Logger().set_level(ToSpdlog(level));
}
bool Enabled(Level level) {
  return Logger().should_log(ToSpdlog(level));
}
bool IsNew(std::string_view message) {
  constexpr size_t kMost = 1000;  // a server may open many files
  SeenMessages& seen = AllSeen();
  const std::lock_guard lock(seen.mutex);
  if (seen.texts.contains(message)) return false;
  if (seen.texts.size() < kMost) seen.texts.emplace(message);
  return true;
}
std::vector<std::string> Seen() {
  SeenMessages& seen = AllSeen();
  const std::lock_guard lock(seen.mutex);
  return {seen.texts.begin(), seen.texts.end()};
}
void Write(Level level, std::string_view message) {
  Logger().log(ToSpdlog(level), Escaped(message));  // names from files may be in it
}

}  // namespace celer::log
