// `kv_transfer_params` of a request, as vLLM's connectors and the proxies before them write it.
#pragma once

#include <optional>

#include "server/api/query.h"

namespace celer::server {

// None if it asks for nothing. Fields that only other connectors have are ignored, as vLLM does.
Refusal ReadKvTransfer(const Json& value, std::optional<KvTransferParams>* out);

}  // namespace celer::server
