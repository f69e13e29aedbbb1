#include "server/api/prepare.h"

#include <algorithm>
#include <random>

#include "engine/text/prompter.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "server/api/adapters.h"
#include "server/api/token_masks.h"

namespace celer::server {
namespace {

Refusal CheckIds(const std::vector<int32_t>& ids, const ServedModel& model, const char* param) {
  for (const int32_t id : ids)
    if (id < 0 || id >= model.info.vocab)
      return ApiError{.message = std::string(param) + " names token " + std::to_string(id) +
                                 ", but the model has " + std::to_string(model.info.vocab) + " tokens",
                      .param = param};
  return {};
}

Refusal TokenizeChat(const ServedModel& model, Query& query, const Json& before, Prepared* out) {
  if (!model.prompter.has_chat_template())
    return ApiError{.message =
                        "the model has no chat template; use /v1/completions, or give one with "
                        "--chat-template FILE"};
  if (auto refusal = ReadConversation(query, before, &out->conversation)) return refusal;
  if (auto refusal = ReadToolChoice(query, out->conversation.tools, &out->tool_choice)) return refusal;
  // The prompt lists only the allowed tools: nothing else keeps the model from calling the others.
  if (const auto& only = out->tool_choice.only; !only.empty()) {
    Json tools = Json::array();
    for (Json& tool : out->conversation.tools)
      if (std::any_of(only.begin(), only.end(),
                      [&](const std::string& name) { return tool["function"]["name"] == name; }))
        tools.push_back(std::move(tool));
    out->conversation.tools = std::move(tools);
  }
  const bool with_tools = out->tool_choice.kind != ToolChoice::Kind::kNone;
  if (with_tools && model.tool_style == ToolStyle::kNone)
    return ApiError{.message = "the model's chat template has no tools",
                    .param = "tools",
                    .code = "unsupported_parameter"};
  if (query.template_variables.is_object() && query.template_variables.contains("reasoning_effort") &&
      model.chat_template.find("reasoning_effort") == std::string::npos)
    return ApiError{
        .message = "'reasoning_effort' is not supported: the model's chat template has no such variable",
        .param = "reasoning_effort",
        .code = "unsupported_parameter"};
  ChatJson chat{.messages = out->conversation.messages,
                .tools = with_tools ? out->conversation.tools : Json(),
                .variables = query.template_variables,
                .add_generation_prompt = query.add_generation_prompt,
                .continue_final_message = out->conversation.continues};
  auto tokens = EncodeChat(model.prompter, std::move(chat));
  if (!tokens) return FromError(tokens.error(), query.endpoint == kResponses ? "input" : "messages");
  out->requests.emplace_back().prompt = std::move(*tokens);
  return {};
}

// Whether the prompt ends with the tag that begins thoughts.
bool EndsInThought(const ServedModel& model, const std::vector<int32_t>& prompt) {
  if (!model.reasoning() || model.thoughts->begin.empty()) return false;
  const size_t tail = std::min<size_t>(prompt.size(), 8);
  std::string text = model.prompter.Decode({prompt.data() + prompt.size() - tail, tail}, false);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.ends_with(model.thoughts->begin);
}

// The token mask of structured output and forced tool calls.
Refusal MakeMask(const ServedModel& model, const Query& query, const Prepared& prepared,
                 std::shared_ptr<const TokenMask>* mask) {
  using Kind = ToolChoice::Kind;
  const bool after_thought =
      query.endpoint != kCompletions && model.reasoning() && prepared.parts.starts_in_reasoning;
  const ToolChoice& choice = prepared.tool_choice;
  const bool must_call = choice.kind == Kind::kRequired || choice.kind == Kind::kNamed;
  if (must_call && query.constraint.kind != Constraint::Kind::kNone)
    return ApiError{.message = "tool_choice forces a call, which cannot be combined with a response format",
                    .param = "tool_choice"};
  std::shared_ptr<const TokenMask> form;
  Refusal refusal = must_call
                        ? model.grammars->MakeToolMask(choice, prepared.conversation.tools, model.tool_style,
                                                       choice.parallel, after_thought, &form)
                        : model.grammars->MakeMask(query.constraint, after_thought, &form);
  if (refusal) return refusal;
  std::shared_ptr<const TokenMask> words;
  if (!query.bad_words.empty())
    words = MakeBadWordsMask(GetTokenizer(model.prompter), query.bad_words, model.info.vocab);
  *mask = IntersectMasks(std::move(form), std::move(words));
  return {};
}

// The options of the tool-call parser.
void SetCalls(const ToolChoice& choice, const Json& tools, PartsOptions* parts) {
  using Kind = ToolChoice::Kind;
  parts->parallel = choice.parallel;
  parts->must_call = choice.kind == Kind::kRequired || choice.kind == Kind::kNamed;
  if (choice.kind == Kind::kNamed) parts->only_tool = choice.name;
  if (choice.kind == Kind::kRequired && tools.size() == 1)
    parts->only_tool = tools[0]["function"]["name"].get<std::string>();
}

// The control tokens that the tags of an answer's syntax are made of.
std::vector<int32_t> ControlTags(const Tokenizer& tokenizer, ToolStyle style, const ThoughtSyntax* thoughts) {
  const ToolSyntax& tools = SyntaxOf(style);
  std::vector<std::string_view> tags = {tools.begin, tools.end, tools.dropped[0], tools.dropped[1],
                                        tools.required_begin};
  if (thoughts)
    tags.insert(tags.end(), {thoughts->begin, thoughts->end, thoughts->dropped[0], thoughts->mark});
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    const std::string_view piece = tokenizer.Piece(id);
    if (piece.size() > 1 && std::any_of(tags.begin(), tags.end(), [&](std::string_view tag) {
          return tag.find(piece) != std::string_view::npos;
        }))
      ids.push_back(id);
  }
  return ids;
}

Refusal CheckLengths(const ServedModel& model, const Query& query, Request* request) {
  const auto context = model.info.context;
  const auto prompt = static_cast<int64_t>(request->prompt.size());
  const char* param = query.endpoint == kCompletions ? "prompt"
                      : query.endpoint == kResponses ? "input"
                                                     : "messages";
  if (prompt == 0) return ApiError{.message = "the prompt has no tokens", .param = param};
  if (prompt >= context)
    return ApiError{.message = "the prompt has " + std::to_string(prompt) + " tokens, and the context of " +
                               std::to_string(context) + " tokens has room for " +
                               std::to_string(context - 1) + " and an answer",
                    .param = param,
                    .code = "context_length_exceeded"};
  const int64_t left = context - prompt;
  if (query.max_tokens.value_or(0) > left)
    return ApiError{.message = "the prompt has " + std::to_string(prompt) +
                               " tokens and the answer may have " + std::to_string(*query.max_tokens) +
                               ", but the context holds " + std::to_string(context),
                    .param = query.max_tokens_param,
                    .code = "context_length_exceeded"};
  const int64_t if_missing = query.endpoint == kCompletions ? std::min<int64_t>(16, left) : left;
  request->max_tokens = std::max<int64_t>(1, query.max_tokens.value_or(if_missing));
  if (request->min_tokens > request->max_tokens)
    return ApiError{.message = "min_tokens is " + std::to_string(request->min_tokens) +
                               ", but the answer may have " + std::to_string(request->max_tokens) + " tokens",
                    .param = "min_tokens"};
  return {};
}

// truncate_prompt_tokens: keeps the last tokens; `room`: as many as fit.
void Truncate(const Query& query, int64_t room, std::vector<int32_t>* prompt) {
  if (query.truncate_prompt == 0) return;
  const int64_t keep = std::max<int64_t>(1, query.truncate_prompt < 0 ? room : query.truncate_prompt);
  if (std::ssize(*prompt) > keep) prompt->erase(prompt->begin(), prompt->end() - keep);
}

}  // namespace

