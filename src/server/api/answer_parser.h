// The reasoning and tool-call parser: splits an answer's text into reasoning, content and tool calls.
// Streamed and whole answers go through it alike, so they agree.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace celer::server {

// The syntax of a model's tool calls, detected from its chat template.
enum class ToolStyle {
  kNone,
  kTags,     // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen
  kJson,     // {"name": ..., "parameters": {...}} as the whole answer: Llama 3
  kBracket,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}]: Mistral
};
ToolStyle ToolStyleOf(std::string_view chat_template);
bool HasReasoning(std::string_view chat_template);

struct Part {
  enum class Kind { kReasoning, kContent, kCall } kind = Kind::kContent;
  std::string text = {};  // of a call: its arguments, as JSON
  std::string name = {};  // of a call
  bool partial = false;   // a call whose arguments are incomplete JSON
};

struct PartsOptions {
  ToolStyle tools = ToolStyle::kNone;  // kNone: calls are plain text
  bool reasoning = false;              // look for <think>
  bool starts_in_reasoning = false;    // the prompt ends with <think>
  bool parallel = true;                // else only the first call is kept
  bool must_call = false;              // a grammar forces a call
  std::string only_tool = {};          // with must_call: the only one that it can be
};

class AnswerParts {
 public:
  explicit AnswerParts(PartsOptions options);

  // The parts, or pieces of parts, that are known now. Buffers text that may yet become a tag.
  std::vector<Part> Push(std::string_view text);
  // `truncated`: the answer was ended by a limit or a stop string. An incomplete call at its end is returned
  // as a partial call, instead of as text.
  std::vector<Part> Finish(bool truncated = false);

 private:
  enum class Where { kStart, kReasoning, kContent, kCall, kWhole };

  void Advance(bool last, std::vector<Part>* out);
  void Emit(Part::Kind kind, std::string_view text, std::vector<Part>* out);
  bool EmitCalls(std::string_view json, std::vector<Part>* out);
  bool EmitPartialCalls(std::string_view json, std::vector<Part>* out);
  void EmitCall(Part call, std::vector<Part>* out);
  // Emits text up to `tag`; true once the tag is found and consumed. Buffers a suffix that may be its prefix.
  bool Until(std::string_view tag, Part::Kind kind, bool last, std::vector<Part>* out);

  PartsOptions options_;
  Where where_ = Where::kStart;
  std::string held_;
  bool trim_ = false;  // white space at the beginning of the part is not part of it
  bool called_ = false;
  bool truncated_ = false;
};

// Parses partial JSON: the object in `text`, or as much of it as is complete: {"a": 1, "b": [2, 3 -> {"a": 1,
// "b": [2]}.
nlohmann::ordered_json ParsePartialObject(std::string_view text);

}  // namespace celer::server
