// From the body of a batch's line to requests of the engine, with the server's own parser.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/engine.h"
#include "server/api/prepare.h"

namespace celer::cli {

enum class BodyKind : uint8_t {
  kSimple,      // {"prompt": ...} or {"messages": ...} with sampling parameters
  kChat,        // /v1/chat/completions
  kCompletion,  // /v1/completions
};

// Defaults of a body.
struct BodyDefaults {
  SamplingParams sampling = {};
  std::optional<int64_t> max_tokens = {};  // none: the rest of the context; 16 in /v1/completions
  std::vector<std::string> stop = {};
};

struct BatchBody {
  std::vector<Request> requests = {};  // one for each prompt; they differ in nothing else
  std::vector<std::string> stop = {};
  std::string model = {};  // as the body has it
};

// Rejects by name what a batch does not support; src/server/api/params_table.cc has all parameters. `seed` is
// the request's if the body has none.
server::Refusal ReadBody(BodyKind kind, nlohmann::ordered_json body, const BodyDefaults& defaults,
                         uint64_t seed, const server::ServedModel& model, BatchBody* out);

}  // namespace celer::cli
