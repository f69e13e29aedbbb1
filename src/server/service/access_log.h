// One line per request on standard error: key=value, or JSON.
#pragma once

#include "server/http/http.h"
#include "server/http/http_server.h"

namespace celer::server {

void WriteAccessLog(const HttpRequest& request, const HttpHandlers::Done& done, bool json);

}  // namespace celer::server
