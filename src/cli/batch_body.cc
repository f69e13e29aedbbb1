#include "cli/batch_body.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/suggest.h"
#include "engine/prompter.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kManyTokens = 1'000'000'000;
constexpr int64_t kManyAnswers = 128;
constexpr size_t kManyStops = 64;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default of /v1/completions

// A body as far as it was read.
struct Draft {
  Request request;
  std::vector<std::string> stop;
  std::string model;
  const Json* prompt = nullptr;
  ChatJson chat;
  std::optional<int64_t> max_tokens;
  bool ignore_end = false;
  bool wants_logprobs = false;
  int top_logprobs = -1;
  const Prompter* prompter = nullptr;
};

std::string Short(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

Error Expected(const char* name, const Json& value, std::string_view expected) {
  return Error::Invalid("'", name, "' is ", Short(value), ", expected ", expected);
}

Status Read(const char* name, const Json& value, float* into) {
  if (!value.is_number()) return Expected(name, value, "a number");
  *into = value.get<float>();
  if (!std::isfinite(*into)) return Expected(name, value, "a finite number");
  return {};
}

Status Read(const char* name, const Json& value, bool* into) {
  if (!value.is_boolean()) return Expected(name, value, "true or false");
  *into = value.get<bool>();
  return {};
}

Status Read(const char* name, const Json& value, std::string* into) {
  if (!value.is_string()) return Expected(name, value, "a string");
  *into = value.get<std::string>();
  return {};
}

template <class Int>
Status Read(const char* name, const Json& value, int64_t min, int64_t max, Int* into) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(std::max<int64_t>(max, 0))
                        : value.is_number_integer() && value.get<int64_t>() <= max;
  if (!fits || value.get<int64_t>() < min)
    return Error::Invalid("'", name, "' is ", Short(value), ", expected a whole number from ", min, " to ",
                          max);
  *into = static_cast<Int>(value.get<int64_t>());
  return {};
}

Status ReadTokens(const char* name, const Json& value, std::vector<int32_t>* into) {
  if (!value.is_array()) return Expected(name, value, "an array of token ids");
  for (const Json& item : value) {
    int32_t token = 0;
    CELER_RETURN_IF_ERROR(Read(name, item, 0, std::numeric_limits<int32_t>::max(), &token));
    into->push_back(token);
  }
  return {};
}

Status ReadStop(const char* name, const Json& value, std::vector<std::string>* into) {
  into->clear();
  const auto add = [&](const Json& item) -> Status {
    if (!item.is_string() || item.get_ref<const std::string&>().empty())
      return Expected(name, value, "a string that is not empty, or an array of such");
    into->push_back(item.get<std::string>());
    return {};
  };
  if (!value.is_array()) return add(value);
  if (value.size() > kManyStops)
    return Error::Invalid("'", name, "' has ", value.size(), " strings, at most ", kManyStops,
                          " are accepted");
  for (const Json& item : value) CELER_RETURN_IF_ERROR(add(item));
  return {};
}

Status ReadBias(const char* name, const Json& value, std::map<int32_t, float>* into) {
  if (!value.is_object()) return Expected(name, value, "an object of token ids and numbers");
  into->clear();
  for (const auto& [key, bias] : value.items()) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size())
      return Error::Invalid("'", name, "' names '", key, "', expected a token id");
    float number = 0;
    CELER_RETURN_IF_ERROR(Read(name, bias, &number));
    if (number < -100 || number > 100) return Expected(name, bias, "a number from -100 to 100");
    (*into)[token] = number;
  }
  return {};
}

// How many alternatives to each token are reported: with chat a flag and a number apart, else a number.
Status ReadLogprobs(const char* name, const Json& value, Draft& draft) {
  if (value.is_boolean()) return Read(name, value, &draft.wants_logprobs);
  draft.wants_logprobs = true;
  return Read(name, value, 0, 100, &draft.top_logprobs);
}

