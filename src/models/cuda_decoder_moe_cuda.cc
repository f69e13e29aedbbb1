// CudaDecoder's layers with experts: their weights, their memory, their part of the forward pass.
#include <algorithm>
#include <random>

#include "kernels/moe/moe_cuda.h"
#include "models/cuda_decoder_impl.h"

namespace celer {
namespace {

using Role = WeightStore::Role;

// Every `step`-th of `all` from the first on: the same matrix of one expert after the other.
Result<cuda::ExpertMatrices> AtEqualDistances(std::span<const DeviceMatrix> all, size_t step) {
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
                                ") do not run on the GPU as stored; try --weights bf16, int8 or int4");
  return out;
}

constexpr int64_t Padded(int64_t cols) {
  return (cols + cuda::kColumnPad - 1) / cuda::kColumnPad * cuda::kColumnPad;
}

}  // namespace

Status CudaDecoder::Impl::CheckMoe() const {
  const MoeConfig& moe = config.moe;
  if (moe.experts > cuda::kMaxExperts || moe.per_token > cuda::kMaxTopExperts)
    return Error::Unsupported(moe.per_token, " of ", moe.experts, " experts do not run on the GPU (",
                              cuda::kMaxTopExperts, " of ", cuda::kMaxExperts, " at most); use --device cpu");
  return {};
}

int64_t CudaDecoder::Impl::moe_bytes() const {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0) return 0;
  const int64_t t = options.max_tokens, pairs = t * moe.per_token;
  const int64_t floats = t * (moe.experts + 1 + config.hidden) + pairs * (moe.intermediate + config.hidden) +
                         (moe.shared_intermediate > 0 ? t * config.hidden : 0);
  const int64_t bf16 = options.exact ? 0
                                     : t * (Padded(config.hidden) + Padded(moe.shared_intermediate)) +
                                           pairs * Padded(moe.intermediate);
  return 4 * floats + 2 * bf16 + cuda::MoePlan::Bytes(t, moe.per_token) + cuda::MoeStepMemory::Bytes();
}

Status CudaDecoder::Impl::AllocateMoe() {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0) return {};
  const int64_t t = options.max_tokens, pairs = t * moe.per_token;
  CELER_ASSIGN(router_logits, Own<float>(t * (moe.experts + 1)));
  CELER_ASSIGN(moe_x, Own<float>(t * config.hidden));
  CELER_ASSIGN(moe_mid, Own<float>(pairs * moe.intermediate));
  CELER_ASSIGN(moe_out, Own<float>(pairs * config.hidden));
  if (moe.shared_intermediate > 0) {
    CELER_ASSIGN(shared_out, Own<float>(t * config.hidden));
  }
  if (!options.exact) {
    CELER_ASSIGN(moe_x_bf16, Own<std::byte>(2 * t * Padded(config.hidden)));
    CELER_ASSIGN(moe_mid_bf16, Own<std::byte>(2 * pairs * Padded(moe.intermediate)));
  }
  if (!options.exact && moe.shared_intermediate > 0) {
    CELER_ASSIGN(shared_mid_bf16, Own<std::byte>(2 * t * Padded(moe.shared_intermediate)));
  }
  CELER_ASSIGN(std::byte * plan, Own<std::byte>(cuda::MoePlan::Bytes(t, moe.per_token)));
  moe_plan = cuda::MoePlan::In(plan, t, moe.per_token);
  CELER_ASSIGN(moe_step_memory, Own<std::byte>(cuda::MoeStepMemory::Bytes()));
  return {};
}

