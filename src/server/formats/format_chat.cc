// /v1/chat/completions
#include <map>

#include "server/formats/format.h"

namespace celer::server {
namespace {

class ChatFormat : public Format {
 public:
  const char* id_prefix() const override { return "chatcmpl-"; }

  Json Whole(const Reply& reply) override {
    Json choices = Json::array();
    for (const Answer& answer : reply.answers) {
      Json message = {{"role", "assistant"}, {"content", answer.content}, {"refusal", nullptr}};
      const bool calls = answer.calls.size() > answer.resumed_calls;
      if (answer.content.empty() && calls) message["content"] = nullptr;
      if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
      if (calls) {
        message["tool_calls"] = Json::array();
        for (size_t i = answer.resumed_calls; i < answer.calls.size(); ++i)
          message["tool_calls"].push_back(
              {{"id", answer.calls[i].id},
               {"type", "function"},
               {"function", {{"name", answer.calls[i].name}, {"arguments", answer.calls[i].arguments}}}});
      }
      Json choice = {{"index", answer.index}, {"message", std::move(message)}, {"logprobs", nullptr}};
      if (reply.query.logprobs) {
        Json content = Json::array();
        for (const TokenEvent& event : answer.events)
          if (ReportsLogprob(reply, event)) content.push_back(ChatLogprob(reply, event));
        choice["logprobs"] = {{"content", std::move(content)}, {"refusal", nullptr}};
      }
      choice["finish_reason"] = answer.FinishName();
      choice["stop_reason"] = answer.StopReason();
      if (reply.query.ReportsIds()) {
        choice["token_ids"] = Json::array();
        for (const TokenEvent& event : answer.events) choice["token_ids"].push_back(event.token);
      }
      choices.push_back(std::move(choice));
    }
    Json body = Head(reply, "chat.completion");
    body["choices"] = std::move(choices);
    body["usage"] = reply.Usage();
    body["system_fingerprint"] = nullptr;
    if (reply.query.request.prompt_logprobs >= 0) body["prompt_logprobs"] = PromptLogprobs(reply, 0);
    if (reply.query.return_token_ids) body["prompt_token_ids"] = reply.prepared.requests[0].prompt;
    if (reply.query.resume) body["resume"] = reply.ResumeInfo();
    if (reply.query.kv_transfer) body["kv_transfer_params"] = reply.kv_transfer;
    return body;
  }

  void Start(const Reply& reply, std::string* out) override {
    // All chunks share their head, which is serialized once.
    head_ = Dump(Head(reply, "chat.completion.chunk"));
    head_.pop_back();
    head_ += ",\"choices\":[";
    if (reply.query.resume) *out += "data: " + head_ + "],\"resume\":" + Dump(reply.ResumeInfo()) + "}\n\n";
    for (const Answer& answer : reply.answers) {
      calls_[answer.index] = answer.resumed_calls;
      Chunk(reply, answer, R"({"role":"assistant","content":""})", {}, false, out);
    }
  }

  void Delta(const Reply& reply, const Answer& answer, const AnswerDelta& delta, std::string* out) override {
    // The log-probability is in the first chunk of a token and its id in the last one: who has the id has all of its text.
    Token token{.logprob = delta.event};
    const bool end = delta.finished || delta.parts.empty();  // a chunk without text follows
    for (size_t i = 0; i < delta.parts.size(); ++i) {
      const Part& part = delta.parts[i];
      if (!end && i + 1 == delta.parts.size()) token.id = delta.event;
      if (part.kind == Part::Kind::kCall) {
        const Answer::Call& call = answer.calls[calls_[answer.index]];
        const Json json = {{"index", calls_[answer.index]++},
                           {"id", call.id},
                           {"type", "function"},
                           {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
        Chunk(reply, answer, "{\"tool_calls\":[" + Dump(json) + "]}", token, false, out);
      } else {
        const char* field = part.kind == Part::Kind::kContent ? "{\"content\":" : "{\"reasoning_content\":";
        Chunk(reply, answer, field + Dump(part.text) + "}", token, false, out);
      }
      token.logprob = nullptr;  // reported once
    }
    token.id = delta.event;
    // A token whose text is still buffered is reported now.
    const bool buffered = delta.event && (reply.query.logprobs || reply.query.ReportsIds());
    if (delta.finished || (end && buffered)) Chunk(reply, answer, "{}", token, delta.finished, out);
  }

  void Finish(const Reply& reply, std::string* out) override {
    if (reply.query.include_usage) *out += "data: " + head_ + "],\"usage\":" + Dump(reply.Usage()) + "}\n\n";
    if (!reply.kv_transfer.is_null())
      *out += "data: " + head_ + "],\"kv_transfer_params\":" + Dump(reply.kv_transfer) + "}\n\n";
    *out += "data: [DONE]\n\n";
  }

  void Fail(const Reply&, const ApiError& error, std::string* out) override {
    DataFrame(error.ToJson(ApiForm::kOpenAi), out);
    *out += "data: [DONE]\n\n";
  }

 private:
  // What a chunk reports of a token: its log-probability, its id, or both.
  struct Token {
    const TokenEvent* logprob = nullptr;
    const TokenEvent* id = nullptr;
  };

  static Json Head(const Reply& reply, const char* object) {
    return {{"id", reply.id},
            {"object", object},
            {"created", reply.created},
            {"model", reply.prepared.model_name}};
  }

  void Chunk(const Reply& reply, const Answer& answer, const std::string& delta, const Token& token,
             bool finished, std::string* out) {
    *out += "data: " + head_ + "{\"index\":" + std::to_string(answer.index) + ",\"delta\":" + delta +
            ",\"logprobs\":";
    if (token.logprob && reply.query.logprobs && ReportsLogprob(reply, *token.logprob))
      *out += "{\"content\":[" + Dump(ChatLogprob(reply, *token.logprob)) + "],\"refusal\":null}";
    else
      *out += "null";
    if (token.id && reply.query.ReportsIds())
      *out += ",\"token_ids\":[" + std::to_string(token.id->token) + "]";
    *out += ",\"finish_reason\":";
    if (finished)
      *out += "\"" + std::string(answer.FinishName()) + "\",\"stop_reason\":" + Dump(answer.StopReason());
    else
      *out += "null";
    *out += "}]";
    // With include_usage every chunk has the field, and only the last one a value.
    if (reply.query.include_usage)
      *out += reply.query.usage_in_every_chunk ? ",\"usage\":" + Dump(reply.Usage()) : ",\"usage\":null";
    *out += "}\n\n";
  }

  std::string head_;
  std::map<int, size_t> calls_;  // sent so far, per answer
};

}  // namespace

std::unique_ptr<Format> MakeChatFormat() {
  return std::make_unique<ChatFormat>();
}

}  // namespace celer::server