Status ReadEarlyStopping(const char* name, const Json& value, Draft& draft) {
  using Early = BeamSearch::EarlyStopping;
  if (value != "never" && !value.is_boolean()) return Expected(name, value, "true, false or \"never\"");
  draft.request.beam.early_stopping = value == "never"    ? Early::kNever
                                      : value.get<bool>() ? Early::kYes
                                                          : Early::kHeuristic;
  return {};
}

// Only one value is possible: `wanted`.
Status MustBe(const char* name, const Json& value, const Json& wanted) {
  if (value == wanted) return {};
  return Error::Unsupported("'", name, "' is ", Short(value), "; in a batch only ", wanted.dump(),
                            " is supported");
}

constexpr unsigned kS = 1, kC = 2, kT = 4, kAll = kS | kC | kT;  // simple, chat, text completion

struct Parameter {
  const char* name;
  unsigned kinds;
  // Never called with null, which is as good as nothing.
  Status (*read)(const char* name, const Json& value, Draft& draft);
};

#define CELER_FIELD(into) [](const char* n, const Json& v, Draft& d) { return Read(n, v, &d.into); }
#define CELER_WHOLE(min, max, into) \
  [](const char* n, const Json& v, Draft& d) { return Read(n, v, min, max, &d.into); }
constexpr auto kIgnored = [](const char*, const Json&, Draft&) { return Status(); };

