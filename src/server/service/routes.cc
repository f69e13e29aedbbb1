// The table of routes, and the handlers of the small ones.
#include "celer/version.h"
#include "engine/text/prompter.h"
#include "server/api/adapters.h"
#include "server/api/openapi.h"
#include "server/kv_events/kv_publisher.h"
#include "server/page/page.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

HttpResponse JsonResponse(const Json& json) {
  return {.body = Dump(json)};
}

}  // namespace

std::span<const Service::Route> Service::Routes() {
  static constexpr Route kRoutes[] = {
      {"GET", "/", &Service::Page, 0, true, "a page to chat on"},
      {"POST", "/v1/chat/completions", &Service::Generate, kChat, false, "an answer in a conversation"},
      {"POST", "/v1/completions", &Service::Generate, kCompletions, false, "a text goes on"},
      {"POST", "/v1/chat/completions/render", &Service::RenderRoute, kChat, false,
       "the tokens and parameters of such a request; nothing is generated"},
      {"POST", "/v1/completions/render", &Service::RenderRoute, kCompletions, false,
       "likewise, a list with one for each prompt"},
      {"POST", "/v1/responses", &Service::Generate, kResponses, false,
       "an answer that later requests can go on from"},
      {"GET", "/v1/responses/", &Service::StoredResponse, 0, false, "an answer that was kept"},
      {"DELETE", "/v1/responses/", &Service::DeleteResponse, 0, false, "forget an answer"},
      {"POST", "/v1/messages", &Service::Generate, kMessages, false, "an answer, in Anthropic's form"},
      {"POST", "/v1/messages/count_tokens", &Service::CountTokensRoute, kCountTokens, false,
       "how many tokens a conversation has, in Anthropic's form"},
      {"POST", "/v1/embeddings", &Service::Generate, kEmbeddings, false, "texts as vectors of length 1"},
      {"GET", "/v1/models", &Service::Models, 0, false, "what is served"},
      {"GET", "/v1/models/", &Service::OneModel, 0, false, "one of them"},
      {"POST", "/v1/load_lora_adapter", &Service::LoadLoraRoute, 0, false,
       "load a LoRA adapter: lora_name and lora_path; with --allow-runtime-lora"},
      {"POST", "/v1/unload_lora_adapter", &Service::UnloadLoraRoute, 0, false,
       "unload one: lora_name; with --allow-runtime-lora"},
      {"GET", "/lora-adapters", &Service::LoraScalesRoute, 0, false,
       "LoRA adapters, and their scales in requests that name none"},
      {"POST", "/lora-adapters", &Service::SetLoraScalesRoute, 0, false,
       "set those scales: [{id, scale}]; with --allow-runtime-lora"},
      {"POST", "/tokenize", &Service::TokenizeRoute, kTokenize, false, "text or a conversation to token ids"},
      {"POST", "/detokenize", &Service::DetokenizeRoute, kDetokenize, false, "token ids to text"},
      {"GET", "/health", &Service::Health, 0, true, "200 if requests are taken, else 503"},
      {"GET", "/health/live", &Service::Live, 0, true, "200 unless the device failed"},
      {"GET", "/is_sleeping", &Service::IsSleeping, 0, false, "whether the server is asleep"},
      {"POST", "/sleep", &Service::SleepRoute, 0, false,
       "give memory back: ?level=0, 1 or 2 and mode=abort or wait; with --enable-sleep-mode"},
      {"POST", "/wake_up", &Service::WakeRoute, 0, false,
       "take requests again: ?tags=weights, kv_cache, or none for all; with --enable-sleep-mode"},
      {"GET", "/metrics", &Service::MetricsRoute, 0, false, "counters for Prometheus"},
      {"GET", "/version", &Service::VersionRoute, 0, false, "celer's version"},
      {"GET", "/load", &Service::LoadRoute, 0, false, "how much there is to do"},
      {"GET", "/server_info", &Service::ServerInfo, 0, false, "how the server runs"},
      {"GET", "/get_server_info", &Service::ServerInfo, 0, false, "/server_info by its older name"},
      {"GET", "/model_info", &Service::ModelInfo, 0, false, "what the model is"},
      {"GET", "/get_model_info", &Service::ModelInfo, 0, false, "/model_info by its older name"},
      {"GET", "/tokenizer_info", &Service::TokenizerInfo, 0, false, "special tokens and the chat template"},
      {"GET", "/openapi.json", &Service::OpenApi, 0, false, "this list, for programs"},
  };
  return kRoutes;
}

