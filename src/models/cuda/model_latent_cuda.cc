// The weights of latent attention in the memory of a GPU.
#include <algorithm>
#include <array>

#include "models/cuda/model.h"

namespace celer {
namespace {

using Role = WeightStore::Role;

struct Planned {
  int64_t rows, cols;
  Role role;
};

// q_a and kv_a, which read the same input; q_b; k_b and v_b. The first has no rows where queries have no rank.
std::array<Planned, 5> PlansOf(const DecoderConfig& c) {
  const LatentConfig& l = c.latent;
  const int64_t q = c.heads * (l.nope_dim + l.rope_dim);
  return {{{l.q_rank, c.hidden, Role::kProjection},
           {l.kv_rank + l.rope_dim, c.hidden, Role::kProjection},
           {q, l.q_rank > 0 ? l.q_rank : c.hidden, Role::kProjection},
           {c.heads * l.kv_rank, l.nope_dim, Role::kHeads},
           {c.heads * l.value_dim, l.kv_rank, Role::kHeads}}};
}

DeviceMatrix FormOf(const cuda::DeviceWeights& store, const Planned& plan) {
  WeightView view;
  view.dtype = DType::kBf16;
  view.rows = plan.rows;
  view.cols = plan.cols;
  return store.PlanMatrix(view, plan.role);
}

}  // namespace

int64_t CudaModel::LatentBytes(const LatentWeights& w, const cuda::DeviceWeights& store) {
  int64_t bytes = 0;
  for (const WeightView* view : {&w.q_a, &w.q_b, &w.kv_a})
    if (*view) bytes += cuda::DeviceWeights::PlannedBytes(store.PlanMatrix(*view, Role::kProjection));
  for (const WeightView* view : {&w.k_b, &w.v_b})
    if (*view) bytes += cuda::DeviceWeights::PlannedBytes(store.PlanMatrix(*view, Role::kHeads));
  return bytes;
}

int64_t CudaModel::LatentBytes(const DecoderConfig& c, const cuda::DeviceWeights& store) {
  int64_t bytes = 0;
  for (const Planned& plan : PlansOf(c))
    if (plan.rows > 0) bytes += FormOf(store, plan).bytes();
  return bytes;
}

// Matrices that read the same input follow each other in memory.
Status CudaModel::UploadLatent(const LayerWeights& l, DeviceLayer* d) {
  const LatentWeights& from = l.latent;
  DeviceLatent& to = d->latent;
  const auto upload = [&](std::vector<cuda::MatrixSource> sources,
                          std::vector<DeviceMatrix*> matrices) -> Status {
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload(sources));
    for (size_t i = 0; i < made.size(); ++i) *matrices[i] = made[i];
    return {};
  };
  const cuda::MatrixSource q_a{from.q_a, Role::kProjection, {}}, q_b{from.q_b, Role::kProjection, {}},
      kv_a{from.kv_a, Role::kProjection, {}};
  if (from.q_a) {
    CELER_RETURN_IF_ERROR(upload({q_a, kv_a}, {&to.q_a, &to.kv_a}));
    CELER_RETURN_IF_ERROR(upload({q_b}, {&to.q_b}));
  } else {
    CELER_RETURN_IF_ERROR(upload({q_b, kv_a}, {&to.q_b, &to.kv_a}));
  }
  CELER_RETURN_IF_ERROR(upload({{from.k_b, Role::kHeads, {}}}, {&to.k_b}));
  CELER_RETURN_IF_ERROR(upload({{from.v_b, Role::kHeads, {}}}, {&to.v_b}));
  CELER_RETURN_IF_ERROR(upload({{l.o, Role::kProjection, {}}}, {&d->o}));
  const LatentConfig& dims = config.latent;
  CELER_ASSIGN(to.q_a_norm, weights->UploadVector(from.q_a_norm, dims.q_rank));
  CELER_ASSIGN(to.kv_a_norm, weights->UploadVector(from.kv_a_norm, dims.kv_rank));
  CELER_ASSIGN(d->q_bias, weights->UploadVector(l.q_bias, dims.q_rank));
  CELER_ASSIGN(d->k_bias, weights->UploadVector(l.k_bias, dims.kv_rank + dims.rope_dim));
  CELER_ASSIGN(d->o_bias, UploadUnscaled(l.o_bias, config.hidden));
  return {};
}

Status CudaModel::RandomLatent(const float* ones, DeviceLayer* d) {
  const std::array<Planned, 5> plans = PlansOf(config);
  DeviceLatent& to = d->latent;
  const auto make = [&](std::vector<size_t> which, std::vector<DeviceMatrix*> matrices) -> Status {
    std::vector<DeviceMatrix> forms;
    for (const size_t i : which) forms.push_back(FormOf(*weights, plans[i]));
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Random(forms));
    for (size_t i = 0; i < made.size(); ++i) *matrices[i] = made[i];
    return {};
  };
  if (config.latent.q_rank > 0) {
    CELER_RETURN_IF_ERROR(make({0, 1}, {&to.q_a, &to.kv_a}));
    CELER_RETURN_IF_ERROR(make({2}, {&to.q_b}));
  } else {
    CELER_RETURN_IF_ERROR(make({2, 1}, {&to.q_b, &to.kv_a}));
  }
  CELER_RETURN_IF_ERROR(make({3}, {&to.k_b}));
  CELER_RETURN_IF_ERROR(make({4}, {&to.v_b}));
  to.q_a_norm = to.kv_a_norm = ones;
  return {};
}

}  // namespace celer
