// The table of parameters, and what each of them does.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "io/file/printable.h"
#include "io/json/ordered_json.h"
#include "server/api/params.h"
#include "server/api/read_adapters.h"
#include "server/kv_transfer/read_kv_transfer.h"

namespace celer::server {
namespace {

constexpr double kAnyLength = kMany;
constexpr unsigned kOpenAi = kChat | kCompletions | kResponses, kGenerate = kOpenAi | kMessages,
                   kAnthropicApi = kMessages | kCountTokens;
constexpr unsigned kTalk = kChat | kResponses | kMessages;

// Only the names in `known` may be in the object.
Refusal CheckFields(const Json& object, std::string_view where,
                    std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items())
    if (!value.is_null() && std::find(known.begin(), known.end(), name) == known.end())
      return NotSupported(std::string(where) + "." + name, "");
  return {};
}

Refusal SetSchema(const Json& schema, std::string_view where, Query& a) {
  if (!schema.is_object() && !schema.is_boolean()) return Bad(where, schema, "a JSON schema");
  a.constraint = {.kind = Constraint::Kind::kJsonSchema, .text = schema.dump()};
  return {};
}

// {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}; in `text.format` the inner object's
// fields stand beside `type`.
Refusal SetFormat(const Json& format, const std::string& where, Query& a) {
  if (!format.is_object()) return Bad(where, format, "an object");
  const Json* type = Field(format, "type");
  const Json kind = type ? *type : Json("");
  if (kind == "text") return CheckFields(format, where, {"type"});
  if (kind == "json_object") {
    a.constraint = {.kind = Constraint::Kind::kJsonObject, .param = where};
    return CheckFields(format, where, {"type"});
  }
  if (kind != "json_schema") return Bad(where + ".type", kind, "text, json_object or json_schema");
  const Json* inner = &format;
  std::string at = where;
  if (a.endpoint != kResponses) {
    if (auto refusal = CheckFields(format, where, {"type", "json_schema"})) return refusal;
    at += ".json_schema";
    inner = Field(format, "json_schema");
    if (!inner || !inner->is_object())
      return Bad(at, inner ? *inner : Json(), "an object with name and schema");
  }
  if (auto refusal = CheckFields(*inner, at, {"type", "name", "schema", "strict", "description"}))
    return refusal;
  const Json* schema = Field(*inner, "schema");
  Refusal refusal = SetSchema(schema ? *schema : Json(), at + ".schema", a);
  a.constraint.param = at + ".schema";
  return refusal;
}

Refusal SetChoices(const Json& value, std::string_view where, Query& a) {
  if (!value.is_array() || value.empty() || value.size() > 10'000)
    return Bad(where, value, "1 to 10000 strings");
  a.constraint = {.kind = Constraint::Kind::kChoice};
  for (const Json& one : value) {
    if (!one.is_string()) return Bad(where, one, "strings only");
    a.constraint.choices.push_back(one);
  }
  return {};
}

Refusal SetText(Constraint::Kind kind, const Json& value, std::string_view where, Query& a) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) return Bad(where, value, "a string");
  a.constraint = {.kind = kind, .text = value.get<std::string>()};
  return {};
}

Refusal SetStructured(const Json& value, Query& a) {
  const std::string where = "structured_outputs";
  if (auto refusal = CheckFields(value, where, {"json", "regex", "choice", "grammar", "json_object"}))
    return refusal;
  int given = 0;
  for (const auto& [name, one] : value.items()) given += one.is_null() || one == false ? 0 : 1;
  if (given != 1)
    return ApiError{.message = where + " has " + std::to_string(given) +
                               " of json, regex, choice, grammar and json_object, expected one",
                    .param = where};
  if (const Json* json = Field(value, "json")) {
    if (!json->is_string()) return SetSchema(*json, where + ".json", a);
    const Json parsed = Json::parse(json->get_ref<const std::string&>(), nullptr, false);
    return SetSchema(parsed.is_discarded() ? Json() : parsed, where + ".json", a);
  }
  if (const Json* text = Field(value, "regex"))
    return SetText(Constraint::Kind::kRegex, *text, where + ".regex", a);
  if (const Json* text = Field(value, "grammar"))
    return SetText(Constraint::Kind::kGrammar, *text, where + ".grammar", a);
  if (const Json* choice = Field(value, "choice")) return SetChoices(*choice, where + ".choice", a);
  a.constraint.kind = Constraint::Kind::kJsonObject;
  return {};
}

