// Readers of the calls in a block, one for each syntax of answer_syntax.h. Linear in the block's length, whatever
// it holds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json/json.h"
#include "server/api/answer_syntax.h"

namespace celer::server {

// {"name": ..., "arguments": {...}}, or a list of them; also "tool_name" and "parameters".
bool ReadJsonCalls(const CallBlock& block, std::vector<Part>* calls);
// A list of them without its opening bracket.
bool ReadListCalls(const CallBlock& block, std::vector<Part>* calls);
// The same with it, or name[ARGS]{..} as often as there are [TOOL_CALLS] between them.
bool ReadBracketCalls(const CallBlock& block, std::vector<Part>* calls);
// name<｜tool▁sep｜>{..}, or function<｜tool▁sep｜>name and a fenced block of JSON.
bool ReadDeepSeekCall(const CallBlock& block, std::vector<Part>* calls);
// functions.name:0<|tool_call_argument_begin|>{..}
bool ReadKimiCall(const CallBlock& block, std::vector<Part>* calls);
// <function=name><parameter=key>value</parameter></function>
bool ReadFunctionTags(const CallBlock& block, std::vector<Part>* calls);
// name<arg_key>key</arg_key><arg_value>value</arg_value>
bool ReadArgKeys(const CallBlock& block, std::vector<Part>* calls);
// <invoke name="name"><parameter name="key">value</parameter></invoke>
bool ReadInvokes(const CallBlock& block, std::vector<Part>* calls);
// name(key=value), several with commas or white space between them, perhaps in brackets.
bool ReadPythonCalls(const CallBlock& block, std::vector<Part>* calls);
// call:name{key:<|"|>value<|"|>}
bool ReadGemmaCalls(const CallBlock& block, std::vector<Part>* calls);

// What the readers share.

inline constexpr JsonLimits kCallLimits{.max_bytes = size_t{1} << 20, .max_depth = 64};

enum class ReadState { kWhole, kCut, kOther };  // a call, one that the text ends in, something else

// A call of `name` whose arguments are the JSON text `json`. False if that is no object, or no part of one
// where it may be cut.
bool AddJsonCall(std::string_view name, std::string_view json, bool cut, std::vector<Part>* calls);
// A call with these arguments; `partial`: there may be more.
void AddCall(std::string_view name, const nlohmann::ordered_json& arguments, bool partial,
             std::vector<Part>* calls);
bool IsFunctionName(std::string_view name);
// An argument written without quotes, by its type in the schema of that function.
nlohmann::ordered_json UnquotedArgument(std::string_view text, const nlohmann::ordered_json& tools,
                                        std::string_view function, const std::string& key);

bool IsSpace(char c);
std::string_view StripSpace(std::string_view text);
void SkipSpace(std::string_view* text);
// Skips white space and, if it stands there, `what`.
bool Skip(std::string_view what, std::string_view* text);
// The text up to `end`, which is skipped. False, with nothing skipped, if there is none.
bool TakeUntil(std::string_view end, std::string_view* text, std::string_view* before);

}  // namespace celer::server
