#include "server/service/generation.h"

#include <algorithm>
#include <ctime>

namespace celer::server {
namespace {

// As vLLM's NixlConnector has it, so that proxies and routers pass it on.
Json ToJson(const KvTransfer& transfer, const KvOffer& offer, const std::string& id) {
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"remote_engine_id", transfer.engine_id()},
          {"remote_request_id", id},
          {"remote_host", transfer.address().host},
          {"remote_port", transfer.address().port},
          {"remote_block_ids", offer.blocks},
          {"remote_num_tokens", offer.tokens},
          {"transfer_id", offer.transfer},
          {"tp_size", 1}};
}

ApiForm FormOf(const Query& query) {
  return query.endpoint == kMessages ? ApiForm::kAnthropic : ApiForm::kOpenAi;
}

}  // namespace

HttpHeaders Generation::Headers() const {
  HttpHeaders headers;
  std::string names;
  for (const std::string& name : job->ignored) names += (names.empty() ? "" : ", ") + name;
  if (!names.empty()) headers.emplace_back("X-Celer-Ignored", names);
  if (job->query.endpoint == kEmbeddings && !job->model->pooling.meant)
    headers.emplace_back("X-Celer-Warning", "the model is not made for embeddings");
  if (!ranks.empty()) headers.emplace_back("X-Data-Parallel-Rank", ranks);
  if (fetched)
    headers.emplace_back("X-Celer-KV-Transfer",
                         "fetched=" + std::to_string(fetched->tokens) +
                             (fetched->reason.empty() ? "" : "; computed=" + fetched->reason));
  return headers;
}

AnswerTextOptions TextOptionsOf(const Query& query) {
  return {.stop = query.stop,
          .include_stop = query.include_stop,
          .skip_special = query.skip_special,
          .min_tokens = query.request.min_tokens};
}

Generation::Generation(int64_t number, std::shared_ptr<Job> from, std::shared_ptr<Exchange> to)
    : id(number),
      job(std::move(from)),
      exchange(std::move(to)),
      reply{.model = *job->model, .query = job->query, .prepared = job->prepared},
      format_(MakeFormat(job->query.endpoint)),
      last_write_(Clock::now()) {
  const Query& query = job->query;
  reply.id = NewId(format_->id_prefix());
  reply.created = std::time(nullptr);
  reply.prompt_logprobs.resize(job->prepared.requests.size());
  prompt_seen_.resize(job->prepared.requests.size());
  if (query.endpoint == kEmbeddings) reply.embeddings.resize(job->prepared.requests.size());
  const int answers = static_cast<int>(job->prepared.requests.size()) * query.request.n;
  if (job->replayed) reply.answers.push_back(std::move(*job->replayed));
  for (int i = static_cast<int>(reply.answers.size()); i < answers; ++i)
    reply.answers.emplace_back(i, reply.model.prompter, TextOptionsOf(query), job->prepared.parts);
  unfinished_ = reply.answers.size();
  last_.resize(reply.answers.size());
}

