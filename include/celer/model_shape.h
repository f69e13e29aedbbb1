// The numbers that give a decoder its shape. Whoever describes one derives from them: LlmShape for its cost
// (limits.h), the configuration of a loaded model, the header of a llama2.c file.
#pragma once

#include <cstdint>

namespace celer {

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t vocab = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool gated_mlp = true;         // act(gate) * up; false: act(up)
  bool tied_embeddings = false;  // the head uses the embedding's matrix

  int64_t kv_dim() const { return kv_heads * head_dim; }
};

// Mixture of experts; 0 experts means dense.
struct ExpertShape {
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t shared_intermediate = 0;  // columns of an always-active shared expert; 0 if none
};

}  // namespace celer
