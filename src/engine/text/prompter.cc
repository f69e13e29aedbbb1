#include "engine/text/prompter.h"

#include <filesystem>
#include <set>

#include "base/log.h"
#include "io/json/json.h"
#include "text/tokenizer/load_tokenizer.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// Greedy unless the file has do_sample.
Result<SamplingParams> SamplingFromJson(const JsonFields& json) {
  SamplingParams p;
  CELER_ASSIGN(const bool sample, json.GetBool("do_sample", false));
  CELER_ASSIGN(const double temperature, json.GetDouble("temperature", 1.0));
  CELER_ASSIGN(const double top_p, json.GetDouble("top_p", 1.0));
  CELER_ASSIGN(const double min_p, json.GetDouble("min_p", 0.0));
  CELER_ASSIGN(const double typical_p, json.GetDouble("typical_p", 1.0));
  CELER_ASSIGN(const double repetition, json.GetDouble("repetition_penalty", 1.0));
  CELER_ASSIGN(const int64_t top_k, json.GetInt("top_k", 0, int64_t{1} << 30, 0));
  p.repetition_penalty = static_cast<float>(repetition);
  if (!sample) return p;
  p.temperature = static_cast<float>(temperature);
  p.top_p = static_cast<float>(top_p);
  p.min_p = static_cast<float>(min_p);
  p.typical_p = static_cast<float>(typical_p);
  p.top_k = static_cast<int>(top_k);
  return p;
}

// Sampling defaults and end tokens of generation_config.json.
Status ReadGenerationConfig(const fs::path& file, Prompter::Impl* state, std::set<int32_t>* ends) {
  const int64_t vocab = state->tokenizer->vocab_size();
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(file));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, file.string()));
  CELER_ASSIGN(state->sampling, SamplingFromJson(fields));
  auto valid = Validate(state->sampling, vocab);
  if (!valid) return valid.error().WithContext(file.string());
  if (fields.Has("eos_token_id")) {
    CELER_ASSIGN(const std::vector<int64_t> ids, fields.GetInts("eos_token_id"));
    for (const int64_t id : ids)
      if (id >= 0 && id < vocab) ends->insert(static_cast<int32_t>(id));
  }
  state->defaults_from = file.string();
  return {};
}

Status LoadTemplate(const std::string& file, Prompter::Impl* state) {
  std::string source = state->tokenizer->chat_template();
  if (!file.empty()) {
    CELER_ASSIGN(source, ReadTextFile(file, size_t{4} << 20));
  }
  if (source.empty()) return {};
  auto compiled = ChatTemplate::Compile(source);
  if (!compiled && !file.empty()) return compiled.error().WithContext(file);
  if (!compiled) {
    log::WarningOnce("the model's chat template is left out: {}", compiled.error().message());
    return {};
  }
  state->chat_template = std::move(*compiled);
  state->special.emplace(*state->tokenizer, source);
  return {};
}

// Where the normalizer can make a control token of other characters, hiding what spells one is not enough.
Status CheckNormalized(const Json& value, const Tokenizer& tokenizer) {
  const auto check = [&](const std::string& text) -> Status {
    const auto ids = [&](bool special) {
      return tokenizer.Encode(text, {.add_special = false, .parse_special = special});
    };
    if (ids(true) == ids(false)) return {};
    return Error::Invalid("the conversation has a control token in it, written with other characters");
  };
  if (value.is_string()) return check(value.get_ref<const std::string&>());
  if (!value.is_structured()) return {};
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) CELER_RETURN_IF_ERROR(check(key));
    CELER_RETURN_IF_ERROR(CheckNormalized(item, tokenizer));
  }
  return {};
}

Result<Json> ParseJson(std::string_view text, const char* what) {
  if (text.empty()) return Json(nullptr);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error::Invalid("the ", what, " are not valid JSON");
  return json;
}

// Sentinel behind a message that is to be continued: a noncharacter, which no mark of SpecialHider is, and a
// blank, which shows whether the template trims its input.
constexpr std::string_view kContinueTag = "\U0010FFFE ";

