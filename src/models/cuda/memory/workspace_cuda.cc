#include "models/cuda/memory/workspace.h"

#include <algorithm>

#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/attention/cuda/attention_cuda.h"
#include "kernels/llm/decode_step/decode_batch_cuda.h"
#include "kernels/llm/decode_step/decode_step_cuda.h"
#include "kernels/llm/latent/cuda/latent_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "models/cpu/rope.h"
#include "models/cuda/memory/kv.h"
#include "models/cuda/memory/states.h"
#include "models/cuda/model.h"

namespace celer {
namespace {

using M = CudaMemory;
using S = CudaShape;
using Row = CudaWorkspace::Row;

constexpr int64_t Padded(int64_t cols) {
  return (cols + cuda::kColumnPad - 1) / cuda::kColumnPad * cuda::kColumnPad;
}

// Activations in bf16, of a width, for the products that take them.
int64_t Bf16Bytes(const S& s, int64_t rows, int64_t cols) {
  if (s.exact) return 0;
  return std::max(2 * s.max_tokens * (cols + 128),
                  s.wgmma ? cuda::WgmmaActivationBytes(rows, cols + 127) : 0);
}

// The largest of the products whose weights are unpacked, in bf16.
int64_t UnpackedBytes(const S& s) {
  if (!s.gemm || s.rows || s.codes) return 0;
  const DecoderConfig& c = *s.config;
  return 2 * std::max({s.qkv_width() * Padded(c.hidden), c.hidden * Padded(s.q_width()),
                       2 * c.intermediate * Padded(c.hidden), c.hidden * Padded(c.intermediate)});
}

int64_t LocalRopeBytes(const S& s) {
  return s.config->local_rope ? 4 * s.context * (s.config->local_rope->dim / 2) : 0;
}

int64_t IfRecurrent(const S& s, int64_t bytes) {
  return s.config->recurrent.layer.empty() ? 0 : bytes;
}

int64_t Top(const S& s) {  // experts of a token
  return s.config->moe.experts_per_token + CudaModel::SharedExperts(s.config->moe);
}
int64_t Pairs(const S& s) {  // of tokens and experts
  return s.max_tokens * Top(s);
}
int64_t IfSparse(const S& s, int64_t bytes) {
  return s.config->moe.experts > 0 ? bytes : 0;
}
int64_t IfShared(const S& s, int64_t bytes) {
  return s.config->moe.experts > 0 && s.config->moe.shared_intermediate > 0 ? bytes : 0;
}

int64_t StepBytes(const S& s, size_t (*bytes)(const cuda::DecodeStepArgs&)) {
  const DecoderConfig& c = *s.config;
  if (!s.fused || c.layers == 0) return 0;
  std::vector<cuda::DecodeStepLayer> shapes(static_cast<size_t>(c.layers));
  shapes[0].qkv.kv = DeviceKvShape(c, s.kv);
  shapes[0].o.a.rows = static_cast<int>(c.hidden);
  shapes[0].gate_up.a.rows = static_cast<int>(c.intermediate);
  shapes[0].qkv.a.padded = shapes[0].gate_up.a.padded = static_cast<int>(Padded(c.hidden));
  shapes[0].o.a.padded = static_cast<int>(Padded(s.q_width()));
  shapes[0].down.a.padded = static_cast<int>(Padded(c.intermediate));
  cuda::DecodeStepArgs args;
  args.layers = shapes;
  args.heads = static_cast<int>(c.heads);
  return static_cast<int64_t>(bytes(args));
}

constexpr Row kRows[] = {
    {"tokens", &M::tokens, [](const S& s) { return 4 * s.max_tokens; }},
    {"positions", &M::positions, [](const S& s) { return 4 * s.max_tokens; }},
    {"sequences of tokens", &M::sequence, [](const S& s) { return 4 * s.max_tokens; }},
    {"rows of logits", &M::logit_rows, [](const S& s) { return 4 * s.max_tokens; }},
    {"starts of sequences", &M::seq_start, [](const S& s) { return 4 * (s.max_tokens + 1); }},
    {"slots of states", &M::slots, [](const S& s) { return IfRecurrent(s, 4 * s.max_tokens); }},
    {"block table", &M::table, [](const S& s) { return 4 * s.max_tokens * s.table_width(); }},
    {"rope cosines", &M::rope_cos, [](const S& s) { return 4 * s.context * (s.config->rope.dim / 2); }},
    {"rope sines", &M::rope_sin, [](const S& s) { return 4 * s.context * (s.config->rope.dim / 2); }},
    {"rope cosines in a window", &M::local_cos, LocalRopeBytes},
    {"rope sines in a window", &M::local_sin, LocalRopeBytes},
    {"scales of queries", &M::query_scale,
     [](const S& s) { return s.config->query_scale.beta != 0 ? 4 * s.context : 0; }},

    {"x", &M::x, [](const S& s) { return 4 * s.max_tokens * s.config->hidden; }},
    {"q", &M::q, [](const S& s) { return 4 * s.max_tokens * s.q_width(); }},
    {"attention", &M::attention, [](const S& s) { return 4 * s.max_tokens * s.attention_width(); }},
    {"k", &M::k, [](const S& s) { return 4 * s.max_tokens * s.kv_width(); }},
    {"v", &M::v, [](const S& s) { return 4 * s.max_tokens * s.kv_width(); }},
    {"mid", &M::mid, [](const S& s) { return 4 * s.max_tokens * s.ffn_width(); }},
    {"up", &M::up, [](const S& s) { return 4 * s.max_tokens * s.ffn_width(); }},
    {"logits", &M::logits, [](const S& s) { return 4 * s.logit_rows() * s.config->vocab; }},
    {"parts of sums", &M::rank_parts,
     [](const S& s) { return s.all_vocab > 0 ? 4 * kRankParts * s.PartFloats() : 0; }},
    {"logits of all ranks", &M::all_logits,
     [](const S& s) { return s.leads ? 4 * s.logit_rows() * s.vocab() : 0; }},
    {"tokens for all ranks", &M::rank_lists, [](const S& s) { return s.leads ? 8 * s.sequences : 0; }},
    {"pieces of attention", &M::partial,
     [](const S& s) {
       const int64_t rank = s.config->latent.kv_rank;
       if (rank > 0)
         return 4 * (rank + 2) * cuda::LatentPieceCount(s.max_tokens, static_cast<int>(s.config->heads));
       return 4 * cuda::AttentionPartialFloats(s.max_tokens, static_cast<int>(s.config->heads),
                                               static_cast<int>(s.config->kv_heads),
                                               DeviceKvShape(*s.config, s.kv).padded_dim);
     }},
    {"tickets of attention", &M::attention_tickets,
     [](const S& s) {
       return 4 * std::min<int64_t>(s.max_tokens, cuda::kAttentionTokens) * s.config->heads;
     }},
    {"x in bf16", &M::x_bf16,
     [](const S& s) { return Bf16Bytes(s, std::max(s.max_tokens, s.logit_rows()), s.input_width()); }},
    {"mid in bf16", &M::mid_bf16,
     [](const S& s) { return Bf16Bytes(s, s.max_tokens, s.config->intermediate); }},
    {"q, k and v", &M::qkv_rows,
     [](const S& s) { return s.exact && !s.general && !s.lora ? 0 : 4 * s.max_tokens * s.qkv_width(); }},
    {"input of recurrent layers", &M::recurrent_in,
     [](const S& s) {
       return IfRecurrent(s, 4 * s.max_tokens * DeviceDeltaShape(s.config->recurrent).InputFloats());
     }},
    {"queries, keys and values of recurrent layers", &M::recurrent_prepared,
     [](const S& s) {
       return IfRecurrent(s, 4 * s.max_tokens * DeviceDeltaShape(s.config->recurrent).PreparedFloats());
     }},
    {"branch", &M::branch,
     [](const S& s) { return s.config->post_norm || s.lora ? 4 * s.max_tokens * s.config->hidden : 0; }},
    {"x under LayerNorm", &M::normed,
     [](const S& s) {
       return s.config->norm == NormKind::kLayer
                  ? 4 * std::max(s.max_tokens, s.logit_rows()) * s.config->hidden
                  : 0;
     }},

    {"pieces of warpgroup products", &M::wgmma_partial,
     [](const S& s) { return s.wgmma ? 4 * cuda::WgmmaPartialFloats() : 0; }},
    {"tickets of warpgroup products", &M::wgmma_tickets,
     [](const S& s) { return s.wgmma ? 4 * cuda::WgmmaTickets() : 0; }},
    {"attention in bf16", &M::attention_bf16,
     [](const S& s) {
       return s.wgmma ? cuda::WgmmaActivationBytes(cuda::kWgmmaJoined, s.q_width() + 127) : 0;
     }},
    {"squares", &M::wgmma_squares,
     [](const S& s) { return s.wgmma ? 4 * cuda::WgmmaSquaresFloats(s.config->hidden) : 0; }},

    {"unpacked weights", &M::unpacked_a, UnpackedBytes},
    {"unpacked weights, second", &M::unpacked_b, UnpackedBytes},
    {"gate and up in bf16", &M::gate_up_bf16,
     [](const S& s) {
       return s.gemm ? (s.codes == cuda::Code::kInt8 ? 8 : 4) * s.max_tokens * s.config->intermediate : 0;
     }},
    {"scales of tokens", &M::token_scales, [](const S& s) { return s.codes ? 8 * s.max_tokens : 0; }},
    {"cuBLASLt",
     {},
     [](const S& s) { return s.gemm ? static_cast<int64_t>(cuda::Gemm::kWorkspaceBytes) : 0; }},

    {"router logits", &M::router_logits,
     [](const S& s) { return IfSparse(s, 4 * s.max_tokens * (s.config->moe.experts + 1)); }},
    {"input of experts", &M::moe_x,
     [](const S& s) { return IfSparse(s, 4 * s.max_tokens * s.config->hidden); }},
    {"mid of experts", &M::moe_mid,
     [](const S& s) { return IfSparse(s, 4 * Pairs(s) * s.config->moe.intermediate); }},
    {"up of experts", &M::moe_up,
     [](const S& s) { return s.lora ? IfSparse(s, 4 * Pairs(s) * s.config->moe.intermediate) : 0; }},
    // With adapters also the input of each slot, in f32 or bf16.
    {"output of experts", &M::moe_out,
     [](const S& s) {
       const int64_t out = 4 * Pairs(s) * s.config->hidden;
       return IfSparse(s, s.lora ? std::max(out, 2 * Pairs(s) * Padded(s.config->hidden)) : out);
     }},
    {"output of the shared expert", &M::shared_out,
     [](const S& s) { return IfShared(s, 4 * s.max_tokens * s.config->hidden); }},
    {"input of experts in bf16", &M::moe_x_bf16,
     [](const S& s) { return s.exact ? 0 : IfSparse(s, 2 * s.max_tokens * Padded(s.config->hidden)); }},
    {"mid of experts in bf16", &M::moe_mid_bf16,
     [](const S& s) { return s.exact ? 0 : IfSparse(s, 2 * Pairs(s) * Padded(s.config->moe.intermediate)); }},
    {"mid of the shared expert in bf16", &M::shared_mid_bf16,
     [](const S& s) {
       return s.exact ? 0 : IfShared(s, 2 * s.max_tokens * Padded(s.config->moe.shared_intermediate));
     }},
    {"plan of experts", &M::moe_plan,
     [](const S& s) { return IfSparse(s, cuda::MoePlan::Bytes(s.max_tokens, Top(s))); }},
    {"steps of experts", &M::moe_step, [](const S& s) { return IfSparse(s, cuda::MoeStepMemory::Bytes()); }},

    {"decode step", &M::step, [](const S& s) { return StepBytes(s, cuda::DecodeStepBytes); }},
    {"decode batch", &M::batch_step, [](const S& s) { return StepBytes(s, cuda::DecodeBatchBytes); }},

    {"tickets of choices", &M::greedy_tickets, [](const S& s) { return 4 * s.logit_rows(); }},
    {"best of choices", &M::greedy_best, [](const S& s) { return 8 * s.logit_rows(); }},
    {"sampling", &M::sample_rows,
     [](const S& s) { return static_cast<int64_t>(sizeof(cuda::SampleRow)) * s.logit_rows(); }},
    // For each sequence of a step: counts of tokens and biases by token, and its history in pieces of 4096.
    {"token counts, biases and histories",
     {},
     [](const S& s) { return s.sequences * 4 * (2 * s.vocab() + 1 + 4096 + s.context); }},
    {"rounding of addresses", {}, [](const S&) { return int64_t{8} << 20; }},
};

Status CopyTable(const std::vector<float>& from, float* to) {
  if (from.empty()) return {};
  return CudaStatus(cudaMemcpy(to, from.data(), from.size() * 4, cudaMemcpyHostToDevice),
                    "copying tables of positions");
}

// cos and sin of every position: the step reads them at positions that only the device knows.
Status FillRope(const RopeConfig& rope, int64_t context, float* to_cos, float* to_sin) {
  std::vector<int32_t> all(static_cast<size_t>(context));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  std::vector<float> cos(all.size() * static_cast<size_t>(rope.dim / 2)), sin(cos.size());
  RopeTable(rope).Fill(all, cos.data(), sin.data());
  CELER_RETURN_IF_ERROR(CopyTable(cos, to_cos));
  return CopyTable(sin, to_sin);
}

Status FillTables(const S& s, const M& m) {
  const DecoderConfig& c = *s.config;
  CELER_RETURN_IF_ERROR(FillRope(c.rope, s.context, m.rope_cos, m.rope_sin));
  if (c.local_rope) CELER_RETURN_IF_ERROR(FillRope(*c.local_rope, s.context, m.local_cos, m.local_sin));
  if (c.query_scale.beta == 0) return {};
  std::vector<float> scales;
  for (int64_t i = 0; i < s.context; ++i) scales.push_back(QueryFactor(c.query_scale, i));
  return CopyTable(scales, m.query_scale);
}

}  // namespace

int64_t CudaShape::table_width() const {
  return KvBlocksFor(context);
}

std::span<const Row> CudaWorkspace::Rows() {
  return kRows;
}

int64_t CudaWorkspace::Bytes(const CudaShape& shape) {
  int64_t total = 0;
  for (const Row& row : kRows) total += row.bytes(shape);
  return total;
}

Status CudaWorkspace::Allocate(int device, const CudaShape& shape) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  for (const Row& row : kRows) {
    const int64_t bytes = row.bytes(shape);
    if (bytes == 0 || std::holds_alternative<std::monostate>(row.field)) continue;
    CELER_ASSIGN(Buffer buffer, Buffer::Allocate(*allocator, static_cast<size_t>(bytes)));
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemset(buffer.data(), 0, buffer.size()), "clearing GPU memory"));
    std::visit(
        [&](auto field) {
          if constexpr (!std::is_same_v<decltype(field), std::monostate>)
            memory_.*field =
                reinterpret_cast<std::remove_reference_t<decltype(memory_.*field)>>(buffer.data());
        },
        row.field);
    buffers_.push_back(std::move(buffer));
  }
  return FillTables(shape, memory_);
}

int64_t CudaWorkspace::allocated() const {
  int64_t total = 0;
  for (const Buffer& buffer : buffers_) total += static_cast<int64_t>(buffer.size());
  return total;
}

}  // namespace celer