bool ServedModel::Answers(std::string_view asked_name) const {
  return asked_name.empty() || asked_name == name ||
         std::find(aliases.begin(), aliases.end(), asked_name) != aliases.end();
}

Result<ServedModel> MakeServedModel(std::string name, const Prompter& prompter, const Engine::Info& info,
                                    const std::string& chat_template) {
  ServedModel model{
      .name = std::move(name), .aliases = {}, .prompter = prompter, .info = info, .chat_template = {}};
  if (prompter.has_chat_template()) {
    model.chat_template = GetTokenizer(prompter).chat_template();
    if (!chat_template.empty()) {
      CELER_ASSIGN(model.chat_template, ReadTextFile(chat_template, size_t{4} << 20));
    }
  }
  model.tool_style = ToolStyleOf(model.chat_template);
  model.thoughts = ThoughtsOf(model.chat_template);
  const std::vector<int32_t> tags = ControlTags(GetTokenizer(prompter), model.tool_style, model.thoughts);
  model.control_tags = !tags.empty();
  model.grammars = std::make_shared<Grammars>(prompter, tags, model.thoughts ? model.thoughts->end : "");
  return model;
}

SamplingParams DefaultSampling(const ServedModel& model) {
  if (model.model_defaults) return model.prompter.default_sampling();
  SamplingParams sampling;
  sampling.temperature = 1;
  return sampling;
}

