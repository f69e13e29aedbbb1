// What happens to every request around its handler: which route, which form of answer, who may, headers, log.
#include "base/log.h"
#include "server/page/page.h"
#include "server/service/access_log.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

// A route's path that ends with '/' stands for all that begin with it.
bool Matches(std::string_view route, std::string_view path) {
  const bool prefix = route.size() > 1 && route.ends_with('/');
  return prefix ? path.starts_with(route) && path.size() > route.size() : path == route;
}

}  // namespace

const Service::Route* Service::FindRoute(const HttpRequest& request, bool* other_method) {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route& route : Routes()) {
    if (!Matches(route.path, request.path)) continue;
    if (method == route.method) return &route;
    *other_method = true;
  }
  // The page's other files are routes like the page.
  for (const PageFile& file : PageFiles())
    if (request.path == file.path && method == "GET") return &Routes()[0];
  return nullptr;
}

// By path, or by Anthropic's header on routes that both APIs have: /v1/models.
ApiForm Service::FormOf(const HttpRequest& request) {
  const bool anthropic = request.path == "/v1/messages" || request.path.starts_with("/v1/messages/") ||
                         !request.Header("anthropic-version").empty();
  return anthropic ? ApiForm::kAnthropic : ApiForm::kOpenAi;
}

std::optional<HttpResponse> Service::CheckKey(const HttpRequest& request) const {
  if (options_.keys.Allows(request)) return std::nullopt;
  HttpResponse response =
      ApiError{.status = 401,
               .message = "the API key is missing or wrong; send 'Authorization: Bearer KEY'",
               .code = "invalid_api_key"}
          .ToResponse(FormOf(request));
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::optional<HttpResponse> Service::Check(const HttpRequest& request) const {
  const ApiForm form = FormOf(request);
  bool other_method = false;
  const Route* route = FindRoute(request, &other_method);
  // Health probes of load balancers may send any Host, and get nothing but a status.
  const bool probe = route && (route->handle == &Service::Health || route->handle == &Service::Live);
  Refusal refusal = probe ? Refusal() : guard_.CheckHost(request);
  if (!refusal) refusal = guard_.CheckOrigin(request);
  if (refusal) return refusal->ToResponse(form);
  if (request.method == "OPTIONS") {  // CORS preflight
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers.emplace_back("Allow", "GET, POST, DELETE, OPTIONS");
    return response;
  }
  if (!route || !route->open)
    if (auto response = CheckKey(request)) return response;
  if (!route && other_method) {
    HttpResponse response = ApiError{.status = 405,
                                     .message = request.path + " does not take " + request.method,
                                     .code = "method_not_allowed"}
                                .ToResponse(form);
    std::string allowed = "OPTIONS";
    for (const Route& one : Routes())
      if (Matches(one.path, request.path)) allowed += std::string(", ") + one.method;
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (!route)
    return ApiError{.status = 404,
                    .message = "there is no " + Quoted(request.path) + " here; /openapi.json lists what is",
                    .code = "not_found"}
        .ToResponse(form);
  if (route->endpoint != 0)
    if (const auto wrong = guard_.CheckContentType(request)) return wrong->ToResponse(form);
  return std::nullopt;
}

void Service::Handle(const std::shared_ptr<Exchange>& exchange) {
  bool ignored = false;
  const Route* route = FindRoute(exchange->request(), &ignored);
  try {
    (this->*route->handle)(exchange);
  } catch (const std::exception& error) {
    // An exception fails this request alone. The reason goes to the log, not to the client.
    log::Warning("request {}: {}", exchange->request().id, error.what());
    exchange->note = error.what();
    exchange->Send(ApiError{.status = 500, .message = "internal error; see the server's log"}.ToResponse(
        FormOf(exchange->request())));
  }
}

void Service::FinishHeaders(const HttpRequest& request, HttpResponse* response) const {
  response->headers.emplace_back("X-Content-Type-Options", "nosniff");
  const std::string_view origin = request.Header("origin");
  if (!guard_.ListsOrigin(origin)) return;
  const bool all = guard_.AllowsAllOrigins();
  response->headers.emplace_back("Access-Control-Allow-Origin", all ? "*" : std::string(origin));
  response->headers.emplace_back(
      "Access-Control-Expose-Headers",
      "X-Request-Id, Retry-After, X-Celer-Ignored, X-Celer-Warning, X-Data-Parallel-Rank");
  if (!all) response->headers.emplace_back("Vary", "Origin");
  if (request.method != "OPTIONS") return;
  response->headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  response->headers.emplace_back("Access-Control-Allow-Headers", "*, Authorization");
  response->headers.emplace_back("Access-Control-Max-Age", "3600");
}

void Service::Log(const HttpRequest& request, const HttpHandlers::Done& done) {
  bool ignored = false;
  const Route* route = request.path.empty() ? nullptr : FindRoute(request, &ignored);
  ++metrics_.http_requests[{route ? route->path : "other", done.status}];
  const bool probe =
      route && (request.path == "/health" || request.path == "/metrics" || request.path == "/health/live");
  if (!options_.log_requests || (probe && done.status == 200 && !options_.log_probes)) return;
  WriteAccessLog(request, done, options_.log_json);
}

}  // namespace celer::server
