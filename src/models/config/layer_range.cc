#include "models/config/layer_range.h"

#include <vector>

#include "base/check.h"

namespace celer {

DecoderConfig SliceLayers(const DecoderConfig& config, const LayerRange& range) {
  CELER_CHECK(range.first >= 0 && range.count > 0 && range.end() <= config.layers);
  DecoderConfig part = config;
  part.layers = range.count;
  const auto cut = [&](auto* of_layers) {
    if (of_layers->empty()) return;
    of_layers->erase(of_layers->begin() + range.end(), of_layers->end());
    of_layers->erase(of_layers->begin(), of_layers->begin() + range.first);
  };
  for (std::vector<bool>* each : {&part.rope_layer, &part.mixer_layer, &part.ffn_layer, &part.windowed_layer,
                                  &part.moe.sparse_layer, &part.recurrent.layer})
    cut(each);
  cut(&part.gate_sparsity);
  cut(&part.layer_shapes);
  for (LayerShape& shape : part.layer_shapes) shape.kv_from -= range.first;
  return part;
}

Status CheckLayersPart(const DecoderConfig& c) {
  bool borrows = false;
  for (int64_t i = 0; i < c.layers; ++i) borrows = borrows || c.KvFrom(i) != i;
  const struct {
    bool has;
    const char* what;
  } rows[] = {
      {!c.recurrent.layer.empty(), "recurrent layers, whose states are kept on one device"},
      {c.altup.streams > 0, "several residual streams, which pass all layers"},
      {c.per_layer_dim > 0, "embeddings for each layer, which are read with the tokens"},
      {borrows, "layers that read the keys and values of others"},
  };
  for (const auto& row : rows)
    if (row.has)
      return Error::Unsupported("the model has ", row.what,
                                ", so that its layers do not run on several devices yet; use one `device`");
  return {};
}

}  // namespace celer
