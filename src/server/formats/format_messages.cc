// /v1/messages: Anthropic's form.
#include "server/formats/format.h"

namespace celer::server {
namespace {

class MessagesFormat : public Format {
 public:
  const char* id_prefix() const override { return "msg_"; }
  const char* Ping() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

  Json Whole(const Reply& reply) override {
    const Answer& answer = reply.answers[0];
    Json content = Json::array();
    if (!answer.reasoning.empty())
      content.push_back({{"type", "thinking"}, {"thinking", answer.reasoning}, {"signature", ""}});
    if (!answer.content.empty() || answer.calls.empty())
      content.push_back({{"type", "text"}, {"text", answer.content}, {"citations", nullptr}});
    for (const Answer::Call& call : answer.calls)
      content.push_back({{"type", "tool_use"},
                         {"id", call.id},
                         {"name", call.name},
                         {"input", ParsePartialObject(call.arguments)}});
    Json body = Body(reply, std::move(content));
    body["stop_reason"] = StopReason(answer);
    body["stop_sequence"] = StopSequence(answer);
    body["usage"] = UsageJson(reply, reply.AnswerTokens());
    return body;
  }

  void Start(const Reply& reply, std::string* out) override {
    Json message = Body(reply, Json::array());
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = UsageJson(reply, 0);
    EventFrame("message_start", {{"type", "message_start"}, {"message", std::move(message)}}, out);
  }

  void Delta(const Reply&, const Answer& answer, const AnswerDelta& delta, std::string* out) override {
    for (const Part& part : delta.parts) {
      if (part.kind == Part::Kind::kCall) {
        Close(out);
        const Answer::Call& call = answer.calls[calls_++];
        Open("tool_use",
             {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}}, out);
        Say({{"type", "input_json_delta"}, {"partial_json", call.arguments}}, out);
        Close(out);
      } else if (part.kind == Part::Kind::kReasoning) {
        if (open_ != "thinking")
          Open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        Say({{"type", "thinking_delta"}, {"thinking", part.text}}, out);
      } else {
        if (open_ != "text") Open("text", {{"type", "text"}, {"text", ""}}, out);
        Say({{"type", "text_delta"}, {"text", part.text}}, out);
      }
    }
    if (!delta.finished) return;
    if (open_.empty() && index_ == 0) Open("text", {{"type", "text"}, {"text", ""}}, out);
    Close(out);
  }

  void Finish(const Reply& reply, std::string* out) override {
    const Answer& answer = reply.answers[0];
    EventFrame("message_delta",
               {{"type", "message_delta"},
                {"delta", {{"stop_reason", StopReason(answer)}, {"stop_sequence", StopSequence(answer)}}},
                {"usage", UsageJson(reply, reply.AnswerTokens())}},
               out);
    EventFrame("message_stop", {{"type", "message_stop"}}, out);
  }

  void Fail(const Reply&, const ApiError& error, std::string* out) override {
    EventFrame("error", error.ToJson(ApiForm::kAnthropic), out);
  }

 private:
  static Json Body(const Reply& reply, Json content) {
    return {{"id", reply.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", reply.prepared.model_name},
            {"content", std::move(content)}};
  }
  static const char* StopReason(const Answer& answer) {
    if (answer.MadeCalls()) return "tool_use";
    if (!answer.decoder.stop_string().empty()) return "stop_sequence";
    return answer.finish == FinishReason::kStop ? "end_turn" : "max_tokens";
  }
  static Json StopSequence(const Answer& answer) {
    return answer.decoder.stop_string().empty() ? Json(nullptr) : Json(answer.decoder.stop_string());
  }
  // Anthropic's input_tokens exclude cached ones.
  static Json UsageJson(const Reply& reply, int64_t output) {
    return {{"input_tokens", reply.PromptTokens() - reply.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", reply.cached_tokens},
            {"output_tokens", output}};
  }

  void Open(const char* what, Json block, std::string* out) {
    Close(out);
    open_ = what;
    EventFrame("content_block_start",
               {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}},
               out);
  }
  void Say(Json delta, std::string* out) {
    EventFrame("content_block_delta",
               {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}}, out);
  }
  void Close(std::string* out) {
    if (open_.empty()) return;
    EventFrame("content_block_stop", {{"type", "content_block_stop"}, {"index", index_++}}, out);
    open_.clear();
  }

  std::string open_;  // the type of the block that is open
  int index_ = 0;
  size_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Format> MakeMessagesFormat() {
  return std::make_unique<MessagesFormat>();
}

}  // namespace celer::server
