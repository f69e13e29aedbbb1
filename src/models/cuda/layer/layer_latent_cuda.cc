// Multi-head latent attention, absorbed (kernels/llm/latent/latent.h).
#include <algorithm>

#include "kernels/llm/latent/cuda/latent_join_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {
namespace {

constexpr float kLatentEps = 1e-6f;  // of the norms inside the projections, whatever the model's is

}  // namespace

GeneralStrategy::LatentRows GeneralStrategy::ProjectLatent(const DeviceLayer& w, int count) {
  const DecoderConfig& c = config();
  const LatentConfig& dims = c.latent;
  const DeviceLatent& l = w.latent;
  const int64_t q_width = l.q_b.rows, row = dims.kv_rank + dims.rope_dim;
  // One product where both go to the same place.
  const bool beside = dims.q_rank == 0 || (!op_.ByWarpgroups(count) && !w.q_bias);
  const DeviceMatrix& first = dims.q_rank > 0 ? l.q_a : l.q_b;
  const int64_t first_width = first.rows, stride = beside ? first_width + row : first_width;
  float* const to = m_.qkv_rows;
  LatentRows rows = {.q = to, .kv = to + first_width, .q_stride = stride, .kv_stride = stride};
  const DeviceMatrix* const both[] = {&first, &l.kv_a};
  CudaOperators::Projection product{.matrices = both,
                                    .x = m_.x,
                                    .norm = w.attention_norm,
                                    .eps = c.norm_eps,
                                    .out = to,
                                    .out_stride = stride};
  const float* const q_bias = beside ? nullptr : w.q_bias;
  if (!beside) {
    product.matrices = std::span(both).first(1);
    product.bias = op_.lora ? nullptr : q_bias;
    op_.Project(product, count);
    product.matrices = std::span(both).last(1);
    product.bias = nullptr;  // added with the norm
    product.out = to + count * first_width;
    product.out_stride = row;
    rows.kv = product.out;
    rows.kv_stride = row;
  }
  op_.Project(product, count);
  if (op_.lora) {
    const LoraPart parts[] = {dims.q_rank > 0 ? LoraPart::kLatentQA : LoraPart::kLatentQB,
                              LoraPart::kLatentKvA};
    op_.lora->Add(
        {.parts = parts,
         .layer = LayerOf(w),
         .x = m_.x,
         .cols = static_cast<int>(c.hidden),
         .norm = w.attention_norm,
         .eps = c.norm_eps,
         .outs = {{{first.rows, to, rows.q_stride, q_bias}, {l.kv_a.rows, rows.kv, rows.kv_stride}}}},
        count);
  }
  if (dims.q_rank == 0) return rows;
  float* const q = to + count * (first_width + row);
  if (op_.ByWarpgroups(count)) {
    const DeviceMatrix* const q_b[] = {&l.q_b};
    op_.Project({.matrices = q_b,
                 .x = rows.q,
                 .norm = l.q_a_norm,
                 .eps = kLatentEps,
                 .out = q,
                 .out_stride = q_width},
                count);
  } else {
    op_.Multiply({.a = &l.q_b,
                  .x = rows.q,
                  .x_stride = stride,
                  .norm = l.q_a_norm,
                  .eps = kLatentEps,
                  .out = q,
                  .out_stride = q_width},
                 count);
  }
  if (op_.lora) {
    constexpr LoraPart kPart[] = {LoraPart::kLatentQB};
    op_.lora->Add({.parts = kPart,
                   .layer = LayerOf(w),
                   .x = rows.q,
                   .x_stride = stride,
                   .cols = static_cast<int>(dims.q_rank),
                   .norm = l.q_a_norm,
                   .eps = kLatentEps,
                   .outs = {{{l.q_b.rows, q, q_width}}}},
                  count);
  }
  rows.q = q;
  rows.q_stride = q_width;
  return rows;
}

