#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/escape.h"

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

}  // namespace

void SetLevel(Level level) {
  Logger().set_level(ToSpdlog(level));
}
bool Enabled(Level level) {
  return Logger().should_log(ToSpdlog(level));
}
void Write(Level level, std::string_view message) {
  Logger().log(ToSpdlog(level), Escaped(message));  // names from files may be in it
}

}  // namespace celer::log
