#include "cli/batch/answer.h"

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "base/utf8.h"
#include "celer/version.h"
#include "engine/text/prompter.h"
#include "text/tokenizer/tokenizer.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

// OpenAI's finish_reason.
const char* ReasonText(FinishReason finish) {
  return finish == FinishReason::kLength ? "length" : "stop";
}

std::string TokenText(const Prompter& prompter, int32_t token) {
  return utf8::ToValid(GetTokenizer(prompter).Piece(token));
}

// With its bytes, because a token may be a part of a character.
Json TokenJson(const Prompter& prompter, int32_t token, float logprob) {
  Json bytes = Json::array();
  for (const char byte : GetTokenizer(prompter).Piece(token)) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", TokenText(prompter, token)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

Json TopJson(const Prompter& prompter, const std::vector<TokenLogprob>& top) {
  Json out = Json::array();
  for (const auto& [token, logprob] : top) out.push_back(TokenJson(prompter, token, logprob));
  return out;
}

int64_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !utf8::IsContinuation(c); });
}

}  // namespace

BatchAnswer::BatchAnswer(BodyKind kind, const BatchBody& body, const Prompter& prompter)
    : kind_(kind),
      prompter_(prompter),
      stop_(body.stop),
      answers_(static_cast<size_t>(body.requests.front().n)),
      logprobs_(body.requests.front().sampling.logprobs >= 0),
      open_(body.requests.size()) {
  for (const Request& request : body.requests) {
    prompt_tokens_ += static_cast<int64_t>(request.prompt.size());
    Part& part = parts_.emplace_back();
    if (request.prompt_logprobs >= 0) part.prompt = request.prompt;
  }
}

void BatchAnswer::Push(size_t request, TokenEvent event) {
  Part& part = parts_[request];
  if (part.last) return;
  cached_tokens_ += event.cached_tokens;
  if (!event.prompt.empty()) part.prompt_logprobs = std::move(event.prompt);
  part.last = event.last;
  if (event.last) --open_;
  const auto answer = static_cast<size_t>(event.answer);
  while (part.choices.size() <= answer) part.choices.emplace_back(prompter_, stop_);
  Choice& choice = part.choices[answer];
  if (choice.finish != FinishReason::kNone) return;  // the event of our own cancellation, say
  TextDelta delta = choice.stream.Push(std::move(event));
  choice.finish = delta.finish;
  choice.text += delta.text;
  if (delta.token) {
    ++new_tokens_;
    // A token that ends the answer is not part of it.
    if (logprobs_ && delta.token->finish != FinishReason::kStop) {
      choice.tokens.push_back(*std::move(delta.token));
      choice.text_offsets.push_back(choice.characters);
    }
  }
  choice.characters += Characters(delta.text);
  const bool good = delta.finish == FinishReason::kNone || delta.finish == FinishReason::kStop ||
                    delta.finish == FinishReason::kLength;
  if (!good && failure_ == FinishReason::kNone) {
    failure_ = delta.finish;
    error_ = delta.error;
  }
}

bool BatchAnswer::WantsCancel(size_t request) const {
  const Part& part = parts_[request];
  return !part.last && part.choices.size() == answers_ &&
         std::all_of(part.choices.begin(), part.choices.end(),
                     [](const Choice& choice) { return choice.finish != FinishReason::kNone; });
}

Json BatchAnswer::ChatLogprobs(const Choice& choice) const {
  Json content = Json::array();
  for (const TokenEvent& event : choice.tokens) {
    Json row = TokenJson(prompter_, event.token, event.logprob);
    row["top_logprobs"] = TopJson(prompter_, event.top);
    content.push_back(std::move(row));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json BatchAnswer::CompletionLogprobs(const Choice& choice) const {
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(), offsets = Json::array();
  for (size_t i = 0; i < choice.tokens.size(); ++i) {
    const TokenEvent& event = choice.tokens[i];
    tokens.push_back(TokenText(prompter_, event.token));
    logprobs.push_back(event.logprob);
    Json row = Json::object();
    for (const auto& [token, logprob] : event.top) row[TokenText(prompter_, token)] = logprob;
    top.push_back(std::move(row));
    offsets.push_back(choice.text_offsets[i]);
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(top)}};
}

Json BatchAnswer::PromptLogprobs(const Part& part) const {
  Json out = Json::array({nullptr});  // nothing stands before the first token
  for (size_t i = 0; i < part.prompt_logprobs.size() && i + 1 < part.prompt.size(); ++i) {
    const auto& [logprob, top] = part.prompt_logprobs[i];
    Json row = TokenJson(prompter_, part.prompt[i + 1], logprob);
    row["top_logprobs"] = TopJson(prompter_, top);
    out.push_back(std::move(row));
  }
  return out;
}

Json BatchAnswer::ChoiceJson(const Part& part, const Choice& choice) const {
  Json json = Json::object();
  const char* const reason = ReasonText(choice.finish);
  if (kind_ == BodyKind::kSimple) {
    json = {{"text", choice.text}, {"finish_reason", reason}};
    if (logprobs_) json["logprobs"] = ChatLogprobs(choice)["content"];
  } else if (kind_ == BodyKind::kChat) {
    json = {{"message", {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}}},
            {"logprobs", logprobs_ ? ChatLogprobs(choice) : Json(nullptr)},
            {"finish_reason", reason}};
  } else {
    json = {{"text", choice.text},
            {"logprobs", logprobs_ ? CompletionLogprobs(choice) : Json(nullptr)},
            {"finish_reason", reason}};
  }
  if (!part.prompt.empty()) json["prompt_logprobs"] = PromptLogprobs(part);
  return json;
}

Json BatchAnswer::Body(const std::string& id, const std::string& model) const {
  CELER_CHECK(done());
  const Json usage = {{"prompt_tokens", prompt_tokens_},
                      {"completion_tokens", new_tokens_},
                      {"total_tokens", prompt_tokens_ + new_tokens_},
                      {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}}};
  Json choices = Json::array();
  for (const Part& part : parts_)
    for (const Choice& choice : part.choices) {
      Json json = {{"index", choices.size()}};
      json.update(ChoiceJson(part, choice));
      choices.push_back(std::move(json));
    }
  if (kind_ == BodyKind::kSimple) {
    if (choices.size() > 1) return {{"answers", std::move(choices)}, {"usage", usage}};
    Json body = std::move(choices.front());
    body.erase("index");
    body["usage"] = usage;
    return body;
  }
  return {{"id", id},
          {"object", kind_ == BodyKind::kChat ? "chat.completion" : "text_completion"},
          {"created", static_cast<int64_t>(std::time(nullptr))},
          {"model", model},
          {"choices", std::move(choices)},
          {"usage", usage},
          {"system_fingerprint", "celer-" + std::string(Version())}};
}

}  // namespace celer::cli
