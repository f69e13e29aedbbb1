#include "server/api/openapi.h"

#include <algorithm>

#include "celer/version.h"
#include "server/api/params.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

Json Type(const Param& p) {
  switch (p.kind) {
    case Kind::kBool:
      return {{"type", "boolean"}};
    case Kind::kInt: {
      if (p.high > 1e18) return {{"type", "integer"}};
      return {{"type", "integer"},
              {"minimum", static_cast<int64_t>(p.low)},
              {"maximum", static_cast<int64_t>(p.high)}};
    }
    case Kind::kNumber:
      return {{"type", "number"}, {"minimum", p.low}, {"maximum", p.high}};
    case Kind::kString: {
      Json json = {{"type", "string"}};
      if (p.low > 0) json["minLength"] = static_cast<int64_t>(p.low);
      return json;
    }
    case Kind::kStrings: {
      const Json one = {{"type", "string"}, {"minLength", 1}};
      const Json many = {{"type", "array"}, {"items", one}, {"maxItems", static_cast<int64_t>(p.high)}};
      return {{"anyOf", Json::array({one, many})}};
    }
    case Kind::kIds:
      return {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}};
    case Kind::kArray: {
      Json json = {{"type", "array"}, {"items", {{"type", "object"}}}};
      if (p.low > 0) json["minItems"] = static_cast<int64_t>(p.low);
      return json;
    }
    case Kind::kObject:
      return {{"type", "object"}};
    case Kind::kAny:
      return Json::object();
  }
  return Json::object();
}

// null is the same as missing.
void AllowNull(Json* schema) {
  if (schema->contains("type")) (*schema)["type"] = Json::array({(*schema)["type"], "null"});
  if (schema->contains("anyOf")) (*schema)["anyOf"].push_back({{"type", "null"}});
}

Json Body(unsigned endpoint) {
  Json required = Json::array();
  if (endpoint == kChat) required = {"messages"};
  if (endpoint == kCompletions) required = {"prompt"};
  if (endpoint == kResponses) required = {"input"};
  if (endpoint == kMessages) required = {"messages", "max_tokens"};
  if (endpoint == kCountTokens) required = {"messages"};
  if (endpoint == kDetokenize) required = {"tokens"};
  if (endpoint == kEmbeddings) required = {"input"};
  Json properties = Json::object();
  for (const Param& param : Params()) {
    if ((param.endpoints & endpoint) == 0 || !param.set) continue;
    Json schema = Type(param);
    if (std::find(required.begin(), required.end(), param.name) == required.end()) AllowNull(&schema);
    if (param.help[0] != '\0') schema["description"] = param.help;
    properties[param.name] = std::move(schema);
  }
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = std::move(required);
  return {{"required", true}, {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
}

}  // namespace

std::string OpenApiText(bool needs_key) {
  const Json error_content = {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}};
  const auto error = [&](const char* what) -> Json {
    return {{"description", what}, {"content", error_content}};
  };
  Json paths = Json::object();
  for (const Service::Route& route : Service::Routes()) {
    std::string path = route.path;
    Json operation = {{"summary", route.help}};
    if (path.size() > 1 && path.back() == '/') {
      path += "{id}";
      operation["parameters"] = Json::array(
          {Json{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
    }
    if (route.endpoint != 0) operation["requestBody"] = Body(route.endpoint);
    const Json any = {{"schema", Json::object()}};
    Json content = Json::object();
    content[path == "/metrics" ? "text/plain" : path == "/" ? "text/html" : "application/json"] = any;
    if (route.endpoint != 0 && route.endpoint < kTokenize && !path.ends_with("/render"))
      content["text/event-stream"] = any;
    operation["responses"] = {
        {"200", {{"description", "the answer"}, {"content", content}}},
        {"400", error("the request is wrong; `param` names the field")},
        {"401", error("the key is missing or wrong")},
        {"403",
         error("a web page of another origin, or an unknown Host; see --cors-origin and --allowed-hosts")},
        {"404", error("there is no such model, response or path")},
        {"413", error("the body is too large")},
        {"415", error("the body is not declared as application/json")},
        {"429", error("overloaded; Retry-After says when to retry")},
        {"503", error("the model is being loaded, the server shuts down, or the device failed")},
        {"504", error("the request timed out")}};
    if (needs_key && !route.open) operation["security"] = Json::array({Json{{"key", Json::array()}}});
    std::string method = route.method;
    for (char& c : method) c = static_cast<char>(std::tolower(c));
    paths[path][method] = std::move(operation);
  }
  const Json string_or_null = {{"type", Json::array({"string", "null"})}};
  Json json = {{"openapi", "3.1.0"},
               {"info", {{"title", "celer"}, {"version", Version()}}},
               {"paths", std::move(paths)},
               {"components",
                {{"schemas",
                  {{"Error",
                    {{"type", "object"},
                     {"properties",
                      {{"error",
                        {{"type", "object"},
                         {"properties",
                          {{"message", {{"type", "string"}}},
                           {"type", {{"type", "string"}}},
                           {"param", string_or_null},
                           {"code", string_or_null}}},
                         {"required", Json::array({"message", "type"})}}}}}}}}},
                 {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
  return Dump(json);
}

}  // namespace celer::server
