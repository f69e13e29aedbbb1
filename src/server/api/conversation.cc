#include "server/api/conversation.h"

#include <algorithm>

#include "io/file/printable.h"
#include "io/json/ordered_json.h"

namespace celer::server {
namespace {

std::string At(const char* list, size_t i) {
  return std::string(list) + "[" + std::to_string(i) + "]";
}

// A string, or parts of text; parts are joined by line breaks.
Refusal ReadText(const Json& content, const std::string& where, std::string* out) {
  if (content.is_string()) {
    *out = content.get<std::string>();
    return {};
  }
  if (!content.is_array()) return Bad(where, content, "a string or an array of parts");
  out->clear();
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = where + "[" + std::to_string(i) + "]";
    if (!part.is_object()) return Bad(at, part, "an object with type and text");
    const Json* type = Field(part, "type");
    const bool is_text = type && (*type == "text" || *type == "input_text" || *type == "output_text");
    if (!is_text)
      return ApiError{
          .message = at + ".type is " + Quoted(type ? *type : Json()) + "; this model takes text only",
          .param = at + ".type",
          .code = "unsupported_parameter"};
    const Json* text = Field(part, "text");
    if (!text || !text->is_string()) return Bad(at + ".text", text ? *text : Json(), "a string");
    if (i > 0) *out += '\n';
    *out += text->get_ref<const std::string&>();
  }
  return {};
}

// Arguments reach us as JSON text, and templates want the object.
Refusal ReadArguments(const Json& value, const std::string& where, Json* out) {
  if (value.is_object()) {
    *out = value;
    return {};
  }
  if (!value.is_string()) return Bad(where, value, "a string of JSON");
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty()) {
    *out = Json::object();
    return {};
  }
  auto parsed = ParseOrderedJson(text, where);
  if (!parsed || !parsed->is_object()) return Bad(where, value, "an object as JSON");
  *out = std::move(*parsed);
  return {};
}

Json CallJson(const std::string& id, const std::string& name, Json arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

Refusal ReadCalls(const Json& calls, const std::string& where, Json* out) {
  if (!calls.is_array()) return Bad(where, calls, "an array");
  *out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = where + "[" + std::to_string(i) + "]";
    const Json* function = calls[i].is_object() ? Field(calls[i], "function") : nullptr;
    const Json* name = function && function->is_object() ? Field(*function, "name") : nullptr;
    if (!name || !name->is_string())
      return Bad(at, calls[i], "an object with function.name and function.arguments");
    const Json* given = Field(*function, "arguments");
    Json arguments = Json::object();
    if (given)
      if (auto refusal = ReadArguments(*given, at + ".function.arguments", &arguments)) return refusal;
    const Json* id = Field(calls[i], "id");
    out->push_back(
        CallJson(id && id->is_string() ? id->get<std::string>() : "", *name, std::move(arguments)));
  }
  return {};
}

