// What an answer's text means: thoughts, content, calls of tools. The same for a stream and for a whole
// answer, because a whole answer is the sum of its stream.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace celer::server {

// How a model writes its calls; its chat template shows it.
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
  bool cut = false;       // a call whose arguments have no end
};

struct PartsOptions {
  ToolStyle tools = ToolStyle::kNone;  // kNone: calls are text like any other
  bool reasoning = false;              // look for <think>
  bool starts_in_reasoning = false;    // the prompt ends with <think>
  bool parallel = true;                // else only the first call counts
  bool must_call = false;              // a grammar lets nothing but calls through
  std::string only_tool = {};          // with must_call: the only one that it can be
};

class AnswerParts {
 public:
  explicit AnswerParts(PartsOptions options);

  // Parts that are complete, or of which more can be said now. Holds back what may yet become a tag.
  std::vector<Part> Push(std::string_view text);
  // `cut`: the answer was ended by a limit or a stop string. A call that it ends within is given as far as it
  // goes, instead of as text.
  std::vector<Part> Finish(bool cut = false);

 private:
  enum class Where { kStart, kReasoning, kContent, kCall, kWhole };

  void Advance(bool last, std::vector<Part>* out);
  void Emit(Part::Kind kind, std::string_view text, std::vector<Part>* out);
  bool EmitCalls(std::string_view json, std::vector<Part>* out);
  bool EmitPartialCalls(std::string_view json, std::vector<Part>* out);
  void EmitCall(Part call, std::vector<Part>* out);
  // Text up to `tag`: true once it is there and taken. What cannot be its beginning is emitted.
  bool Until(std::string_view tag, Part::Kind kind, bool last, std::vector<Part>* out);

  PartsOptions options_;
  Where where_ = Where::kStart;
  std::string held_;
  bool trim_ = false;  // white space at the beginning of the part is not part of it
  bool called_ = false;
  bool cut_ = false;
};

// The JSON object that `text` is, or as much of it as is complete: {"a": 1, "b": [2, 3 -> {"a": 1, "b": [2]}.
nlohmann::ordered_json ParsePartialObject(std::string_view text);

}  // namespace celer::server
