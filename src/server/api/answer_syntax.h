// The syntaxes in which models write their thoughts and their tool calls: a row each, chosen by what the chat
// template shows.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace celer::server {

struct Part {
  enum class Kind { kReasoning, kContent, kCall } kind = Kind::kContent;
  std::string text = {};  // of a call: its arguments, as JSON
  std::string name = {};  // of a call
  bool partial = false;   // a call whose arguments are incomplete JSON
};

enum class ToolStyle {
  kNone,
  kTags,         // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen
  kJson,         // {"name": ..., "parameters": {...}} as the whole answer: Llama 3
  kBracket,      // [TOOL_CALLS][{"name": ..., "arguments": {...}}]: Mistral
  kBracketArgs,  // [TOOL_CALLS]name[ARGS]{...}: Mistral since 2025
  kFunctionTag,  // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>: Qwen3-Coder
  kSeed,         // the same in <seed:tool_call>
  kArgKeys,      // <tool_call>name <arg_key>key</arg_key><arg_value>value</arg_value></tool_call>: GLM
  kInvoke,       // <minimax:tool_call><invoke name="..."><parameter name="...">value</parameter></invoke>
  kDeepSeek,     // <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
  kKimi,         // <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
  kPythonLines,  // <function_calls> and a Python call on each line: OLMo 3
  kPythonList,   // [name(key=value)] as the whole answer: Llama 4
  kAction,       // <|START_ACTION|>[{"tool_name": ..., "parameters": {...}}]<|END_ACTION|>: Cohere
  kGranite,      // <|tool_call|>[{"name": ..., "arguments": {...}}]: Granite
  kPhi4,         // functools[{"name": ..., "arguments": {...}}]: Phi-4-mini
  kHunyuan,      // <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>
  kNemotron,     // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kGemma4,       // <|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>
  kHarmony,      // <|channel|>commentary to=functions.name<|message|>{...}<|call|>: gpt-oss
};

// What stands between the tags of a syntax.
struct CallBlock {
  std::string_view text;
  // The request's tools, or null: they have the types of arguments that are written without quotes.
  const nlohmann::ordered_json& tools;
  bool cut = false;  // the text may end anywhere, so that its last call may be partial
};
// False if it is something else than calls; those before that are in `calls` nevertheless.
using CallReader = bool (*)(const CallBlock& block, std::vector<Part>* calls);

struct ToolSyntax {
  ToolStyle style;
  const char* name;                         // for people
  std::array<std::string_view, 2> marks;    // the chat template has all of them
  std::string_view begin;                   // of a block; "": the whole answer is one, or plain text
  std::string_view end;                     // "": the end of the answer
  std::array<std::string_view, 2> dropped;  // around blocks; not text
  CallReader read;
  // How a call that is required is begun and ended, around the JSON of its arguments. $ is the function's name,
  // @ the name as a JSON string.
  std::string_view required_begin, required_end;
  bool several;          // required calls may follow one another
  const char* families;  // names as in models/config/family.h
};

struct ThoughtSyntax {
  const char* name;
  std::string_view mark;                    // the chat template has it
  std::string_view begin, end;              // of the thoughts
  std::array<std::string_view, 2> dropped;  // around the answer; not text
  bool channels;                            // headers say what is thought: the harmony format
  const char* families;
};

std::span<const ToolSyntax> ToolSyntaxes();
std::span<const ThoughtSyntax> ThoughtSyntaxes();

const ToolSyntax& SyntaxOf(ToolStyle style);
ToolStyle ToolStyleOf(std::string_view chat_template);
// nullptr if the template shows none.
const ThoughtSyntax* ThoughtsOf(std::string_view chat_template);

// `text` with the name of a function in place of $ and @.
std::string WithName(std::string_view text, std::string_view name);

}  // namespace celer::server
