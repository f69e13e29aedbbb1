#include "models/load/model.h"

namespace celer {
namespace {

int64_t Bytes(const ExpertWeights& expert) {
  return expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
}

int64_t Bytes(const LatentWeights& w) {
  return w.q_a.bytes() + w.q_b.bytes() + w.kv_a.bytes() + w.k_b.bytes() + w.v_b.bytes();
}

}  // namespace

int64_t Model::active_bytes() const {
  int64_t total = weights_.head.bytes();
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& w = weights_.layers[i];
    const RecurrentWeights& r = w.recurrent;
    total +=
        r.q.bytes() + r.k.bytes() + r.v.bytes() + r.z.bytes() + r.a.bytes() + r.b.bytes() + r.out.bytes();
    total += w.q.bytes() + w.k.bytes() + w.v.bytes() + w.o.bytes() + Bytes(w.latent);
    if (config_.IsSparse(static_cast<int64_t>(i)))
      total += w.router.bytes() + config_.moe.experts_per_token * Bytes(w.experts[0]) + Bytes(w.shared);
    else
      total += Bytes(w.dense);
  }
  return total;
}

void Model::DropPages() const {
  for (const TensorRecord& tensor : source_->tensors()) source_->DropPages(tensor);
}

}  // namespace celer
