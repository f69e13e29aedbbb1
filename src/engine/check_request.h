// What a request must be for an engine to take it.
#pragma once

#include <string>

#include "celer/engine.h"

namespace celer {

// `scored`: a text that is only read, after which no token comes. Looks at nothing that changes while the
// engine runs: any thread may ask.
Status CheckRequest(const Request& request, const Engine::Info& info, bool scored = false);
// A sentence with the numbers if the request is right in itself, but can never fit into the KV; "": it can.
std::string NeverFits(const Request& request, const Engine::Info& info);

}  // namespace celer
