// Apart from log.cc, so that a library does not hold what it does not use.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "celer/log.h"

namespace celer {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

LogSink StderrLog() {
  const auto logger =
      std::make_shared<spdlog::logger>("celer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l:%$ %v");
  logger->set_level(spdlog::level::trace);  // what is too little to be said does not get here
  return [logger](LogLevel level, std::string_view message) { logger->log(ToSpdlog(level), message); };
}

}  // namespace celer
