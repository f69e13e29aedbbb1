// What the body of a batch's line asks for, as requests for an engine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "celer/text.h"
#include "core/result.h"

namespace celer::cli {

enum class BodyKind : uint8_t {
  kSimple,      // {"prompt": ...} or {"messages": ...} with sampling parameters
  kChat,        // /v1/chat/completions
  kCompletion,  // /v1/completions
};

// What holds where a body says nothing.
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

// Every parameter is in one table of the .cc; what is not there is refused by name. `seed` is the request's
// if the body has none.
Result<BatchBody> ParseBody(BodyKind kind, const nlohmann::ordered_json& body, const BodyDefaults& defaults,
                            uint64_t seed, const Prompter& prompter, const Engine::Info& info);

}  // namespace celer::cli
