// Error responses, in OpenAI's or Anthropic's form.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "io/json/json.h"
#include "server/http/http.h"

namespace celer::server {

using Json = nlohmann::ordered_json;

enum class ApiForm { kOpenAi, kAnthropic };

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field at fault
  std::string code = {};   // for programs; "": none
  int retry_after = 0;     // seconds; 0: no such header

  Json ToJson(ApiForm form) const;
  HttpResponse ToResponse(ApiForm form) const;
};

using Refusal = std::optional<ApiError>;  // none: all is well

// From an error of the library: 400 for an invalid request, 500 for a failure of the server.
ApiError FromError(const Error& error, std::string param = {});

// "FIELD is VALUE, expected ..."
ApiError Bad(std::string_view field, const Json& value, std::string_view expected);
// `value`: the unsupported one, where other values are supported.
ApiError NotSupported(std::string_view field, std::string_view why, std::string_view value = {});

// Escaped and no longer than fits into a sentence.
std::string Quoted(const Json& value);

}  // namespace celer::server
