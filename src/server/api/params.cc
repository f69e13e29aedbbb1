#include "server/api/params.h"

#include <algorithm>
#include <cmath>

#include "base/suggest.h"
#include "io/file/printable.h"
#include "io/json/json_scan.h"
#include "io/json/ordered_json.h"

namespace celer::server {
namespace {

std::string Number(double value) {
  if (std::abs(value) < 1e15 && value == std::floor(value))
    return std::to_string(static_cast<int64_t>(value));
  Json json = value;
  return json.dump();
}

std::string Expected(const Param& p) {
  const auto range = [&](std::string what, const char* unit) {
    const bool bounded = p.high < kMany && p.high > 0;
    if (bounded) return what + " " + Number(p.low) + " to " + Number(p.high) + unit;
    return what + (p.low > 0 ? " " + Number(p.low) + " or more" + unit : std::string(" any number") + unit);
  };
  switch (p.kind) {
    case Kind::kBool:
      return "true or false";
    case Kind::kInt:
      if (p.high > 1e18) return "a whole number of 64 bits";
      return "a whole number from " + Number(p.low) + " to " + Number(p.high);
    case Kind::kNumber:
      return "a number from " + Number(p.low) + " to " + Number(p.high);
    case Kind::kString:
      return range("a string of", " bytes");
    case Kind::kStrings:
      return "a string, or an array of " + range("", " strings").substr(1);
    case Kind::kIds:
      return "an array of token ids";
    case Kind::kArray:
      return range("an array of", " items");
    case Kind::kObject:
      return "an object";
    case Kind::kAny:
      return "something else";
  }
  return "";
}

bool InRange(double value, const Param& p) {
  return value >= p.low && value <= p.high;  // false for NaN
}

bool Fits(const Json& value, const Param& p) {
  const auto length =
      static_cast<double>(value.is_string() ? value.get_ref<const std::string&>().size() : value.size());
  switch (p.kind) {
    case Kind::kBool:
      return value.is_boolean();
    case Kind::kInt:
      return value.is_number_integer() && InRange(value.get<double>(), p);
    case Kind::kNumber:
      return value.is_number() && InRange(value.get<double>(), p);
    case Kind::kString:
      return value.is_string() && InRange(length, p);
    case Kind::kStrings:
      if (value.is_string()) return true;
      return value.is_array() && InRange(length, p) &&
             std::all_of(value.begin(), value.end(), [](const Json& one) { return one.is_string(); });
    case Kind::kIds:
    case Kind::kArray:
      return value.is_array() && InRange(length, p);
    case Kind::kObject:
      return value.is_object();
    case Kind::kAny:
      return true;
  }
  return false;
}

// Objects keep the order of their fields and are searched linearly, so a huge one would take quadratic time.
// The text need not be valid.
bool HasLargeObject(std::string_view text) {
  constexpr int kMaxFields = 1024;
  std::vector<int> open = {0};
  bool large = false;
  ForEachOutsideStrings(text, [&](size_t, char c) {
    if (c == '{' || c == '[') open.push_back(0);
    if ((c == '}' || c == ']') && open.size() > 1) open.pop_back();
    large = c == ':' && ++open.back() > kMaxFields;
    return !large && open.size() <= 128;  // too deep: the parser says so
  });
  return large;
}

}  // namespace

const char* PathOf(Endpoint endpoint) {
  switch (endpoint) {
    case kChat:
      return "/v1/chat/completions";
    case kCompletions:
      return "/v1/completions";
    case kResponses:
      return "/v1/responses";
    case kMessages:
      return "/v1/messages";
    case kTokenize:
      return "/tokenize";
    case kDetokenize:
      return "/detokenize";
    case kEmbeddings:
      return "/v1/embeddings";
    case kCountTokens:
      return "/v1/messages/count_tokens";
  }
  return "";
}

Refusal ReadParams(const Json& body, Query* query, std::vector<std::string>* ignored) {
  for (const auto& [name, value] : body.items()) {
    if (value.is_null()) continue;
    const Param* found = nullptr;
    for (const Param& param : Params())
      if (name == param.name && (param.endpoints & query->endpoint) != 0) found = &param;
    if (found && query->in_batch && (found->endpoints & kNotInBatch) != 0) {
      // Clients send these with their defaults, too; a value without an effect is accepted.
      const bool nothing = value == false || value == "none" || (value.is_array() && value.empty());
      if (!nothing) return NotSupported(name, "it is not available in a batch");
      continue;
    }
    if (found && found->set) {
      if (!Fits(value, *found)) return Bad(name, value, Expected(*found));
      if (auto refusal = found->set(value, *query)) {
        if (refusal->code == "unsupported_parameter" && ignored) {
          ignored->push_back(name);
          continue;
        }
        return refusal;
      }
      continue;
    }
    if (ignored) {
      ignored->push_back(Printable(name, 60));
      continue;
    }
    if (found) return NotSupported(name, found->help);
    std::vector<std::string> names;
    for (const Param& param : Params())
      if ((param.endpoints & query->endpoint) != 0 && param.set) names.emplace_back(param.name);
    ApiError error = NotSupported(name, "");
    error.message += std::string(" by ") + PathOf(query->endpoint) + DidYouMean(name, names);
    return error;
  }
  return {};
}

Refusal ParseBody(std::string_view text, Json* body) {
  if (HasLargeObject(text)) return ApiError{.message = "the body has an object of more than 1024 fields"};
  auto parsed = ParseOrderedJson(text, "the body", {.max_bytes = text.size(), .max_depth = 64});
  if (!parsed) return ApiError{.message = parsed.error().message()};
  if (!parsed->is_object())
    return ApiError{.message = std::string("the body is ") + parsed->type_name() + ", expected an object"};
  *body = std::move(*parsed);
  return {};
}

}  // namespace celer::server
