// What requests say of LoRA adapters, read and checked. Nothing here asks which adapters are loaded.
#pragma once

#include <string>
#include <vector>

#include "celer/adapters.h"
#include "server/api/query.h"

namespace celer::server {

// `lora` of a request, and the body of POST /lora-adapters: [{"id": 0, "scale": 0.5}], or with "name".
Refusal ReadScales(const Json& value, const char* param, std::vector<AdapterChoice>* out);

// As /v1/load_lora_adapter and /v1/unload_lora_adapter of vLLM take them.
struct AdapterOrder {
  LoraSpec spec = {};
  bool replace = false;
};
Refusal ReadLoad(const Json& body, AdapterOrder* out);
Refusal ReadUnload(const Json& body, std::string* name);

}  // namespace celer::server
