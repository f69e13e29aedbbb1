// The matrices of a model that an adapter can change: where each is, what files call it, and how large it is.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "models/config/decoder_config.h"
#include "models/load/model.h"

namespace celer {

enum class LoraPart : uint8_t {
  kUnused,  // a file has it, and nothing reads it: keys of a layer that takes another one's
  // Of the model.
  kEmbedding,
  kHead,
  kProjectIn,
  kProjectOut,
  kPerLayerProjection,
  kStreamIn,
  kStreamOut,
  // Of a layer.
  kQ,
  kK,
  kV,
  kO,
  kLatentQA,
  kLatentQB,
  kLatentKvA,
  kLatentKvB,  // of each head: its keys' rows, then its values'
  kStateQ,
  kStateK,
  kStateV,
  kStateZ,
  kStateB,
  kStateA,
  kStateMixed,
  kStateOut,
  kGate,
  kUp,
  kDown,
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedWeight,
  kPerLayerGate,
  kPerLayerOut,
  kLaurelLeft,
  kLaurelRight,
  kStreamRouter,
  kStreamPredict,
  kStreamCorrect,
};

struct LoraPlace {
  static constexpr int64_t kAll = -2;  // all experts, of a tensor that stacks them

  LoraPart part = LoraPart::kUnused;
  int64_t layer = -1;
  int64_t expert = -1;  // or the stream, less one

  auto operator<=>(const LoraPlace&) const = default;
};

struct PlacedMatrix {
  LoraPlace place;
  int64_t rows = 0, cols = 0;
};

// By the name of the part, as the loader asks for it in a Hugging Face or a GGUF file.
std::map<std::string, PlacedMatrix> PlacesOf(const DecoderConfig& config, bool gguf);

// The same by place, each expert for itself.
std::map<LoraPlace, PlacedMatrix> PlacesByPlace(const DecoderConfig& config);

// Of a loaded model; empty of latent attention's kv_b, which is in parts.
WeightView MatrixAt(const DecoderWeights& weights, const LoraPlace& place);
// What its product gets added as a bias, as the model applies it; nullptr if nothing.
const float* BiasAt(const DecoderWeights& weights, const LoraPlace& place);

}  // namespace celer