// Needs no key, because a browser cannot send one when it navigates to a page; the page itself asks for the
// key.
void Service::Page(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  for (const PageFile& file : PageFiles()) {
    if (request.path != file.path) continue;
    HttpResponse response{.content_type = std::string(file.content_type)};
    response.headers = {{"ETag", std::string(file.etag)},
                        {"Cache-Control", "no-cache"},
                        {"Content-Security-Policy", std::string(kPageSecurityPolicy)},
                        {"Referrer-Policy", "no-referrer"}};
    if (request.Header("if-none-match") == file.etag)
      response.status = 304;
    else
      response.body = file.body;
    return exchange->Send(std::move(response));
  }
}

void Service::Health(const std::shared_ptr<Exchange>& exchange) {
  // During the grace period of a drain requests are accepted, but load balancers already see 503.
  const char* why = state_ == State::kDraining ? "the server is shutting down" : NotReady();
  if (why)
    return exchange->Send(
        ApiError{.status = 503, .message = why, .code = "not_ready", .retry_after = 1}.ToResponse(
            FormOf(exchange->request())));
  exchange->Send(JsonResponse({{"status", "ok"}}));
}

void Service::Live(const std::shared_ptr<Exchange>& exchange) {
  if (state_ == State::kFaulted || exit_code_ != 0)
    return exchange->Send(
        ApiError{.status = 503, .message = "the device failed"}.ToResponse(FormOf(exchange->request())));
  exchange->Send(JsonResponse({{"status", "live"}}));
}

void Service::VersionRoute(const std::shared_ptr<Exchange>& exchange) {
  exchange->Send(JsonResponse({{"version", Version()}}));
}

void Service::MetricsRoute(const std::shared_ptr<Exchange>& exchange) {
  exchange->Send({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                  .body = metrics_.Print(options_.metrics_prefix, Now())});
}

void Service::LoadRoute(const std::shared_ptr<Exchange>& exchange) {
  const EngineStats stats = replicas_ ? Sum(replicas_->stats()) : EngineStats();
  exchange->Send(JsonResponse({{"server_load", generations_.size()},
                               {"preparing", admission_.jobs()},
                               {"body_bytes", server_ ? server_->body_bytes() : 0},
                               {"waiting", admission_.waiting()},
                               {"waiting_tokens", admission_.waiting_tokens()},
                               {"running", stats.running},
                               {"kv_blocks", stats.kv_blocks},
                               {"kv_blocks_used", stats.kv_blocks_used},
                               {"in_flight", replicas_ ? replicas_->InFlight() : std::vector<int64_t>()}}));
}

