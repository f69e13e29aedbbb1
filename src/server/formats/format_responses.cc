// /v1/responses
#include "server/formats/format.h"
#include "server/http/http.h"

namespace celer::server {
namespace {

class ResponsesFormat : public Format {
 public:
  const char* id_prefix() const override { return "resp_"; }

  Json Whole(const Reply& reply) override {
    Json body = Body(reply, Status(reply));
    body["output"] = Output(reply);
    body["usage"] = UsageJson(reply);
    return body;
  }

  void Start(const Reply& reply, std::string* out) override {
    Json body = Body(reply, "in_progress");
    body["output"] = Json::array();
    Frame("response.created", {{"response", body}}, out);
    Frame("response.in_progress", {{"response", body}}, out);
  }

  void Delta(const Reply& reply, const Answer& answer, const AnswerDelta& delta, std::string* out) override {
    for (const Part& part : delta.parts) {
      if (part.kind == Part::Kind::kCall) {
        Close(reply, answer, out);
        Call(answer.calls[calls_++], out);
        continue;
      }
      const Open wanted = part.kind == Part::Kind::kContent ? Open::kMessage : Open::kReasoning;
      if (open_ != wanted) {
        Close(reply, answer, out);
        Begin(wanted, out);
      }
      said_ += part.text;
      if (wanted == Open::kMessage)
        Frame("response.output_text.delta",
              {{"item_id", item_},
               {"output_index", index_},
               {"content_index", 0},
               {"delta", part.text},
               {"logprobs", Json::array()}},
              out);
      else
        Frame("response.reasoning_text.delta",
              {{"item_id", item_}, {"output_index", index_}, {"content_index", 0}, {"delta", part.text}},
              out);
    }
    if (!delta.finished) return;
    if (open_ == Open::kNothing && items_.empty())
      Begin(Open::kMessage, out);  // an empty answer still has a message item
    Close(reply, answer, out);
  }

  void Finish(const Reply& reply, std::string* out) override {
    const char* status = Status(reply);
    Json body = Body(reply, status);
    body["output"] = items_;
    body["usage"] = UsageJson(reply);
    Frame(status == std::string("completed") ? "response.completed" : "response.incomplete",
          {{"response", body}}, out);
  }

  void Fail(const Reply& reply, const ApiError& error, std::string* out) override {
    Json body = Body(reply, "failed");
    body["output"] = items_;
    body["error"] = {{"code", error.status == 429 ? "rate_limit_exceeded" : "server_error"},
                     {"message", error.message}};
    Frame("response.failed", {{"response", body}}, out);
  }

 private:
  enum class Open { kNothing, kMessage, kReasoning };

  static const char* Status(const Reply& reply) {
    return reply.answers[0].finish == FinishReason::kStop ? "completed" : "incomplete";
  }

  static Json Body(const Reply& reply, const char* status) {
    const SamplingParams& sampling = reply.query.request.sampling;
    Json body = {
        {"id", reply.id},
        {"object", "response"},
        {"created_at", reply.created},
        {"status", status},
        {"error", nullptr},
        {"incomplete_details", nullptr},
        {"instructions", reply.query.system},
        {"max_output_tokens", reply.query.max_tokens ? Json(*reply.query.max_tokens) : Json(nullptr)},
        {"model", reply.prepared.model_name},
        {"output", Json::array()},
        {"parallel_tool_calls", reply.query.parallel_tool_calls},
        {"previous_response_id",
         reply.query.previous_response_id.empty() ? Json(nullptr) : Json(reply.query.previous_response_id)},
        {"store", reply.query.store},
        {"temperature", sampling.temperature},
        {"text", {{"format", {{"type", "text"}}}}},
        {"tool_choice", reply.query.tool_choice.is_null() ? Json("auto") : reply.query.tool_choice},
        {"tools", reply.query.tools.is_null() ? Json::array() : reply.query.tools},
        {"top_p", sampling.top_p},
        {"truncation", reply.query.truncate_prompt != 0 ? "auto" : "disabled"},
        {"usage", nullptr},
        {"metadata", reply.query.metadata.is_null() ? Json::object() : reply.query.metadata}};
    if (std::string(status) == "incomplete") body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    return body;
  }

