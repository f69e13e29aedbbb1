// What the parts of a model are called in each container. "%" is the layer. A family whose files have other
// names maps them to these (models/config/tensor_rules.h).
#pragma once

namespace celer {

struct PartNames {
  const char *embedding, *embedding_norm, *embedding_norm_bias, *positions, *project_in, *project_out;
  const char *norm, *norm_bias, *head, *head_bias;
  const char *attention_norm, *attention_norm_bias, *attention_post_norm, *attention_post_norm_bias;
  const char *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias;
  const char *q_norm, *k_norm, *q_norm_bias, *k_norm_bias, *sinks;
  const char *ffn_norm, *ffn_norm_bias, *ffn_post_norm, *ffn_post_norm_bias;
  const char *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
  // Of recurrent layers. GGUF has -exp(A_log) for A_log.
  const char *state_q, *state_k, *state_v, *state_z, *state_b, *state_a;
  const char *state_conv, *state_dt_bias, *state_a_log, *state_norm, *state_out;
  // And of Mamba-2: x, B and C of all heads; the time step is state_a.
  const char *state_mixed, *state_conv_bias, *state_skip;
  const char *state_z_bias, *state_mixed_bias, *state_a_bias, *state_out_bias;
};

// As Llama's class in transformers has them; the last ones of a line are celer's own where Llama has no such part.
inline constexpr PartNames kHfNames = {
    .embedding = "model.embed_tokens.weight",
    .embedding_norm = "model.embed_norm.weight",
    .embedding_norm_bias = "model.embed_norm.bias",
    .positions = "model.embed_positions.weight",
    .project_in = "model.project_in.weight",
    .project_out = "model.project_out.weight",
    .norm = "model.norm.weight",
    .norm_bias = "model.norm.bias",
    .head = "lm_head.weight",
    .head_bias = "lm_head.bias",
    .attention_norm = "model.layers.%.input_layernorm.weight",
    .attention_norm_bias = "model.layers.%.input_layernorm.bias",
    .attention_post_norm = "model.layers.%.self_attn.post_norm.weight",
    .attention_post_norm_bias = "model.layers.%.self_attn.post_norm.bias",
    .q = "model.layers.%.self_attn.q_proj.weight",
    .k = "model.layers.%.self_attn.k_proj.weight",
    .v = "model.layers.%.self_attn.v_proj.weight",
    .o = "model.layers.%.self_attn.o_proj.weight",
    .q_bias = "model.layers.%.self_attn.q_proj.bias",
    .k_bias = "model.layers.%.self_attn.k_proj.bias",
    .v_bias = "model.layers.%.self_attn.v_proj.bias",
    .o_bias = "model.layers.%.self_attn.o_proj.bias",
    .q_norm = "model.layers.%.self_attn.q_norm.weight",
    .k_norm = "model.layers.%.self_attn.k_norm.weight",
    .q_norm_bias = "model.layers.%.self_attn.q_norm.bias",
    .k_norm_bias = "model.layers.%.self_attn.k_norm.bias",
    .sinks = "model.layers.%.self_attn.sinks",
    .ffn_norm = "model.layers.%.post_attention_layernorm.weight",
    .ffn_norm_bias = "model.layers.%.post_attention_layernorm.bias",
    .ffn_post_norm = "model.layers.%.mlp.post_norm.weight",
    .ffn_post_norm_bias = "model.layers.%.mlp.post_norm.bias",
    .gate = "model.layers.%.mlp.gate_proj.weight",
    .up = "model.layers.%.mlp.up_proj.weight",
    .down = "model.layers.%.mlp.down_proj.weight",
    .gate_bias = "model.layers.%.mlp.gate_proj.bias",
    .up_bias = "model.layers.%.mlp.up_proj.bias",
    .down_bias = "model.layers.%.mlp.down_proj.bias",
    .state_q = "model.layers.%.linear_attn.q_proj.weight",
    .state_k = "model.layers.%.linear_attn.k_proj.weight",
    .state_v = "model.layers.%.linear_attn.v_proj.weight",
    .state_z = "model.layers.%.linear_attn.in_proj_z.weight",
    .state_b = "model.layers.%.linear_attn.in_proj_b.weight",
    .state_a = "model.layers.%.linear_attn.in_proj_a.weight",
    .state_conv = "model.layers.%.linear_attn.conv1d.weight",
    .state_dt_bias = "model.layers.%.linear_attn.dt_bias",
    .state_a_log = "model.layers.%.linear_attn.A_log",
    .state_norm = "model.layers.%.linear_attn.norm.weight",
    .state_out = "model.layers.%.linear_attn.out_proj.weight",
    .state_mixed = "model.layers.%.linear_attn.in_proj_xbc.weight",
    .state_conv_bias = "model.layers.%.linear_attn.conv1d.bias",
    .state_skip = "model.layers.%.linear_attn.D",
    .state_z_bias = "model.layers.%.linear_attn.in_proj_z.bias",
    .state_mixed_bias = "model.layers.%.linear_attn.in_proj_xbc.bias",
    .state_a_bias = "model.layers.%.linear_attn.in_proj_a.bias",
    .state_out_bias = "model.layers.%.linear_attn.out_proj.bias",
};

inline constexpr PartNames kGgufNames = {
    .embedding = "token_embd.weight",
    .embedding_norm = "token_embd_norm.weight",
    .embedding_norm_bias = "token_embd_norm.bias",
    .positions = "position_embd.weight",
    .project_in = "token_embd_in.weight",
    .project_out = "token_embd_out.weight",
    .norm = "output_norm.weight",
    .norm_bias = "output_norm.bias",
    .head = "output.weight",
    .head_bias = "output.bias",
    .attention_norm = "blk.%.attn_norm.weight",
    .attention_norm_bias = "blk.%.attn_norm.bias",
    .attention_post_norm = "blk.%.post_attention_norm.weight",
    .attention_post_norm_bias = "blk.%.post_attention_norm.bias",
    .q = "blk.%.attn_q.weight",
    .k = "blk.%.attn_k.weight",
    .v = "blk.%.attn_v.weight",
    .o = "blk.%.attn_output.weight",
    .q_bias = "blk.%.attn_q.bias",
    .k_bias = "blk.%.attn_k.bias",
    .v_bias = "blk.%.attn_v.bias",
    .o_bias = "blk.%.attn_output.bias",
    .q_norm = "blk.%.attn_q_norm.weight",
    .k_norm = "blk.%.attn_k_norm.weight",
    .q_norm_bias = "blk.%.attn_q_norm.bias",
    .k_norm_bias = "blk.%.attn_k_norm.bias",
    .sinks = "blk.%.attn_sinks.weight",
    .ffn_norm = "blk.%.ffn_norm.weight",
    .ffn_norm_bias = "blk.%.ffn_norm.bias",
    .ffn_post_norm = "blk.%.post_ffw_norm.weight",
    .ffn_post_norm_bias = "blk.%.post_ffw_norm.bias",
    .gate = "blk.%.ffn_gate.weight",
    .up = "blk.%.ffn_up.weight",
    .down = "blk.%.ffn_down.weight",
    .gate_bias = "blk.%.ffn_gate.bias",
    .up_bias = "blk.%.ffn_up.bias",
    .down_bias = "blk.%.ffn_down.bias",
    .state_q = "blk.%.state_q.weight",
    .state_k = "blk.%.state_k.weight",
    .state_v = "blk.%.state_v.weight",
    .state_z = "blk.%.attn_gate.weight",
    .state_b = "blk.%.ssm_beta.weight",
    .state_a = "blk.%.ssm_alpha.weight",
    .state_conv = "blk.%.ssm_conv1d.weight",
    .state_dt_bias = "blk.%.ssm_dt.bias",
    .state_a_log = "blk.%.ssm_a",
    .state_norm = "blk.%.ssm_norm.weight",
    .state_out = "blk.%.ssm_out.weight",
    .state_mixed = "blk.%.ssm_xbc.weight",
    .state_conv_bias = "blk.%.ssm_conv1d.bias",
    .state_skip = "blk.%.ssm_d",
    .state_z_bias = "blk.%.attn_gate.bias",
    .state_mixed_bias = "blk.%.ssm_xbc.bias",
    .state_a_bias = "blk.%.ssm_alpha.bias",
    .state_out_bias = "blk.%.ssm_out.bias",
};

}  // namespace celer
