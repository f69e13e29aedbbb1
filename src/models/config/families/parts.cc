// What several families have in common.
#include "models/config/families/families.h"

namespace celer::families {

void LearnedPositions(int64_t offset, DecoderConfig* config) {
  config->position_offset = offset;
  config->position_rows = config->max_positions + offset;
  WithoutRope(config);
}

void WithoutRope(DecoderConfig* config) {
  config->rope = {};
  config->rope.dim = 2;  // the smallest, of a table that no layer reads
  config->rope_layer.assign(config->layers, false);
}

void LayerNormWithBias(DecoderConfig* config) {
  config->norm = NormKind::kLayer;
  config->norm_bias = true;
}

void PlainMlp(bool bias, DecoderConfig* config) {
  config->gated_mlp = false;
  config->mlp_bias = bias;
}

}  // namespace celer::families
