// The weights of layers with experts in the memory of a GPU.
#include <algorithm>
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
  if (moe.groups > cuda::kMaxExpertGroups)
    return Error::Unsupported(moe.groups, " groups of experts do not run on the GPU (",
                              cuda::kMaxExpertGroups, " at most); use `device` cpu");
  if (moe.experts > cuda::kMaxExperts || moe.experts_per_token > cuda::kMaxTopExperts)
    return Error::Unsupported(moe.experts_per_token, " of ", moe.experts, " experts do not run on the GPU (",
                              cuda::kMaxTopExperts, " of ", cuda::kMaxExperts, " at most); use `device` cpu");
  return {};
}

int64_t CudaModel::SharedExperts(const MoeConfig& moe) {
  if (moe.experts == 0 || moe.shared_intermediate % moe.intermediate != 0 || moe.expert_bias) return 0;
  const int64_t parts = moe.shared_intermediate / moe.intermediate;
  const bool fits =
      moe.experts_per_token + parts <= cuda::kMaxStepTop && moe.experts + parts <= cuda::kMaxExperts;
  return fits ? parts : 0;
}

// Runs of the shared expert's rows and of the columns of its down; none if they would not be as the experts are.
std::vector<ExpertWeights> CudaModel::CutShared(const LayerWeights& l, const MoeConfig& moe,
                                                const cuda::DeviceWeights& store) {
  if (!l.shared.down) return {};
  std::vector<ExpertWeights> out;
  for (int64_t i = 0; i < SharedExperts(moe); ++i) {
    const auto gate = l.shared.gate.SliceRows(i * moe.intermediate, moe.intermediate),
               up = l.shared.up.SliceRows(i * moe.intermediate, moe.intermediate),
               down = l.shared.down.SliceColumns(i * moe.intermediate, moe.intermediate);
    if (!gate || !up || !down) return {};
    const auto alike = [&](const WeightView& part, const WeightView& of) {
      return SameForm(store.PlanMatrix(part, Role::kProjection), store.PlanMatrix(of, Role::kProjection));
    };
    const ExpertWeights& first = l.experts[0];
    if (!alike(*gate, first.gate) || !alike(*up, first.up) || !alike(*down, first.down)) return {};
    out.push_back({.gate = *gate, .up = *up, .down = *down});
  }
  return out;
}

Status CudaModel::UploadExperts(const LayerWeights& l, DeviceLayer* d) {
  std::vector<cuda::MatrixSource> gate_up, down;
  std::vector<ExpertWeights> experts = l.experts;
  const std::vector<ExpertWeights> shared = CutShared(l, config.moe, *weights);
  experts.insert(experts.end(), shared.begin(), shared.end());
  d->shared_experts = static_cast<int>(shared.size());
  for (const ExpertWeights& e : experts) {
    gate_up.push_back({e.gate, Role::kProjection, {}});
    gate_up.push_back({e.up, Role::kProjection, {}});
    down.push_back({e.down, Role::kProjection, {}});
  }
  CELER_ASSIGN(const std::vector<DeviceMatrix> first, weights->Upload(gate_up));
  CELER_ASSIGN(const std::vector<DeviceMatrix> second, weights->Upload(down));
  CELER_ASSIGN(d->expert_gate_up, StridedExperts(first, 2));
  CELER_ASSIGN(d->expert_down, StridedExperts(second, 1));
  CELER_RETURN_IF_ERROR(UploadExpertBiases(l, d));
  const auto one = [&](const WeightView& view, Role role, DeviceMatrix* to) -> Status {
    if (!view) return {};
    const cuda::MatrixSource source{view, role, {}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload({&source, 1}));
    *to = made[0];
    return {};
  };
  CELER_RETURN_IF_ERROR(UploadRouter(l, d));
  if (d->shared_experts > 0) return {};
  CELER_RETURN_IF_ERROR(one(l.shared.gate, Role::kProjection, &d->gate));
  CELER_RETURN_IF_ERROR(one(l.shared.up, Role::kProjection, &d->up));
  return one(l.shared.down, Role::kProjection, &d->down);
}