// One message as /v1/chat/completions has it.
Refusal ReadMessage(const Json& message, const std::string& where, Json* out) {
  if (!message.is_object()) return Bad(where, message, "an object with role and content");
  const Json* role = Field(message, "role");
  if (!role || !role->is_string()) return Bad(where + ".role", role ? *role : Json(), "a string");
  for (const auto& [name, value] : message.items()) {
    constexpr std::string_view kKnown[] = {
        "role",         "content",     "name",          "tool_calls",
        "tool_call_id", "refusal",     "audio",         "reasoning_content",
        "reasoning",    "annotations", "function_call", "type",
        "id",           "status"};
    if (!value.is_null() && std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      return ApiError{.message = where + " has the field '" + Printable(name, 60) + "', which is not known",
                      .param = where,
                      .code = "unsupported_parameter"};
  }
  // OpenAI's role developer is system in templates.
  *out = {{"role", *role == "developer" ? Json("system") : *role}};
  const Json* calls = Field(message, "tool_calls");
  std::string content;
  if (const Json* given = Field(message, "content")) {
    if (auto refusal = ReadText(*given, where + ".content", &content)) return refusal;
  } else if (*role != "assistant") {
    return Bad(where + ".content", Json(), "a string or an array of parts");
  }
  (*out)["content"] = content;
  if (calls) {
    Json read;
    if (auto refusal = ReadCalls(*calls, where + ".tool_calls", &read)) return refusal;
    if (!read.empty()) (*out)["tool_calls"] = std::move(read);
  }
  for (const char* field : {"name", "tool_call_id", "reasoning_content"})
    if (const Json* value = Field(message, field)) {
      if (!value->is_string()) return Bad(where + "." + field, *value, "a string");
      (*out)[field] = *value;
    }
  return {};
}

Refusal ReadChat(const Query& query, Conversation* out) {
  if (!query.messages.is_array() || query.messages.empty())
    return ApiError{.message = "messages is missing, expected an array of messages", .param = "messages"};
  for (size_t i = 0; i < query.messages.size(); ++i) {
    Json message;
    if (auto refusal = ReadMessage(query.messages[i], At("messages", i), &message)) return refusal;
    out->messages.push_back(std::move(message));
  }
  if (query.tools.is_array())
    for (size_t i = 0; i < query.tools.size(); ++i) {
      const Json& tool = query.tools[i];
      const Json* function = tool.is_object() ? Field(tool, "function") : nullptr;
      if (!function || !function->is_object() || !Field(*function, "name") ||
          !(*function)["name"].is_string())
        return Bad(At("tools", i), tool, "an object with type: function and function.name");
    }
  out->tools = query.tools;
  return {};
}

// ---- /v1/responses ----

Refusal ReadInputItem(const Json& item, const std::string& where, Json* messages) {
  if (!item.is_object()) return Bad(where, item, "an object");
  const Json* given = Field(item, "type");
  const Json type = given ? *given : Json("message");
  if (type == "message") {
    Json message;
    if (auto refusal = ReadMessage(item, where, &message)) return refusal;
    messages->push_back(std::move(message));
    return {};
  }
  if (type == "function_call") {
    const Json *name = Field(item, "name"), *id = Field(item, "call_id"), *text = Field(item, "arguments");
    if (!name || !name->is_string() || !id || !id->is_string())
      return Bad(where, item, "a call with call_id, name and arguments");
    Json arguments;
    if (auto refusal = ReadArguments(text ? *text : Json("{}"), where + ".arguments", &arguments))
      return refusal;
    // Calls of one answer are one message.
    const bool joins = !messages->empty() && messages->back()["role"] == "assistant";
    if (!joins) messages->push_back({{"role", "assistant"}, {"content", ""}});
    messages->back()["tool_calls"].push_back(CallJson(*id, *name, std::move(arguments)));
    return {};
  }
  if (type == "function_call_output") {
    const Json *id = Field(item, "call_id"), *output = Field(item, "output");
    std::string text;
    if (!id || !id->is_string()) return Bad(where + ".call_id", id ? *id : Json(), "a string");
    if (auto refusal = ReadText(output ? *output : Json(), where + ".output", &text)) return refusal;
    messages->push_back({{"role", "tool"}, {"content", text}, {"tool_call_id", *id}});
    return {};
  }
  if (type == "reasoning") return {};  // reasoning of earlier turns is dropped
  return ApiError{.message = where + ".type is " + Quoted(type) +
                             ", expected message, function_call or function_call_output",
                  .param = where + ".type",
                  .code = "unsupported_parameter"};
}

Refusal ReadResponses(const Query& query, const Json& before, Conversation* out) {
  if (query.system.is_string()) out->messages.push_back({{"role", "system"}, {"content", query.system}});
  // Instructions hold for one request, and are not inherited by those that continue it.
  for (const Json& message : before) out->messages.push_back(message);
  if (query.input.is_string()) {
    out->messages.push_back({{"role", "user"}, {"content", query.input}});
  } else if (query.input.is_array() && !query.input.empty()) {
    for (size_t i = 0; i < query.input.size(); ++i)
      if (auto refusal = ReadInputItem(query.input[i], At("input", i), &out->messages)) return refusal;
  } else {
    return ApiError{.message = "input is " + Quoted(query.input) + ", expected a string or a list of items",
                    .param = "input"};
  }
  if (query.tools.is_array() && !query.tools.empty()) {
    out->tools = Json::array();
    for (size_t i = 0; i < query.tools.size(); ++i) {
      const Json& tool = query.tools[i];
      if (!tool.is_object() || !Field(tool, "type") || tool["type"] != "function" || !Field(tool, "name") ||
          !tool["name"].is_string())
        return Bad(At("tools", i), tool, "an object with type: function and name");
      Json function = {{"name", tool["name"]}};
      for (const char* field : {"description", "parameters"})
        if (const Json* value = Field(tool, field)) function[field] = *value;
      out->tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  return {};
}

// ---- /v1/messages ----

Refusal ReadBlocks(const Json& message, const std::string& where, Json* messages) {
  const std::string role = message["role"];
  const Json& content = message["content"];
  if (content.is_string()) {
    messages->push_back({{"role", role}, {"content", content}});
    return {};
  }
  if (!content.is_array()) return Bad(where + ".content", content, "a string or an array of blocks");
  std::string text;
  Json calls = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    const std::string at = where + ".content[" + std::to_string(i) + "]";
    if (!block.is_object()) return Bad(at, block, "a block");
    const Json* given = Field(block, "type");
    const Json type = given ? *given : Json();
    if (type == "text") {
      const Json* part = Field(block, "text");
      if (!part || !part->is_string()) return Bad(at + ".text", part ? *part : Json(), "a string");
      text += (text.empty() ? "" : "\n") + part->get_ref<const std::string&>();
    } else if (type == "tool_use" && role == "assistant") {
      const Json *id = Field(block, "id"), *name = Field(block, "name"), *input = Field(block, "input");
      if (!id || !id->is_string() || !name || !name->is_string() || (input && !input->is_object()))
        return Bad(at, block, "a call with id, name and input");
      calls.push_back(CallJson(*id, *name, input ? *input : Json::object()));
    } else if (type == "tool_result" && role == "user") {
      const Json *id = Field(block, "tool_use_id"), *result = Field(block, "content");
      std::string output;
      if (!id || !id->is_string()) return Bad(at + ".tool_use_id", id ? *id : Json(), "a string");
      if (result)
        if (auto refusal = ReadText(*result, at + ".content", &output)) return refusal;
      messages->push_back({{"role", "tool"}, {"content", output}, {"tool_call_id", *id}});
    } else if (type != "thinking" && type != "redacted_thinking") {
      return ApiError{
          .message = at + ".type is " + Quoted(type) + "; this model takes text and tool calls only",
          .param = at + ".type",
          .code = "unsupported_parameter"};
    }
  }
  if (text.empty() && calls.empty() && role == "user" && !content.empty()) return {};  // tool results alone
  Json out = {{"role", role}, {"content", text}};
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  messages->push_back(std::move(out));
  return {};
}

Refusal ReadAnthropic(const Query& query, Conversation* out) {
  if (!query.system.is_null()) {
    std::string text;
    if (auto refusal = ReadText(query.system, "system", &text)) return refusal;
    out->messages.push_back({{"role", "system"}, {"content", text}});
  }
  if (!query.messages.is_array() || query.messages.empty())
    return ApiError{.message = "messages is missing, expected an array of messages", .param = "messages"};
  for (size_t i = 0; i < query.messages.size(); ++i) {
    const Json& message = query.messages[i];
    const std::string at = At("messages", i);
    const Json* role = message.is_object() ? Field(message, "role") : nullptr;
    if (!role || (*role != "user" && *role != "assistant"))
      return Bad(at + ".role", role ? *role : Json(), "user or assistant");
    if (!Field(message, "content")) return Bad(at + ".content", Json(), "a string or an array of blocks");
    if (auto refusal = ReadBlocks(message, at, &out->messages)) return refusal;
  }
  // An assistant's turn at the end is a prefill: the answer continues it.
  if (!out->messages.empty() && out->messages.back()["role"] == "assistant") {
    if (out->messages.back().contains("tool_calls"))
      return ApiError{
          .message = "messages ends with a tool_use, expected its tool_result in the next message",
          .param = "messages"};
    out->continues = out->messages.back()["content"] != "";
    if (!out->continues) out->messages.erase(out->messages.size() - 1);
  }
  if (out->messages.empty())
    return ApiError{.message = "messages has no message with a content", .param = "messages"};
  if (query.tools.is_array() && !query.tools.empty()) {
    out->tools = Json::array();
    for (size_t i = 0; i < query.tools.size(); ++i) {
      const Json& tool = query.tools[i];
      if (!tool.is_object() || !Field(tool, "name") || !tool["name"].is_string() ||
          !Field(tool, "input_schema"))
        return Bad(At("tools", i), tool, "an object with name and input_schema");
      Json function = {{"name", tool["name"]}};
      if (const Json* description = Field(tool, "description")) function["description"] = *description;
      function["parameters"] = tool["input_schema"];
      out->tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  return {};
}

}  // namespace

Refusal ReadConversation(const Query& query, const Json& before, Conversation* out) {
  Refusal refusal;
  if (query.endpoint == kResponses)
    refusal = ReadResponses(query, before, out);
  else if (IsAnthropic(query.endpoint))
    refusal = ReadAnthropic(query, out);
  else
    refusal = ReadChat(query, out);
  if (!out->tools.is_null() && out->tools.empty()) out->tools = nullptr;
  if (refusal || !query.continue_final_message) return refusal;
  if (out->messages.back()["role"] != "assistant" || out->messages.back().contains("tool_calls"))
    return ApiError{
        .message = "continue_final_message needs a last message of the assistant's, without calls",
        .param = "continue_final_message"};
  out->continues = true;
  return {};
}

namespace {

// {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}; in /v1/responses the inner
// fields stand beside `type`.
Refusal ReadAllowedTools(const Json& choice, ToolChoice* out) {
  const Json* inner = Field(choice, "allowed_tools");
  const std::string at = inner ? "tool_choice.allowed_tools" : "tool_choice";
  if (!inner) inner = &choice;
  if (!inner->is_object()) return Bad(at, *inner, "an object with mode and tools");
  const Json *mode = Field(*inner, "mode"), *tools = Field(*inner, "tools");
  if (!mode || (*mode != "auto" && *mode != "required"))
    return Bad(at + ".mode", mode ? *mode : Json(), "auto or required");
  if (!tools || !tools->is_array() || tools->empty())
    return Bad(at + ".tools", tools ? *tools : Json(), "an array of functions");
  out->kind = *mode == "required" ? ToolChoice::Kind::kRequired : ToolChoice::Kind::kAuto;
  for (const Json& tool : *tools) {
    const Json* function = tool.is_object() ? Field(tool, "function") : nullptr;
    const Json* name = function && function->is_object() ? Field(*function, "name")
                       : tool.is_object()                ? Field(tool, "name")
                                                         : nullptr;
    if (!name || !name->is_string())
      return Bad(at + ".tools", tool, "objects with type: function and a name");
    out->only.push_back(name->get<std::string>());
  }
  return {};
}

Refusal ReadChoiceObject(const Query& query, const Json& choice, ToolChoice* out) {
  using Kind = ToolChoice::Kind;
  const Json* type = Field(choice, "type");
  if (IsAnthropic(query.endpoint))
    if (const Json* one = Field(choice, "disable_parallel_tool_use")) {
      if (!one->is_boolean()) return Bad("tool_choice.disable_parallel_tool_use", *one, "true or false");
      out->parallel = !one->get<bool>();
    }
  if (IsAnthropic(query.endpoint) && type && (*type == "auto" || *type == "none" || *type == "any")) {
    out->kind = *type == "none" ? Kind::kNone : *type == "any" ? Kind::kRequired : Kind::kAuto;
    return {};
  }
  if (!IsAnthropic(query.endpoint) && type && *type == "allowed_tools") return ReadAllowedTools(choice, out);
  const Json* function = Field(choice, "function");
  const Json* given = function && function->is_object() ? Field(*function, "name") : Field(choice, "name");
  if (!given || !given->is_string())
    return Bad("tool_choice", choice, "none, auto, required, a function's name or allowed_tools");
  out->kind = Kind::kNamed;
  out->name = given->get<std::string>();
  return {};
}

bool HasTool(const Json& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(),
                     [&](const Json& tool) { return tool["function"]["name"] == name; });
}

}  // namespace

Refusal ReadToolChoice(const Query& query, const Json& tools, ToolChoice* out) {
  using Kind = ToolChoice::Kind;
  out->kind = tools.is_null() ? Kind::kNone : Kind::kAuto;
  out->parallel = query.parallel_tool_calls;
  const Json& choice = query.tool_choice;
  if (choice.is_null()) return {};
  if (choice == "none") {
    out->kind = Kind::kNone;
  } else if (choice == "required") {
    out->kind = Kind::kRequired;
  } else if (choice.is_object()) {
    if (auto refusal = ReadChoiceObject(query, choice, out)) return refusal;
  } else if (choice != "auto") {
    return Bad("tool_choice", choice, "none, auto, required or a function's name");
  }
  if (out->kind == Kind::kNone) return {};
  if (tools.is_null()) {
    const bool may_do_without = out->kind == Kind::kAuto && out->only.empty();
    out->kind = Kind::kNone;
    return may_do_without ? Refusal()
                          : ApiError{.message = "tool_choice asks for a call, but there are no tools",
                                     .param = "tool_choice"};
  }
  std::vector<std::string> names = out->only;
  if (out->kind == Kind::kNamed) names.push_back(out->name);
  for (const std::string& name : names)
    if (!HasTool(tools, name))
      return ApiError{
          .message = "tool_choice names '" + Printable(name, 60) + "', which is not one of the tools",
          .param = "tool_choice"};
  return {};
}

}  // namespace celer::server