Refusal SetLogitBias(const Json& value, Query& a) {
  for (const auto& [key, bias] : value.items()) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0)
      return ApiError{.message = "logit_bias names '" + Printable(key, 40) + "', expected a token id",
                      .param = "logit_bias"};
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100))
      return Bad("logit_bias", bias, "numbers from -100 to 100");
    a.request.sampling.logit_bias[token] = bias.get<float>();
  }
  return {};
}

Refusal SetStreamOptions(const Json& value, Query& a) {
  if (auto refusal = CheckFields(value, "stream_options", {"include_usage", "continuous_usage_stats"}))
    return refusal;
  for (const auto& [name, one] : value.items()) {
    if (one.is_null()) continue;
    if (!one.is_boolean()) return Bad("stream_options." + name, one, "true or false");
    (name == "include_usage" ? a.include_usage : a.usage_in_every_chunk) = one;
  }
  a.include_usage |= a.usage_in_every_chunk;
  return {};
}

uint64_t SeedOf(const Json& value) {
  return value.is_number_unsigned() ? value.get<uint64_t>() : static_cast<uint64_t>(value.get<int64_t>());
}

Refusal ReadIds(const Json& value, std::string_view field, std::vector<int32_t>* ids) {
  ids->reserve(value.size());
  for (const Json& id : value) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max())
      return Bad(field, id, "token ids, whole numbers from 0 on");
    ids->push_back(id.get<int32_t>());
  }
  return {};
}

// A string, an array of strings, an array of ids, or an array of arrays of ids.
Refusal SetPrompt(const Json& value, const char* name, Query& a) {
  const size_t max_prompts = a.endpoint == kEmbeddings ? 2048 : 1024;
  if (value.is_string()) {
    a.prompts.push_back({.text = value.get<std::string>()});
    return {};
  }
  if (!value.is_array() || value.empty())
    return Bad(name, value, "a string, an array of strings, or token ids");
  if (value[0].is_number()) {
    PromptInput one{.is_text = false};
    if (auto refusal = ReadIds(value, name, &one.ids)) return refusal;
    a.prompts.push_back(std::move(one));
    return {};
  }
  if (value.size() > max_prompts)
    return ApiError{.message = std::string(name) + " has " + std::to_string(value.size()) +
                               " texts, at most " + std::to_string(max_prompts) + " are taken at once",
                    .param = name};
  for (const Json& item : value) {
    PromptInput one{.is_text = item.is_string()};
    if (item.is_string())
      one.text = item.get<std::string>();
    else if (!item.is_array())
      return Bad(name, item, "strings, or arrays of token ids");
    else if (auto refusal = ReadIds(item, name, &one.ids))
      return refusal;
    a.prompts.push_back(std::move(one));
  }
  return {};
}

Refusal SetResume(const Json& value, const std::string& where, Query& a) {
  if (a.resume)
    return ApiError{.message = "resume and metadata.celer_resume are both given, expected one of them",
                    .param = where};
  if (auto refusal = CheckFields(value, where, {"token_ids", "seed", "fingerprint"})) return refusal;
  Resume& resume = a.resume.emplace();
  if (const Json* ids = Field(value, "token_ids")) {
    if (!ids->is_array()) return Bad(where + ".token_ids", *ids, "an array of token ids");
    if (auto refusal = ReadIds(*ids, where + ".token_ids", &resume.token_ids)) return refusal;
  }
  if (const Json* seed = Field(value, "seed")) {
    if (!seed->is_number_integer()) return Bad(where + ".seed", *seed, "a whole number of 64 bits");
    resume.seed = SeedOf(*seed);
  }
  if (const Json* print = Field(value, "fingerprint")) {
    if (!print->is_string()) return Bad(where + ".fingerprint", *print, "a string");
    resume.fingerprint = *print;
  }
  return {};
}

