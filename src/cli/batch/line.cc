#include "cli/batch/line.h"

#include <fmt/format.h>

#include "base/escape.h"
#include "cli/shared/command.h"
#include "io/file/sha256.h"
#include "io/json/json.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kChatUrl = "/v1/chat/completions", kCompletionUrl = "/v1/completions";
// Written lines begin with one of these, so that a torn line is recognized.
constexpr std::string_view kIdBegins = R"({"id":)", kLineBegins = R"({"line":)";

// A value from the input, for a sentence.
std::string Short(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

bool IsOpenAi(const Json& json) {
  return json.contains("custom_id") || json.contains("url") || json.contains("body") ||
         json.contains("method");
}

std::optional<LineError> ReadEnvelope(Json& json, BatchLine* line) {
  line->kind = BodyKind::kChat;
  const auto invalid = [](std::string message) { return LineError{"invalid_line", std::move(message)}; };
  if (const auto id = json.find("custom_id"); id == json.end())
    return invalid("'custom_id' is missing");
  else if (!id->is_string() || id->get_ref<const std::string&>().empty())
    return invalid(fmt::format("'custom_id' is {}, expected a string that is not empty", Short(*id)));
  else
    line->custom_id = id->get<std::string>();
  for (const auto& [name, value] : json.items())
    if (name != "custom_id" && name != "method" && name != "url" && name != "body")
      return invalid(
          fmt::format("the field '{}' is not known; expected custom_id, method, url and body", name));
  if (json.value("method", Json("POST")) != "POST")
    return invalid(fmt::format("'method' is {}, expected \"POST\"", Short(json["method"])));
  const Json url = json.value("url", Json(nullptr));
  if (url != kChatUrl && url != kCompletionUrl)
    return LineError{"unknown_url",
                     fmt::format("'url' is {}, expected {} or {}", Short(url), kChatUrl, kCompletionUrl)};
  if (url == kCompletionUrl) line->kind = BodyKind::kCompletion;
  if (!json.contains("body") || !json["body"].is_object())
    return invalid("'body' is not an object with the request");
  line->body = std::move(json["body"]);
  return std::nullopt;
}

std::optional<LineError> ReadSimple(Json& json, BatchLine* line) {
  if (const auto id = json.find("id"); id != json.end() && !id->is_null()) {
    if (!id->is_string() && !id->is_number_integer())
      return LineError{"invalid_line",
                       fmt::format("'id' is {}, expected a string or a whole number", Short(*id))};
    line->id = *id;
  }
  line->body = std::move(json);
  return std::nullopt;
}

std::string SimpleKey(const Json& id) {
  return id.is_null() ? "" : "id " + id.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

std::string BatchLine::Key() const {
  return custom_id.empty() ? SimpleKey(id) : "custom_id " + custom_id;
}

BatchLine ParseLine(std::string_view text, int64_t number) {
  BatchLine line{.number = number};
  // Twice, because only the first bounds the depth and only the second keeps the order of fields, which a
  // chat template may show to the model.
  const auto checked = ParseJson(text, "the line");
  if (!checked) {
    line.error = LineError{"invalid_json", Escaped(checked.error().message())};
    return line;
  }
  if (!checked->is_object()) {
    line.error =
        LineError{"invalid_line", fmt::format("the line is {}, expected an object", Short(*checked))};
    return line;
  }
  Json json = Json::parse(text);
  line.error = IsOpenAi(json) ? ReadEnvelope(json, &line) : ReadSimple(json, &line);
  return line;
}

std::string MakeId(std::string_view prefix, const BatchLine& line) {
  const std::string name = fmt::format("{} {}", line.number, line.Key());
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(name)));
  return fmt::format("{}{}", prefix, hash.Finish().substr(0, 24));
}

std::string AnswerText(const BatchLine& line, Json body) {
  Json json = Json::object();
  if (line.kind == BodyKind::kSimple) {
    if (!line.id.is_null()) json["id"] = line.id;
    json["line"] = line.number;
    for (auto& [name, value] : body.items()) json[name] = std::move(value);
  } else {
    json = {
        {"id", MakeId("batch_req_", line)},
        {"custom_id", line.custom_id},
        {"response", {{"status_code", 200}, {"request_id", MakeId("req_", line)}, {"body", std::move(body)}}},
        {"error", nullptr}};
  }
  return JsonText(json) + "\n";
}

std::string ErrorText(const BatchLine& line, const LineError& error) {
  Json json = Json::object();
  if (line.kind == BodyKind::kSimple) {
    if (!line.id.is_null()) json["id"] = line.id;
    json["line"] = line.number;
  } else {
    json["id"] = MakeId("batch_req_", line);
    json["custom_id"] = line.custom_id.empty() ? Json(nullptr) : Json(line.custom_id);
    json["line"] = line.number;
    json["response"] = nullptr;
    if (error.status != 0) {
      const char* const type = error.status < 500 ? "invalid_request_error" : "server_error";
      json["response"] = {
          {"status_code", error.status},
          {"request_id", MakeId("req_", line)},
          {"body",
           {{"error",
             {{"message", error.message}, {"type", type}, {"param", nullptr}, {"code", error.code}}}}}};
    }
  }
  json["error"] = {{"code", error.code}, {"message", error.message}};
  return JsonText(json) + "\n";
}

std::optional<LineName> NameOf(std::string_view written) {
  if (!MayBegin(written)) return std::nullopt;
  const Json json = Json::parse(written, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  LineName name;
  if (const auto line = json.find("line"); line != json.end() && line->is_number_unsigned())
    name.number = line->get<int64_t>();
  if (const auto id = json.find("custom_id"); id != json.end())
    name.key = id->is_string() ? "custom_id " + id->get<std::string>() : "";
  else if (json.contains("id"))
    name.key = SimpleKey(json["id"]);
  if (name.key.empty() && name.number == 0) return std::nullopt;
  return name;
}

bool MayBegin(std::string_view written) {
  const auto agrees = [&](std::string_view with) {
    const size_t common = std::min(written.size(), with.size());
    return written.substr(0, common) == with.substr(0, common);
  };
  return agrees(kIdBegins) || agrees(kLineBegins);
}

}  // namespace celer::cli