  static Json UsageJson(const Reply& reply) {
    const int64_t prompt = reply.PromptTokens(), answer = reply.AnswerTokens();
    return {{"input_tokens", prompt},
            {"input_tokens_details", {{"cached_tokens", reply.cached_tokens}}},
            {"output_tokens", answer},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", prompt + answer}};
  }

  static const char* CallStatus(const Answer::Call& call) {
    return call.complete ? "completed" : "incomplete";
  }
  static Json TextPart(const std::string& text) {
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  }
  static Json MessageItem(const std::string& id, const char* status, Json content) {
    return {{"type", "message"},
            {"id", id},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }
  static Json ReasoningPart(const std::string& text) {
    return Json::array({Json{{"type", "reasoning_text"}, {"text", text}}});
  }
  static Json ReasoningItem(const std::string& id, Json content) {
    return {{"type", "reasoning"}, {"id", id}, {"summary", Json::array()}, {"content", std::move(content)}};
  }
  static Json CallItem(const std::string& item, const Answer::Call& call, const char* status,
                       const std::string& arguments) {
    return {{"type", "function_call"}, {"id", item},      {"call_id", call.id}, {"name", call.name},
            {"arguments", arguments},  {"status", status}};
  }

  static Json Output(const Reply& reply) {
    const Answer& answer = reply.answers[0];
    Json output = Json::array();
    if (!answer.reasoning.empty())
      output.push_back(ReasoningItem(NewId("rs_"), ReasoningPart(answer.reasoning)));
    if (!answer.content.empty() || answer.calls.empty())
      output.push_back(MessageItem(NewId("msg_"), "completed", Json::array({TextPart(answer.content)})));
    for (const Answer::Call& call : answer.calls)
      output.push_back(CallItem(NewId("fc_"), call, CallStatus(call), call.arguments));
    return output;
  }

  void Frame(const char* type, Json fields, std::string* out) {
    Json json = {{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [name, value] : fields.items()) json[name] = std::move(value);
    EventFrame(type, json, out);
  }

  void Begin(Open what, std::string* out) {
    open_ = what;
    said_.clear();
    if (what == Open::kMessage) {
      item_ = NewId("msg_");
      Frame("response.output_item.added",
            {{"output_index", index_}, {"item", MessageItem(item_, "in_progress", Json::array())}}, out);
      Frame("response.content_part.added",
            {{"item_id", item_}, {"output_index", index_}, {"content_index", 0}, {"part", TextPart("")}},
            out);
    } else {
      item_ = NewId("rs_");
      Frame("response.output_item.added",
            {{"output_index", index_}, {"item", ReasoningItem(item_, Json::array())}}, out);
    }
  }

  void Close(const Reply&, const Answer&, std::string* out) {
    if (open_ == Open::kNothing) return;
    Json item;
    if (open_ == Open::kMessage) {
      Frame("response.output_text.done",
            {{"item_id", item_},
             {"output_index", index_},
             {"content_index", 0},
             {"text", said_},
             {"logprobs", Json::array()}},
            out);
      Frame("response.content_part.done",
            {{"item_id", item_}, {"output_index", index_}, {"content_index", 0}, {"part", TextPart(said_)}},
            out);
      item = MessageItem(item_, "completed", Json::array({TextPart(said_)}));
    } else {
      Frame("response.reasoning_text.done",
            {{"item_id", item_}, {"output_index", index_}, {"content_index", 0}, {"text", said_}}, out);
      item = ReasoningItem(item_, ReasoningPart(said_));
    }
    Frame("response.output_item.done", {{"output_index", index_++}, {"item", item}}, out);
    items_.push_back(std::move(item));
    open_ = Open::kNothing;
  }

  void Call(const Answer::Call& call, std::string* out) {
    const std::string item = NewId("fc_");
    Frame("response.output_item.added",
          {{"output_index", index_}, {"item", CallItem(item, call, "in_progress", "")}}, out);
    Frame("response.function_call_arguments.delta",
          {{"item_id", item}, {"output_index", index_}, {"delta", call.arguments}}, out);
    Frame("response.function_call_arguments.done",
          {{"item_id", item}, {"output_index", index_}, {"name", call.name}, {"arguments", call.arguments}},
          out);
    items_.push_back(CallItem(item, call, CallStatus(call), call.arguments));
    Frame("response.output_item.done", {{"output_index", index_++}, {"item", items_.back()}}, out);
  }

  int64_t sequence_ = 0;
  int index_ = 0;  // of the item that is open, or of the next
  size_t calls_ = 0;
  Open open_ = Open::kNothing;
  std::string item_, said_;
  Json items_ = Json::array();
};

}  // namespace

std::unique_ptr<Format> MakeResponsesFormat() {
  return std::make_unique<ResponsesFormat>();
}

}  // namespace celer::server
