#include "engine/text/text_model.h"

#include <chrono>

#include "base/check.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Result<Prompter> LoadPrompter(const TextModelOptions& options) {
  return Prompter::Load({.model = options.engine.model,
                         .tokenizer = options.tokenizer,
                         .chat_template = options.chat_template});
}

Result<TextModel> TextModel::Load(const TextModelOptions& options) {
  CELER_ASSIGN(Prompter prompter, LoadPrompter(options));
  CELER_ASSIGN(auto engine, Engine::Load(options.engine));
  CELER_RETURN_IF_ERROR(prompter.CheckFits(engine->info()));
  return TextModel{std::move(engine), std::move(prompter)};
}

Result<TextResult> Generate(TextModel& model, const TextRequest& request,
                            const std::function<bool(std::string_view)>& on_text,
                            const std::function<bool()>& go_on) {
  Engine& engine = *model.engine;
  CELER_CHECK(!engine.HasWork());
  TextResult result;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  Request engine_request{
      .prompt = request.prompt, .sampling = request.sampling, .max_tokens = request.max_tokens};
  if (!request.ignore_end) engine_request.stop_tokens = model.prompter.end_tokens();
  const auto start = Clock::now();
  CELER_ASSIGN(const int64_t id, engine.Submit(std::move(engine_request)));

  TextStream stream(model.prompter, request.stop);
  Clock::time_point first = start;
  bool wanted = true;
  const EngineStats before = engine.stats();
  while (engine.HasWork()) {
    if (wanted && go_on && !go_on()) {
      wanted = false;
      if (stream.finish() == FinishReason::kNone) result.finish = FinishReason::kCancelled;
      engine.Cancel(id);
    }
    result.steps += result.tokens.empty() ? 0 : 1;
    for (TokenEvent& event : engine.Step()) {
      CELER_CHECK_EQ(event.request, id);
      result.reused_tokens += event.cached_tokens;
      if (!wanted || stream.finish() != FinishReason::kNone) continue;  // the event of the cancellation
      TextDelta delta = stream.Push(std::move(event));
      result.finish = delta.finish;
      if (delta.finish == FinishReason::kError && !engine.fault()) return Error::NotFinite(delta.error);
      if (delta.token) {
        if (result.tokens.empty()) {
          result.prefill_seconds = SecondsSince(start);
          first = Clock::now();
        }
        result.tokens.push_back(*std::move(delta.token));
      }
      result.text += delta.text;
      wanted = delta.text.empty() || on_text(delta.text);
      if (!wanted && result.finish == FinishReason::kNone) result.finish = FinishReason::kCancelled;
      if (stream.wants_cancel() || result.finish == FinishReason::kCancelled) engine.Cancel(id);
    }
    if (engine.fault()) return *engine.fault();
  }
  result.decode_seconds = SecondsSince(first);
  const EngineStats after = engine.stats();
  result.drafted_tokens = after.drafted_tokens - before.drafted_tokens;
  result.accepted_tokens = after.accepted_tokens - before.accepted_tokens;
  return result;
}

}  // namespace celer
