// Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini: q, k, v in one matrix, gate and up in another, longrope.
#include "models/config/families/families.h"

namespace celer::families {
namespace {

void SplitFused(const DecoderConfig& c, const char* qkv, const char* gate_up, TensorRules* rules) {
  const PartNames& to = rules->parts();
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  rules->Split(qkv, {{to.q, q}, {to.k, kv}, {to.v, kv}});
  rules->Split(gate_up, {{to.gate, c.intermediate}, {to.up, c.intermediate}});
}

}  // namespace

Status Phi3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, 0, 0));
  config->windowed_layer.assign(config->layers, true);
  return {};
}

void Phi3HfTensors(const DecoderConfig& config, TensorRules* rules) {
  SplitFused(config, "model.layers.%.self_attn.qkv_proj.weight", "model.layers.%.mlp.gate_up_proj.weight",
             rules);
}

// Files with a window have it in all layers, as in transformers (llama.cpp reads it and attends to everything).
Status Phi3FromGguf(const GgufFile&, DecoderConfig*) {
  return {};
}

void Phi3GgufTensors(const DecoderConfig& config, TensorRules* rules) {
  SplitFused(config, "blk.%.attn_qkv.weight", "blk.%.ffn_up.weight", rules);
}

}  // namespace celer::families