// Some routers drop fields of a conversation that they do not know, and keep its metadata.
Refusal SetMetadata(const Json& value, Query& a) {
  a.metadata = value;
  const Json* text = a.endpoint == kChat ? Field(value, "celer_resume") : nullptr;
  if (!text) return {};
  const std::string where = "metadata.celer_resume";
  if (!text->is_string()) return Bad(where, *text, "a string");
  const auto& written = text->get_ref<const std::string&>();
  const auto resume = ParseOrderedJson(written, where, {.max_bytes = written.size(), .max_depth = 4});
  if (!resume) return FromError(resume.error(), where);
  if (!resume->is_object()) return Bad(where, *text, "the JSON text of an object, as in resume");
  return SetResume(*resume, where, a);
}

Refusal SetTemplateVariables(const Json& value, Query& a) {
  // Variables that the server sets, or that clients must not override.
  constexpr std::string_view kTaken[] = {"messages",  "tools",     "add_generation_prompt",  "chat_template",
                                         "bos_token", "eos_token", "continue_final_message", "tokenize"};
  for (const auto& [name, unused] : value.items())
    if (std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken))
      return NotSupported("chat_template_kwargs." + name, "the server sets it");
  if (a.template_variables.is_null()) a.template_variables = Json::object();
  for (const auto& [name, one] : value.items()) a.template_variables[name] = one;
  return {};
}

Refusal OnlyFalse(const Json& value, const char* name, const char* why) {
  if (value == false) return {};
  return NotSupported(name, why, "true");
}

Refusal SetEarlyStopping(const Json& value, Query& a) {
  using Early = BeamSearch::EarlyStopping;
  if (!value.is_boolean() && value != "never")
    return Bad("early_stopping", value, "true, false or \"never\"");
  a.request.beam.early_stopping = value == "never" ? Early::kNever
                                  : value == true  ? Early::kYes
                                                   : Early::kHeuristic;
  return {};
}

Refusal OnlyTrue(const Json& value, const char* name) {
  if (value == true) return {};
  return NotSupported(name, "", "false");
}

// An object that turns something off: {"type": "disabled"}.
Refusal SetThinking(const Json& value, Query&) {
  const Json* type = Field(value, "type");
  if (type && *type == "disabled") return {};
  return NotSupported("thinking", "use chat_template_kwargs with the model's own switch");
}

// Of two names the newer one counts, wherever it stands.
Refusal SetMaxTokens(const Json& value, const char* name, Query& a) {
  if (a.max_tokens && std::string_view(name) == "max_tokens") return {};
  a.max_tokens = value.get<int64_t>();
  a.max_tokens_param = name;
  return {};
}

Refusal SetStop(const Json& value, const char* name, Query& a) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  a.stop.clear();
  for (const Json& one : list) {
    const auto& text = one.get_ref<const std::string&>();
    if (text.empty() || text.size() > 1024) return Bad(name, one, "strings of 1 to 1024 bytes");
    a.stop.push_back(text);
  }
  return {};
}

Refusal SetLora(const Json& value, Query& a) {
  return ReadScales(value, "lora", &a.lora.emplace());
}

#define SET(...)                                            \
  [](const Json& v, [[maybe_unused]] Query& a) -> Refusal { \
    __VA_ARGS__;                                            \
    return {};                                              \
  }
#define ASK(...) [](const Json& v, [[maybe_unused]] Query& a) -> Refusal { return __VA_ARGS__; }
#define KEEP [](const Json&, Query&) -> Refusal { return {}; }