constexpr Parameter kParameters[] = {
    {"model", kAll, CELER_FIELD(model)},
    {"messages", kS | kC,
     [](const char* n, const Json& v, Draft& d) -> Status {
       if (!v.is_array() || v.empty()) return Expected(n, v, "an array of messages");
       d.chat.messages = v;
       return {};
     }},
    {"prompt", kS | kT,
     [](const char*, const Json& v, Draft& d) -> Status {
       d.prompt = &v;
       return {};
     }},
    {"max_tokens", kAll, CELER_WHOLE(1, kManyTokens, max_tokens.emplace())},
    {"max_completion_tokens", kS | kC, CELER_WHOLE(1, kManyTokens, max_tokens.emplace())},
    {"min_tokens", kAll, CELER_WHOLE(0, kManyTokens, request.min_tokens)},
    {"temperature", kAll, CELER_FIELD(request.sampling.temperature)},
    {"top_p", kAll, CELER_FIELD(request.sampling.top_p)},
    {"top_k", kAll,
     [](const char* n, const Json& v, Draft& d) {
       const bool all = v.is_number_integer() && v == -1;  // as vLLM writes it
       return Read(n, all ? Json(0) : v, 0, std::numeric_limits<int>::max(), &d.request.sampling.top_k);
     }},
    {"min_p", kAll, CELER_FIELD(request.sampling.min_p)},
    {"typical_p", kAll, CELER_FIELD(request.sampling.typical_p)},
    {"repetition_penalty", kAll, CELER_FIELD(request.sampling.repetition_penalty)},
    {"presence_penalty", kAll, CELER_FIELD(request.sampling.presence_penalty)},
    {"frequency_penalty", kAll, CELER_FIELD(request.sampling.frequency_penalty)},
    {"logit_bias", kAll,
     [](const char* n, const Json& v, Draft& d) { return ReadBias(n, v, &d.request.sampling.logit_bias); }},
    {"allowed_token_ids", kAll,
     [](const char* n, const Json& v, Draft& d) {
       return ReadTokens(n, v, &d.request.sampling.allowed_tokens);
     }},
    {"seed", kAll,
     [](const char* n, const Json& v, Draft& d) -> Status {
       if (!v.is_number_integer()) return Expected(n, v, "a whole number");
       d.request.sampling.seed =
           v.is_number_unsigned() ? v.get<uint64_t>() : static_cast<uint64_t>(v.get<int64_t>());
       return {};
     }},
    {"stop", kAll, [](const char* n, const Json& v, Draft& d) { return ReadStop(n, v, &d.stop); }},
    {"stop_token_ids", kAll,
     [](const char* n, const Json& v, Draft& d) { return ReadTokens(n, v, &d.request.stop_tokens); }},
    {"ignore_eos", kAll, CELER_FIELD(ignore_end)},
    {"n", kAll, CELER_WHOLE(1, kManyAnswers, request.n)},
    {"best_of", kS | kT, CELER_WHOLE(1, kManyAnswers, request.best_of)},
    {"beam_width", kAll, CELER_WHOLE(1, kManyAnswers, request.beam.width)},
    {"length_penalty", kAll, CELER_FIELD(request.beam.length_penalty)},
    {"early_stopping", kAll, ReadEarlyStopping},
    {"logprobs", kAll, ReadLogprobs},
    {"top_logprobs", kS | kC, CELER_WHOLE(0, 100, top_logprobs)},
    {"prompt_logprobs", kAll, CELER_WHOLE(0, 100, request.prompt_logprobs)},
    {"priority", kAll,
     CELER_WHOLE(std::numeric_limits<int>::min(), std::numeric_limits<int>::max(), request.priority)},
    {"cache_salt", kAll, CELER_FIELD(request.cache_salt)},
    {"add_generation_prompt", kS | kC, CELER_FIELD(chat.add_generation_prompt)},
    {"chat_template_kwargs", kS | kC,
     [](const char* n, const Json& v, Draft& d) -> Status {
       if (!v.is_object()) return Expected(n, v, "an object");
       d.chat.variables = v;
       return {};
     }},
    // What changes nothing here.
    {"user", kAll, kIgnored},
    {"metadata", kAll, kIgnored},
    {"store", kAll, kIgnored},
    {"service_tier", kAll, kIgnored},
    {"safety_identifier", kAll, kIgnored},
    {"prompt_cache_key", kAll, kIgnored},
    // What OpenAI's clients send by themselves, as long as it asks for nothing.
    {"stream", kAll, [](const char* n, const Json& v, Draft&) { return MustBe(n, v, false); }},
    {"echo", kT, [](const char* n, const Json& v, Draft&) { return MustBe(n, v, false); }},
    {"suffix", kT, [](const char* n, const Json& v, Draft&) { return MustBe(n, v, ""); }},
    {"response_format", kC,
     [](const char* n, const Json& v, Draft&) {
       return MustBe(n, v, {{"type", "text"}});
     }},
    {"tools", kC, [](const char* n, const Json& v, Draft&) { return MustBe(n, v, Json::array()); }},
    {"tool_choice", kC, [](const char* n, const Json& v, Draft&) { return MustBe(n, v, "none"); }},
};
#undef CELER_FIELD
#undef CELER_WHOLE

unsigned Bit(BodyKind kind) {
  return kind == BodyKind::kSimple ? kS : kind == BodyKind::kChat ? kC : kT;
}

Error Unknown(const std::string& name, BodyKind kind) {
  std::vector<std::string> names;
  for (const Parameter& parameter : kParameters)
    if (parameter.kinds & Bit(kind)) names.emplace_back(parameter.name);
  return Error::Unsupported("the parameter '", name, "' is not known here", DidYouMean(name, names));
}

Result<std::vector<int32_t>> EncodePrompt(const std::string& text, const Prompter& prompter) {
  std::vector<int32_t> tokens = prompter.EncodeText(text);
  if (!tokens.empty()) return tokens;
  if (!prompter.bos())
    return Error::Invalid("the prompt is empty and the vocabulary has no token to begin with");
  return std::vector<int32_t>{*prompter.bos()};
}

