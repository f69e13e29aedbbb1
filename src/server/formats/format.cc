#include "server/formats/format.h"

#include <algorithm>

#include "base/check.h"
#include "engine/text/prompter.h"

namespace celer::server {

AnswerDelta Answer::Take(const TokenEvent& event, const Query& query) {
  AnswerDelta delta;
  const bool had_ended = decoder.finish() != FinishReason::kNone;
  delta.text = decoder.Push(event);
  finish = decoder.finish();
  if (event.token != TokenEvent::kNoToken) {
    ++tokens;
    delta.event = &event;
    if (event.finish == FinishReason::kStop &&
        std::find(query.stop_token_ids.begin(), query.stop_token_ids.end(), event.token) !=
            query.stop_token_ids.end())
      stop_token = event.token;
  }
  text += delta.text;
  if (event.score != 0) score = event.score;
  delta.finished = finish != FinishReason::kNone;
  if (query.endpoint == kCompletions || had_ended) return delta;
  delta.parts = splitter.Push(delta.text);
  // Not ended by the model itself: truncated.
  const bool truncated = finish != FinishReason::kStop || !decoder.stop_string().empty();
  if (delta.finished)
    for (Part& part : splitter.Finish(truncated)) {
      if (!delta.parts.empty() && delta.parts.back().kind == part.kind && part.kind != Part::Kind::kCall)
        delta.parts.back().text += part.text;
      else
        delta.parts.push_back(std::move(part));
    }
  for (const Part& part : delta.parts) {
    if (part.kind == Part::Kind::kCall)
      calls.push_back({NewId("call_"), part.name, part.text, !part.partial});
    else
      (part.kind == Part::Kind::kContent ? content : reasoning) += part.text;
  }
  return delta;
}

Refusal Answer::Replay(const Query& query, const Request& request) {
  const std::vector<int32_t>& ids = request.resumed;
  for (size_t i = 0; i < ids.size(); ++i) {
    TokenEvent event{.token = ids[i]};
    const auto& stops = request.stop_tokens;
    if (std::find(stops.begin(), stops.end(), ids[i]) != stops.end())
      event.finish = FinishReason::kStop;
    else if (static_cast<int64_t>(i) + 1 == request.max_tokens)
      event.finish = FinishReason::kLength;
    const bool ends = Take(event, query).finished;
    if (ends && i + 1 < ids.size())
      return ApiError{.message = "resume.token_ids[" + std::to_string(i) + "] ends the answer, but " +
                                 std::to_string(ids.size() - i - 1) + " more follow it",
                      .param = "resume"};
  }
  finish = FinishReason::kNone;  // until its end is reported
  resumed = tokens;
  resumed_calls = calls.size();
  text.clear();
  content.clear();
  reasoning.clear();
  return {};
}

const char* Answer::FinishName() const {
  if (MadeCalls()) return "tool_calls";
  return finish == FinishReason::kStop ? "stop" : "length";
}

bool Answer::MadeCalls() const {
  return !calls.empty() && calls.back().complete && finish == FinishReason::kStop;
}

Json Answer::StopReason() const {
  if (finish == FinishReason::kDeadline) return "deadline";
  if (!decoder.stop_string().empty()) return decoder.stop_string();
  return stop_token == TokenEvent::kNoToken ? Json(nullptr) : Json(stop_token);
}

int64_t Reply::PromptTokens() const {
  int64_t sum = 0;
  for (const Request& request : prepared.requests) sum += static_cast<int64_t>(request.prompt.size());
  return sum;
}

int64_t Reply::AnswerTokens() const {
  int64_t sum = 0;
  for (const Answer& answer : answers) sum += answer.tokens;
  return sum;
}

int64_t Reply::ResumedTokens() const {
  int64_t sum = 0;
  for (const Answer& answer : answers) sum += answer.resumed;
  return sum;
}

Json Reply::ResumeInfo() const {
  return {{"seed", prepared.requests[0].sampling.seed}, {"fingerprint", prepared.fingerprint}};
}

Json Reply::Usage() const {
  const int64_t prompt = PromptTokens(), answer = AnswerTokens();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", answer},
          {"total_tokens", prompt + answer},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

std::unique_ptr<Format> MakeFormat(Endpoint endpoint) {
  switch (endpoint) {
    case kChat:
      return MakeChatFormat();
    case kCompletions:
      return MakeCompletionFormat();
    case kResponses:
      return MakeResponsesFormat();
    case kMessages:
      return MakeMessagesFormat();
    case kEmbeddings:
      return MakeEmbeddingFormat();
    case kTokenize:
    case kDetokenize:
    case kCountTokens:
      break;
  }
  CELER_CHECK(false);
  return nullptr;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void DataFrame(const Json& json, std::string* out) {
  *out += "data: ";
  *out += Dump(json);
  *out += "\n\n";
}

void EventFrame(const char* event, const Json& json, std::string* out) {
  *out += "event: ";
  *out += event;
  *out += '\n';
  DataFrame(json, out);
}

std::string TokenText(const Reply& reply, int32_t token) {
  if (reply.query.tokens_as_ids) return "token_id:" + std::to_string(token);
  return reply.model.prompter.Decode({&token, 1}, false);
}

Json TokenBytes(const Reply& reply, int32_t token) {
  Json bytes = Json::array();
  for (const char c : GetTokenizer(reply.model.prompter).Piece(token))
    bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

bool ReportsLogprob(const Reply& reply, const TokenEvent& event) {
  // lm-eval asks for a prompt's log-probabilities with echo and takes the last one for the answer's.
  return event.finish != FinishReason::kStop || reply.query.include_stop || reply.query.echo;
}

Json ChatLogprob(const Reply& reply, const TokenEvent& event) {
  const auto one = [&](int32_t token, float logprob) -> Json {
    return {{"token", TokenText(reply, token)}, {"logprob", logprob}, {"bytes", TokenBytes(reply, token)}};
  };
  Json json = one(event.token, event.logprob);
  json["top_logprobs"] = Json::array();
  for (const TokenLogprob& top : event.top) json["top_logprobs"].push_back(one(top.token, top.logprob));
  return json;
}

Json PromptLogprobs(const Reply& reply, size_t prompt) {
  const std::vector<int32_t>& ids = reply.prepared.requests[prompt].prompt;
  Json list = Json::array({nullptr});
  for (size_t i = 0; i < reply.prompt_logprobs[prompt].size(); ++i) {
    const TokenEvent::PromptToken& token = reply.prompt_logprobs[prompt][i];
    Json entry = Json::object();
    const auto add = [&](int32_t id, float logprob) {
      entry[std::to_string(id)] = {{"logprob", logprob},
                                   {"decoded_token", reply.model.prompter.Decode({&id, 1}, false)}};
    };
    add(ids[i + 1], token.logprob);
    for (size_t rank = 0; rank < token.top.size(); ++rank) {
      add(token.top[rank].token, token.top[rank].logprob);
      entry[std::to_string(token.top[rank].token)]["rank"] = rank + 1;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace celer::server
