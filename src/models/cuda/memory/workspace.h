// The memory on a GPU that a decoder needs beside its weights and the KV. One table says what there is and
// how large it is; the memory plan adds it up and the allocation follows it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "device/buffer.h"
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"
#include "kernels/llm/sample/sample_cuda.h"
#include "models/config/decoder_config.h"

namespace celer {

// Sums over ranks that are given at the same time, at most (CudaOperators::Part).
inline constexpr int64_t kRankParts = 3;

// What the sizes depend on.
struct CudaShape {
  const DecoderConfig* config = nullptr;
  int64_t max_tokens = 0;  // of one batch
  int64_t context = 0;     // the longest sequence, a multiple of the KV's block
  DType kv = DType::kF16;
  bool exact = false;                    // products in f32 only
  bool wgmma = false;                    // warpgroup products
  bool gemm = false;                     // weights are unpacked for cuBLASLt,
  bool rows = false;                     // or kept in its order,
  std::optional<cuda::Code> codes = {};  // or as codes of 8 bits
  bool fused = false;                    // a decode step may be one kernel
  bool deterministic = false;
  bool general = false;    // layers that are not Llama's (HasPlainLayers)
  bool lora = false;       // batches may have adapters: each product apart
  int64_t sequences = 64;  // of a decode step
  // Of one rank of several, whose configuration is that of its part: the tokens of all ranks.
  int64_t all_vocab = 0;
  bool leads = false;  // rank 0 of several
  int64_t vocab() const { return all_vocab > 0 ? all_vocab : config->vocab; }

  int64_t q_width() const { return config->heads * config->head_dim; }
  int64_t kv_width() const { return config->kv_heads * config->head_dim; }
  // With an output gate q has rows for it, too.
  int64_t qkv_width() const {
    const LatentConfig& l = config->latent;
    if (config->IsLatent()) return l.q_rank + kv_width() + config->heads * (l.nope_dim + l.rope_dim);
    return q_width() * (config->output_gate ? 2 : 1) + 2 * kv_width();
  }
  // What the output projection reads of a token.
  int64_t attention_width() const {
    const RecurrentConfig& r = config->recurrent;
    return std::max({config->IsLatent() ? config->heads * config->latent.value_dim : q_width(),
                     r.layer.empty() ? 0 : r.value_heads * r.value_dim});
  }
  // The widest input of a product, that of down aside.
  int64_t input_width() const {
    return std::max({config->hidden, q_width(), attention_width(), config->latent.q_rank});
  }
  int64_t PartFloats() const { return (max_tokens * config->hidden + 3) / 4 * 4; }  // one of kRankParts
  int64_t table_width() const;                                              // blocks of the longest sequence
  int64_t logit_rows() const { return std::max<int64_t>(256, sequences); }  // of one batch
  // The widest layer that runs as a dense one.
  int64_t ffn_width() const { return std::max(config->intermediate, config->moe.shared_intermediate); }
};

// Zeros at first. Null where the model or the options need none.
struct CudaMemory {
  // The batch.
  int32_t *tokens = nullptr, *positions = nullptr, *sequence = nullptr, *logit_rows = nullptr;  // [tokens]
  int32_t* seq_start = nullptr;                      // [sequences + 1]
  int32_t* slots = nullptr;                          // [sequences], of their states
  int32_t* table = nullptr;                          // [sequences, blocks of the longest]
  float *rope_cos = nullptr, *rope_sin = nullptr;    // [context, rope dim / 2]
  float *local_cos = nullptr, *local_sin = nullptr;  // of DecoderConfig::local_rope
  float* query_scale = nullptr;                      // [context]
  // Activations [tokens, ...].
  float *x = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *attention = nullptr, *mid = nullptr,
        *up = nullptr;
  float* qkv_rows = nullptr;
  float *recurrent_in = nullptr, *recurrent_prepared = nullptr;  // as in DeltaNetArgs
  float* branch = nullptr;  // [tokens, hidden], of models that norm what a branch adds
  float* normed = nullptr;  // [tokens or logit_rows(), hidden], of models with LayerNorm
  float* logits = nullptr;  // [logit_rows(), vocab]; of several ranks its part of the vocabulary
  // Of several ranks: parts of sums [3, tokens, hidden], all logits on the first one, and its ShareListsArgs::shared.
  float *rank_parts = nullptr, *all_logits = nullptr;
  int32_t* rank_lists = nullptr;
  const float* Chosen() const { return all_logits ? all_logits : logits; }  // what tokens are chosen from
  float* partial = nullptr;                                                 // of attention
  int32_t* attention_tickets = nullptr;
  std::byte *x_bf16 = nullptr, *mid_bf16 = nullptr;  // activations in bf16, in whatever order a product wants
  // Warpgroup products.
  float* wgmma_partial = nullptr;
  int32_t* wgmma_tickets = nullptr;
  std::byte* attention_bf16 = nullptr;  // up to kWgmmaJoined tokens
  float* wgmma_squares = nullptr;
  // cuBLASLt: two places for unpacked weights.
  std::byte *unpacked_a = nullptr, *unpacked_b = nullptr;
  std::byte* gate_up_bf16 = nullptr;
  float* token_scales = nullptr;  // of activations in codes: [2, tokens]
  // Layers with experts: of each token, and of each token for each of its experts.
  float *router_logits = nullptr, *moe_x = nullptr, *shared_out = nullptr;
  float *moe_mid = nullptr, *moe_out = nullptr;
  float* moe_up = nullptr;  // where adapters come between gate and up and their activation
  std::byte *moe_x_bf16 = nullptr, *moe_mid_bf16 = nullptr, *shared_mid_bf16 = nullptr;
  std::byte *moe_plan = nullptr, *moe_step = nullptr;
  // Decode steps in one kernel.
  std::byte *step = nullptr, *batch_step = nullptr;
  // Choosing tokens.
  int32_t* greedy_tickets = nullptr;
  uint64_t* greedy_best = nullptr;
  cuda::SampleRow* sample_rows = nullptr;  // [logit_rows()]
};

class CudaWorkspace {
 public:
  using Field =
      std::variant<std::monostate, float * CudaMemory::*, int32_t * CudaMemory::*, uint64_t * CudaMemory::*,
                   std::byte * CudaMemory::*, cuda::SampleRow * CudaMemory::*>;
  struct Row {
    const char* name;
    Field field;                           // none: others take it, the plan counts it
    int64_t (*bytes)(const CudaShape& s);  // 0: not needed
  };
  static std::span<const Row> Rows();
  static int64_t Bytes(const CudaShape& shape);  // of all rows

  // On the default stream, which has to be waited for.
  Status Allocate(int device, const CudaShape& shape);

  const CudaMemory& memory() const { return memory_; }
  int64_t allocated() const;

 private:
  CudaMemory memory_;
  std::vector<Buffer> buffers_;
};

}  // namespace celer
