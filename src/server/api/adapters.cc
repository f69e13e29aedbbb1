#include "server/api/adapters.h"

#include <algorithm>

#include "io/file/printable.h"

namespace celer::server {

Refusal FindScales(const Adapters& adapters, std::span<const AdapterChoice> choices, const char* param,
                   std::vector<AdapterScale>* out) {
  const std::vector<Adapters::Info> list = adapters.List();
  for (const AdapterChoice& choice : choices) {
    const auto of = std::find_if(list.begin(), list.end(), [&](const Adapters::Info& info) {
      return choice.name.empty() ? info.id == choice.id : info.name == choice.name;
    });
    if (of == list.end())
      return ApiError{.message = std::string(param) + " names the adapter " +
                                 (choice.name.empty() ? std::to_string(choice.id) : Quoted(choice.name)) +
                                 ", which is not loaded; GET /lora-adapters lists what is",
                      .param = param};
    out->push_back({.name = of->name, .scale = choice.scale});
  }
  return {};
}

std::optional<Adapters::Info> FindAdapter(const ServedModel& model, std::string_view name) {
  if (!model.adapters) return std::nullopt;
  for (Adapters::Info& info : model.adapters->List())
    if (info.name == name) return std::move(info);
  return std::nullopt;
}

Refusal ChooseAdapters(const ServedModel& model, Query& query, Prepared* out) {
  if (!model.adapters) return {};
  std::vector<AdapterScale> scales;
  // The model's own names come first: an adapter cannot take one of them.
  const bool own = query.model.empty() || model.Answers(query.model);
  const auto named = own ? std::nullopt : FindAdapter(model, query.model);
  if (query.lora) {
    if (auto refusal = FindScales(*model.adapters, *query.lora, "lora", &scales)) return refusal;
  } else if (named) {
    scales.push_back({.name = named->name, .scale = named->scale});
  } else {
    return {};
  }
  auto mix = model.adapters->Mix(scales);
  // It was unloaded since, or is named twice.
  if (!mix) {
    ApiError error = FromError(mix.error(), query.lora ? "lora" : "model");
    if (!query.lora) error.status = 404;
    return error;
  }
  query.request.lora = std::move(*mix);
  for (const AdapterScale& one : scales)
    if (one.scale != 0) out->adapters.push_back(one.name);
  if (named) out->model_name = named->name;
  return {};
}

ApiError LoadError(const Error& error) {
  ApiError out = FromError(error, "lora_path");
  if (error.code() == Error::Code::kNotFound) out.status = 404;
  // The files are the client's.
  if (error.code() == Error::Code::kNotFinite || error.code() == Error::Code::kIo) out.status = 400;
  return out;
}

Json ScalesJson(const Adapters& adapters) {
  Json list = Json::array();
  for (const Adapters::Info& info : adapters.List())
    list.push_back(
        {{"id", info.id}, {"name", info.name}, {"path", info.path}, {"scale", info.standing_scale}});
  return list;
}

}  // namespace celer::server