// A string, token ids, or an array of either.
Result<std::vector<std::vector<int32_t>>> EncodePrompts(const Json& prompt, const Prompter& prompter) {
  std::vector<std::vector<int32_t>> out;
  const auto add = [&](const Json& one) -> Status {
    if (one.is_string()) {
      CELER_ASSIGN(std::vector<int32_t> tokens, EncodePrompt(one.get_ref<const std::string&>(), prompter));
      out.push_back(std::move(tokens));
      return {};
    }
    if (!one.is_array() || one.empty())
      return Expected("prompt", one, "a string, token ids, or an array of either");
    out.emplace_back();
    return ReadTokens("prompt", one, &out.back());
  };
  const bool many = prompt.is_array() && !prompt.empty() && !prompt.front().is_number();
  if (!many) {
    CELER_RETURN_IF_ERROR(add(prompt));
    return out;
  }
  for (const Json& one : prompt) CELER_RETURN_IF_ERROR(add(one));
  return out;
}

Result<std::vector<std::vector<int32_t>>> Prompts(BodyKind kind, Draft& draft, const Prompter& prompter) {
  const bool chat = !draft.chat.messages.is_null();
  if (chat && draft.prompt) return Error::Invalid("it has 'prompt' and 'messages'; give one of them");
  if (draft.prompt) return EncodePrompts(*draft.prompt, prompter);
  if (!chat)
    return Error::Invalid(kind == BodyKind::kChat         ? "'messages' is missing"
                          : kind == BodyKind::kCompletion ? "'prompt' is missing"
                                                          : "'prompt' or 'messages' is missing");
  for (const Json& message : draft.chat.messages)
    if (!message.is_object() || !message.contains("role"))
      return Expected("messages", message, "objects with 'role' and 'content'");
  CELER_ASSIGN(std::vector<int32_t> tokens, EncodeChat(prompter, std::move(draft.chat)));
  return std::vector<std::vector<int32_t>>{std::move(tokens)};
}

}  // namespace

Result<BatchBody> ParseBody(BodyKind kind, const Json& body, const BodyDefaults& defaults, uint64_t seed,
                            const Prompter& prompter, const Engine::Info& info) {
  Draft draft;
  draft.request.sampling = defaults.sampling;
  draft.request.sampling.seed = seed;
  draft.stop = defaults.stop;
  for (const auto& [name, value] : body.items()) {
    if (kind == BodyKind::kSimple && name == "id") continue;
    const Parameter* found = nullptr;
    for (const Parameter& parameter : kParameters)
      if (name == parameter.name && (parameter.kinds & Bit(kind)) != 0) found = &parameter;
    if (!found) return Unknown(name, kind);
    if (!value.is_null()) CELER_RETURN_IF_ERROR(found->read(found->name, value, draft));
  }
  Request& request = draft.request;
  if (draft.top_logprobs >= 0 && !draft.wants_logprobs)
    return Error::Invalid("'top_logprobs' needs 'logprobs': true");
  if (draft.wants_logprobs) request.sampling.logprobs = std::max(draft.top_logprobs, 0);
  if (!draft.ignore_end)
    request.stop_tokens.insert(request.stop_tokens.end(), prompter.end_tokens().begin(),
                               prompter.end_tokens().end());
  if (request.best_of > 0 && request.best_of < request.n)
    return Error::Invalid("'best_of' is ", request.best_of, " and 'n' is ", request.n,
                          "; expected best_of to be n or more");

  BatchBody out;
  CELER_ASSIGN(std::vector<std::vector<int32_t>> prompts, Prompts(kind, draft, prompter));
  if (!draft.max_tokens) draft.max_tokens = defaults.max_tokens;
  if (!draft.max_tokens && kind == BodyKind::kCompletion) draft.max_tokens = kCompletionTokens;
  for (std::vector<int32_t>& prompt : prompts) {
    Request& one = out.requests.emplace_back(request);
    const int64_t room = info.context - static_cast<int64_t>(prompt.size()) + 1;
    one.max_tokens = draft.max_tokens.value_or(std::max<int64_t>(room, 1));
    one.prompt = std::move(prompt);
  }
  out.stop = std::move(draft.stop);
  out.model = std::move(draft.model);
  return out;
}

}  // namespace celer::cli
