#include "text/template/chat_template.h"

#include <exception>

#include "base/utf8.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/parser.h"
#include "text/template/jinja/unicode.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Budget;
using jinja::TemplateError;
using jinja::Value;

std::string CheckedText(const std::string& text) {
  if (const size_t at = utf8::FindInvalid(text); at != std::string::npos)
    throw TemplateError("a string in the conversation is not UTF-8 at byte " + std::to_string(at));
  return text;
}

Value FromJson(const Json& json, Budget& budget, int depth = 1) {
  budget.CheckNesting(depth);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::Integer(json.get<uint64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return MakeString(budget, CheckedText(json.get_ref<const std::string&>()));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(FromJson(item, budget, depth + 1));
      return MakeList(budget, std::move(items));
    }
    case Json::value_t::object: {
      auto dict = jinja::NewDict();
      for (const auto& [key, value] : json.items())
        dict->Set(MakeString(budget, CheckedText(key)), FromJson(value, budget, depth + 1), budget);
      return FinishDict(budget, std::move(dict));
    }
    case Json::value_t::null:
      return Value::None();
    default:
      throw TemplateError("a binary value cannot be used in a template");
  }
}

constexpr const char* kReasoningNames[] = {"reasoning_content", "thinking", "reasoning"};

// The messages with reasoning under the name that the template reads; null when they are right as they are.
Json FitReasoning(const Json& messages, const jinja::Template& program) {
  const char* wanted = nullptr;
  for (const char* name : kReasoningNames)
    if (wanted == nullptr && program.fields.contains(name)) wanted = name;
  if (wanted == nullptr) return nullptr;
  Json fitted;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* thought = nullptr;
    bool readable = false;
    for (const char* name : kReasoningNames) {
      const auto at = messages[i].find(name);
      if (at == messages[i].end() || at->is_null()) continue;
      if (thought == nullptr) thought = &*at;
      readable |= program.fields.contains(name);
    }
    if (thought == nullptr || readable) continue;
    if (fitted.is_null()) fitted = messages;
    fitted[i][wanted] = *thought;
  }
  return fitted;
}

Error ToError(const TemplateError& error) {
  const std::string where =
      error.line > 0 ? "chat template line " + std::to_string(error.line) : "chat template";
  if (error.raised) return Error::Invalid(where, " rejects this conversation: ", error.what());
  return Error::Invalid(where, ": ", error.what());
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Compile(std::string_view source) {
  try {
    if (const size_t at = utf8::FindInvalid(source); at != std::string_view::npos)
      return Error::Corrupt("chat template is not UTF-8 at byte ", at);
    return ChatTemplate(jinja::Parse(source));
  } catch (const TemplateError& error) {
    return ToError(error);
  } catch (const std::exception& error) {
    return Error::OutOfMemory("chat template: ", error.what());
  }
}

Result<std::string> ChatTemplate::Render(const Json& messages, const Json& tools,
                                         const Options& options) const {
  if (!messages.is_array()) return Error::Invalid("messages must be an array, not ", messages.type_name());
  for (const Json& message : messages)
    if (!message.is_object())
      return Error::Invalid("each message must be an object, not ", message.type_name());
  if (!tools.is_null() && !tools.is_array())
    return Error::Invalid("tools must be an array, not ", tools.type_name());
  if (!options.extra.is_null() && !options.extra.is_object())
    return Error::Invalid("the extra template variables must be an object, not ", options.extra.type_name());
  try {
    if (const Json fitted = options.fit_reasoning ? FitReasoning(messages, *program_) : Json();
        !fitted.is_null()) {
      try {
        return RenderOnce(fitted, tools, options);
      } catch (const TemplateError& error) {
        if (!error.raised) throw;  // it has no place for a thought there
      }
    }
    return RenderOnce(messages, tools, options);
  } catch (const TemplateError& error) {
    return ToError(error);
  } catch (const std::exception& error) {
    return Error::OutOfMemory("chat template: ", error.what());
  }
}

std::string ChatTemplate::RenderOnce(const Json& messages, const Json& tools, const Options& options) const {
  jinja::Interpreter interpreter(*program_, options.limits, options.now ? *options.now : std::time(nullptr));
  Budget inputs(options.limits);  // a long conversation does not count against the template
  if (!options.bos_token.empty())
    interpreter.SetVariable("bos_token", MakeString(inputs, CheckedText(options.bos_token)));
  if (!options.eos_token.empty())
    interpreter.SetVariable("eos_token", MakeString(inputs, CheckedText(options.eos_token)));
  interpreter.SetVariable("documents", Value::None());
  for (const auto& [name, value] : options.extra.items())
    interpreter.SetVariable(name, FromJson(value, inputs));
  interpreter.SetVariable("messages", FromJson(messages, inputs));
  interpreter.SetVariable("tools", FromJson(tools, inputs));
  interpreter.SetVariable("add_generation_prompt", Value::Bool(options.add_generation_prompt));
  return interpreter.Render();
}

}  // namespace celer
