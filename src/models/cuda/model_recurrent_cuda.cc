// The weights of recurrent layers in the memory of a GPU.
#include "models/cuda/memory/states.h"
#include "models/cuda/model.h"
#include "models/recurrent_state.h"

namespace celer {

using Role = WeightStore::Role;

Status CudaModel::UploadRecurrent(const LayerWeights& l, DeviceLayer* d) {
  const RecurrentWeights& r = l.recurrent;
  if (!r.out) return {};
  const RecurrentConfig& c = config.recurrent;
  // One product has them all where their rows can follow each other.
  std::vector<cuda::MatrixSource> sources;
  for (const WeightView* view : {&r.q, &r.k, &r.v, &r.z, &r.b, &r.a, &r.out})
    sources.push_back({*view, Role::kProjection, {}});
  CELER_ASSIGN(const std::vector<DeviceMatrix> inputs, weights->Upload(std::span(sources).first(6)));
  CELER_ASSIGN(const std::vector<DeviceMatrix> output, weights->Upload(std::span(sources).last(1)));
  SetRecurrent(inputs, output[0], &d->recurrent);
  CELER_ASSIGN(d->recurrent.conv, weights->UploadVector(r.conv, ConvChannels(c) * c.conv_kernel));
  CELER_ASSIGN(d->recurrent.dt_bias, weights->UploadVector(r.dt_bias, c.value_heads));
  CELER_ASSIGN(d->recurrent.rate, weights->UploadVector(r.rate.data(), c.value_heads));
  CELER_ASSIGN(d->recurrent.norm, weights->UploadVector(r.norm, c.value_dim));
  return {};
}

std::vector<std::pair<int64_t, int64_t>> CudaModel::RecurrentShapes(const DecoderConfig& config) {
  const RecurrentConfig& c = config.recurrent;
  const int64_t keys = c.key_heads * c.key_dim, values = c.value_heads * c.value_dim;
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const int64_t rows : {keys, keys, values, values, c.value_heads, c.value_heads})
    shapes.emplace_back(rows, config.hidden);
  shapes.emplace_back(config.hidden, values);
  return shapes;
}

Status CudaModel::RandomRecurrent(const std::function<DeviceMatrix(int64_t, int64_t)>& plan, DeviceLayer* d) {
  const RecurrentConfig& c = config.recurrent;
  std::vector<DeviceMatrix> plans;
  for (const auto& [rows, cols] : RecurrentShapes(config)) plans.push_back(plan(rows, cols));
  CELER_ASSIGN(const auto inputs, weights->Random(std::span(plans).first(6)));
  CELER_ASSIGN(const auto output, weights->Random(std::span(plans).last(1)));
  SetRecurrent(inputs, output[0], &d->recurrent);
  const auto filled = [&](int64_t n, float value) {
    const std::vector<float> values(static_cast<size_t>(n), value);
    return weights->UploadVector(values.data(), n);
  };
  CELER_ASSIGN(d->recurrent.conv, filled(ConvChannels(c) * c.conv_kernel, 0.5f));
  CELER_ASSIGN(d->recurrent.dt_bias, filled(c.value_heads, 0.0f));
  CELER_ASSIGN(d->recurrent.rate, filled(c.value_heads, 0.1f));
  CELER_ASSIGN(d->recurrent.norm, filled(c.value_dim, 1.0f));
  return {};
}

void CudaModel::SetRecurrent(std::span<const DeviceMatrix> inputs, const DeviceMatrix& output,
                             DeviceRecurrent* to) {
  to->q = inputs[0], to->k = inputs[1], to->v = inputs[2];
  to->z = inputs[3], to->b = inputs[4], to->a = inputs[5];
  to->out = output;
}

}  // namespace celer