Refusal CheckModel(const ServedModel& model, const Query& query) {
  if (model.Answers(query.model) || FindAdapter(model, query.model)) return {};
  return ApiError{.status = 404,
                  .message = "the model '" + Printable(query.model, 100) + "' is not served here; '" +
                             model.name + "' is",
                  .param = "model",
                  .code = "model_not_found"};
}

Refusal Tokenize(const ServedModel& model, Query& query, const Json& before, Prepared* out) {
  const bool text = query.endpoint == kCompletions || query.endpoint == kEmbeddings ||
                    (query.endpoint == kTokenize && query.messages.is_null());
  if (text) {
    const char* const param = query.endpoint == kEmbeddings ? "input" : "prompt";
    if (query.prompts.empty())
      return ApiError{.message = std::string(param) + " is missing, expected a string or token ids",
                      .param = param};
    for (PromptInput& input : query.prompts) {
      Request& request = out->requests.emplace_back();
      if (input.is_text) {
        request.prompt = GetTokenizer(model.prompter)
                             .Encode(input.text, {.add_special = query.add_special_tokens.value_or(true),
                                                  .parse_special = true});
        // A line of a batch may have an empty prompt, as in celer run.
        if (request.prompt.empty() && query.in_batch && model.prompter.bos())
          request.prompt = {*model.prompter.bos()};
      } else {
        if (auto refusal = CheckIds(input.ids, model, param)) return refusal;
        request.prompt = std::move(input.ids);
      }
      if (query.echo)
        out->prompt_texts.push_back(input.is_text ? input.text : model.prompter.Decode(request.prompt));
    }
    return {};
  }
  return TokenizeChat(model, query, before, out);
}

