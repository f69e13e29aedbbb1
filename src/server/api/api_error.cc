#include "server/api/api_error.h"

#include "io/file/printable.h"

namespace celer::server {
namespace {

struct Types {
  int status;
  const char* openai;
  const char* anthropic;
};
constexpr Types kTypes[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {500, "server_error", "api_error"},
    {503, "service_unavailable_error", "overloaded_error"},
    {504, "timeout_error", "api_error"},
};

const Types& TypesOf(int status) {
  for (const Types& types : kTypes)
    if (types.status == status) return types;
  return TypesOf(status < 500 ? 400 : 500);
}

Json StringOrNull(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

}  // namespace

Json ApiError::ToJson(ApiForm form) const {
  const Types& types = TypesOf(status);
  if (form == ApiForm::kAnthropic)
    return {{"type", "error"}, {"error", {{"type", types.anthropic}, {"message", message}}}};
  return {{"error",
           {{"message", message},
            {"type", types.openai},
            {"param", StringOrNull(param)},
            {"code", StringOrNull(code)}}}};
}

HttpResponse ApiError::ToResponse(ApiForm form) const {
  HttpResponse response{.status = status, .body = JsonText(ToJson(form))};
  if (retry_after > 0) response.headers.emplace_back("Retry-After", std::to_string(retry_after));
  return response;
}

ApiError FromError(const Error& error, std::string param) {
  const bool ours = error.code() == Error::Code::kDevice || error.code() == Error::Code::kIo ||
                    error.code() == Error::Code::kNotFinite || error.code() == Error::Code::kOutOfMemory;
  if (error.code() == Error::Code::kCancelled)
    return {.status = 503, .message = error.message(), .code = "shutting_down", .retry_after = 1};
  return {.status = ours ? 500 : 400, .message = error.message(), .param = std::move(param)};
}

ApiError Bad(std::string_view field, const Json& value, std::string_view expected) {
  return {.message = std::string(field) + " is " + Quoted(value) + ", expected " + std::string(expected),
          .param = std::string(field)};
}

ApiError NotSupported(std::string_view field, std::string_view why, std::string_view value) {
  const std::string name = Printable(field, 80);
  return {.message = "'" + name + (value.empty() ? "" : ": " + std::string(value)) + "' is not supported" +
                     (why.empty() ? "" : ": ") + std::string(why),
          .param = name,
          .code = "unsupported_parameter"};
}

std::string Quoted(const Json& value) {
  if (value.is_string()) return "'" + Printable(value.get_ref<const std::string&>(), 60) + "'";
  // Never print more of a structure than is shown: it may be as large as a body.
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return Printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
}

}  // namespace celer::server
