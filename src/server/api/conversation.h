// A conversation in any of the forms that the endpoints take becomes the messages and tools that a chat
// template takes.
#pragma once

#include <string>
#include <vector>

#include "server/api/query.h"

namespace celer::server {

struct Conversation {
  Json messages = Json::array();  // [{role, content, tool_calls?, ...}], content is a string
  Json tools = nullptr;           // [{type: function, function: {...}}], or null
  bool continues = false;         // prefill: the answer continues the last message, which is the assistant's
};

// `before`: the messages of the response that this one continues (previous_response_id).
Refusal ReadConversation(const Query& query, const Json& before, Conversation* out);

// tool_choice: which calls an answer may, must or must not have.
struct ToolChoice {
  enum class Kind { kNone, kAuto, kRequired, kNamed } kind = Kind::kNone;
  std::string name = {};               // with kNamed
  std::vector<std::string> only = {};  // no other may be called; empty: all may
  bool parallel = true;                // more than one call in an answer
};
Refusal ReadToolChoice(const Query& query, const Json& tools, ToolChoice* out);

}  // namespace celer::server
