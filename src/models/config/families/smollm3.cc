// SmolLM3: Llama with some layers that do not rotate, every fourth one in the published models.
#include "models/config/families/families.h"

namespace celer::families {
namespace {

constexpr int64_t kPeriod = 4;  // also llama.cpp's, which has no key for it

void LastOfEachWithoutRope(int64_t period, DecoderConfig* config) {
  config->rope_layer.clear();
  for (int64_t i = 0; i < config->layers; ++i) config->rope_layer.push_back((i + 1) % period != 0);
}

Status RopeLayers(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t period, HfInt(json, "no_rope_layer_interval", 1, int64_t{1} << 30, kPeriod));
  LastOfEachWithoutRope(period, config);
  if (!json.Has("no_rope_layers")) return {};
  CELER_ASSIGN(const std::vector<int64_t> rotates, json.GetInts("no_rope_layers"));
  if (std::ssize(rotates) < config->layers)
    return Error::Corrupt(json.where(), ": 'no_rope_layers' has ", rotates.size(), " numbers for ",
                          config->layers, " layers");
  for (int64_t i = 0; i < config->layers; ++i) config->rope_layer[i] = rotates[i] != 0;
  return {};
}

// Unless the file names the layers, those without rope have the window.
Status Windows(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const bool used, json.GetBool("use_sliding_window", false));
  CELER_ASSIGN(const int64_t window, HfInt(json, "sliding_window", used ? 1 : 0, int64_t{1} << 30, 0, 0));
  config->sliding_window = used ? window : 0;
  for (int64_t i = 0; i < config->layers; ++i) config->windowed_layer.push_back(!config->rope_layer[i]);
  if (json.Has("layer_types") && used) {
    CELER_ASSIGN(config->windowed_layer, WindowedByType(json, config->layers));
  }
  return {};
}

}  // namespace

Status SmolLm3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(config->mlp_bias, json.GetBool("mlp_bias", false));
  CELER_RETURN_IF_ERROR(RopeLayers(json, config));
  return Windows(json, config);
}

Status SmolLm3FromGguf(const GgufFile&, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  LastOfEachWithoutRope(kPeriod, config);
  return {};
}

}  // namespace celer::families
