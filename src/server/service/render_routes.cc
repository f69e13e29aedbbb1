// vLLM's routes that render a request and run nothing: its tokens and parameters, for routers that look up prefixes.
#include "server/service/service.h"

namespace celer::server {
namespace {

// The fields of vLLM's SamplingParams that a request can set.
Json SamplingJson(const Query& query, const Request& request) {
  const SamplingParams& sampling = request.sampling;
  Json bias = nullptr;
  if (!sampling.logit_bias.empty()) {
    bias = Json::object();
    for (const auto& [token, value] : sampling.logit_bias) bias[std::to_string(token)] = value;
  }
  const auto number_or_null = [](int value) { return value < 0 ? Json() : Json(value); };
  const auto list_or_null = [](const auto& list) { return list.empty() ? Json() : Json(list); };
  return {{"n", request.n},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"repetition_penalty", sampling.repetition_penalty},
          {"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", sampling.min_p},
          {"seed", query.seed ? Json(*query.seed) : Json()},
          {"stop", query.stop},
          {"stop_token_ids", query.stop_token_ids},
          {"ignore_eos", query.ignore_eos},
          {"max_tokens", request.max_tokens},
          {"min_tokens", request.min_tokens},
          {"logprobs", number_or_null(sampling.logprobs)},
          {"prompt_logprobs", number_or_null(request.prompt_logprobs)},
          {"skip_special_tokens", query.skip_special},
          {"include_stop_str_in_output", query.include_stop},
          {"logit_bias", std::move(bias)},
          {"allowed_token_ids", list_or_null(sampling.allowed_tokens)},
          {"bad_words", list_or_null(query.bad_words)}};
}

}  // namespace

void Service::RenderRoute(const std::shared_ptr<Exchange>& exchange) {
  PrepareJob(exchange, &Service::SendRendered);
}

void Service::SendRendered(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job) {
  const Query& query = job->query;
  if (job->prepared.requests[0].beam.width > 0)
    return exchange->Send(
        ApiError{.message = "beam search cannot be rendered", .param = "use_beam_search"}.ToResponse(
            FormOf(exchange->request())));
  Json list = Json::array();
  for (const Request& request : job->prepared.requests) {
    Json options = nullptr;
    if (query.stream && (query.include_usage || query.usage_in_every_chunk))
      options = {{"include_usage", query.include_usage},
                 {"continuous_usage_stats", query.usage_in_every_chunk}};
    list.push_back({{"request_id", NewId(query.endpoint == kChat ? "chatcmpl-" : "cmpl-")},
                    {"token_ids", request.prompt},
                    {"assistant_tokens_mask", nullptr},
                    {"token_offsets", nullptr},
                    {"features", nullptr},
                    {"content_parts", nullptr},
                    {"sampling_params", SamplingJson(query, request)},
                    {"model", query.model.empty() ? Json() : Json(query.model)},
                    {"stream", query.stream},
                    {"stream_options", std::move(options)},
                    {"cache_salt", request.cache_salt.empty() ? Json() : Json(request.cache_salt)},
                    {"priority", request.priority},
                    {"kv_transfer_params", nullptr},
                    {"ec_transfer_params", nullptr}});
  }
  // One conversation, but as many prompts as a completion has.
  exchange->Send({.body = Dump(query.endpoint == kChat ? list[0] : list)});
}

}  // namespace celer::server
