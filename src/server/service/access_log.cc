#include "server/service/access_log.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <ctime>

#include "server/formats/format.h"

namespace celer::server {
namespace {

std::string Timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char buffer[32];
  return {buffer, std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace

void WriteAccessLog(const HttpRequest& request, const HttpHandlers::Done& done, bool json) {
  std::string line;
  if (json) {
    Json fields = {{"time", Timestamp()},      {"event", "request"},
                   {"id", request.id},         {"peer", request.peer},
                   {"method", request.method}, {"path", request.path.substr(0, 256)},
                   {"status", done.status},    {"ms", std::round(done.seconds * 1e5) / 100},
                   {"bytes", done.bytes}};
    for (const auto& [name, value] : done.facts) {  // values are text; numbers become JSON numbers
      const Json number = Json::parse(value, nullptr, false);
      fields[name] = number.is_number() ? number : Json(value);
    }
    if (!done.note.empty()) fields["note"] = done.note;
    line = JsonText(fields);
  } else {
    line = fmt::format("{} request id={} peer={} method={} path={} status={} ms={:.2f} bytes={}", Timestamp(),
                       request.id, request.peer, request.method, JsonText(Json(request.path.substr(0, 256))),
                       done.status, done.seconds * 1e3, done.bytes);
    for (const auto& [name, value] : done.facts) line += " " + name + "=" + value;
    if (!done.note.empty()) line += " note=" + JsonText(Json(done.note));
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace celer::server
