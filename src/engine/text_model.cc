#include "engine/text_model.h"

#include <algorithm>
#include <set>

#include "core/log.h"
#include "core/utf8.h"
#include "engine/stop_matcher.h"
#include "io/json.h"
#include "text/load_tokenizer.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Supplementary private-use code points, which no template and no sane text contains: one per special string.
constexpr char32_t kFirstMark = 0x10F000;
constexpr size_t kMarks = 0xF00;

std::string Mark(size_t index) {
  std::string out;
  utf8::Append(kFirstMark + static_cast<char32_t>(index), out);
  return out;
}
// The index of the mark that begins at text[at], if one does.
std::optional<size_t> MarkAt(std::string_view text, size_t at, size_t marks) {
  for (size_t i = 0; at + 4 <= text.size() && static_cast<unsigned char>(text[at]) == 0xF4 && i < marks; ++i)
    if (text.substr(at, 4) == Mark(i)) return i;
  return std::nullopt;
}

void ReplaceAll(std::string* text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size())
    text->replace(at, from.size(), to);
}

// Every string inside a message may come from somebody who wants to forge a turn: hide special-token strings
// in them.
void HideSpecial(nlohmann::ordered_json* value, std::span<const std::string> special, int depth = 0) {
  if (depth > 64) return;
  if (value->is_string()) {
    auto& text = value->get_ref<std::string&>();
    for (size_t i = 0; i < special.size(); ++i)
      if (text.find(special[i]) != std::string::npos) ReplaceAll(&text, special[i], Mark(i));
  } else if (value->is_structured()) {
    for (auto& [key, item] : value->items())
      if (key != "role") HideSpecial(&item, special, depth + 1);
  }
}

// temperature 0 unless the file says that the model is meant to be sampled.
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

}  // namespace

Result<TextModel> TextModel::Load(const TextModelOptions& options) {
  namespace fs = std::filesystem;
  const fs::path path = options.engine.model;
  TextModel model;
  CELER_ASSIGN(model.tokenizer_,
               LoadTokenizer(options.tokenizer.empty() ? path : fs::path(options.tokenizer)));
  CELER_ASSIGN(model.engine_, Engine::Load(options.engine));
  const Tokenizer& tokenizer = *model.tokenizer_;
  const int64_t vocab = model.engine_->info().vocab;
  if (tokenizer.vocab_size() > vocab)
    return Error::Invalid(path.string(), ": the tokenizer has ", tokenizer.vocab_size(),
                          " tokens and the model ", vocab, "; is the tokenizer another model's?");

  std::string source = tokenizer.chat_template();
  if (!options.chat_template.empty()) {
    CELER_ASSIGN(source, ReadTextFile(options.chat_template, size_t{4} << 20));
  }
  if (!source.empty()) {
    auto compiled = ChatTemplate::Compile(source);
    if (!compiled && !options.chat_template.empty())
      return compiled.error().WithContext(options.chat_template);
    if (!compiled)
      log::Warning("the model's chat template is left out: {}", compiled.error().message());
    else
      model.template_ = std::move(*compiled);
  }

  std::set<int32_t> ends(tokenizer.end_of_turn_ids().begin(), tokenizer.end_of_turn_ids().end());
  model.defaults_from_ = "celer's own (greedy)";
  if (const fs::path file = path / "generation_config.json"; fs::is_directory(path) && fs::exists(file)) {
    CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(file));
    CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, file.string()));
    CELER_ASSIGN(model.sampling_, SamplingFromJson(fields));
    auto valid = Validate(model.sampling_, vocab);
    if (!valid) return valid.error().WithContext(file.string());
    if (fields.Has("eos_token_id")) {
      CELER_ASSIGN(const std::vector<int64_t> ids, fields.GetInts("eos_token_id"));
      for (const int64_t id : ids)
        if (id >= 0 && id < vocab) ends.insert(static_cast<int32_t>(id));
    }
    model.defaults_from_ = file.string();
  }
  model.end_tokens_.assign(ends.begin(), ends.end());

  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.IsSpecial(id) && !tokenizer.Piece(id).empty() && model.special_strings_.size() < kMarks)
      model.special_strings_.emplace_back(tokenizer.Piece(id));
  std::sort(model.special_strings_.begin(), model.special_strings_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  log::Info("sampling defaults from {}: temperature {}, top-k {}, top-p {}", model.defaults_from_,
            model.sampling_.temperature, model.sampling_.top_k, model.sampling_.top_p);
  return model;
}

