// What is said to a client whose request cannot be answered: in OpenAI's nested form, or Anthropic's.
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

// A sentence of the library's: 400 for what the client asked for, 500 for what failed here.
ApiError FromError(const Error& error, std::string param = {});

// "FIELD is VALUE, expected ..."
ApiError Bad(std::string_view field, const Json& value, std::string_view expected);
// `value`: which one is not, if others are.
ApiError NotSupported(std::string_view field, std::string_view why, std::string_view value = {});

// Escaped and no longer than fits into a sentence.
std::string Quoted(const Json& value);

}  // namespace celer::server
