#include "models/load/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/config/family.h"
#include "models/load/layer_loader.h"
#include "models/load/model_loader.h"
#include "models/load/open_model.h"

namespace celer {
namespace {

constexpr std::array<std::string_view, 7> kFamilies = {"glm4_moe",        "deepseek_v2", "deepseek_v3",
                                                       "glm4_moe_lite",   "qwen3_next",  "qwen3_5_text",
                                                       "qwen3_5_moe_text"};

// One more layer behind the others: like those with attention, and with experts if the model has some.
DecoderConfig WithOneMore(DecoderConfig c) {
  ++c.layers;
  const auto add = [](std::vector<bool>* layers, bool value) {
    if (!layers->empty()) layers->push_back(value);
  };
  add(&c.rope_layer, true);
  add(&c.mixer_layer, true);
  add(&c.ffn_layer, true);
  add(&c.windowed_layer, false);
  add(&c.moe.sparse_layer, true);
  c.recurrent.layer.clear();
  return c;
}

// The last layer alone.
DecoderConfig LastLayer(DecoderConfig c) {
  c.layers = 1;
  for (std::vector<bool>* layers :
       {&c.rope_layer, &c.mixer_layer, &c.ffn_layer, &c.windowed_layer, &c.moe.sparse_layer})
    if (!layers->empty()) layers->erase(layers->begin(), layers->end() - 1);
  return c;
}

}  // namespace

bool HasPredictor(std::string_view family) {
  return std::find(kFamilies.begin(), kFamilies.end(), family) != kFamilies.end();
}

int64_t Predictor::active_bytes() const {
  return ActiveBytes(config, weights) + join.bytes();
}

Result<Predictor> LoadPredictor(const Model& model, const WeightOptions& options, ThreadPool& pool) {
  const DecoderConfig& of = model.config();
  if (!HasPredictor(of.family))
    return Error::Unsupported(
        model.path(), ": `speculation` mtp: layers for multi-token prediction of models of the type '",
        of.architecture, "' are not supported; use lookup or a draft model");
  CELER_ASSIGN(std::optional<Opened> opened, OpenPredictor(model.path(), of));
  if (!opened)
    return Error::Invalid(model.path(),
                          ": `speculation` mtp: the model has no layer for multi-token prediction; "
                          "use lookup or a draft model");
  const DecoderConfig config = WithOneMore(of);
  const bool gguf = opened->gguf;
  const std::string layer = fmt::format(fmt::runtime(gguf ? "blk.{}." : "model.layers.{}."), of.layers),
                    head = gguf ? kGgufNames.head : kHfNames.head,
                    own_head = layer + "shared_head.head.weight";
  Predictor out;
  out.config = LastLayer(config);
  out.source = std::move(opened->source);
  WeightPlan::Roles roles = DecoderRoles(config, gguf, gguf ? kGgufNames.embedding : kHfNames.embedding);
  roles[own_head] = WeightRole::kVocabulary;
  out.store = std::make_unique<WeightStore>(*out.source, WeightPlan::Make(options, *out.source, roles), pool);
  WeightStore& store = *out.store;
  CELER_ASSIGN(LayerWeights weights, LoadLayer(config, gguf, of.layers, store));
  out.weights.layers.push_back(std::move(weights));
  out.weights.embedding = model.weights().embedding;
  out.weights.head = model.weights().head;
  out.weights.head_bias = model.weights().head_bias;
  // Most files that have one repeat the model's.
  if (store.Has(own_head) && !SameTensor(*out.source, own_head, head)) {
    CELER_ASSIGN(out.weights.head, store.Matrix(own_head, of.vocab, of.hidden));
  }
  CELER_ASSIGN(out.weights.norm, store.Vector(layer + "shared_head.norm.weight", of.hidden));
  CELER_ASSIGN(out.embedding_norm, store.Vector(layer + "enorm.weight", of.hidden));
  CELER_ASSIGN(out.hidden_norm, store.Vector(layer + "hnorm.weight", of.hidden));
  CELER_ASSIGN(out.join, store.Matrix(layer + "eh_proj.weight", of.hidden, 2 * of.hidden));
  return out;
}

}  // namespace celer
