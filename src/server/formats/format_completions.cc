// /v1/completions
#include <map>

#include "server/formats/format.h"

namespace celer::server {
namespace {

int64_t CodePoints(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

// {tokens, token_logprobs, top_logprobs, text_offset}
class Logprobs {
 public:
  Logprobs(const Reply& reply, int64_t offset) : told_(reply), offset_(offset) {}

  void Add(int32_t token, const float* logprob, const std::vector<TokenLogprob>& top) {
    const std::string text = TokenText(told_, token);
    tokens_.push_back(text);
    offsets_.push_back(offset_);
    offset_ += CodePoints(text);
    token_logprobs_.push_back(logprob ? Json(*logprob) : Json(nullptr));
    if (!logprob) {  // the first token of a prompt follows nothing
      top_.push_back(nullptr);
      return;
    }
    Json alternatives = Json::object();
    for (const TokenLogprob& one : top) alternatives[TokenText(told_, one.token)] = one.logprob;
    alternatives[text] = *logprob;
    top_.push_back(std::move(alternatives));
  }

  Json Take() {
    return {{"text_offset", std::move(offsets_)},
            {"token_logprobs", std::move(token_logprobs_)},
            {"tokens", std::move(tokens_)},
            {"top_logprobs", std::move(top_)}};
  }

 private:
  const Reply& told_;
  int64_t offset_;
  Json tokens_ = Json::array(), token_logprobs_ = Json::array(), top_ = Json::array(),
       offsets_ = Json::array();
};

class CompletionFormat : public Format {
 public:
  const char* id_prefix() const override { return "cmpl-"; }

  Json Whole(const Reply& reply) override {
    Json choices = Json::array();
    for (const Answer& answer : reply.answers) {
      const size_t prompt = static_cast<size_t>(answer.index / reply.answers_per_prompt());
      const bool keep = !reply.prepared.drop_answer;
      Json choice = {
          {"index", answer.index},
          {"text", (reply.query.echo ? reply.prepared.prompt_texts[prompt] : "") + (keep ? answer.text : "")},
          {"logprobs", nullptr}};
      if (reply.query.request.sampling.logprobs >= 0) {
        Logprobs logprobs(reply, 0);
        if (reply.query.echo) AddPrompt(reply, prompt, &logprobs);
        if (keep)
          for (const TokenEvent& event : answer.events)
            if (ReportsLogprob(reply, event)) logprobs.Add(event.token, &event.logprob, event.top);
        choice["logprobs"] = logprobs.Take();
      }
      choice["finish_reason"] = answer.FinishName();
      choice["stop_reason"] = answer.StopReason();
      if (reply.query.request.prompt_logprobs >= 0 && !reply.query.echo)
        choice["prompt_logprobs"] = PromptLogprobs(reply, prompt);
      if (reply.query.return_token_ids) choice["prompt_token_ids"] = reply.prepared.requests[prompt].prompt;
      if (reply.query.ReportsIds()) {
        choice["token_ids"] = Json::array();
        for (const TokenEvent& event : answer.events) choice["token_ids"].push_back(event.token);
      }
      choices.push_back(std::move(choice));
    }
    Json body = Head(reply);
    body["choices"] = std::move(choices);
    body["usage"] = reply.Usage();
    if (reply.query.resume) body["resume"] = reply.ResumeInfo();
    if (reply.query.kv_transfer) body["kv_transfer_params"] = reply.kv_transfer;
    return body;
  }

  void Start(const Reply& reply, std::string* out) override {
    head_ = Dump(Head(reply));
    head_.pop_back();
    head_ += ",\"choices\":[";
    if (reply.query.resume) {
      *out += "data: " + head_ + "],\"resume\":" + Dump(reply.ResumeInfo()) + "}\n\n";
      if (reply.query.request.sampling.logprobs >= 0)
        for (const int32_t token : reply.prepared.requests[0].resumed)
          offsets_[0] += CodePoints(TokenText(reply, token));
    }
    if (!reply.query.echo) return;
    for (const Answer& answer : reply.answers) {
      const size_t prompt = static_cast<size_t>(answer.index / reply.answers_per_prompt());
      Chunk(reply, answer, reply.prepared.prompt_texts[prompt], nullptr, false, out);
    }
  }

  void Delta(const Reply& reply, const Answer& answer, const AnswerDelta& delta, std::string* out) override {
    const bool tells_token =
        delta.event && (reply.query.request.sampling.logprobs >= 0 || reply.query.ReportsIds());
    const bool keep = !reply.prepared.drop_answer;
    if ((delta.text.empty() || !keep) && !delta.finished && !tells_token) return;
    Chunk(reply, answer, keep ? delta.text : "", keep ? delta.event : nullptr, delta.finished, out);
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
  static Json Head(const Reply& reply) {
    return {{"id", reply.id},
            {"object", "text_completion"},
            {"created", reply.created},
            {"model", reply.prepared.model_name}};
  }

  static void AddPrompt(const Reply& reply, size_t prompt, Logprobs* logprobs) {
    const std::vector<int32_t>& ids = reply.prepared.requests[prompt].prompt;
    const auto& known = reply.prompt_logprobs[prompt];
    logprobs->Add(ids[0], nullptr, {});
    for (size_t i = 0; i < known.size() && i + 1 < ids.size(); ++i)
      logprobs->Add(ids[i + 1], &known[i].logprob, known[i].top);
  }

  void Chunk(const Reply& reply, const Answer& answer, const std::string& text, const TokenEvent* event,
             bool finished, std::string* out) {
    *out += "data: " + head_ + "{\"index\":" + std::to_string(answer.index) + ",\"text\":" + Dump(text) +
            ",\"logprobs\":";
    if (event && reply.query.request.sampling.logprobs >= 0 && ReportsLogprob(reply, *event)) {
      int64_t& offset = offsets_[answer.index];
      Logprobs logprobs(reply, offset);
      logprobs.Add(event->token, &event->logprob, event->top);
      offset += CodePoints(TokenText(reply, event->token));
      *out += Dump(logprobs.Take());
    } else {
      *out += "null";
    }
    if (event && reply.query.ReportsIds()) *out += ",\"token_ids\":[" + std::to_string(event->token) + "]";
    *out += ",\"finish_reason\":";
    if (finished)
      *out += "\"" + std::string(answer.FinishName()) + "\",\"stop_reason\":" + Dump(answer.StopReason());
    else
      *out += "null";
    *out += "}]";
    if (reply.query.include_usage)
      *out += reply.query.usage_in_every_chunk ? ",\"usage\":" + Dump(reply.Usage()) : ",\"usage\":null";
    *out += "}\n\n";
  }

  std::string head_;
  std::map<int, int64_t> offsets_;
};

}  // namespace

std::unique_ptr<Format> MakeCompletionFormat() {
  return std::make_unique<CompletionFormat>();
}

}  // namespace celer::server
