// The reasoning and tool-call parser: splits an answer's text into reasoning, content and tool calls.
// Streamed and whole answers go through it alike, so they agree.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer_syntax.h"
#include "server/api/tag_scanner.h"

namespace celer::server {

struct PartsOptions {
  ToolStyle tools = ToolStyle::kNone;       // kNone: calls are plain text
  bool reasoning = false;                   // look for thoughts
  const ThoughtSyntax* thoughts = nullptr;  // nullptr: <think>
  bool starts_in_reasoning = false;         // the prompt ends with the tag that begins thoughts
  bool parallel = true;                     // else only the first call is kept
  bool must_call = false;                   // a grammar forces a call
  std::string only_tool = {};               // with must_call: the only one that it can be
  std::shared_ptr<const nlohmann::ordered_json> definitions = {};  // of the request's tools
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
  // kHeader, kMessageCall: with channels, what stands before a message, and a message that is a call.
  enum class Where { kStart, kReasoning, kContent, kCall, kHeader, kMessageCall };

  // False: it needs more text than there is.
  bool Step(bool last, std::vector<Part>* out);
  bool StepStart(bool last);
  bool StepReasoning(bool last, std::vector<Part>* out);
  bool StepContent(bool last, std::vector<Part>* out);
  bool StepCall(bool last, std::vector<Part>* out);
  bool StepHeader(bool last, std::vector<Part>* out);
  bool StepMessageCall(bool last, std::vector<Part>* out);
  void EndMessage(int tag);

  static void Append(Part::Kind kind, std::string_view text, std::vector<Part>* out);
  void Emit(Part::Kind kind, std::string_view text, std::vector<Part>* out);
  void EmitCall(Part call, std::vector<Part>* out);
  bool EmitCalls(std::vector<Part> calls, bool read, bool cut, std::vector<Part>* out);
  const nlohmann::ordered_json& definitions() const;

  PartsOptions options_;
  const ToolSyntax* tools_;
  const ThoughtSyntax* thoughts_;
  bool channels_;
  std::vector<std::string_view> content_tags_ = {};
  Where where_ = Where::kStart;
  TagScanner scanner_;
  std::string block_;   // of the call or the header that is being read
  std::string name_;    // of the function that a message calls
  std::string spaces_;  // white space that may be at the end of the part
  bool trim_ = false;   // white space at the beginning of the part is not part of it
  bool called_ = false;
  bool truncated_ = false;
};

// Parses partial JSON: the object in `text`, or as much of it as is complete: {"a": 1, "b": [2, 3 -> {"a": 1,
// "b": [2]}.
nlohmann::ordered_json ParsePartialObject(std::string_view text);

}  // namespace celer::server