Status CudaDecoder::Impl::UploadExperts(const LayerWeights& l, DeviceLayer* d) {
  std::vector<cuda::MatrixSource> gate_up, down;
  for (const ExpertWeights& e : l.experts) {
    gate_up.push_back({e.gate, Role::kProjection, {}});
    gate_up.push_back({e.up, Role::kProjection, {}});
    down.push_back({e.down, Role::kProjection, {}});
  }
  CELER_ASSIGN(const std::vector<DeviceMatrix> first, weights->Upload(gate_up));
  CELER_ASSIGN(const std::vector<DeviceMatrix> second, weights->Upload(down));
  CELER_ASSIGN(d->expert_gate_up, AtEqualDistances(first, 2));
  CELER_ASSIGN(d->expert_down, AtEqualDistances(second, 1));
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
Status CudaDecoder::Impl::UploadRouter(const LayerWeights& l, DeviceLayer* d) {
  const int64_t hidden = config.hidden;
  std::vector<float> rows(static_cast<size_t>((config.moe.experts + 1) * hidden));
  for (int64_t e = 0; e < config.moe.experts; ++e) DecodeWeightRow(l.router, e, rows.data() + e * hidden);
  d->shared_gate = static_cast<bool>(l.shared_gate);
  if (l.shared_gate) DecodeWeightRow(l.shared_gate, 0, rows.data() + config.moe.experts * hidden);
  CELER_ASSIGN(d->router, weights->UploadVector(rows.data(), static_cast<int64_t>(rows.size())));
  return {};
}

Status CudaDecoder::Impl::RandomExperts(const std::function<DeviceMatrix(int64_t, int64_t)>& plan,
                                        DeviceLayer* d) {
  const MoeConfig& moe = config.moe;
  const auto made = [&](int64_t count, int64_t rows, int64_t cols) -> Result<std::vector<DeviceMatrix>> {
    return weights->Random(std::vector<DeviceMatrix>(static_cast<size_t>(count), plan(rows, cols)));
  };
  CELER_ASSIGN(const auto gate_up, made(2 * moe.experts, moe.intermediate, config.hidden));
  CELER_ASSIGN(const auto down, made(moe.experts, config.hidden, moe.intermediate));
  CELER_ASSIGN(d->expert_gate_up, AtEqualDistances(gate_up, 2));
  CELER_ASSIGN(d->expert_down, AtEqualDistances(down, 1));
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

// The experts' matrices are read as far as tokens were sent to them. A few tokens take one kernel; as long as
// an expert has a few, its products are those of a decode step; many tokens of an expert are multiplied as
// bf16 on the tensor cores.
void CudaDecoder::Impl::Moe(const DeviceLayer& w, int count) {
  const DecoderConfig& c = config;
  const int top = static_cast<int>(c.moe.per_token), hidden = static_cast<int>(c.hidden);
  const auto activation = static_cast<cuda::DeviceActivation>(c.activation);
  const bool grouped = moe_x_bf16 && count > kMaxMatvecTokens &&
                       count * c.moe.per_token > kMaxMatvecTokens * c.moe.experts &&
                       cuda::MoeGroupedRuns(w.expert_gate_up.first, w.expert_down.first);
  const int job_tokens =
      grouped ? cuda::kGroupedTokens : cuda::MoeJobTokens(w.expert_gate_up, w.expert_down, count);
  Mark(Op::kMoe);
  const int experts = static_cast<int>(c.moe.experts), routed = experts + (w.shared_gate ? 1 : 0);
  if (count <= kMaxMatvecTokens && cuda::MoeStepRuns(w.expert_gate_up, w.expert_down, experts, top, hidden)) {
    if (w.down) SharedExpert(w, count);
    cuda::MoeStepArgs args{.norm = w.ffn_norm,
                           .eps = c.norm_eps,
                           .router = w.router,
                           .tokens = count,
                           .hidden = hidden,
                           .experts = experts,
                           .routed = routed,
                           .top = top,
                           .normalize = c.moe.normalize_top,
                           .activation = activation,
                           .shared = w.down ? shared_out : nullptr,
                           .x = x,
                           .logits = router_logits,
                           .normed = moe_x,
                           .mid = moe_mid,
                           .out = moe_out};
    cuda::MoeStepMemory::In(moe_step_memory, &args);
    return Check(cuda::LaunchMoeStep(args, w.expert_gate_up, w.expert_down, stream->get()));
  }
  Check(cuda::LaunchMoeRouter({.x = x,
                               .norm = w.ffn_norm,
                               .eps = c.norm_eps,
                               .router = w.router,
                               .tokens = count,
                               .experts = routed,
                               .hidden = hidden,
                               .logits = router_logits},
                              stream->get()));
  Check(cuda::LaunchMoeRoute({.logits = router_logits,
                              .logits_stride = routed,
                              .tokens = count,
                              .experts = experts,
                              .top = top,
                              .normalize = c.moe.normalize_top,
                              .job_tokens = job_tokens,
                              .x = x,
                              .norm = w.ffn_norm,
                              .eps = c.norm_eps,
                              .hidden = hidden,
                              .normed = moe_x,
                              .plan = moe_plan},
                             stream->get()));
  if (grouped) {
    MoeInputToBf16(w.expert_gate_up.first, count);
    cuda::MoeGroupedArgs product{.w = w.expert_gate_up,
                                 .gate_up = true,
                                 .x = moe_x_bf16,
                                 .out = moe_mid_bf16,
                                 .out_stride = w.expert_down.first.padded,
                                 .activation = activation,
                                 .plan = moe_plan};
    Check(cuda::LaunchMoeGrouped(product, stream->get()));
    product.w = w.expert_down;
    product.gate_up = false;
    product.x = moe_mid_bf16;
    product.out = moe_out;
    product.out_stride = c.hidden;
    Check(cuda::LaunchMoeGrouped(product, stream->get()));
  } else {
    cuda::MoeProductArgs product{.w = w.expert_gate_up,
                                 .gate_up = true,
                                 .x = moe_x,
                                 .out = moe_mid,
                                 .activation = activation,
                                 .top = top,
                                 .job_tokens = job_tokens,
                                 .plan = moe_plan};
    Check(cuda::LaunchMoeProduct(product, stream->get()));
    product.w = w.expert_down;
    product.gate_up = false;
    product.x = moe_mid;
    product.out = moe_out;
    Check(cuda::LaunchMoeProduct(product, stream->get()));
  }
  if (w.down) SharedExpert(w, count);
  Check(cuda::LaunchMoeCombine({.out = moe_out,
                                .tokens = count,
                                .top = top,
                                .hidden = hidden,
                                .plan = moe_plan,
                                .shared = w.down ? shared_out : nullptr,
                                .shared_gate = w.shared_gate ? router_logits + experts : nullptr,
                                .shared_gate_stride = routed,
                                .x = x},
                               stream->get()));
}

void CudaDecoder::Impl::MoeInputToBf16(const DeviceMatrix& by, int count) {
  Check(cuda::LaunchToBf16(moe_x, count, static_cast<int>(config.hidden), by.padded, nullptr, 0, moe_x_bf16,
                           stream->get()));
}

// Of all tokens: a mixture of one expert, if there are many.
void CudaDecoder::Impl::SharedExpert(const DeviceLayer& w, int count) {
  if (!shared_mid_bf16 || count <= kMaxMatvecTokens || !SameForm(w.gate, w.up) ||
      !cuda::MoeGroupedRuns(w.gate, w.down)) {
    GateUp(w, count);
    return Multiply(
        {.a = &w.down, .x = mid, .x_stride = w.gate.rows, .out = shared_out, .out_stride = config.hidden},
        count);
  }
  MoeInputToBf16(w.gate, count);
  cuda::MoeGroupedArgs product{.w = {.first = w.gate, .up = w.up},
                               .gate_up = true,
                               .x = moe_x_bf16,
                               .out = shared_mid_bf16,
                               .out_stride = w.down.padded,
                               .activation = static_cast<cuda::DeviceActivation>(config.activation),
                               .plan = {},
                               .tokens = count};
  Check(cuda::LaunchMoeGrouped(product, stream->get()));
  product.w = {.first = w.down, .up = {}};
  product.gate_up = false;
  product.x = shared_mid_bf16;
  product.out = shared_out;
  product.out_stride = config.hidden;
  Check(cuda::LaunchMoeGrouped(product, stream->get()));
}

}  // namespace celer
