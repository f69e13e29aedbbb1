#include "server/api/answer_syntax.h"

#include <algorithm>

#include "server/api/call_readers.h"

namespace celer::server {
namespace {

// The first row whose marks a template has is its syntax: those that others contain come later.
constexpr ToolSyntax kTools[] = {
    {ToolStyle::kHarmony,
     "harmony channels",
     {"<|channel|>", "<|message|>"},
     "",
     "",
     {},
     nullptr,
     "<|channel|>commentary to=functions.$ <|constrain|>json<|message|>",
     "",
     false,
     "gpt_oss"},
    {ToolStyle::kGemma4,
     "Gemma 4",
     {"<|tool_call>", "<tool_call|>"},
     "<|tool_call>",
     "<tool_call|>",
     {},
     ReadGemmaCalls,
     "<|tool_call>{\"name\": @, \"arguments\": ",
     "}<tool_call|>",
     true,
     "gemma4"},
    {ToolStyle::kKimi,
     "Kimi K2",
     {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"},
     "<|tool_call_begin|>",
     "<|tool_call_end|>",
     {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
     ReadKimiCall,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.$:0<|tool_call_argument_begin|>",
     "<|tool_call_end|><|tool_calls_section_end|>",
     false,
     "kimi_k2"},
    {ToolStyle::kDeepSeek,
     "DeepSeek",
     {"<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"},
     "<｜tool▁call▁begin｜>",
     "<｜tool▁call▁end｜>",
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
     ReadDeepSeekCall,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>$<｜tool▁sep｜>",
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     false,
     "deepseek_v3"},
    {ToolStyle::kInvoke,
     "MiniMax M2",
     {"<minimax:tool_call>", "<invoke"},
     "<minimax:tool_call>",
     "</minimax:tool_call>",
     {},
     ReadInvokes,
     "<minimax:tool_call>\n{\"name\": @, \"arguments\": ",
     "}\n</minimax:tool_call>",
     true,
     "minimax_m2"},
    {ToolStyle::kSeed,
     "Seed-OSS",
     {"seed:tool_call", "<function="},
     "<seed:tool_call>",
     "</seed:tool_call>",
     {},
     ReadFunctionTags,
     "<seed:tool_call>\n<function=$>\n",
     "\n</function>\n</seed:tool_call>",
     true,
     ""},
    {ToolStyle::kFunctionTag,
     "Qwen3-Coder",
     {"<tool_call>", "<function="},
     "<tool_call>",
     "</tool_call>",
     {},
     ReadFunctionTags,
     "<tool_call>\n<function=$>\n",
     "\n</function>\n</tool_call>",
     true,
     "qwen3_next qwen3_5_text qwen3_5_moe_text nemotron_h"},
    {ToolStyle::kArgKeys,
     "GLM-4.5",
     {"<tool_call>", "<arg_key>"},
     "<tool_call>",
     "</tool_call>",
     {},
     ReadArgKeys,
     "<tool_call>{\"name\": @, \"arguments\": ",
     "}</tool_call>",
     true,
     "glm4_moe glm4_moe_lite"},
    {ToolStyle::kPythonLines,
     "OLMo 3",
     {"<function_calls>", "</function_calls>"},
     "<function_calls>",
     "</function_calls>",
     {},
     ReadPythonCalls,
     "<function_calls>{\"name\": @, \"arguments\": ",
     "}</function_calls>",
     true,
     "olmo3"},
    {ToolStyle::kAction,
     "Cohere",
     {"<|START_ACTION|>", "<|END_ACTION|>"},
     "<|START_ACTION|>",
     "<|END_ACTION|>",
     {},
     ReadJsonCalls,
     "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": @, \"parameters\": ",
     "}]<|END_ACTION|>",
     false,
     "cohere2"},
    {ToolStyle::kGranite,
     "Granite 3",
     {"<|tool_call|>", "tools"},
     "<|tool_call|>",
     "",
     {},
     ReadJsonCalls,
     "<|tool_call|>[{\"name\": @, \"arguments\": ",
     "}]",
     false,
     "granite granitemoe granitemoeshared"},
    {ToolStyle::kPhi4,
     "Phi-4-mini",
     {"<|tool|>", "<|/tool|>"},
     "functools[",
     "",
     {},
     ReadListCalls,
     "functools[{\"name\": @, \"arguments\": ",
     "}]",
     false,
     "phi3"},
    {ToolStyle::kHunyuan,
     "Hunyuan",
     {"<tool_calls>", "</tool_calls>"},
     "<tool_calls>",
     "</tool_calls>",
     {},
     ReadJsonCalls,
     "<tool_calls>[{\"name\": @, \"arguments\": ",
     "}]</tool_calls>",
     false,
     "hunyuan_v1_dense hunyuan_v1_moe"},
    {ToolStyle::kNemotron,
     "Nemotron Nano 2",
     {"<TOOLCALL>", "</TOOLCALL>"},
     "<TOOLCALL>",
     "</TOOLCALL>",
     {},
     ReadJsonCalls,
     "<TOOLCALL>[{\"name\": @, \"arguments\": ",
     "}]</TOOLCALL>",
     false,
     "nemotron_h"},
    {ToolStyle::kTags,
     "Hermes",
     {"<tool_call>", "tools"},
     "<tool_call>",
     "</tool_call>",
     {},
     ReadJsonCalls,
     "<tool_call>\n{\"name\": @, \"arguments\": ",
     "}\n</tool_call>",
     true,
     "qwen2 qwen3 qwen3_moe smollm3 exaone4 ernie4_5_moe granite granitemoehybrid"},
    {ToolStyle::kBracketArgs,
     "Mistral, since 2025",
     {"[TOOL_CALLS]", "[ARGS]"},
     "[TOOL_CALLS]",
     "",
     {},
     ReadBracketCalls,
     "[TOOL_CALLS]$[ARGS]",
     "",
     false,
     "mistral3 ministral3"},
    {ToolStyle::kBracket,
     "Mistral",
     {"[TOOL_CALLS]", "tools"},
     "[TOOL_CALLS]",
     "",
     {},
     ReadBracketCalls,
     "[TOOL_CALLS][{\"name\": @, \"arguments\": ",
     "}]",
     false,
     "mistral mixtral"},
    {ToolStyle::kPythonList,
     "Llama 4",
     {"[func_name1(", "tools"},
     "",
     "",
     {},
     ReadPythonCalls,
     "{\"name\": @, \"parameters\": ",
     "}",
     false,
     "llama4"},
    {ToolStyle::kJson,
     "Llama 3",
     {"\"parameters\"", "tools"},
     "",
     "",
     {},
     ReadJsonCalls,
     "{\"name\": @, \"parameters\": ",
     "}",
     false,
     "llama"},
    {ToolStyle::kJson,
     "Llama 3",
     {"python_tag", "tools"},
     "",
     "",
     {},
     ReadJsonCalls,
     "{\"name\": @, \"parameters\": ",
     "}",
     false,
     ""},
};

constexpr ToolSyntax kNoTools = {ToolStyle::kNone, "none", {}, "", "", {}, nullptr, "", "", false, ""};

constexpr ThoughtSyntax kThoughts[] = {
    {"harmony channels", "<|channel|>", "", "", {}, true, "gpt_oss"},
    {"<think>, <answer>",
     "</answer>",
     "<think>",
     "</think>",
     {"<answer>", "</answer>"},
     false,
     "hunyuan_v1_dense hunyuan_v1_moe"},
    {"<think>, <response>",
     "<response></response>",
     "<think>",
     "</think>",
     {"<response>", "</response>"},
     false,
     "granite granitemoe granitemoeshared"},
    {"<think>",
     "</think>",
     "<think>",
     "</think>",
     {},
     false,
     "qwen3 qwen3_moe qwen3_next qwen3_5_text qwen3_5_moe_text deepseek_v3 kimi_k2 glm4_moe glm4_moe_lite "
     "minimax_m2 smollm3 exaone4 olmo3 nemotron_h"},
    {"<seed:think>", "</seed:think>", "<seed:think>", "</seed:think>", {}, false, ""},
    {"[THINK]", "[/THINK]", "[THINK]", "[/THINK]", {}, false, "mistral3 ministral3"},
    {"Cohere",
     "<|END_THINKING|>",
     "<|START_THINKING|>",
     "<|END_THINKING|>",
     {"<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     false,
     "cohere2"},
    {"Granite 3.2",
     "Here is my thought process:",
     "Here is my thought process:",
     "Here is my response:",
     {},
     false,
     "granite granitemoe granitemoeshared"},
    {"Gemma 4", "<channel|>", "<|channel>thought", "<channel|>", {}, false, "gemma4"},
};

bool Has(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

}  // namespace

std::span<const ToolSyntax> ToolSyntaxes() {
  return kTools;
}

std::span<const ThoughtSyntax> ThoughtSyntaxes() {
  return kThoughts;
}

const ToolSyntax& SyntaxOf(ToolStyle style) {
  for (const ToolSyntax& row : kTools)
    if (row.style == style) return row;
  return kNoTools;
}

ToolStyle ToolStyleOf(std::string_view chat_template) {
  if (!Has(chat_template, "tools")) return ToolStyle::kNone;
  for (const ToolSyntax& row : kTools)
    if (std::all_of(row.marks.begin(), row.marks.end(),
                    [&](std::string_view mark) { return Has(chat_template, mark); }))
      return row.style;
  return ToolStyle::kNone;
}

const ThoughtSyntax* ThoughtsOf(std::string_view chat_template) {
  for (const ThoughtSyntax& row : kThoughts)
    if (Has(chat_template, row.mark)) return &row;
  return nullptr;
}

std::string WithName(std::string_view text, std::string_view name) {
  std::string out;
  for (const char c : text)
    if (c == '$')
      out += name;
    else if (c == '@')
      out += nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    else
      out += c;
  return out;
}

}  // namespace celer::server
