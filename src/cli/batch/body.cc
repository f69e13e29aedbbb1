#include "cli/batch/body.h"

#include <algorithm>

#include "server/api/params.h"

namespace celer::cli {
namespace {

using server::ApiError;
using server::Asked;
using server::Refusal;

// Which of the server's endpoints takes such a body.
Refusal EndpointOf(BodyKind kind, const nlohmann::ordered_json& body, Asked* asked) {
  const bool chat = kind == BodyKind::kChat || (kind == BodyKind::kSimple && body.contains("messages"));
  asked->endpoint = chat ? server::kChat : server::kCompletions;
  if (kind != BodyKind::kSimple) return {};
  if (chat && body.contains("prompt"))
    return ApiError{.message = "it has 'prompt' and 'messages'; give one of them"};
  if (!chat && !body.contains("prompt")) return ApiError{.message = "'prompt' or 'messages' is missing"};
  return {};
}

}  // namespace

Refusal ReadBody(BodyKind kind, nlohmann::ordered_json body, const BodyDefaults& defaults, uint64_t seed,
                 const server::ServedModel& model, BatchBody* out) {
  Asked asked;
  asked.in_batch = true;
  asked.seed = seed;
  asked.stop = defaults.stop;
  asked.request.sampling = defaults.sampling;
  if (kind == BodyKind::kSimple) body.erase("id");
  if (auto refusal = EndpointOf(kind, body, &asked)) return refusal;
  if (auto refusal = server::ReadParams(body, &asked, nullptr)) return refusal;
  if (!asked.skip_special) return server::NotSupported("skip_special_tokens", "in a batch", "false");
  server::Prepared prepared;
  if (auto refusal = server::Prepare(model, nullptr, asked, &prepared)) {
    if (refusal->code == "context_length_exceeded" && model.info.context < model.info.max_positions)
      refusal->message += "; raise `context`";
    return refusal;
  }
  // What is not said is the flags' to say, and an answer never outgrows the context.
  for (Request& request : prepared.requests) {
    const int64_t room = model.info.context - std::ssize(request.prompt);
    if (!asked.max_tokens && (defaults.max_tokens || kind == BodyKind::kSimple))
      request.max_tokens = std::min(defaults.max_tokens.value_or(room), room);
  }
  out->requests = std::move(prepared.requests);
  out->stop = std::move(asked.stop);
  out->model = std::move(asked.model);
  return {};
}

}  // namespace celer::cli
