#include "models/load/layer_loader.h"

namespace celer {
namespace {

int64_t Bytes(const ExpertWeights& expert) {
  return expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
}

int64_t Bytes(const LatentWeights& w) {
  return w.q_a.bytes() + w.q_b.bytes() + w.kv_a.bytes() + w.k_b.bytes() + w.v_b.bytes();
}

// What few models have besides.
int64_t ExtraBytes(const LayerWeights& w) {
  int64_t total = 0;
  for (const WeightView* view : {&w.per_layer_gate, &w.per_layer_out, &w.laurel_left, &w.laurel_right,
                                 &w.altup.router, &w.altup.predict, &w.altup.correct})
    total += view->bytes();
  return total;
}

}  // namespace

int64_t ActiveBytes(const DecoderConfig& config, const DecoderWeights& weights) {
  int64_t total = weights.head.bytes() + weights.per_layer_projection.bytes() + weights.project_in.bytes() +
                  weights.project_out.bytes();
  for (const auto* streams : {&weights.streams_in, &weights.streams_out})
    for (const WeightView& projection : *streams) total += projection.bytes();
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& w = weights.layers[i];
    const RecurrentWeights& r = w.recurrent;
    total += r.q.bytes() + r.k.bytes() + r.v.bytes() + r.z.bytes() + r.a.bytes() + r.b.bytes() +
             r.mixed.bytes() + r.out.bytes();
    total += w.q.bytes() + w.k.bytes() + w.v.bytes() + w.o.bytes() + Bytes(w.latent) + ExtraBytes(w);
    if (config.IsSparse(static_cast<int64_t>(i)))
      total += w.router.bytes() + config.moe.experts_per_token * Bytes(w.experts[0]) + Bytes(w.shared);
    if (!config.IsSparse(static_cast<int64_t>(i)) || config.moe.beside_dense) total += Bytes(w.dense);
  }
  return total;
}

int64_t Model::active_bytes() const {
  return ActiveBytes(config_, weights_);
}

void Model::DropPages() const {
  for (const TensorRecord& tensor : source_->tensors()) source_->DropPages(tensor);
}

}  // namespace celer