std::vector<int32_t> TextModel::EncodeText(std::string_view text) const {
  return tokenizer_->Encode(text, {.add_special = true, .parse_special = true});
}

Result<std::vector<int32_t>> TextModel::EncodeChat(const nlohmann::ordered_json& messages,
                                                   const nlohmann::ordered_json& tools,
                                                   bool add_generation_prompt) const {
  if (!template_)
    return Error::Invalid(
        "the model has no chat template; give one with --chat-template FILE, or use `celer run --raw`");
  nlohmann::ordered_json safe = messages, safe_tools = tools;
  HideSpecial(&safe, special_strings_);
  HideSpecial(&safe_tools, special_strings_);
  ChatTemplate::Options options;
  options.add_generation_prompt = add_generation_prompt;
  if (const auto bos = tokenizer_->bos_id()) options.bos_token = tokenizer_->Piece(*bos);
  if (const auto eos = tokenizer_->eos_id()) options.eos_token = tokenizer_->Piece(*eos);
  CELER_ASSIGN(const std::string text, template_->Render(safe, safe_tools, options));

  // The template writes its own BOS, so none is added; marks are the special strings of untrusted text.
  std::vector<int32_t> ids;
  const auto append = [&](std::string_view part, bool special) {
    const auto more = tokenizer_->Encode(part, {.add_special = false, .parse_special = special});
    ids.insert(ids.end(), more.begin(), more.end());
  };
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto mark = MarkAt(text, at, special_strings_.size());
    if (!mark) {
      ++at;
      continue;
    }
    if (at > begin) append(std::string_view(text).substr(begin, at - begin), true);
    append(special_strings_[*mark], false);
    begin = at += 4;
  }
  if (begin < text.size()) append(std::string_view(text).substr(begin), true);
  return ids;
}

Result<TextResult> TextModel::Generate(const TextRequest& request,
                                       const std::function<bool(std::string_view)>& on_text) {
  TextResult result;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  Request engine_request{.prompt = request.prompt,
                         .sampling = request.sampling,
                         .max_tokens = request.max_tokens,
                         .keep = request.keep,
                         .continue_from = request.continue_from};
  if (!request.ignore_end) engine_request.stop_tokens = end_tokens_;
  const auto start = Clock::now();
  CELER_ASSIGN(result.request, engine_->Submit(std::move(engine_request)));
  result.reused_tokens = engine_->ReusedTokens(result.request);

  Detokenizer detokenizer(*tokenizer_);
  StopMatcher stops(request.stop);
  const auto show = [&](const std::string& text) {
    result.text += text;
    return text.empty() || on_text(text);
  };
  bool wanted = true;
  Clock::time_point first = start;
  while (engine_->HasWork() && result.finish == FinishReason::kNone) {
    for (TokenEvent& event : engine_->Step()) {
      if (event.request != result.request) continue;
      result.finish = event.finish;
      if (event.finish == FinishReason::kCancelled) break;
      if (result.tokens.empty()) {
        result.prefill_seconds = SecondsSince(start);
        first = Clock::now();
      }
      const bool end = event.finish == FinishReason::kStop;
      const int32_t token = event.token;
      result.tokens.push_back(std::move(event));
      if (end) break;
      wanted = show(stops.Push(detokenizer.Push(token)));
      if (stops.stopped() && result.finish == FinishReason::kNone) {
        engine_->Cancel(result.request);
        engine_->Step();  // takes the event of the cancellation
        result.finish = FinishReason::kStop;
      } else if (!wanted && result.finish == FinishReason::kNone) {
        engine_->Cancel(result.request);
        engine_->Step();
        result.finish = FinishReason::kCancelled;
      }
    }
  }
  if (engine_->fault()) return *engine_->fault();
  result.decode_seconds = SecondsSince(first);
  if (!stops.stopped() && wanted) {
    show(stops.Push(detokenizer.Finish()));
    if (!stops.stopped()) show(stops.Finish());
  }
  return result;
}

}  // namespace celer
