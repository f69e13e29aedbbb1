// Which LoRA adapters a request runs with: by the model's name, as vLLM has it, or by `lora`, as llama.cpp does.
#pragma once

#include "celer/adapters.h"
#include "server/api/prepare.h"

namespace celer::server {

// The adapters that a request chose, among those that are loaded.
Refusal FindScales(const Adapters& adapters, std::span<const AdapterChoice> choices, const char* param,
                   std::vector<AdapterScale>* out);

// Sets the request's adapters, and `out->adapters` to their names.
Refusal ChooseAdapters(const ServedModel& model, Query& query, Prepared* out);

std::optional<Adapters::Info> FindAdapter(const ServedModel& model, std::string_view name);

// What became of loading; vLLM's statuses.
ApiError LoadError(const Error& error);

// GET /lora-adapters
Json ScalesJson(const Adapters& adapters);

}  // namespace celer::server
