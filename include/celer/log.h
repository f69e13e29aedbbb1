// Where the library's messages go, which are warnings about files for the most part. Nowhere, unless a program says so: the
// library prints nothing by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace celer {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// One message, without the end of a line; control characters are escaped. Any thread calls it, one at a time.
// It must not throw, nor call celer.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Lines on stderr, coloured on a terminal: what the program celer has.
LogSink StderrLog();

// For the whole process; null: nowhere. Messages below `least` are left out.
void SetLogSink(LogSink sink, LogLevel least = LogLevel::kWarning);

}  // namespace celer