bool Generation::OnEvent(size_t prompt, const TokenEvent& event) {
  if (prompt < places.size()) event.last ? places[prompt].End() : places[prompt].Begin();
  if (!prompt_seen_[prompt]) {
    prompt_seen_[prompt] = true;
    reply.cached_tokens += event.cached_tokens;
    reply.prompt_logprobs[prompt] = event.prompt;
    if (event.begun != Clock::time_point() && (begun == Clock::time_point() || event.begun < begun))
      begun = event.begun;
  }
  const auto per_prompt = static_cast<size_t>(reply.answers_per_prompt());
  const size_t index = prompt * per_prompt + static_cast<size_t>(std::max(event.answer, 0));
  if (event.answer < 0 || static_cast<size_t>(event.answer) >= per_prompt) return false;
  switch (event.finish) {
    case FinishReason::kRefused:
      Fail({.status = 400, .message = event.error, .code = "context_length_exceeded"});
      return true;
    case FinishReason::kConstraint:
      Fail({.status = 400, .message = event.error, .code = "grammar_too_complex"});
      return true;
    case FinishReason::kError:
      Fail({.status = 500, .message = event.error, .code = "not_finite"});
      return true;
    case FinishReason::kCancelled:
      // Our own cancellations never get here: the generation is destroyed with them.
      if (reply.answers[index].finish != FinishReason::kNone) break;
      Fail({.status = 503, .message = "the server is shutting down", .code = "shutting_down"});
      return true;
    case FinishReason::kDeadline:
      if (reply.answers[index].tokens == 0) {
        Fail({.status = 504, .message = "the request timed out before its first token", .code = "deadline"});
        return true;
      }
      break;
    default:
      break;
  }
  if (job->query.endpoint == kEmbeddings && event.finish == FinishReason::kStop) {
    std::vector<float> values = event.embedding;
    if (!NormaliseEmbedding(&values, job->query.dimensions)) {
      Fail({.status = 500,
            .message = "the hidden states of input " + std::to_string(prompt) + " have no length",
            .code = "not_finite"});
      return true;
    }
    reply.embeddings[prompt] = EmbeddingText(values, job->query.encoding);
    embedded = Clock::now();
  }
  Deliver(reply.answers[index], event);
  // After the engine's last event no answer is left open.
  if (event.last)
    for (size_t i = prompt * per_prompt; i < (prompt + 1) * per_prompt; ++i)
      if (Answer& answer = reply.answers[i]; answer.finish == FinishReason::kNone)
        Deliver(answer, {.answer = static_cast<int>(i - prompt * per_prompt),
                         .finish = event.finish == FinishReason::kNone ? FinishReason::kStop : event.finish});
  // Stop strings are matched here, not in the engine, which is cancelled once all answers of a prompt are
  // complete.
  const auto first = reply.answers.begin() + static_cast<int64_t>(prompt * per_prompt);
  if (!event.last && prompt < tickets.size() &&
      std::all_of(first, first + static_cast<int64_t>(per_prompt),
                  [](const Answer& answer) { return answer.finish != FinishReason::kNone; }))
    tickets[prompt].Cancel();
  if (unfinished_ > 0) return false;
  Complete();
  return true;
}

void Generation::Deliver(Answer& answer, const TokenEvent& event) {
  if (answer.finish != FinishReason::kNone) return;
  const Query& query = job->query;
  const AnswerDelta delta = answer.Take(event, query);
  if (delta.event) {
    const auto now = Clock::now();
    if (!began()) first_token = now;
    auto& before = last_[answer.index];
    if (before != Clock::time_point()) gaps.push_back(std::chrono::duration<double>(now - before).count());
    before = last_token = now;
    if (query.request.sampling.logprobs >= 0 || query.ReportsIds()) {
      TokenEvent& kept = answer.events.emplace_back(event);
      kept.prompt.clear();
    }
  }
  if (delta.finished) --unfinished_;
  if (!query.stream) return;
  BeginStream();
  std::string frames;
  format_->Delta(reply, answer, delta, &frames);
  if (!frames.empty()) {
    exchange->Write(frames);
    last_write_ = Clock::now();
  }
}

void Generation::BeginStream() {
  if (streaming_) return;
  streaming_ = true;
  HttpResponse head{.content_type = "text/event-stream; charset=utf-8", .headers = Headers()};
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // turns off nginx's response buffering
  exchange->Begin(std::move(head));
  std::string frames;
  format_->Start(reply, &frames);
  exchange->Write(frames);
  last_write_ = Clock::now();
}

void Generation::Ping(Clock::time_point now, std::chrono::nanoseconds interval) {
  if (!job->query.stream || now - last_write_ < interval) return;
  BeginStream();
  exchange->Write(format_->Ping());
  last_write_ = now;
}

void Generation::Complete() {
  const bool stopped = reply.answers[0].finish == FinishReason::kStop;
  outcome = stopped ? "stop" : "length";
  if (transfer && *offer) reply.kv_transfer = ToJson(*transfer, **offer, reply.id);
  if (job->query.stream) {
    BeginStream();
    std::string frames;
    format_->Finish(reply, &frames);
    exchange->Write(frames);
    if (job->query.endpoint == kResponses) body = Dump(format_->Whole(reply));
    exchange->End();
    return;
  }
  body = format_->Text(reply);
  exchange->Send({.body = body, .headers = Headers()});
}

void Generation::Fail(const ApiError& error) {
  outcome = "error";
  exchange->note = error.message;
  if (!streaming_) return exchange->Send(error.ToResponse(FormOf(job->query)));
  std::string frames;
  format_->Fail(reply, error, &frames);
  exchange->Write(frames);
  exchange->End();
}

}  // namespace celer::server
