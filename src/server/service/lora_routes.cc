// The routes of LoRA adapters: vLLM's, which load and unload them, and llama.cpp's, which sets scales for all requests
// that say nothing of adapters.
#include "base/log.h"
#include "io/json/ordered_json.h"
#include "server/api/adapters.h"
#include "server/api/params.h"
#include "server/api/read_adapters.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

constexpr size_t kMostBodyBytes = size_t{1} << 20;

}  // namespace

Refusal Service::CheckRuntimeLora(const HttpRequest& request) const {
  if (auto refusal = CheckReady()) return refusal;
  if (!options_.allow_runtime_lora)
    return ApiError{.status = 404,
                    .message = request.path +
                               " is off, because every client could change what others get; start the "
                               "server with --allow-runtime-lora",
                    .code = "not_found"};
  if (!model_->adapters)
    return ApiError{.status = 501, .message = "this engine has no LoRA adapters", .code = "not_implemented"};
  return guard_.CheckContentType(request);
}

void Service::ChangeAdapters(const std::shared_ptr<Exchange>& exchange, AdapterWork work) {
  const ApiForm form = FormOf(exchange->request());
  Refusal refusal = CheckRuntimeLora(exchange->request());
  if (!refusal) refusal = admission_.CheckCapacity(false);
  if (refusal) {
    exchange->note = refusal->message;
    return exchange->Send(refusal->ToResponse(form));
  }
  admission_.BeginJob();
  workers_->Post([this, exchange = std::shared_ptr<Exchange>(exchange), form, work,
                  body = exchange->TakeBody(), model = model_, alive = std::weak_ptr<int>(alive_)]() mutable {
    HttpResponse response;
    std::string note;
    try {
      if (auto failed = work(*model, body, &response)) {
        note = failed->message;
        response = failed->ToResponse(form);
      }
    } catch (const std::exception& error) {
      log::Warning("request {}: {}", exchange->request().id, error.what());
      response = ApiError{.status = 500, .message = "internal error; see the server's log"}.ToResponse(form);
    }
    // The exchange belongs to the loop's thread, and must not be destroyed here.
    loop_.Post([this, exchange = std::move(exchange), response = std::move(response), note = std::move(note),
                alive]() mutable {
      if (alive.expired()) return;
      admission_.EndJob();
      exchange->note = std::move(note);
      if (!exchange->disconnected()) exchange->Send(std::move(response));
    });
  });
}

void Service::LoadLoraRoute(const std::shared_ptr<Exchange>& exchange) {
  ChangeAdapters(exchange, [](const ServedModel& model, std::string_view text, HttpResponse* out) -> Refusal {
    Json body;
    AdapterOrder order;
    if (auto refusal = ParseBody(text, &body)) return refusal;
    if (auto refusal = ReadLoad(body, &order)) return refusal;
    const std::string& name = order.spec.name;
    if (model.Answers(name))
      return ApiError{
          .message = "the model itself is called " + Quoted(name) + "; give the adapter another name",
          .param = "lora_name"};
    if (!order.replace && FindAdapter(model, name))
      return ApiError{.message = "The lora adapter " + Quoted(name) +
                                 " has already been loaded. If you want to load the adapter in place, set "
                                 "'load_inplace' to True.",
                      .param = "lora_name"};
    if (const Status loaded = model.adapters->Load(order.spec, {.replace = order.replace}); !loaded)
      return LoadError(loaded.error());
    *out = {.content_type = "text/plain; charset=utf-8",
            .body = "Success: LoRA adapter '" + name + "' added successfully."};
    return {};
  });
}

void Service::UnloadLoraRoute(const std::shared_ptr<Exchange>& exchange) {
  ChangeAdapters(exchange, [](const ServedModel& model, std::string_view text, HttpResponse* out) -> Refusal {
    Json body;
    std::string name;
    if (auto refusal = ParseBody(text, &body)) return refusal;
    if (auto refusal = ReadUnload(body, &name)) return refusal;
    if (!model.adapters->Unload(name))
      return ApiError{.status = 404,
                      .message = "The lora adapter " + Quoted(name) + " cannot be found.",
                      .param = "lora_name",
                      .code = "model_not_found"};
    *out = {.content_type = "text/plain; charset=utf-8",
            .body = "Success: LoRA adapter '" + name + "' removed successfully."};
    return {};
  });
}

void Service::LoraScalesRoute(const std::shared_ptr<Exchange>& exchange) {
  if (const auto refusal = CheckReady(); refusal && !model_)
    return exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
  exchange->Send({.body = Dump(model_->adapters ? ScalesJson(*model_->adapters) : Json::array())});
}

void Service::SetLoraScalesRoute(const std::shared_ptr<Exchange>& exchange) {
  ChangeAdapters(exchange, [](const ServedModel& model, std::string_view text, HttpResponse* out) -> Refusal {
    if (text.size() > kMostBodyBytes)
      return ApiError{.status = 413,
                      .message = "the body is larger than " + std::to_string(kMostBodyBytes) + " bytes"};
    const auto body = ParseOrderedJson(text, "the body", {.max_bytes = text.size(), .max_depth = 8});
    if (!body) return ApiError{.message = body.error().message()};
    std::vector<AdapterChoice> choices;
    std::vector<AdapterScale> scales;
    if (auto refusal = ReadScales(*body, "the body", &choices)) return refusal;
    if (auto refusal = FindScales(*model.adapters, choices, "the body", &scales)) return refusal;
    if (const Status set = model.adapters->SetStanding(scales); !set) return FromError(set.error());
    *out = {.body = Dump({{"success", true}})};
    return {};
  });
}

}  // namespace celer::server
