// Configurations of small models for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "models/config/family.h"

namespace celer::small_models {

// A small model of the type, with these fields changed.
inline nlohmann::json SmallConfig(const std::string& model_type,
                                  const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", model_type},
                           {"hidden_size", 32},
                           {"intermediate_size", 48},
                           {"num_hidden_layers", 4},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"head_dim", 8},
                           {"vocab_size", 64},
                           {"max_position_embeddings", 128}};
  config.update(changes);
  return config;
}

inline DecoderConfig Accepted(const nlohmann::json& config) {
  auto read = ConfigFromHf(config, "config.json");
  if (!read) ADD_FAILURE() << read.error().message();
  return read ? *read : DecoderConfig();
}

inline std::string Refusal(const nlohmann::json& config) {
  const auto read = ConfigFromHf(config, "config.json");
  return read ? "accepted" : read.error().message();
}

}  // namespace celer::small_models
