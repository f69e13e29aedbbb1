#include "cli/batch/body.h"

#include <algorithm>

#include "server/api/params.h"

namespace celer::cli {
namespace {

using server::ApiError;
using server::Query;
using server::Refusal;

// Which of the server's endpoints takes such a body.
Refusal EndpointOf(BodyKind kind, const nlohmann::ordered_json& body, Query* query) {
  const bool chat = kind == BodyKind::kChat || (kind == BodyKind::kSimple && body.contains("messages"));
  query->endpoint = chat ? server::kChat : server::kCompletions;
  if (kind != BodyKind::kSimple) return {};
  if (chat && body.contains("prompt"))
    return ApiError{.message = "it has 'prompt' and 'messages'; give one of them"};
  if (!chat && !body.contains("prompt")) return ApiError{.message = "'prompt' or 'messages' is missing"};
  return {};
}

}  // namespace

Refusal ReadBody(BodyKind kind, nlohmann::ordered_json body, const BodyDefaults& defaults, uint64_t seed,
                 const server::ServedModel& model, BatchBody* out) {
  Query query;
  query.in_batch = true;
  query.seed = seed;
  query.stop = defaults.stop;
  query.request.sampling = defaults.sampling;
  if (kind == BodyKind::kSimple) body.erase("id");
  if (auto refusal = EndpointOf(kind, body, &query)) return refusal;
  if (auto refusal = server::ReadParams(body, &query, nullptr)) return refusal;
  if (!query.skip_special) return server::NotSupported("skip_special_tokens", "in a batch", "false");
  server::Prepared prepared;
  if (auto refusal = server::Prepare(model, nullptr, query, &prepared)) {
    if (refusal->code == "context_length_exceeded" && model.info.context < model.info.max_positions)
      refusal->message += "; raise `context`";
    return refusal;
  }
  // The flags are the defaults, and an answer never exceeds the context.
  for (Request& request : prepared.requests) {
    const int64_t room = model.info.context - std::ssize(request.prompt);
    if (!query.max_tokens && (defaults.max_tokens || kind == BodyKind::kSimple))
      request.max_tokens = std::min(defaults.max_tokens.value_or(room), room);
  }
  out->requests = std::move(prepared.requests);
  out->stop = std::move(query.stop);
  out->model = std::move(query.model);
  return {};
}

}  // namespace celer::cli