void Service::ServerInfo(const std::shared_ptr<Exchange>& exchange) {
  Json json = {{"version", Version()},
               {"model_path", options_.model_path},
               {"uptime_seconds", std::chrono::duration<double>(Clock::now() - started_).count()},
               {"lenient", options_.lenient},
               {"max_queue", options_.max_queue},
               {"metrics_prefix", options_.metrics_prefix}};
  if (model_) {
    const Engine::Info& info = model_->info;
    json["served_model_name"] = model_->name;
    json["device"] = info.device;
    json["threads"] = info.threads;
    json["max_total_num_tokens"] = replicas_ ? replicas_->kv_tokens() : 0;
    json["data_parallel_size"] = metrics_.engines.size();
    json["engines"] = Json::array();
    for (int64_t rank = 0; replicas_ && rank < replicas_->size(); ++rank) {
      const Engine::Info& engine = replicas_->engine(rank).info();
      json["engines"].push_back({{"rank", rank},
                                 {"device", engine.device},
                                 {"threads", engine.threads},
                                 {"max_total_num_tokens", engine.kv_tokens}});
    }
    json["max_model_len"] = info.context;
    json["context_length"] = info.context;
    json["weight_bytes"] = info.weight_bytes;
    json["kv_bytes_per_token"] = info.kv_bytes_per_token;
    const SamplingParams sampling = DefaultSampling(*model_);
    json["default_sampling"] = {
        {"temperature", sampling.temperature},
        {"top_p", sampling.top_p},
        {"top_k", sampling.top_k},
        {"min_p", sampling.min_p},
        {"repetition_penalty", sampling.repetition_penalty},
        {"from", model_->model_defaults ? model_->prompter.defaults_from() : "OpenAI's defaults"}};
    json["embeddings"] = {{"pooling", Name(model_->pooling.pooling)},
                          {"pooling_from", model_->pooling.from},
                          {"dimensions", info.shape.hidden},
                          {"meant", model_->pooling.meant}};
    if (!model_->pooling.problem.empty()) json["embeddings"]["problem"] = model_->pooling.problem;
    if (model_->adapters)
      json["lora"] = {{"adapters", model_->adapters->List().size()},
                      {"bytes", model_->adapters->bytes()},
                      {"max_loras", model_->adapters->options().max_adapters},
                      {"max_lora_rank", model_->adapters->options().max_rank},
                      {"runtime", options_.allow_runtime_lora}};
    if (!publishers_.empty()) {
      json["kv_events"] = {{"address", publishers_[0]->publish_address()},
                           {"replay", publishers_[0]->replay_address()},
                           {"block_size", kKvBlockTokens},
                           {"ranks", Json::array()}};
      for (const KvPublisher* const one : publishers_)
        json["kv_events"]["ranks"].push_back(
            {{"address", one->publish_address()}, {"replay", one->replay_address()}});
    }
    if (machine_)
      json["machine"] = {{"read_bytes_per_s", machine_->read_bytes_per_s}, {"source", machine_->source}};
  }
  exchange->Send(JsonResponse(json));
}

void Service::ModelInfo(const std::shared_ptr<Exchange>& exchange) {
  if (const auto refusal = CheckReady(); refusal && !model_)
    return exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
  const Engine::Info& info = model_->info;
  Json formats = Json::object();
  for (const auto& [format, bytes] : info.bytes_by_format) formats[format] = bytes;
  exchange->Send(JsonResponse({{"model_path", options_.model_path},
                               {"tokenizer_path", options_.model_path},
                               {"served_model_name", model_->name},
                               {"is_generation", true},
                               {"preferred_sampling_params", nullptr},
                               {"architecture", info.architecture},
                               {"vocab_size", info.vocab},
                               {"max_model_len", info.context},
                               {"max_positions", info.max_positions},
                               {"parameters", CountParams(info.shape).total},
                               {"bytes_by_format", formats},
                               {"has_chat_template", model_->prompter.has_chat_template()},
                               {"has_tools", model_->tool_style != ToolStyle::kNone},
                               {"has_reasoning", model_->reasoning()}}));
}

// As in vLLM: clients such as lm-eval then need no tokenizer of their own.
void Service::TokenizerInfo(const std::shared_ptr<Exchange>& exchange) {
  if (const auto refusal = CheckReady(); refusal && !model_)
    return exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
  const Prompter& prompter = model_->prompter;
  const auto text = [&](std::optional<int32_t> id) {
    return id ? Json(prompter.Decode({&*id, 1}, false)) : Json();
  };
  exchange->Send(
      JsonResponse({{"bos_token", text(GetTokenizer(prompter).bos_id())},
                    {"eos_token", text(GetTokenizer(prompter).eos_id())},
                    {"model_max_length", model_->info.context},
                    {"chat_template", prompter.has_chat_template() ? Json(model_->chat_template) : Json()}}));
}

Json Service::ModelJson(const std::string& name, ApiForm form, const Adapters::Info* adapter) const {
  if (form == ApiForm::kAnthropic)
    return {{"type", "model"}, {"id", name}, {"display_name", name}, {"created_at", "1970-01-01T00:00:00Z"}};
  return {{"id", name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "celer"},
          {"root", adapter ? adapter->path : options_.model_path},
          {"parent", adapter ? Json(model_->name) : Json()},
          {"max_model_len", model_->info.context}};
}