// The text up to the tag, as transformers' continue_final_message has it.
Result<std::string> CutAtContinueTag(std::string text) {
  const size_t at = text.rfind(kContinueTag.substr(0, kContinueTag.size() - 1));
  if (at == std::string::npos)
    return Error::Invalid("the chat template does not show the last message, so it cannot be continued");
  const bool trims = !std::string_view(text).substr(at).starts_with(kContinueTag);
  text.resize(at);
  if (trims) text.resize(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

}  // namespace

Result<Prompter> Prompter::Load(const PrompterOptions& options) {
  const fs::path path = options.model;
  auto state = std::make_shared<Impl>();
  CELER_ASSIGN(state->tokenizer,
               LoadTokenizer(options.tokenizer.empty() ? path : fs::path(options.tokenizer)));
  const Tokenizer& tokenizer = *state->tokenizer;
  CELER_RETURN_IF_ERROR(LoadTemplate(options.chat_template, state.get()));

  std::set<int32_t> ends(tokenizer.end_of_turn_ids().begin(), tokenizer.end_of_turn_ids().end());
  state->defaults_from = "celer's own (greedy)";
  state->model = options.model;
  if (const fs::path file = path / "generation_config.json"; fs::is_directory(path) && fs::exists(file))
    CELER_RETURN_IF_ERROR(ReadGenerationConfig(file, state.get(), &ends));
  state->end_tokens.assign(ends.begin(), ends.end());
  log::Info("sampling defaults from {}: temperature {}, top-k {}, top-p {}", state->defaults_from,
            state->sampling.temperature, state->sampling.top_k, state->sampling.top_p);
  return Prompter(std::move(state));
}

Status Prompter::CheckFits(const Engine::Info& info) const {
  const int tokens = impl_->tokenizer->vocab_size();
  if (tokens <= info.vocab) return {};
  return Error::Invalid(impl_->model, ": the tokenizer has ", tokens, " tokens and the model ", info.vocab,
                        "; is the tokenizer another model's?");
}

std::vector<int32_t> Prompter::EncodeText(std::string_view text) const {
  return impl_->tokenizer->Encode(text, {.add_special = true, .parse_special = true});
}

Result<std::vector<int32_t>> EncodeChat(const Prompter& prompter, ChatJson chat) {
  const Prompter::Impl& state = prompter.impl();
  if (!state.chat_template) return Error::Invalid("the model has no chat template");
  const Tokenizer& tokenizer = *state.tokenizer;
  SpecialHider hider(*state.special);
  CELER_RETURN_IF_ERROR(hider.HideMessages(&chat.messages));
  CELER_RETURN_IF_ERROR(hider.Hide(&chat.tools));
  // Its names are the template's variables.
  if (chat.variables.is_object())
    for (Json& value : chat.variables) CELER_RETURN_IF_ERROR(hider.Hide(&value));
  if (tokenizer.NormalizesToSpecial()) {
    CELER_RETURN_IF_ERROR(CheckNormalized(chat.messages, tokenizer));
    CELER_RETURN_IF_ERROR(CheckNormalized(chat.tools, tokenizer));
    CELER_RETURN_IF_ERROR(CheckNormalized(chat.variables, tokenizer));
  }
  const bool continues = chat.continue_final_message && !chat.messages.empty();
  if (continues) {
    Json& content = chat.messages.back()["content"];
    if (!content.is_string()) return Error::Invalid("the last message has no text that could be continued");
    content.get_ref<std::string&>() += kContinueTag;
  }
  ChatTemplate::Options options;
  options.add_generation_prompt = chat.add_generation_prompt && !continues;
  options.extra = std::move(chat.variables);
  options.fit_reasoning = true;  // clients send reasoning_content, whatever field name the template reads
  if (const auto bos = tokenizer.bos_id()) options.bos_token = tokenizer.Piece(*bos);
  if (const auto eos = tokenizer.eos_id()) options.eos_token = tokenizer.Piece(*eos);
  CELER_ASSIGN(std::string text, state.chat_template->Render(chat.messages, chat.tools, options));
  if (continues) {
    CELER_ASSIGN(text, CutAtContinueTag(std::move(text)));
  }
  const SpecialHider::Revealed prompt = hider.Reveal(text);
  // The template writes its own BOS, so none is added.
  return tokenizer.Encode(prompt.text, {.add_special = false, .parse_special = true, .plain = prompt.plain});
}

Result<std::vector<int32_t>> Prompter::EncodeChat(std::span<const ChatMessage> messages,
                                                  const ChatOptions& options) const {
  ChatJson chat{.messages = Json::array(), .add_generation_prompt = options.add_generation_prompt};
  for (const ChatMessage& message : messages)
    chat.messages.push_back({{"role", message.role}, {"content", message.content}});
  CELER_ASSIGN(chat.tools, ParseJson(options.tools, "tools"));
  CELER_ASSIGN(chat.variables, ParseJson(options.variables, "template's variables"));
  return celer::EncodeChat(*this, std::move(chat));
}

Result<std::vector<int32_t>> Prompter::EncodeChatJson(std::string_view messages,
                                                      const ChatOptions& options) const {
  ChatJson chat{.add_generation_prompt = options.add_generation_prompt};
  CELER_ASSIGN(chat.messages, ParseJson(messages, "messages"));
  CELER_ASSIGN(chat.tools, ParseJson(options.tools, "tools"));
  CELER_ASSIGN(chat.variables, ParseJson(options.variables, "template's variables"));
  return celer::EncodeChat(*this, std::move(chat));
}

std::string Prompter::Decode(std::span<const int32_t> tokens, bool skip_special) const {
  return impl_->tokenizer->Decode(tokens, skip_special);
}
bool Prompter::has_chat_template() const {
  return impl_->chat_template.has_value();
}
const SamplingParams& Prompter::default_sampling() const {
  return impl_->sampling;
}
const std::string& Prompter::defaults_from() const {
  return impl_->defaults_from;
}
const std::vector<int32_t>& Prompter::end_tokens() const {
  return impl_->end_tokens;
}
std::optional<int32_t> Prompter::bos() const {
  return impl_->tokenizer->bos_id();
}

}  // namespace celer
