// /v1/chat/completions
#include <map>

#include "server/formats/format.h"

namespace celer::server {
namespace {

class ChatFormat : public Format {
 public:
  const char* id_prefix() const override { return "chatcmpl-"; }

  Json Whole(const Told& told) override {
    Json choices = Json::array();
    for (const Answer& answer : told.answers) {
      Json message = {{"role", "assistant"}, {"content", answer.content}, {"refusal", nullptr}};
      if (answer.content.empty() && !answer.calls.empty()) message["content"] = nullptr;
      if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
      if (!answer.calls.empty()) {
        message["tool_calls"] = Json::array();
        for (const Answer::Call& call : answer.calls)
          message["tool_calls"].push_back(
              {{"id", call.id},
               {"type", "function"},
               {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      }
      Json choice = {{"index", answer.index}, {"message", std::move(message)}, {"logprobs", nullptr}};
      if (told.asked.logprobs) {
        Json content = Json::array();
        for (const TokenEvent& event : answer.events)
          if (ReportsLogprob(told, event)) content.push_back(ChatLogprob(told, event));
        choice["logprobs"] = {{"content", std::move(content)}, {"refusal", nullptr}};
      }
      choice["finish_reason"] = answer.FinishName();
      choice["stop_reason"] = answer.StopReason();
      if (told.asked.return_token_ids) {
        choice["token_ids"] = Json::array();
        for (const TokenEvent& event : answer.events) choice["token_ids"].push_back(event.token);
      }
      choices.push_back(std::move(choice));
    }
    Json body = Head(told, "chat.completion");
    body["choices"] = std::move(choices);
    body["usage"] = told.Usage();
    body["system_fingerprint"] = nullptr;
    if (told.asked.request.prompt_logprobs >= 0) body["prompt_logprobs"] = PromptLogprobs(told, 0);
    if (told.asked.return_token_ids) body["prompt_token_ids"] = told.prepared.requests[0].prompt;
    return body;
  }

  void Start(const Told& told, std::string* out) override {
    // All chunks begin the same way; only what follows is made anew for each token.
    head_ = Dump(Head(told, "chat.completion.chunk"));
    head_.pop_back();
    head_ += ",\"choices\":[";
    for (const Answer& answer : told.answers)
      Chunk(told, answer, R"({"role":"assistant","content":""})", nullptr, false, out);
  }

  void Delta(const Told& told, const Answer& answer, const AnswerDelta& delta, std::string* out) override {
    const TokenEvent* event = delta.event;
    for (const Part& part : delta.parts) {
      if (part.kind == Part::Kind::kCall) {
        const Answer::Call& call = answer.calls[calls_[answer.index]];
        const Json json = {{"index", calls_[answer.index]++},
                           {"id", call.id},
                           {"type", "function"},
                           {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
        Chunk(told, answer, "{\"tool_calls\":[" + Dump(json) + "]}", event, false, out);
      } else {
        const char* field = part.kind == Part::Kind::kContent ? "{\"content\":" : "{\"reasoning_content\":";
        Chunk(told, answer, field + Dump(part.text) + "}", event, false, out);
      }
      event = nullptr;  // told once
    }
    // A token whose text is held back still has its log-probability.
    if (delta.finished || (event && (told.asked.logprobs || told.asked.return_token_ids)))
      Chunk(told, answer, "{}", event, delta.finished, out);
  }

  void Finish(const Told& told, std::string* out) override {
    if (told.asked.include_usage) *out += "data: " + head_ + "],\"usage\":" + Dump(told.Usage()) + "}\n\n";
    *out += "data: [DONE]\n\n";
  }

  void Fail(const Told&, const ApiError& error, std::string* out) override {
    DataFrame(error.ToJson(ApiForm::kOpenAi), out);
    *out += "data: [DONE]\n\n";
  }

 private:
  static Json Head(const Told& told, const char* object) {
    return {{"id", told.id}, {"object", object}, {"created", told.created}, {"model", told.model.name}};
  }

  void Chunk(const Told& told, const Answer& answer, const std::string& delta, const TokenEvent* event,
             bool finished, std::string* out) {
    *out += "data: " + head_ + "{\"index\":" + std::to_string(answer.index) + ",\"delta\":" + delta +
            ",\"logprobs\":";
    if (event && told.asked.logprobs && ReportsLogprob(told, *event))
      *out += "{\"content\":[" + Dump(ChatLogprob(told, *event)) + "],\"refusal\":null}";
    else
      *out += "null";
    if (event && told.asked.return_token_ids) *out += ",\"token_ids\":[" + std::to_string(event->token) + "]";
    *out += ",\"finish_reason\":";
    if (finished)
      *out += "\"" + std::string(answer.FinishName()) + "\",\"stop_reason\":" + Dump(answer.StopReason());
    else
      *out += "null";
    *out += "}]";
    // With include_usage every chunk has the field, and only the last one a value.
    if (told.asked.include_usage)
      *out += told.asked.usage_in_every_chunk ? ",\"usage\":" + Dump(told.Usage()) : ",\"usage\":null";
    *out += "}\n\n";
  }

  std::string head_;
  std::map<int, size_t> calls_;  // told so far, per answer
};

}  // namespace

std::unique_ptr<Format> MakeChatFormat() {
  return std::make_unique<ChatFormat>();
}

}  // namespace celer::server
