// Adapters of random numbers for a model's shape, for benches and tests: no file is read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"
#include "models/lora/lora.h"
#include "models/lora/places.h"

namespace celer {

struct RandomLora {
  std::string name = "random";
  int64_t rank = 16;
  uint32_t seed = 1;
  bool bf16 = true;    // numbers that bf16 holds as they are, as most published adapters have
  float size = 0.02f;  // of the numbers, at most
  // Which products; none: every projection of attention and of dense MLPs. Not the embedding, which is none.
  std::vector<LoraPart> parts = {};
};
std::shared_ptr<const LoraAdapter> MakeRandomLora(const DecoderConfig& config, const RandomLora& what);

}  // namespace celer
