// Families that call the common fields of a config.json by names of their own, and the defaults of their classes.
#pragma once

#include <string_view>

#include "io/json/json.h"

namespace celer {

// The same configuration with the keys that the other families use ("n_embd" is "hidden_size"), and with what this
// family's class in transformers takes where a key is missing. What is in neither table stays as it is.
nlohmann::json WithUsualKeys(std::string_view family, const nlohmann::json& json);
// The way back, for a file that is written.
nlohmann::ordered_json WithOwnKeys(std::string_view family, nlohmann::ordered_json json);

}  // namespace celer
