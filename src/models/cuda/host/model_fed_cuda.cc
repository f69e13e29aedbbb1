// Weights that stay in host memory and are sent to the GPU for every prompt.
#include <algorithm>

#include "models/cuda/model.h"

namespace celer {
namespace {

// Matrices of a layer begin and end at multiples of 256 bytes, with their scales apart.
int64_t Padding(const LayerWeights& l) {
  constexpr int64_t kOfMatrix = 512, kOthers = 24;
  return kOfMatrix * (kOthers + 3 * std::ssize(l.experts));
}

}  // namespace

int64_t CudaModel::FedExpertsBytes(const Model& host, const cuda::DeviceWeights& store,
                                   const std::vector<bool>& experts_elsewhere) {
  int64_t most = 0;
  for (size_t i = 0; i < experts_elsewhere.size(); ++i) {
    const LayerWeights& l = host.weights().layers[i];
    if (experts_elsewhere[i] && l.router)
      most = std::max(most, PlannedLayer(host, l, store).experts + Padding(l));
  }
  return most;
}

int64_t CudaModel::FedLayerBytes(const Model& host, const cuda::DeviceWeights& store) {
  int64_t most = 0;
  for (const LayerWeights& l : host.weights().layers)
    most = std::max(most, PlannedLayer(host, l, store).all + Padding(l));
  return most;
}

Status CudaModel::FeedExperts(const Model& host, cuda::WeightFeed* feed) {
  fed.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].experts_elsewhere) continue;
    fed[i] = layers[i];
    fed[i].experts_elsewhere = false;
    weights->BeginFed(feed->slot(feed->parts()));
    const Status noted = UploadExperts(host.weights().layers[i], &fed[i]);
    feed->Add(weights->TakeFed());
    CELER_RETURN_IF_ERROR(noted);
  }
  return weights->Finish();
}

Status CudaModel::FeedLayers(const Model& host, cuda::WeightFeed* feed) {
  for (size_t i = 0; i < host.weights().layers.size(); ++i) {
    DeviceLayer d;
    weights->BeginFed(feed->slot(feed->parts()));
    const Status noted = UploadLayer(host.weights().layers[i], static_cast<int64_t>(i), &d);
    feed->Add(weights->TakeFed());
    CELER_RETURN_IF_ERROR(noted);
    layers.push_back(d);
  }
  return weights->Finish();
}

}  // namespace celer