void GeneralStrategy::LatentQkv(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DecoderConfig& c = config();
  const LatentConfig& dims = c.latent;
  const LatentRows rows = ProjectLatent(w, batch.count);
  op_.Check(cuda::LaunchLatentQueries({.batch = batch,
                                       .kv = w.kv,
                                       .q = rows.q,
                                       .kv_row = rows.kv,
                                       .q_stride = rows.q_stride,
                                       .kv_row_stride = rows.kv_stride,
                                       .kv_bias = w.k_bias,
                                       .kv_norm = w.latent.kv_a_norm,
                                       .eps = kLatentEps,
                                       .k_b = w.latent.k_b,
                                       .heads = static_cast<int>(c.heads),
                                       .kv_rank = static_cast<int>(dims.kv_rank),
                                       .nope_dim = static_cast<int>(dims.nope_dim),
                                       .rope_dim = static_cast<int>(dims.rope_dim),
                                       .interleaved = c.rope.layout == RopeLayout::kInterleaved,
                                       .rope_cos = m_.rope_cos,
                                       .rope_sin = m_.rope_sin,
                                       .decode = op_.batch_state.longest() == 1,
                                       .out = m_.q},
                                      op_.stream.get()));
  if (op_.lora)
    op_.lora->AddHeads({.layer = LayerOf(w),
                        .keys = true,
                        .count = batch.count,
                        .x = rows.q,
                        .x_row = rows.q_stride,
                        .x_head = dims.nope_dim + dims.rope_dim,
                        .out = m_.q,
                        .out_row = c.heads * w.kv.head_dim,
                        .out_head = w.kv.head_dim},
                       batch.count);
}

// Some tokens; the splits of one launch are joined before the next one takes their room.
void GeneralStrategy::AttendLatent(const DeviceLayer& w, cuda::LatentAttentionArgs args, int first,
                                   int count) {
  args.first = first;
  args.count = count;
  args.pieces = {.splits = cuda::LatentSplits(args),
                 .sums = m_.partial,
                 .tops = reinterpret_cast<float2*>(
                     m_.partial + args.kv_rank * cuda::LatentPieceCount(op_.shape.max_tokens, args.heads))};
  op_.Check(cuda::LaunchLatentAttention(args, op_.stream.get()));
  const int64_t width = w.latent.v_b.rows;
  // Queries are no longer needed, and give their room.
  const cuda::LatentValuesArgs values{
      .pieces = args.pieces,
      .count = count,
      .heads = args.heads,
      .kv_rank = args.kv_rank,
      .v_b = w.latent.v_b,
      .joined = m_.q + static_cast<int64_t>(first) * args.heads * args.kv.head_dim,
      .out = m_.attention + first * width};
  op_.Check(cuda::LaunchLatentValues(values, op_.stream.get()));
  if (!op_.lora || !op_.lora->TouchesHeads()) return;
  op_.Check(cuda::LaunchLatentJoin(values, op_.stream.get()));
  op_.lora->AddHeads({.layer = LayerOf(w),
                      .first = first,
                      .count = count,
                      .x = values.joined,
                      .x_row = int64_t{args.heads} * args.kv_rank,
                      .x_head = args.kv_rank,
                      .out = values.out,
                      .out_row = width,
                      .out_head = width / args.heads},
                     args.batch.count);
}

void GeneralStrategy::LatentAttention(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DecoderConfig& c = config();
  cuda::LatentAttentionArgs args{.batch = batch,
                                 .kv = w.kv,
                                 .q = m_.q,
                                 .heads = static_cast<int>(c.heads),
                                 .kv_rank = static_cast<int>(c.latent.kv_rank),
                                 .scale = c.attention_scale,
                                 .decode = op_.batch_state.longest() == 1,
                                 .steady = op_.shape.deterministic};
  if (args.steady || op_.shape.exact || args.decode || batch.count <= kMaxMatvecTokens) {
    const int most = args.steady ? cuda::kSteadyLatentTokens : batch.count;
    for (int first = 0; first < batch.count; first += most)
      AttendLatent(w, args, first, std::min(most, batch.count - first));
    return;
  }
  // Single tokens stand in front of the pieces of prompts.
  const auto singles = static_cast<int>(op_.batch_state.leading_singles());
  if (singles > 0) {
    args.decode = true;
    AttendLatent(w, args, 0, singles);
  }
  args.alone = args.decode = false;
  args.seq_start = op_.batch_state.seq_start() + singles;
  args.sequences = static_cast<int>(op_.batch_state.sequences()) - singles;
  AttendLatent(w, args, singles, batch.count - singles);
}

}  // namespace celer