Refusal Prepare(const ServedModel& model, const Json& before, Query& query, Prepared* out) {
  Request& common = query.request;
  out->model_name = model.name;
  if (auto refusal = ChooseAdapters(model, query, out)) return refusal;
  if (query.top_logprobs > 0 && query.endpoint == kChat && !query.logprobs)
    return ApiError{.message = "top_logprobs needs logprobs: true", .param = "top_logprobs"};
  if (query.logprobs || (query.endpoint == kResponses && query.top_logprobs > 0))
    common.sampling.logprobs = query.top_logprobs;
  if (common.best_of != 0 && common.best_of < common.n)
    return ApiError{.message = "best_of is " + std::to_string(common.best_of) +
                               ", expected at least n, which is " + std::to_string(common.n),
                    .param = "best_of"};
  if (common.best_of > common.n && query.stream)
    return ApiError{
        .message = "best_of above n cannot be streamed: which answers are best is known at the end",
        .param = "best_of"};
  if (query.beam || common.beam.width > 0) {
    const char* const param = query.beam ? "use_beam_search" : "beam_width";
    if (query.stream)
      return ApiError{.message = "beam search cannot be streamed: its texts are known at the end",
                      .param = param};
    if (common.beam.width == 0) {
      common.beam.width = std::max(common.n, common.best_of);
      common.best_of = 0;
    }
    if (common.n > common.beam.width)
      return ApiError{.message = "n is " + std::to_string(common.n) + ", but there are " +
                                 std::to_string(common.beam.width) + " beams",
                      .param = "n"};
  }
  if (query.max_tokens == 0) {
    if (!query.echo)
      return ApiError{.message = "max_tokens is 0, expected a whole number from 1 on", .param = "max_tokens"};
    out->drop_answer = true;
  }
  if (query.echo && query.stream && common.sampling.logprobs >= 0)
    return ApiError{.message = "echo with logprobs cannot be streamed", .param = "echo"};
  if (query.echo && common.sampling.logprobs >= 0)
    common.prompt_logprobs = std::max(common.prompt_logprobs, common.sampling.logprobs);
  if (query.stream && common.prompt_logprobs >= 0)
    return ApiError{.message = "prompt_logprobs cannot be streamed", .param = "prompt_logprobs"};
  if (query.endpoint == kMessages && !query.max_tokens)
    return ApiError{.message = "max_tokens is missing, expected a whole number", .param = "max_tokens"};
  if (auto refusal = CheckIds(query.stop_token_ids, model, "stop_token_ids")) return refusal;
  if (auto refusal = CheckIds(common.sampling.allowed_tokens, model, "allowed_token_ids")) return refusal;
  if (const auto valid = Validate(common.sampling, model.info.vocab); !valid) return FromError(valid.error());
  if (auto refusal = Tokenize(model, query, before, out)) return refusal;
  constexpr int kMaxAnswers = 1024;
  const size_t answers = out->requests.size() * static_cast<size_t>(std::max(common.n, common.best_of));
  if (answers > kMaxAnswers)
    return ApiError{.message = std::to_string(answers) + " answers are requested at once, at most " +
                               std::to_string(kMaxAnswers) + " are given",
                    .param = "n"};

  common.sampling.seed = query.seed ? *query.seed : std::random_device{}();
  common.stop_tokens = query.stop_token_ids;
  if (!query.ignore_eos)
    common.stop_tokens.insert(common.stop_tokens.end(), model.prompter.end_tokens().begin(),
                              model.prompter.end_tokens().end());
  if (query.endpoint != kCompletions) {
    out->parts.tools = out->tool_choice.kind == ToolChoice::Kind::kNone ? ToolStyle::kNone : model.tool_style;
    out->parts.reasoning = model.reasoning() && query.separate_reasoning;
    out->parts.starts_in_reasoning = EndsInThought(model, out->requests[0].prompt);
    SetCalls(out->tool_choice, out->conversation.tools, &out->parts);
    out->parts.thoughts = model.thoughts;
    out->parts.definitions = std::make_shared<const Json>(out->conversation.tools);
    const bool parsed = out->parts.tools != ToolStyle::kNone || out->parts.reasoning ||
                        (model.thoughts && model.thoughts->channels);
    if (model.control_tags && parsed) query.skip_special = false;
  }
  if (auto refusal = MakeMask(model, query, *out, &common.mask)) return refusal;
  for (Request& request : out->requests) {
    std::vector<int32_t> prompt = std::move(request.prompt);
    Truncate(query, model.info.context - std::max<int64_t>(1, query.max_tokens.value_or(1)), &prompt);
    request = common;
    request.prompt = std::move(prompt);
    if (auto refusal = CheckLengths(model, query, &request)) return refusal;
  }
  return {};
}

Refusal PrepareEmbeddings(const ServedModel& model, Query& query, Prepared* out) {
  if (!model.pooling.problem.empty())
    return ApiError{.message = model.pooling.problem, .code = "unsupported_endpoint"};
  if (query.dimensions > model.info.shape.hidden)
    return ApiError{.message = "dimensions is " + std::to_string(query.dimensions) +
                               ", but the model's embeddings have " +
                               std::to_string(model.info.shape.hidden) + " numbers",
                    .param = "dimensions"};
  out->model_name = model.name;
  if (auto refusal = ChooseAdapters(model, query, out)) return refusal;
  if (auto refusal = Tokenize(model, query, nullptr, out)) return refusal;
  query.request.pooling = model.pooling.pooling;
  for (Request& request : out->requests) {
    std::vector<int32_t> prompt = std::move(request.prompt);
    Truncate(query, model.info.context, &prompt);
    if (prompt.empty())
      return ApiError{.message = "an input has no tokens, so that there is nothing to embed",
                      .param = "input"};
    if (std::ssize(prompt) > model.info.context)
      return ApiError{.message = "an input has " + std::to_string(prompt.size()) +
                                 " tokens, and the context holds " + std::to_string(model.info.context),
                      .param = "input",
                      .code = "context_length_exceeded"};
    request = query.request;
    request.prompt = std::move(prompt);
  }
  return {};
}

}  // namespace celer::server