constexpr Param kParams[] = {
    // The prompt.
    {"model", Kind::kString, 0, 4096, kGenerate | kTokenize | kDetokenize | kEmbeddings | kCountTokens,
     "the model; /v1/models lists what is served", SET(a.model = v)},
    {"lora", Kind::kArray, 0, 64, kGenerate | kEmbeddings,
     "LoRA adapters by id or name, with a scale each; instead of the model's name", ASK(SetLora(v, a))},
    {"messages", Kind::kArray, 1, kAnyLength, kChat | kAnthropicApi | kTokenize, "the conversation",
     SET(a.messages = v)},
    {"prompt", Kind::kAny, 0, 0, kCompletions | kTokenize,
     "a text, several, token ids, or several arrays of token ids", ASK(SetPrompt(v, "prompt", a))},
    {"input", Kind::kAny, 0, 0, kResponses, "a text, or a list of messages and calls", SET(a.input = v)},
    {"input", Kind::kAny, 0, 0, kEmbeddings, "a text, several, token ids, or several arrays of token ids",
     ASK(SetPrompt(v, "input", a))},
    {"encoding_format", Kind::kString, 0, 32, kEmbeddings,
     "float: numbers, or base64: of their bytes, as f32 with the low byte first",
     SET(if (v != "float" && v != "base64") return Bad("encoding_format", v, "float or base64");
         a.encoding = v == "float" ? Encoding::kFloat : Encoding::kBase64)},
    {"dimensions", Kind::kInt, 1, 1'000'000, kEmbeddings, "keep the first so many numbers, normalised again",
     SET(a.dimensions = v)},
    {"instructions", Kind::kString, 0, kAnyLength, kResponses, "the system message", SET(a.system = v)},
    {"system", Kind::kAny, 0, 0, kAnthropicApi, "the system message: a text, or text blocks",
     SET(a.system = v)},
    {"previous_response_id", Kind::kString, 0, 256, kResponses, "go on from that answer",
     SET(a.previous_response_id = v)},
    {"tools", Kind::kArray, 0, 1024, kTalk | kTokenize | kCountTokens | kNotInBatch,
     "functions that the model may call", SET(a.tools = v)},
    {"tool_choice", Kind::kAny, 0, 0, kTalk | kCountTokens | kNotInBatch,
     "none, auto, required, one function's name, or allowed_tools", SET(a.tool_choice = v)},
    {"parallel_tool_calls", Kind::kBool, 0, 0, kChat | kResponses, "more than one call in an answer",
     SET(a.parallel_tool_calls = v)},
    {"tokens", Kind::kIds, 0, kAnyLength, kDetokenize, "token ids",
     ASK(ReadIds(v, "tokens", &a.tokens.emplace()))},
    {"return_token_strs", Kind::kBool, 0, 0, kTokenize, "the text of each token, too",
     SET(a.token_strings = v)},

    // How the prompt is made.
    {"chat_template_kwargs", Kind::kObject, 0, 100, kTalk | kTokenize | kCountTokens,
     "more variables for the chat template", ASK(SetTemplateVariables(v, a))},
    {"reasoning_effort", Kind::kString, 0, 32, kChat, "a variable of the chat template, where it has one",
     SET(if (a.template_variables.is_null()) a.template_variables = Json::object();
         a.template_variables["reasoning_effort"] = v)},
    {"add_generation_prompt", Kind::kBool, 0, 0, kChat | kTokenize,
     "end the prompt with the beginning of the answer", SET(a.add_generation_prompt = v)},
    {"continue_final_message", Kind::kBool, 0, 0, kChat | kTokenize,
     "the answer goes on with the last message, which is the assistant's", SET(a.continue_final_message = v)},
    {"add_special_tokens", Kind::kBool, 0, 0, kChat | kCompletions | kTokenize | kEmbeddings,
     "begin a text with the tokens that the tokenizer adds", SET(a.add_special_tokens = v)},
    {"truncate_prompt_tokens", Kind::kInt, -1, kMany, kChat | kCompletions | kEmbeddings,
     "keep the last so many tokens of the prompt; -1: as many as fit", SET(a.truncate_prompt = v)},
    {"truncation", Kind::kString, 0, 32, kResponses, "auto cuts the prompt to what fits; disabled refuses it",
     SET(if (v == "auto") a.truncate_prompt = -1;
         else if (v != "disabled") return Bad("truncation", v, "auto or disabled"))},
    {"chat_template", Kind::kString, 0, kAnyLength, kChat | kTokenize,
     "templates are the server's: see celer serve --chat-template", nullptr},
    {"documents", Kind::kArray, 0, 0, kChat, "pass them in chat_template_kwargs", nullptr},
    {"suffix", Kind::kString, 0, 0, kCompletions, "the model is not trained to fill in", nullptr},

    // How tokens are chosen.
    {"temperature", Kind::kNumber, 0, 100, kGenerate, "0: always the most likely token",
     SET(a.request.sampling.temperature = v)},
    {"top_p", Kind::kNumber, 1e-6, 1, kGenerate,
     "keep the most likely tokens until they hold this probability", SET(a.request.sampling.top_p = v)},
    {"top_k", Kind::kInt, -1, 2147483647, kGenerate, "keep the k most likely tokens; 0 or -1: all",
     SET(a.request.sampling.top_k = std::max(0, v.get<int>()))},
    {"min_p", Kind::kNumber, 0, 1, kGenerate,
     "keep tokens with this share of the most likely one's probability", SET(a.request.sampling.min_p = v)},
    {"typical_p", Kind::kNumber, 1e-6, 1, kGenerate,
     "keep the tokens whose surprise is nearest the expected one", SET(a.request.sampling.typical_p = v)},
    {"repetition_penalty", Kind::kNumber, 1e-6, 1e6, kGenerate,
     "divides the logits of tokens seen before; 1: off", SET(a.request.sampling.repetition_penalty = v)},
    {"presence_penalty", Kind::kNumber, -2, 2, kOpenAi, "subtracted from tokens in the answer",
     SET(a.request.sampling.presence_penalty = v)},
    {"frequency_penalty", Kind::kNumber, -2, 2, kOpenAi, "the same, per occurrence",
     SET(a.request.sampling.frequency_penalty = v)},
    {"logit_bias", Kind::kObject, 0, 100'000, kChat | kCompletions, "token id to a number from -100 to 100",
     ASK(SetLogitBias(v, a))},
    {"allowed_token_ids", Kind::kIds, 1, 1'000'000, kGenerate, "no other token can be chosen",
     ASK(ReadIds(v, "allowed_token_ids", &a.request.sampling.allowed_tokens))},
    {"bad_words", Kind::kStrings, 0, 1024, kGenerate, "texts that must not appear",
     SET(for (const Json& word
              : v.is_array() ? v : Json::array({v})) {
       if (word.get_ref<const std::string&>().empty())
         return Bad("bad_words", word, "strings that are not empty");
       a.bad_words.push_back(word);
     })},
    {"seed", Kind::kInt, -9.3e18, 1.9e19, kGenerate, "same seed, same answer", SET(a.seed = SeedOf(v))},
    {"resume", Kind::kObject, 0, 8, kChat | kCompletions | kNotInBatch,
     "an answer that can go on elsewhere after an interruption, or one that does: token_ids, seed, "
     "fingerprint",
     ASK(SetResume(v, "resume", a))},
    {"kv_transfer_params", Kind::kObject, 0, 0, kChat | kCompletions | kNotInBatch,
     "disaggregated prefill, as vLLM: do_remote_decode holds the prompt's KV for another server, "
     "do_remote_prefill "
     "fetches it from one",
     ASK(ReadKvTransfer(v, &a.kv_transfer))},
    {"n", Kind::kInt, 1, 128, kChat | kCompletions, "answers", SET(a.request.n = v)},
    {"best_of", Kind::kInt, 1, 128, kChat | kCompletions, "so many are drawn, the n most likely are given",
     SET(a.request.best_of = v)},
    {"use_beam_search", Kind::kBool, 0, 0, kChat | kCompletions, "n (or best_of) beams instead of drawing",
     SET(a.beam = v)},
    {"beam_width", Kind::kInt, 1, 128, kChat | kCompletions, "beams, of which n are given",
     SET(a.request.beam.width = v)},
    {"length_penalty", Kind::kNumber, -10, 10, kChat | kCompletions, "of beam search",
     SET(a.request.beam.length_penalty = v)},
    {"early_stopping", Kind::kAny, 0, 0, kChat | kCompletions, "of beam search: true, false or \"never\"",
     ASK(SetEarlyStopping(v, a))},
    {"response_format", Kind::kObject, 0, 16, kChat | kCompletions, "text, json_object or json_schema",
     ASK(SetFormat(v, "response_format", a))},
    {"structured_outputs", Kind::kObject, 0, 16, kGenerate,
     "one of json, regex, choice, grammar, json_object", ASK(SetStructured(v, a))},
    {"guided_json", Kind::kAny, 0, 0, kChat | kCompletions, "structured_outputs.json by its older name",
     ASK(SetStructured({{"json", v}}, a))},
    {"guided_regex", Kind::kString, 1, kAnyLength, kChat | kCompletions,
     "structured_outputs.regex by its older name", ASK(SetStructured({{"regex", v}}, a))},
    {"guided_choice", Kind::kArray, 1, 10'000, kChat | kCompletions,
     "structured_outputs.choice by its older name", ASK(SetStructured({{"choice", v}}, a))},
    {"guided_grammar", Kind::kString, 1, kAnyLength, kChat | kCompletions,
     "structured_outputs.grammar by its older name", ASK(SetStructured({{"grammar", v}}, a))},
    {"text", Kind::kObject, 0, 16, kResponses, "format: text, json_object or json_schema",
     SET(if (auto refusal = CheckFields(v, "text", {"format"})) return refusal;
         if (const Json* format = Field(v, "format")) return SetFormat(*format, "text.format", a))},

    // When the answer ends.
    {"max_tokens", Kind::kInt, 0, kMany, kChat | kCompletions | kMessages, "tokens of the answer at most",
     ASK(SetMaxTokens(v, "max_tokens", a))},
    {"max_completion_tokens", Kind::kInt, 1, kMany, kChat, "the newer name of max_tokens, which it overrules",
     ASK(SetMaxTokens(v, "max_completion_tokens", a))},
    {"max_output_tokens", Kind::kInt, 1, kMany, kResponses, "tokens of the answer at most",
     ASK(SetMaxTokens(v, "max_output_tokens", a))},
    {"min_tokens", Kind::kInt, 0, kMany, kGenerate, "before that many nothing ends the answer",
     SET(a.request.min_tokens = v)},
    {"stop", Kind::kStrings, 0, 32, kOpenAi, "strings that end the answer", ASK(SetStop(v, "stop", a))},
    {"stop_sequences", Kind::kStrings, 0, 32, kMessages, "strings that end the answer",
     ASK(SetStop(v, "stop_sequences", a))},
    {"stop_token_ids", Kind::kIds, 0, 1024, kGenerate, "tokens that end the answer",
     ASK(ReadIds(v, "stop_token_ids", &a.stop_token_ids))},
    {"include_stop_str_in_output", Kind::kBool, 0, 0, kGenerate | kNotInBatch,
     "the stop string is part of the answer", SET(a.include_stop = v)},
    {"ignore_eos", Kind::kBool, 0, 0, kGenerate, "go on past the model's own end", SET(a.ignore_eos = v)},
    {"timeout", Kind::kNumber, 0.001, 86400, kGenerate | kEmbeddings | kNotInBatch,
     "seconds; what is there by then is the answer", SET(a.timeout = v)},

    // What the answer reports.
    {"stream", Kind::kBool, 0, 0, kGenerate | kNotInBatch, "server-sent events as tokens come",
     SET(a.stream = v)},
    {"stream_options", Kind::kObject, 0, 16, kChat | kCompletions | kNotInBatch,
     "include_usage, continuous_usage_stats", ASK(SetStreamOptions(v, a))},
    {"echo", Kind::kBool, 0, 0, kCompletions | kNotInBatch, "the prompt is part of the answer",
     SET(a.echo = v)},
    {"logprobs", Kind::kBool, 0, 0, kChat, "the log-probability of each token", SET(a.logprobs = v)},
    {"logprobs", Kind::kInt, 0, 20, kCompletions, "of each token and so many alternatives",
     SET(a.request.sampling.logprobs = v)},
    {"top_logprobs", Kind::kInt, 0, 20, kChat | kResponses, "alternatives per token",
     SET(a.top_logprobs = v)},
    {"prompt_logprobs", Kind::kInt, 0, 20, kChat | kCompletions, "of the prompt's tokens",
     SET(a.request.prompt_logprobs = v)},
    {"skip_special_tokens", Kind::kBool, 0, 0, kGenerate | kDetokenize,
     "leave control tokens out of the text", SET(a.skip_special = v)},
    {"spaces_between_special_tokens", Kind::kBool, 0, 0, kGenerate, "only true",
     ASK(OnlyTrue(v, "spaces_between_special_tokens"))},
    {"return_tokens_as_token_ids", Kind::kBool, 0, 0, kChat | kCompletions | kNotInBatch,
     "'token_id:N' instead of a token's text", SET(a.tokens_as_ids = v)},
    {"return_token_ids", Kind::kBool, 0, 0, kChat | kCompletions | kNotInBatch,
     "the ids of prompt and answer", SET(a.return_token_ids = v)},
    {"separate_reasoning", Kind::kBool, 0, 0, kTalk | kNotInBatch, "<think> parts go to reasoning_content",
     SET(a.separate_reasoning = v)},
    // SGLang's and vLLM's routers write these into every request, with their defaults.
    {"no_stop_trim", Kind::kBool, 0, 0, kChat | kCompletions, "SGLang's name of include_stop_str_in_output",
     SET(a.include_stop |= v.get<bool>())},
    {"stream_reasoning", Kind::kBool, 0, 0, kChat, "only true", ASK(OnlyTrue(v, "stream_reasoning"))},
    {"include_reasoning", Kind::kBool, 0, 0, kChat, "only true", ASK(OnlyTrue(v, "include_reasoning"))},
    {"return_hidden_states", Kind::kBool, 0, 0, kChat | kCompletions, "only false",
     ASK(OnlyFalse(v, "return_hidden_states", ""))},

    // Scheduling, caching and bookkeeping.
    {"priority", Kind::kInt, -2147483647, 2147483647, kGenerate | kEmbeddings, "lower goes first",
     SET(a.request.priority = v)},
    {"request_id", Kind::kString, 1, 128, kGenerate | kEmbeddings | kNotInBatch,
     "the id that the log names it by",
     SET(if (!IsValidRequestId(v.get_ref<const std::string&>())) return Bad("request_id", v,
                                                                            "letters, digits and ._-");
         a.request_id = v)},
    {"cache_salt", Kind::kString, 1, 1024, kGenerate | kEmbeddings,
     "only requests with the same salt share cached prefixes", SET(a.request.cache_salt = v)},
    {"store", Kind::kBool, 0, 0, kResponses, "keep the answer for previous_response_id", SET(a.store = v)},
    {"store", Kind::kBool, 0, 0, kChat, "only false", ASK(OnlyFalse(v, "store", "answers are not kept"))},
    {"metadata", Kind::kObject, 0, 16, kTalk, "given back with the answer", ASK(SetMetadata(v, a))},
    // These say who asks, or where an answer may be cached or billed. By their meaning they have no effect on
    // an answer, so accepting them ignores nothing.
    {"user", Kind::kString, 0, 4096, kOpenAi | kEmbeddings, "the end user; no effect", KEEP},
    {"safety_identifier", Kind::kString, 0, 4096, kOpenAi | kEmbeddings, "the end user; no effect", KEEP},
    {"prompt_cache_key", Kind::kString, 0, 4096, kOpenAi, "a hint for routers", KEEP},
    {"service_tier", Kind::kString, 0, 32, kTalk, "auto or default",
     SET(if (v != "auto" && v != "default" && v != "standard_only") return Bad("service_tier", v,
                                                                               "auto or default"))},
    {"modalities", Kind::kArray, 0, 8, kChat, "only text",
     SET(if (v != Json::array({"text"})) return Bad("modalities", v, "[\"text\"]"))},
    {"include", Kind::kArray, 0, 64, kResponses, "only an empty list",
     SET(if (!v.empty()) return NotSupported("include", "nothing more can be included"))},
    {"background", Kind::kBool, 0, 0, kResponses, "only false", ASK(OnlyFalse(v, "background", ""))},
    {"thinking", Kind::kObject, 0, 8, kAnthropicApi, "only disabled", ASK(SetThinking(v, a))},
    {"verbosity", Kind::kString, 0, 0, kChat, "", nullptr},
    {"prediction", Kind::kObject, 0, 0, kChat, "", nullptr},
    {"audio", Kind::kObject, 0, 0, kChat, "answers are text", nullptr},
    {"web_search_options", Kind::kObject, 0, 0, kChat, "", nullptr},
    {"functions", Kind::kArray, 0, 0, kChat, "use tools", nullptr},
    {"function_call", Kind::kAny, 0, 0, kChat, "use tool_choice", nullptr},
    {"reasoning", Kind::kObject, 0, 0, kResponses, "use chat_template_kwargs with the model's own switch",
     nullptr},
    {"conversation", Kind::kAny, 0, 0, kResponses, "use previous_response_id", nullptr},
    {"prompt", Kind::kObject, 0, 0, kResponses, "stored prompts are OpenAI's", nullptr},
    {"max_tool_calls", Kind::kInt, 0, 0, kResponses, "", nullptr},
    {"container", Kind::kAny, 0, 0, kMessages, "", nullptr},
    {"mcp_servers", Kind::kAny, 0, 0, kMessages, "", nullptr},
};

#undef SET
#undef ASK
#undef KEEP

}  // namespace

std::span<const Param> Params() {
  return kParams;
}

}  // namespace celer::server
