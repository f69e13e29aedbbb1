#include "base/log.h"

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/escape.h"
#include "celer/log.h"

namespace celer {
namespace {

struct Output {
  std::mutex mutex;
  LogSink sink;  // null: nowhere
};
// Never destroyed: threads may write while the process ends.
Output& TheOutput() {
  static auto* const output = new Output;
  return *output;
}
std::atomic<log::Level> g_least{log::Level::kWarning};

LogLevel ToPublic(log::Level level) {
  switch (level) {
    case log::Level::kDebug:
      return LogLevel::kDebug;
    case log::Level::kInfo:
      return LogLevel::kInfo;
    case log::Level::kWarning:
      return LogLevel::kWarning;
    case log::Level::kError:
      break;
  }
  return LogLevel::kError;
}

log::Level FromPublic(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return log::Level::kDebug;
    case LogLevel::kInfo:
      return log::Level::kInfo;
    case LogLevel::kWarning:
      return log::Level::kWarning;
    case LogLevel::kError:
      break;
  }
  return log::Level::kError;
}

}  // namespace

void SetLogSink(LogSink sink, LogLevel least) {
  log::SetLevel(FromPublic(least));
  const std::lock_guard lock(TheOutput().mutex);
  TheOutput().sink = std::move(sink);
}

}  // namespace celer

namespace celer::log {
namespace {

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
  g_least.store(level);
}
bool Enabled(Level level) {
  return level >= g_least.load();
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
  if (!Enabled(level)) return;
  Output& output = TheOutput();
  const std::lock_guard lock(output.mutex);
  if (output.sink) output.sink(ToPublic(level), Escaped(message));  // names from files may be in it
}

}  // namespace celer::log
