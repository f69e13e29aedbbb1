// The weights of layers with experts in the memory of a GPU.
#include <random>

#include "models/cuda/model.h"

namespace celer {
namespace {

using Role = WeightStore::Role;

// Every `step`-th of `all` from the first on: the same matrix of one expert after the other.
Result<cuda::ExpertMatrices> StridedExperts(std::span<const DeviceMatrix> all, size_t step) {
  cuda::ExpertMatrices out;
  out.first = all[0];
  if (step > 1) out.up = all[1];
  if (all.size() > step) {
    out.data_stride = all[step].data - all[0].data;
    out.scale_stride = all[0].scales ? all[step].scales - all[0].scales : 0;
  }
  for (const DeviceMatrix& m : all)
    if (!SameForm(m, all[0]))
      return Error::Unsupported("experts of different formats (", cuda::FormatName(all[0]), " and ",
                                cuda::FormatName(m),
                                ") do not run on the GPU as stored; try `weights` bf16, int8 or int4");
  return out;
}

}  // namespace

Status CudaModel::CheckMoe(const DecoderConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.experts > cuda::kMaxExperts || moe.experts_per_token > cuda::kMaxTopExperts)
    return Error::Unsupported(moe.experts_per_token, " of ", moe.experts, " experts do not run on the GPU (",
                              cuda::kMaxTopExperts, " of ", cuda::kMaxExperts, " at most); use `device` cpu");
  return {};
}

Status CudaModel::UploadExperts(const LayerWeights& l, DeviceLayer* d) {
  std::vector<cuda::MatrixSource> gate_up, down;
  for (const ExpertWeights& e : l.experts) {
    gate_up.push_back({e.gate, Role::kProjection, {}});
    gate_up.push_back({e.up, Role::kProjection, {}});
    down.push_back({e.down, Role::kProjection, {}});
  }
  CELER_ASSIGN(const std::vector<DeviceMatrix> first, weights->Upload(gate_up));
  CELER_ASSIGN(const std::vector<DeviceMatrix> second, weights->Upload(down));
  CELER_ASSIGN(d->expert_gate_up, StridedExperts(first, 2));
  CELER_ASSIGN(d->expert_down, StridedExperts(second, 1));
  const auto one = [&](const WeightView& view, Role role, DeviceMatrix* to) -> Status {
    if (!view) return {};
    const cuda::MatrixSource source{view, role, {}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload({&source, 1}));
    *to = made[0];
    return {};
  };
  CELER_RETURN_IF_ERROR(UploadRouter(l, d));
  CELER_RETURN_IF_ERROR(one(l.shared.gate, Role::kProjection, &d->gate));
  CELER_RETURN_IF_ERROR(one(l.shared.up, Role::kProjection, &d->up));
  return one(l.shared.down, Role::kProjection, &d->down);
}

// As it is stored, whatever becomes of the other weights: it is small and decides much.
Status CudaModel::UploadRouter(const LayerWeights& l, DeviceLayer* d) {
  const int64_t hidden = config.hidden;
  std::vector<float> rows(static_cast<size_t>((config.moe.experts + 1) * hidden));
  for (int64_t e = 0; e < config.moe.experts; ++e) DecodeWeightRow(l.router, e, rows.data() + e * hidden);
  d->shared_gate = static_cast<bool>(l.shared_gate);
  if (l.shared_gate) DecodeWeightRow(l.shared_gate, 0, rows.data() + config.moe.experts * hidden);
  CELER_ASSIGN(d->router, weights->UploadVector(rows.data(), static_cast<int64_t>(rows.size())));
  return {};
}

Status CudaModel::RandomExperts(const std::function<DeviceMatrix(int64_t, int64_t)>& plan, DeviceLayer* d) {
  const MoeConfig& moe = config.moe;
  const auto made = [&](int64_t count, int64_t rows, int64_t cols) -> Result<std::vector<DeviceMatrix>> {
    return weights->Random(std::vector<DeviceMatrix>(static_cast<size_t>(count), plan(rows, cols)));
  };
  CELER_ASSIGN(const auto gate_up, made(2 * moe.experts, moe.intermediate, config.hidden));
  CELER_ASSIGN(const auto down, made(moe.experts, config.hidden, moe.intermediate));
  CELER_ASSIGN(d->expert_gate_up, StridedExperts(gate_up, 2));
  CELER_ASSIGN(d->expert_down, StridedExperts(down, 1));
  std::vector<float> router(static_cast<size_t>((moe.experts + 1) * config.hidden));
  std::minstd_rand random(static_cast<unsigned>(layers.size() + 1));
  for (float& value : router) value = static_cast<float>(random()) / 2147483648.0f - 0.5f;
  CELER_ASSIGN(d->router, weights->UploadVector(router.data(), static_cast<int64_t>(router.size())));
  if (moe.shared_intermediate == 0) return {};
  CELER_ASSIGN(const auto shared, made(2, moe.shared_intermediate, config.hidden));
  CELER_ASSIGN(const auto shared_down, made(1, config.hidden, moe.shared_intermediate));
  d->gate = shared[0], d->up = shared[1], d->down = shared_down[0], d->shared_gate = true;
  return {};
}

}  // namespace celer