void Service::Models(const std::shared_ptr<Exchange>& exchange) {
  if (const auto refusal = CheckReady(); refusal && !model_)
    return exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
  const ApiForm form = FormOf(exchange->request());
  Json data = Json::array({ModelJson(model_->name, form)});
  for (const std::string& alias : model_->aliases) data.push_back(ModelJson(alias, form));
  if (model_->adapters)
    for (const Adapters::Info& adapter : model_->adapters->List())
      data.push_back(ModelJson(adapter.name, form, &adapter));
  Json json = {{"object", "list"}, {"data", data}};
  if (form == ApiForm::kAnthropic)
    json = {{"data", data},
            {"has_more", false},
            {"first_id", data.front()["id"]},
            {"last_id", data.back()["id"]}};
  exchange->Send(JsonResponse(json));
}

void Service::OneModel(const std::shared_ptr<Exchange>& exchange) {
  if (const auto refusal = CheckReady(); refusal && !model_)
    return exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
  Query query;
  query.model = exchange->request().path.substr(std::string_view("/v1/models/").size());
  if (const auto refusal = CheckModel(*model_, query))
    return exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
  const auto adapter = model_->Answers(query.model) ? std::nullopt : FindAdapter(*model_, query.model);
  exchange->Send(
      JsonResponse(ModelJson(query.model, FormOf(exchange->request()), adapter ? &*adapter : nullptr)));
}

void Service::OpenApi(const std::shared_ptr<Exchange>& exchange) {
  exchange->Send({.body = OpenApiText(options_.keys.Required())});
}

void Service::StoredResponse(const std::shared_ptr<Exchange>& exchange) {
  const std::string id = exchange->request().path.substr(std::string_view("/v1/responses/").size());
  if (const auto* entry = responses_.Find(id)) return exchange->Send({.body = entry->body});
  exchange->Send(ApiError{.status = 404,
                          .message = "there is no response " + Quoted(id) + "; it may have been forgotten"}
                     .ToResponse(FormOf(exchange->request())));
}

void Service::DeleteResponse(const std::shared_ptr<Exchange>& exchange) {
  const std::string id = exchange->request().path.substr(std::string_view("/v1/responses/").size());
  if (!responses_.Remove(id))
    return exchange->Send(ApiError{.status = 404, .message = "there is no response " + Quoted(id)}.ToResponse(
        FormOf(exchange->request())));
  exchange->Send(JsonResponse({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void Service::TokenizeRoute(const std::shared_ptr<Exchange>& exchange) {
  PrepareJob(exchange, &Service::SendTokens);
}

void Service::SendTokens(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job) {
  const std::vector<int32_t>& tokens = job->prepared.requests[0].prompt;
  Json json = {{"count", tokens.size()}, {"max_model_len", job->model->info.context}, {"tokens", tokens}};
  json["token_strs"] = nullptr;
  if (job->query.token_strings) {
    json["token_strs"] = Json::array();
    for (const int32_t token : tokens)
      json["token_strs"].push_back(job->model->prompter.Decode({&token, 1}, false));
  }
  exchange->Send(JsonResponse(json));
}

void Service::CountTokensRoute(const std::shared_ptr<Exchange>& exchange) {
  PrepareJob(exchange, &Service::SendCount);
}

void Service::SendCount(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job) {
  exchange->Send(JsonResponse({{"input_tokens", job->prepared.requests[0].prompt.size()}}));
}

void Service::DetokenizeRoute(const std::shared_ptr<Exchange>& exchange) {
  PrepareJob(exchange, &Service::SendText);
}

void Service::SendText(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job) {
  const auto& tokens = job->query.tokens;
  if (!tokens)
    return exchange->Send(
        ApiError{.message = "tokens is missing, expected an array of token ids", .param = "tokens"}
            .ToResponse(FormOf(exchange->request())));
  for (const int32_t token : *tokens)
    if (token >= job->model->info.vocab)
      return exchange->Send(ApiError{.message = "tokens names token " + std::to_string(token) +
                                                ", but the model has " +
                                                std::to_string(job->model->info.vocab) + " tokens",
                                     .param = "tokens"}
                                .ToResponse(FormOf(exchange->request())));
  // As in vLLM, special tokens stay in the text by default.
  exchange->Send(JsonResponse({{"prompt", job->model->prompter.Decode(*tokens, job->query.skip_special)}}));
}

}  // namespace celer::server