Status CudaModel::UploadExpertBiases(const LayerWeights& l, DeviceLayer* d) {
  const MoeConfig& moe = config.moe;
  if (!moe.expert_bias) return {};
  const auto upload = [&](const float* ExpertWeights::*bias, int64_t rows) {
    std::vector<float> all;
    for (const ExpertWeights& e : l.experts) all.insert(all.end(), e.*bias, e.*bias + rows);
    return weights->UploadVector(all.data(), static_cast<int64_t>(all.size()));
  };
  CELER_ASSIGN(d->expert_gate_up.first_bias, upload(&ExpertWeights::gate_bias, moe.intermediate));
  CELER_ASSIGN(d->expert_gate_up.up_bias, upload(&ExpertWeights::up_bias, moe.intermediate));
  CELER_ASSIGN(d->expert_down.first_bias, upload(&ExpertWeights::down_bias, config.hidden));
  return {};
}

// As it is stored, whatever becomes of the other weights: it is small and decides much.
Status CudaModel::UploadRouter(const LayerWeights& l, DeviceLayer* d) {
  const int64_t hidden = config.hidden;
  std::vector<float> rows(static_cast<size_t>((config.moe.experts + 1) * hidden));
  for (int64_t e = 0; e < config.moe.experts; ++e) DecodeWeightRow(l.router, e, rows.data() + e * hidden);
  d->shared_gate = static_cast<bool>(l.shared_gate);
  if (l.shared_gate) DecodeWeightRow(l.shared_gate, 0, rows.data() + config.moe.experts * hidden);
  CELER_ASSIGN(d->router, weights->UploadVector(rows.data(), static_cast<int64_t>(rows.size())));
  CELER_ASSIGN(d->router_bias, weights->UploadVector(l.router_bias, config.moe.experts));
  CELER_ASSIGN(d->choice_bias, weights->UploadVector(l.choice_bias, config.moe.experts));
  return {};
}

Status CudaModel::RandomExperts(const std::function<DeviceMatrix(int64_t, int64_t, DType)>& plan,
                                DeviceLayer* d) {
  const MoeConfig& moe = config.moe;
  const auto made = [&](int64_t count, int64_t rows, int64_t cols,
                        DType stored = DType::kBf16) -> Result<std::vector<DeviceMatrix>> {
    return weights->Random(std::vector<DeviceMatrix>(static_cast<size_t>(count), plan(rows, cols, stored)));
  };
  const DType type = RandomExpertType(config);
  const int64_t experts = moe.experts + SharedExperts(moe);
  CELER_ASSIGN(const auto gate_up, made(2 * experts, moe.intermediate, config.hidden, type));
  CELER_ASSIGN(const auto down, made(experts, config.hidden, moe.intermediate, type));
  CELER_ASSIGN(d->expert_gate_up, StridedExperts(gate_up, 2));
  CELER_ASSIGN(d->expert_down, StridedExperts(down, 1));
  CELER_RETURN_IF_ERROR(RandomRouter(d));
  d->shared_experts = static_cast<int>(SharedExperts(moe));
  d->shared_gate = moe.shared_intermediate > 0 && moe.shared_gated;
  if (moe.shared_intermediate == 0 || d->shared_experts > 0) return {};
  CELER_ASSIGN(const auto shared, made(2, moe.shared_intermediate, config.hidden));
  CELER_ASSIGN(const auto shared_down, made(1, config.hidden, moe.shared_intermediate));
  d->gate = shared[0], d->up = shared[1], d->down = shared_down[0];
  return {};
}

// And the biases, which are zeros.
Status CudaModel::RandomRouter(DeviceLayer* d) {
  const MoeConfig& moe = config.moe;
  std::vector<float> router(static_cast<size_t>((moe.experts + 1) * config.hidden));
  std::minstd_rand random(static_cast<unsigned>(layers.size() + 1));
  for (float& value : router) value = static_cast<float>(random()) / 2147483648.0f - 0.5f;
  CELER_ASSIGN(d->router, weights->UploadVector(router.data(), static_cast<int64_t>(router.size())));
  const std::vector<float> zeros(
      static_cast<size_t>(moe.experts * std::max(moe.intermediate, config.hidden)));
  if (moe.router_bias) {
    CELER_ASSIGN(d->router_bias, weights->UploadVector(zeros.data(), moe.experts));
  }
  if (moe.choice_bias) {
    CELER_ASSIGN(d->choice_bias, weights->UploadVector(zeros.data(), moe.experts));
  }
  if (!moe.expert_bias) return {};
  CELER_ASSIGN(d->expert_down.first_bias,
               weights->UploadVector(zeros.data(), static_cast<int64_t>(zeros.size())));
  d->expert_gate_up.first_bias = d->expert_gate_up.up_bias = d->expert_down.first_bias;
  return {};
}

}  // namespace celer
