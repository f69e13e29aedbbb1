// EXAONE 4: norms behind each branch alone, and norms of q and k. Where layers have a sliding window, those without one
// have no rope.
#include <algorithm>

#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

void Exaone4Norms(DecoderConfig* config) {
  config->pre_norm = false;
  config->post_norm = true;
  config->qk_norm = true;
}

}  // namespace

Status Exaone4FromHf(const JsonFields& json, DecoderConfig* config) {
  Exaone4Norms(config);
  // A name such as "LLLG" is for older code; files that have one name each layer's type, too.
  const nlohmann::json* pattern = json.Find("sliding_window_pattern");
  int64_t period = 4;
  if (pattern && pattern->is_number_integer()) {
    CELER_ASSIGN(period, json.GetInt("sliding_window_pattern", 0, int64_t{1} << 30));
  } else if (pattern && !json.Has("layer_types")) {
    return Error::Unsupported(json.where(),
                              ": 'sliding_window_pattern' is not a number, and there are no 'layer_types'");
  }
  if (json.json().contains("sliding_window") && !json.Has("sliding_window")) period = 0;
  CELER_RETURN_IF_ERROR(HfWindows(json, period, config));
  if (config->sliding_window > 0) config->rope_layer = config->windowed_layer;
  return {};
}

// Without a pattern llama.cpp gives the window to the model of 64 layers alone.
Status Exaone4FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "exaone4");
  Exaone4Norms(config);
  if (!reader.Has("attention.sliding_window_pattern") && config->layers != 64) config->sliding_window = 0;
  if (config->sliding_window == 0) return {};
  CELER_ASSIGN(config->windowed_layer, reader.WindowedLayers(config->layers, 4));
  config->rope_layer = config->windowed_layer;
  return {};
}

}  // namespace celer::families
