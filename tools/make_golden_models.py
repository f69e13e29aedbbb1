#!/usr/bin/env python3
"""Makes tests/golden: tiny random models of every family, and what transformers computes with them.

  python tools/make_golden_models.py --out tests/golden               # all of it, a minute or two
  python tools/make_golden_models.py --out /tmp/golden --only qwen3   # one model and the files derived from it
  python tools/make_golden_models.py --search qwen3                   # look for a seed that passes the checks

Versions: tools/requirements-golden.txt. Layout and meaning of every file: tests/golden/README.md.
Weights come from numpy's PCG64 and a fixed seed, so they are the same everywhere; logits may differ in their last bits
between CPUs.
"""

import argparse
import json
import pathlib
import re
import shutil
import struct
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from safetensors.torch import save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "configs"))
import minicpm_reference  # noqa: E402

PROMPT = 24        # tokens
STEPS = 200        # greedy tokens after them
MARGIN = 2e-3      # least gap between the best and the second logit at each step: 20 times what f32 noise could turn
ROUTER_MARGIN = 1e-3  # the same for the router's logits of the last chosen and the first refused expert
NOISE = 2e-5       # greatest |f32 - f64| over the greatest |logit|
FIRM_MARGIN = 0.02   # of a model with `firm` steps: the least gap there, over the prompt's greatest |logit|. Kernels that round
                    # activations to 8 bits or to bf16 are not to turn one

# Small shapes, not powers of two where the family allows it. Each family overrides what it is about.
BASE = dict(hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            vocab_size=48, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)


def rope(theta, kind="default", **more):
    return {"rope_theta": float(theta), "rope_type": kind, **more}


def rope_of_full(config):
    """Parameters of the rope of all layers, or of those with full attention."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return parameters.get("full_attention") or {"rope_type": "default", **parameters}


# name: (config class, seed, what it is for, config fields). `v4` holds fields that only the config of older versions has;
# `shard` and `generation` are about the folder's files. `grid`: weights that Q4_0 holds exactly, and no folder, only GGUF;
# `firm`: the first this many greedy tokens have wide margins; `model_type`: written into config.json.
MODELS = {
    "llama2": ("LlamaConfig", 3, "multi-head attention: a KV head for each query head", dict(
        hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=4,
        rms_norm_eps=1e-5, rope_parameters=rope(1e4))),
    "llama3": ("LlamaConfig", 1, "grouped-query attention, rope_theta 500000, two end tokens, sharded file", dict(
        hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-5, rope_parameters=rope(5e5), eos_token_id=[2, 3], shard="13KB")),
    "llama3.1": ("LlamaConfig", 2, "rope type llama3: one frequency kept, one blended, the others divided by 8", dict(
        hidden_size=20, num_attention_heads=2, rms_norm_eps=1e-5, max_position_embeddings=1024,
        rope_parameters=rope(5e5, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=128))),
    "llama3.2": ("LlamaConfig", 2, "rope type llama3 with factor 32, tied embeddings, head_dim unlike hidden / heads", dict(
        num_attention_heads=2, head_dim=10, rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=4096,
        rope_parameters=rope(5e5, "llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=128))),
    "llama_linear": ("LlamaConfig", 1, "rope type linear, factor 4", dict(
        rope_parameters=rope(1e4, "linear", factor=4.0), max_position_embeddings=1024)),
    "llama_dynamic": ("LlamaConfig", 1, "rope type dynamic: the prompt and every token after it are beyond 16 positions", dict(
        hidden_size=20, num_attention_heads=2, rope_parameters=rope(1e4, "dynamic", factor=16.0), max_position_embeddings=16)),
    "llama_longrope": ("LlamaConfig", 1, "rope type longrope: the long factors from token 100 on", dict(
        hidden_size=20, num_attention_heads=2, max_position_embeddings=256,
        rope_parameters=rope(1e4, "longrope", short_factor=[1.0, 1.5, 2.0, 2.5, 3.0], long_factor=[1.0, 2.0, 4.0, 6.0, 8.0],
                             original_max_position_embeddings=100))),
    "llama_bias": ("LlamaConfig", 1, "biases on q, k, v, o, gate, up and down", dict(
        attention_bias=True, mlp_bias=True, rope_parameters=rope(1e4))),
    "tinyllama": ("LlamaConfig", 3, "four query heads share one KV head of 4 numbers", dict(
        hidden_size=16, intermediate_size=24, num_attention_heads=4, rms_norm_eps=1e-5, rope_parameters=rope(1e4))),
    "smollm2": ("LlamaConfig", 2, "tied embeddings, three query heads to a KV head of 6 numbers", dict(
        intermediate_size=26, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope(1e5),
        is_llama_config=True, rope_interleaved=False)),
    "mistral": ("MistralConfig", 1, "sliding window of 16 tokens in every layer (a token sees itself and 15 before)", dict(
        sliding_window=16, rms_norm_eps=1e-5, rope_parameters=rope(1e4))),
    "qwen1.5": ("Qwen2Config", 2, "biases on q, k and v; multi-head attention", dict(
        num_key_value_heads=3, rope_parameters=rope(1e6), v4=dict(sliding_window=8))),
    "qwen2": ("Qwen2Config", 1, "biases on q, k and v; grouped-query attention", dict(
        hidden_size=24, num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope(1e6), v4=dict(sliding_window=8))),
    "qwen2_window": ("Qwen2Config", 2, "layer 0 full, layer 1 a sliding window of 12 tokens; tied embeddings", dict(
        use_sliding_window=True, sliding_window=12, max_window_layers=1, tie_word_embeddings=True, rope_parameters=rope(1e6))),
    "qwen2.5": ("Qwen2Config", 1, "biases and tied embeddings; generation_config.json with sampling defaults", dict(
        tie_word_embeddings=True, rope_parameters=rope(1e6), v4=dict(sliding_window=8),
        generation=dict(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1, eos_token_id=[2, 3]))),
    "qwen2.5_yarn": ("Qwen2Config", 1, "rope type yarn, factor 4", dict(
        hidden_size=20, num_attention_heads=2, tie_word_embeddings=True, max_position_embeddings=1024,
        rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=256))),
    "qwen3": ("Qwen3Config", 8, "norms of q and k; head_dim 6 unlike hidden / heads; tied embeddings", dict(
        hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=6, tie_word_embeddings=True,
        rope_parameters=rope(1e6))),
    "mixtral": ("MixtralConfig", 1, "4 experts, best 2, their weights renormalised", dict(
        intermediate_size=16, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_parameters=rope(1e6))),
    "qwen2_moe": ("Qwen2MoeConfig", 1, "shared expert behind a sigmoid gate, not renormalised; layers 0, 2 and 3 dense", dict(
        num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=12, shared_expert_intermediate_size=20, norm_topk_prob=False, rope_parameters=rope(1e6))),
    "qwen3_moe": ("Qwen3MoeConfig", 3, "norms of q and k, 6 experts, best 3, renormalised", dict(
        num_attention_heads=6, num_key_value_heads=3, head_dim=4, num_experts=6, num_experts_per_tok=3,
        moe_intermediate_size=10, norm_topk_prob=True, rope_parameters=rope(1e6))),
    "gemma2": ("Gemma2Config", 1, "norms before and behind branches, softcaps on scores and logits, layer 0 with a window of 12", dict(
        hidden_size=36, head_dim=6, query_pre_attn_scalar=10, tie_word_embeddings=False, attn_logit_softcapping=3.0, final_logit_softcapping=20.0, sliding_window=12,
        rope_parameters=rope(1e4))),
    "gemma3": ("Gemma3TextConfig", 1, "norms of q and k, two ropes, every second layer with a window of 12", dict(
        hidden_size=36, num_hidden_layers=4, head_dim=6, query_pre_attn_scalar=10, sliding_window=12, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"] * 2, v4=dict(sliding_window_pattern=2),
        rope_parameters=dict(full_attention=rope(1e6, "linear", factor=4.0), sliding_attention=rope(1e4)))),
    "gemma4": ("Gemma4TextConfig", 7, "two shapes of attention, values that are keys, the last two layers share them; embeddings of each layer; experts beside dense blocks", dict(
        hidden_size=36, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=6, global_head_dim=12,
        attention_k_eq_v=True, num_global_key_value_heads=1, num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=12,
        layer_types=["sliding_attention", "full_attention"] * 3, hidden_size_per_layer_input=4, vocab_size_per_layer_input=48,
        enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=10, final_logit_softcapping=20.0,
        tie_word_embeddings=False, v4=dict(global_head_dim=12, num_global_key_value_heads=1),
        rope_parameters=dict(full_attention=rope(1e6, "proportional", partial_rotary_factor=0.5), sliding_attention=rope(1e4)))),
    "gemma3n": ("Gemma3nTextConfig", 5, "three residual streams, a linear branch beside attention, sparse gates, the last two layers share keys", dict(
        hidden_size=36, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_kv_shared_layers=2,
        intermediate_size=[22, 22, 26, 22, 22, 18], activation_sparsity_pattern=[0.6, 0.4, 0.0, 0.0, 0.0, 0.0], sliding_window=12,
        layer_types=["sliding_attention", "full_attention"] * 3, hidden_size_per_layer_input=4, vocab_size_per_layer_input=48,
        altup_num_inputs=3, altup_active_idx=1, laurel_rank=4, final_logit_softcapping=20.0, tie_word_embeddings=False,
        rope_parameters=dict(full_attention=rope(1e6), sliding_attention=rope(1e4)))),
    "llama4": ("Llama4TextConfig", 5, "chunks of 12 tokens, layer 3 without rope and with queries that grow; experts in every second layer", dict(
        hidden_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=14,
        intermediate_size_mlp=22, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
        attention_chunk_size=12, floor_scale=16, attn_scale=0.3, rope_parameters=rope(5e5))),
    "olmo2": ("Olmo2Config", 2, "norms behind branches alone; one norm over all heads of q and of k", dict(
        num_key_value_heads=3, rope_parameters=rope(5e5))),
    "olmo3": ("Olmo3Config", 1, "the same, yarn in layer 3 alone, the others with a window of 12", dict(
        num_hidden_layers=4, sliding_window=12, rope_parameters=dict(
            full_attention=rope(5e5, "yarn", factor=4.0, original_max_position_embeddings=64), sliding_attention=rope(5e5)))),
    "olmoe": ("OlmoeConfig", 3, "one norm over all heads of q and of k, 6 experts, best 3, not renormalised", dict(
        num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, rope_parameters=rope(1e4))),
    "exaone4": ("Exaone4Config", 1, "norms behind branches alone, norms of q and k; layer 1 without window and rope", dict(
        num_hidden_layers=2, sliding_window=12, layer_types=["sliding_attention", "full_attention"],
        rope_parameters=rope(1e6))),
    "hunyuan": ("HunYuanDenseV1Config", 1, "norms of q and k after rope, theta scaled by alpha", dict(
        head_dim=8, pad_token_id=0, rope_parameters=rope(1e4, "dynamic", factor=1.0, alpha=50.0))),
    "glm4": ("Glm4Config", 1, "norms before and behind branches, neighbours among half of a head's numbers rotate", dict(
        head_dim=8, pad_token_id=0, rope_parameters=rope(1e4, partial_rotary_factor=0.5))),
    "ministral3": ("Ministral3Config", 3, "queries grow with their position, every 16 positions; yarn with factor 4", dict(
        head_dim=8, sliding_window=None, rope_parameters=rope(
            1e4, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    "granite": ("GraniteConfig", 1, "scalars on the embedding, the branches, the scores and the logits", dict(
        embedding_multiplier=0.5, residual_multiplier=1.5, attention_multiplier=0.7, logits_scaling=0.5,
        attention_bias=True, mlp_bias=True, rope_parameters=rope(1e4))),
    "granitemoe": ("GraniteMoeConfig", 2, "the same scalars, 6 experts, best 3", dict(
        embedding_multiplier=0.5, residual_multiplier=1.5, attention_multiplier=0.7, logits_scaling=0.5,
        num_local_experts=6, num_experts_per_tok=3, rope_parameters=rope(1e4))),
    "granitemoeshared": ("GraniteMoeSharedConfig", 3, "a shared expert beside them, without a gate", dict(
        embedding_multiplier=0.5, residual_multiplier=1.5, attention_multiplier=0.7, logits_scaling=0.5,
        num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=14, rope_parameters=rope(1e4))),
    "minicpm": ("MiniCPMConfig", 3, "the embedding divided by 2, branches times 2.4 / sqrt(2), logits divided by 2", dict(
        scale_emb=0.5, scale_depth=2.4, dim_model_base=9, tie_word_embeddings=False, rope_parameters=rope(1e4))),
    "phi3": ("Phi3Config", 1, "q, k, v and gate, up fused; longrope on two thirds of each head, a sliding window of 16", dict(
        pad_token_id=0, sliding_window=16, original_max_position_embeddings=100, rope_parameters=rope(
            1e4, "longrope", short_factor=[1.0, 1.5], long_factor=[1.0, 4.0], partial_rotary_factor=2 / 3,
            original_max_position_embeddings=100))),
    "glm": ("GlmConfig", 1, "half of each head rotates, neighbours; biases on q, k and v, gate and up fused", dict(
        head_dim=8, pad_token_id=0, rope_parameters=rope(1e4, partial_rotary_factor=0.5))),
    "ernie4_5": ("Ernie4_5Config", 2, "neighbours rotate, biases everywhere, tied embeddings", dict(
        head_dim=8, use_bias=True, rope_parameters=rope(5e5))),
    "smollm3": ("SmolLM3Config", 1, "the second of two layers does not rotate and has a window of 16", dict(
        pad_token_id=0, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=16, rope_parameters=rope(2e6))),
    "gemma": ("GemmaConfig", 3, "the embedding times sqrt(16), norms stored less one, gelu by tanh", dict(
        hidden_size=16, head_dim=8, tie_word_embeddings=False, rope_parameters=rope(1e4))),
    "gpt_oss": ("GptOssConfig", 5, "attention sinks, biases everywhere, a window of 12 tokens in layer 0, clamped SwiGLU", dict(
        hidden_size=20, intermediate_size=10, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=12, max_position_embeddings=1024,
        rope_parameters=rope(1e4, "yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=256))),
    "glm4_moe": ("Glm4MoeConfig", 1, "sigmoid router with a bias for choosing, 2 groups; half of each head rotates; layer 0 dense", dict(
        hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=8, n_routed_experts=8, n_group=2, topk_group=1,
        num_experts_per_tok=2, moe_intermediate_size=10, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True,
        routed_scaling_factor=1.5, num_mtp_layers=0, rope_parameters=rope(1e6, partial_rotary_factor=0.5))),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", 4, "softmax router with a bias for choosing, a shared expert without a gate", dict(
        hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=6, moe_num_experts=6, moe_k=2,
        moe_intermediate_size=10, moe_num_shared_experts=1, moe_layer_start_index=1, rope_parameters=rope(5e5))),
    "minimax_m2": ("MiniMaxM2Config", 1, "norms over whole rows of q and k, half of each head rotates, sigmoid router", dict(
        hidden_size=20, intermediate_size=10, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=6,
        num_experts_per_tok=2, rope_parameters=rope(1e6, partial_rotary_factor=0.5), v4=dict(rotary_dim=4))),
    "hunyuan_v1_moe": ("HunYuanMoEV1Config", 1, "norms of q and k after rope, theta by alpha, a shared expert without a gate", dict(
        hidden_size=20, intermediate_size=10, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_experts=4, moe_topk=2,
        rope_parameters=rope(1e4, "dynamic", factor=1.0, alpha=100.0))),
    "opt": ("OPTConfig", 9, "learned positions whose table begins at -2, LayerNorm, no gate, tied embeddings", dict(
        own_names=True, hidden_size=18, ffn_dim=22, num_hidden_layers=2, num_attention_heads=3, vocab_size=48,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)),
    "gpt2": ("GPT2Config", 63, "learned positions, fused and transposed matrices, gelu", dict(
        own_names=True, n_embd=18, n_inner=22, n_layer=2, n_head=3, vocab_size=48, n_positions=256, bos_token_id=1,
        eos_token_id=2)),
    "gpt_neox": ("GPTNeoXConfig", 3, "blocks in parallel with a norm each, a third of each head rotates, q, k, v per head", dict(
        own_names=True, hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3, vocab_size=48,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
        rope_parameters=rope(1e4, partial_rotary_factor=1 / 3))),
    "gptj": ("GPTJConfig", 19, "blocks in parallel with one norm, neighbours rotate, a bias on the head", dict(
        own_names=True, n_embd=18, n_inner=22, n_layer=2, n_head=3, rotary_dim=4, vocab_size=48, n_positions=256,
        bos_token_id=1, eos_token_id=2)),
    "phi2": ("PhiConfig", 22, "blocks in parallel with one norm, norms of q and k, biases everywhere", dict(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, qk_layernorm=True,
        varied=False, rope_parameters=rope(1e4, partial_rotary_factor=2 / 3))),
    "starcoder2": ("Starcoder2Config", 21, "LayerNorm, no gate, biases everywhere, sliding window of 16 tokens", dict(
        sliding_window=16, rope_parameters=rope(1e5))),
    "stablelm": ("StableLmConfig", 22, "blocks in parallel, each head of q and k with a norm of its own", dict(
        num_attention_heads=3, use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=True,
        rope_parameters=rope(1e4, partial_rotary_factor=2 / 3))),
    "cohere": ("CohereConfig", 8, "blocks in parallel, LayerNorm without bias, logits scaled, norms of q and k", dict(
        use_qk_norm=True, logit_scale=0.5, rope_parameters=rope(1e4))),
    "cohere2": ("Cohere2Config", 2, "layers with a window of 16 tokens and rope, one that sees all without", dict(
        num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=16,
        logit_scale=0.5, rope_parameters=rope(1e4))),
    "falcon": ("FalconConfig", 1, "blocks in parallel with a norm each, q, k, v per group of heads", dict(
        own_names=True, hidden_size=24, ffn_hidden_size=22, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True, vocab_size=48, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
        rope_parameters=rope(1e4))),
    "qwen3_next": ("Qwen3NextConfig", 1, "a recurrent layer and one with a gate on attention, which is dense; half of a head rotates", dict(
        num_hidden_layers=2, full_attention_interval=2, rms_norm_eps=1e-3, head_dim=8, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10,
        shared_expert_intermediate_size=7, mlp_only_layers=[1], linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=6, linear_value_head_dim=5, rope_parameters=rope(1e6, partial_rotary_factor=0.5),
        v4=dict(full_attention_interval=2, partial_rotary_factor=0.5))),
    "qwen3_5": ("Qwen3_5TextConfig", 4, "recurrent layers with three value heads to a key head; tied embeddings", dict(
        num_hidden_layers=4, rms_norm_eps=1e-3, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8,
        linear_value_head_dim=4, tie_word_embeddings=True, rope_parameters=rope(1e6, partial_rotary_factor=0.5),
        v4=dict(partial_rotary_factor=0.5))),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", 2, "recurrent layers and a mixture of experts in all; a quarter of a head rotates", dict(
        num_hidden_layers=2, full_attention_interval=2, rms_norm_eps=1e-3, head_dim=8, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=9,
        shared_expert_intermediate_size=11, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=7,
        linear_value_head_dim=10, rope_parameters=rope(1e6, partial_rotary_factor=0.25),
        v4=dict(full_attention_interval=2, partial_rotary_factor=0.25))),
    "bloom": ("BloomConfig", 4, "ALiBi with slopes of 6 heads, a norm on the embeddings, q, k, v per head", dict(
        own_names=True, hidden_size=24, n_layer=2, n_head=6, vocab_size=48, bos_token_id=1, eos_token_id=2, pad_token_id=None,
        tie_word_embeddings=False)),
    "mpt": ("MptConfig", 3, "ALiBi, queries, keys and values cut off, LayerNorm without bias", dict(
        own_names=True, d_model=24, n_layers=2, n_heads=3, vocab_size=48, max_seq_len=256, bos_token_id=1, eos_token_id=2,
        attn_config=dict(clip_qkv=1.5))),
    "phimoe": ("PhimoeConfig", 4, "LayerNorm, biases in attention and on the head, 5 experts chosen by a sparse mixer", dict(
        num_local_experts=5, num_experts_per_tok=2, intermediate_size=10, attention_bias=True, lm_head_bias=True, sliding_window=None,
        router_jitter_noise=0.2, rope_parameters=rope(1e4))),
    "granitemoehybrid": ("GraniteMoeHybridConfig", 154, "Mamba-2 layers around one with attention, 5 experts beside a shared one; no rope", dict(
        num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], rms_norm_eps=1e-4, mamba_n_heads=4, mamba_d_head=9,
        mamba_n_groups=2, mamba_d_state=6, mamba_chunk_size=8, num_local_experts=5, num_experts_per_tok=2, intermediate_size=10,
        shared_intermediate_size=7, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.6, logits_scaling=2.0,
        position_embedding_type="nope", rope_parameters=rope(1e4))),
    "bamba": ("BambaConfig", 3, "Mamba-2 layers with biases and bounded time steps; half of a head rotates; tied embeddings", dict(
        hidden_size=24, num_hidden_layers=3, attn_layer_indices=[1], rms_norm_eps=1e-4, mamba_n_heads=6, mamba_d_head=8,
        mamba_n_groups=3, mamba_d_state=5, mamba_d_conv=3, mamba_proj_bias=True, mamba_chunk_size=16, tie_word_embeddings=True,
        rope_parameters=rope(1e4, partial_rotary_factor=0.5), v4=dict(partial_rotary_factor=0.5))),
    "nemotron_h": ("NemotronHConfig", 49, "one part to a layer: Mamba-2, attention without rope, relu2, experts without a gate", dict(
        own_names=True, hidden_size=18, intermediate_size=22, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        vocab_size=48, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None, layer_norm_epsilon=1e-4,
        hybrid_override_pattern="M*ME-", mamba_num_heads=4, mamba_head_dim=10, n_groups=2, ssm_state_size=6, chunk_size=8,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=10, moe_shared_expert_intermediate_size=8, n_group=2,
        topk_group=1, routed_scaling_factor=2.0, time_step_min=1e-7)),
    "deepseek_v2": ("DeepseekV2Config", 1, "latent attention, yarn that sharpens scores, 6 experts in 3 groups, layer 0 dense", dict(
        num_key_value_heads=3, q_lora_rank=10, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=10, n_shared_experts=2, first_k_dense_replace=1,
        topk_method="group_limited_greedy", n_group=3, topk_group=2, routed_scaling_factor=2.0,
        rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.7))),
    "deepseek_v3": ("DeepseekV3Config", 1, "latent attention, sigmoid router with a bias for choosing, groups by their best two", dict(
        num_key_value_heads=3, q_lora_rank=10, kv_lora_rank=13, qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=7,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=10, n_shared_experts=1, first_k_dense_replace=1,
        n_group=3, topk_group=2, rope_parameters=rope(1e4))),
    "kimi_k2": ("DeepseekV3Config", 2, "the same without groups, queries projected at once", dict(
        num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=13, qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=7,
        n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=10, n_shared_experts=1, first_k_dense_replace=1,
        n_group=1, topk_group=1, model_type="kimi_k2", rope_parameters=rope(5e4))),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", 2, "the same with kinds of layers by name", dict(
        num_key_value_heads=3, q_lora_rank=9, kv_lora_rank=11, qk_nope_head_dim=7, qk_rope_head_dim=4, v_head_dim=8,
        n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=10, n_shared_experts=1,
        mlp_layer_types=["dense", "sparse"], rope_parameters=rope(1e6))),
    "minicpm3": ("MiniCPM3Config", 12, "latent attention whose halves rotate; scales of embeddings, branches and logits", dict(
        num_key_value_heads=3, q_lora_rank=10, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
        scale_emb=3, scale_depth=1.2, dim_model_base=9, rope_parameters=rope(1e4))),
    "fused": ("LlamaConfig", 3, "large enough for every fused and every vector kernel", dict(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
        rms_norm_eps=1e-5, rope_parameters=rope(5e5), grid=True, firm=16)),
}

# GGUF files: name: (model, type of the matrices or of each kind of matrix).
MIXED = {"token_embd": Q.Q4_1, "output": Q.Q8_0, "attn_q": Q.Q4_0, "attn_k": Q.Q5_0, "attn_v": Q.Q5_1,
         "attn_output": Q.F16, "ffn_gate": Q.Q4_1, "ffn_up": Q.BF16, "ffn_down": Q.Q8_0}
GGUFS = {
    "llama3-bf16": ("llama3", Q.BF16),
    "llama3-q8_0": ("llama3", Q.Q8_0),
    "llama3-mixed": ("llama3", MIXED),
    "llama3.1-f16": ("llama3.1", Q.F16),
    "llama_linear-f16": ("llama_linear", Q.F16),
    "llama_longrope-bf16": ("llama_longrope", Q.BF16),
    "llama_bias-f16": ("llama_bias", Q.F16),
    "qwen2-f16": ("qwen2", Q.F16),
    "qwen2.5_yarn-bf16": ("qwen2.5_yarn", Q.BF16),
    "qwen3-f32": ("qwen3", Q.F32),
    "mixtral-f16": ("mixtral", Q.F16),
    "qwen2_moe-bf16": ("qwen2_moe", Q.BF16),  # its sparse layer alone: a GGUF of this kind has no dense layers
    "qwen3_moe-bf16": ("qwen3_moe", Q.BF16),
    "fused-q4_0": ("fused", Q.Q4_0),
}
# llama2.c files: name: (model, version of the format, tied classifier)
LLAMA2C = {"tinyllama-legacy": ("tinyllama", 0, False), "tinyllama-v1-tied": ("tinyllama", 1, True),
           "llama2-v2-int8": ("llama2", 2, False)}
LLAMA2C_GROUP = 32


class Unfit(Exception):
    """This seed's model would make a weak or a fragile test."""


# ---- models -------------------------------------------------------------------------------------------------------


def make_config(name):
    cls, _, _, fields = MODELS[name]
    fields = {k: v for k, v in fields.items() if k not in ("shard", "generation", "v4", "grid", "firm", "varied",
                                                               "model_type")}
    base = {} if fields.pop("own_names", False) else BASE  # as the family calls them, all in `fields`
    return getattr(transformers, cls)(**{**base, **fields}, architectures=None)


def on_grid(w, rng):
    """Weights of 4 bits whose scale is a power of two: Q4_0, int4 in groups, bf16 and f16 all hold them exactly.

    A row has the levels -8..7 or -7..8, and each 32 of its columns both of the outermost: scales are taken from there."""
    step = 2.0 ** np.round(np.log2(w.std() / 2.7))
    level = np.clip(np.round(w / step), -7, 6)
    blocks = level.reshape(w.shape[0], -1, 32)
    place = rng.integers(0, 32, blocks.shape[:2])
    other = (place + rng.integers(1, 32, place.shape)) % 32
    np.put_along_axis(blocks, place[..., None], -8, axis=2)
    np.put_along_axis(blocks, other[..., None], 7, axis=2)
    return level * step * rng.choice([-1, 1], (w.shape[0], 1))


def fill(model, rng, grid=False):
    """Random weights that bf16 and f16 both hold exactly; spread wide enough that greedy text does not stand still."""
    for name, p in sorted(model.named_parameters()):
        shape = tuple(p.shape)
        if name.endswith("norm.weight") or (len(shape) == 1 and name.endswith(".weight")):
            w = 1 + 0.2 * rng.standard_normal(shape)
        elif len(shape) == 1:
            w = 0.3 * rng.standard_normal(shape)
        else:
            fan_in = shape[-1]
            gain = 0.7 if grid else 1.6  # a layer of a real model changes its input a little; with 1.6 all noise grows
            head = "lm_head" in name or "embed_out" in name
            if head or re.search(r"embed_tokens|embed_in|embed_positions|wte|wpe|word_embeddings\.", name):
                gain, fan_in = (0.5, 1) if head or model.config.tie_word_embeddings else (1.0, 1)
            w = gain / np.sqrt(fan_in) * rng.standard_normal(shape)
            if grid:
                w = on_grid(w, rng)
        w = torch.from_numpy(np.asarray(w, dtype=np.float32)).to(torch.bfloat16).float()
        w[w.abs() < 2.0**-16] = 0  # below this f16 would lose bits of a bf16
        p.data.copy_(w)
    for name, b in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            w = np.asarray(0.3 * rng.standard_normal(tuple(b.shape)), dtype=np.float32)
            b.data.copy_(torch.from_numpy(w).to(torch.bfloat16).float())
        if name.endswith("layer_scalar"):
            b.data.copy_(torch.tensor([1 + 0.2 * rng.standard_normal()]).to(torch.bfloat16).float())


def build(name, seed):
    model = transformers.AutoModelForCausalLM.from_config(make_config(name), dtype=torch.float32)
    rng = np.random.Generator(np.random.PCG64(seed))
    fill(model, rng, MODELS[name][3].get("grid", False))
    for key, value in MODELS[name][3].get("generation", {}).items():
        setattr(model.generation_config, key, value)
    prompt = rng.integers(3, model.config.vocab_size, PROMPT).tolist()
    return model.to(torch.bfloat16), prompt


def load(path, dtype=torch.float32, **more):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager", experts_implementation="eager", **more)
    return model.eval()


def clone(model, state=None, **changes):
    """The same model with some config fields or weights changed."""
    config = type(model.config).from_dict({**model.config.to_dict(), **changes})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    other = type(model)(config).to(model.dtype).eval()
    missing, extra = other.load_state_dict(state or model.state_dict(), strict=False)
    if set(missing) - {"lm_head.weight"} or set(extra) - {"lm_head.weight"}:
        raise RuntimeError(f"weights missing {missing}, unknown {extra}")
    other.tie_weights()
    return other


def sparse_layers(model):
    """The model without its dense layers."""
    state = model.state_dict()
    sparse = [i for i, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "experts")]
    for i in range(len(model.model.layers)):
        for name in [n for n in state if n.startswith(f"model.layers.{i}.")]:
            value = state.pop(name)
            if i in sparse:
                state[name.replace(f".{i}.", f".{sparse.index(i)}.", 1)] = value
    return clone(model, state, num_hidden_layers=len(sparse), decoder_sparse_step=1, mlp_only_layers=[], layer_types=None)


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def step_by_step(model, prompt, greedy):
    """The same logits by a prefill of the prompt and single steps: rope types that depend on the length need it."""
    out = model(torch.tensor([prompt]), use_cache=True)
    rows = [out.logits[0]]
    for token in greedy:
        out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0])
    return torch.cat(rows)


@torch.no_grad()
def golden_of(model, prompt, what, varied=True, firm=0):
    """Prompt logits, the greedy tokens and the last logits, with every check that makes them a good reference."""
    routers = []
    hooks = [m.register_forward_hook(lambda _, __, out: routers.append(out[0]))
             for n, m in model.named_modules() if type(m).__name__.lower().endswith("topkrouter")]
    out = model(torch.tensor([prompt]), use_cache=True)
    greedy, margins, logprobs, step_logits = [], [], [], out.logits[0, -1]
    firm_scale = float(out.logits.abs().max())
    for _ in range(STEPS):
        best = step_logits.topk(2).values
        margins.append(float(best[0] - best[1]))
        if margins[-1] < (FIRM_MARGIN * firm_scale if len(greedy) < firm else MARGIN):
            raise Unfit(f"{what}: step {len(greedy)} has a margin of {margins[-1]:.1e}")
        greedy.append(int(step_logits.argmax()))
        logprobs.append(float(step_logits.log_softmax(-1).max()))
        if len(greedy) == STEPS:
            break
        # Its class begins to count again at each step.
        place = {"position_ids": torch.tensor([[PROMPT + len(greedy) - 1]])} if model.config.model_type == "bamba" else {}
        out = model(torch.tensor([[greedy[-1]]]), past_key_values=out.past_key_values, use_cache=True, **place)
        step_logits = out.logits[0, -1]
    for hook in hooks:
        hook.remove()
    top_k = getattr(model.config, "num_experts_per_tok", 0)
    router_margin = None
    if routers:
        chosen = torch.cat([r.reshape(-1, r.shape[-1]) for r in routers]).topk(top_k + 1).values
        router_margin = float((chosen[:, -2] - chosen[:, -1]).min())
        if router_margin < ROUTER_MARGIN:
            raise Unfit(f"{what}: two experts are {router_margin:.1e} apart")
    tail = greedy[-100:]
    if varied and (len(set(greedy)) < 16 or any(tail[p:] == tail[:-p] for p in range(1, 41))):
        raise Unfit(f"{what}: the greedy text runs in a loop ({len(set(greedy))} different tokens)")

    # One prefill of everything must say what prefill and 199 steps said, unless angles depend on the length.
    parameters = rope_of_full(model.config)
    by_length = parameters["rope_type"] in ("dynamic", "longrope") and "alpha" not in parameters
    run = (lambda m: step_by_step(m, prompt, greedy[:-1])) if by_length else (lambda m: logits_of(m, prompt + greedy[:-1]))
    whole = run(clone(model) if by_length else model)  # transformers' rope remembers the longest sequence
    scale = float(whole.abs().max())
    doubled = run(clone(model.double()))
    model.float()
    noise = float((doubled - whole).abs().max()) / scale
    if whole[PROMPT - 1:].argmax(-1).tolist() != greedy or noise > NOISE:
        raise Unfit(f"{what}: f32 noise is {noise:.1e} of the greatest logit")
    if float((whole[-1] - step_logits).abs().max()) > NOISE * scale:
        raise RuntimeError(f"{what}: transformers' cache disagrees with its prefill")
    facts = dict(prompt=prompt, greedy=greedy, min_margin=round(min(margins), 5), max_logit=round(scale, 4),
                 f32_noise=float(f"{noise:.1e}"))
    if firm:
        facts.update(firm=firm, firm_margin=round(min(margins[:firm]), 5), firm_logprobs=[round(p, 5) for p in logprobs[:firm]])
    if router_margin is not None:
        facts["min_router_margin"] = round(router_margin, 5)
    return facts, {"prompt_logits": whole[:PROMPT].contiguous(), "last_logits": whole[-1].clone()}


def same_as(golden, model, prompt, what):
    """The model computes the golden logits (bit for bit the same weights, so only the order of additions may differ)."""
    worst = float((logits_of(model, prompt) - golden["prompt_logits"]).abs().max())
    if worst > 1e-5 * float(golden["prompt_logits"].abs().max()):
        raise RuntimeError(f"{what}: logits differ by {worst}")


def check_matters(name, model, prompt, golden):
    """A feature that changes no logit would not be tested."""
    config, changes = model.config, []
    if rope_of_full(config)["rope_type"] != "default" and "rope_theta" in config.rope_parameters:
        kept = {k: config.rope_parameters[k] for k in ("partial_rotary_factor", "llama_4_scaling_beta")
                if k in config.rope_parameters}
        if "llama_4_scaling_beta" in kept:
            kept["original_max_position_embeddings"] = config.rope_parameters["original_max_position_embeddings"]
        changes.append(dict(rope_parameters=rope(config.rope_parameters["rope_theta"], **kept)))
    if config.model_type == "gemma4_text":  # whose layers have shapes by their kind
        changes.append(dict(sliding_window=200))
    elif config.model_type == "llama4_text":
        changes += [dict(attention_chunk_size=200), dict(use_qk_norm=False), dict(attn_temperature_tuning=False)]
    elif getattr(config, "sliding_window", None) and not hasattr(config, "use_sliding_window") and hasattr(config, "layer_types"):
        changes.append(dict(layer_types=["full_attention"] * config.num_hidden_layers))
    elif getattr(config, "sliding_window", None):
        changes.append(dict(sliding_window=None, use_sliding_window=False, layer_types=None))
    if getattr(config, "norm_topk_prob", None) is not None and config.model_type != "deepseek_v2":
        changes.append(dict(norm_topk_prob=not config.norm_topk_prob))
    for change in changes:
        gap = float((logits_of(clone(model, **change), prompt) - golden["prompt_logits"]).abs().max())
        if gap < 0.05:
            raise Unfit(f"{name}: {change} changes logits by {gap:.1e} only")


def v4_config(name, config):
    """config.json as versions before 5 wrote it: what nearly all published models carry."""
    c = dict(config)
    newer = c["model_type"] in ("gemma4_text", "llama4_text")  # than those versions
    c.pop("per_layer_config", None)
    if "rope_parameters" in c and not newer:
        rope_parameters = dict(c.pop("rope_parameters"))
        by_kind = "full_attention" in rope_parameters
        if by_kind:
            if c["model_type"] in ("gemma3_text", "gemma3n_text"):
                c["rope_local_base_freq"] = rope_parameters["sliding_attention"]["rope_theta"]
            rope_parameters = dict(rope_parameters["full_attention"])
        neox = c["model_type"] == "gpt_neox"
        c["rotary_emb_base" if neox else "rope_theta"] = rope_parameters.pop("rope_theta")
        kind = rope_parameters.pop("rope_type")
        if "partial_rotary_factor" in rope_parameters:
            c["rotary_pct" if neox else "partial_rotary_factor"] = rope_parameters.pop("partial_rotary_factor")
        c["rope_scaling"] = None
        if kind != "default":
            c["rope_scaling"] = {**rope_parameters, ("rope_type" if kind == "llama3" or by_kind else "type"): kind}
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.40.0"
    if c["model_type"] not in ("olmo3", "exaone4", "cohere2", "gemma3n_text", "granitemoehybrid") and not newer:
        c.pop("layer_types", None)
    if "head_dim" in c and c["head_dim"] in (None, c["hidden_size"] // c["num_attention_heads"]):
        c.pop("head_dim")
    if "num_local_experts" in c and c["model_type"] in ("qwen2_moe", "qwen3_moe"):
        c["num_experts"] = c.pop("num_local_experts")
    for key in ("attention_bias", "mlp_bias"):
        if c.get(key) is False and c["model_type"] == "llama":
            c.pop(key)
    for key in [k for k, v in c.items() if v is None and k not in ("rope_scaling", "sliding_window", "q_lora_rank")]:
        c.pop(key)
    c.update(MODELS[name][3].get("v4", {}))
    return c


def write_golden(stem, facts, tensors=None):
    """stem.json and, unless the logits are another model's, stem.safetensors."""
    facts = {**facts, "made_by": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in facts.items()]
    stem.with_name(stem.name + ".json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if tensors is not None:
        save_file(tensors, stem.with_name(stem.name + ".safetensors"))


def readable(folder):
    """safetensors makes files that only their owner may read; git keeps no such thing."""
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


def make_model(name, seed, out):
    folder = out / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    model, prompt = build(name, seed)
    shard = MODELS[name][3].get("shard")
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    model = load(folder)
    facts, golden = golden_of(model, prompt, name, varied=MODELS[name][3].get("varied", True),
                              firm=MODELS[name][3].get("firm", 0))
    check_matters(name, model, prompt, golden)

    old = v4_config(name, json.loads((folder / "config.json").read_text()))
    with tempfile.TemporaryDirectory() as temp:
        for file in folder.iterdir():
            shutil.copy(file, temp)
        (pathlib.Path(temp) / "config.json").write_text(json.dumps(old))
        same_as(golden, load(temp), prompt, f"{name} with config.v4.json")
    (folder / "config.v4.json").write_text(json.dumps(old, indent=2, sort_keys=True) + "\n")
    for file in ("config.json", "config.v4.json") if "model_type" in MODELS[name][3] else ():  # of which transformers has none
        fields = json.loads((folder / file).read_text()) | {"model_type": MODELS[name][3]["model_type"]}
        (folder / file).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    write_golden(folder / "golden", dict(model=name, about=MODELS[name][2], seed=seed, **facts), golden)
    return model, prompt, golden


# ---- GGUF ---------------------------------------------------------------------------------------------------------


def interleave(w, heads):
    """Rows of q or k from transformers' order (halves of a head rotate) to Meta's (neighbours rotate)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def deinterleave(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


GGUF_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
GGUF_ARCH = {"llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2_moe": "qwen2moe",
             "qwen3_moe": "qwen3moe"}


def gguf_parts(model):
    """(GGUF name, array, state name, slice of that state's tensor or None, heads of q and k rows or 0) for each tensor."""
    config, parts = model.config, []
    permuted = GGUF_ARCH[config.model_type] == "llama"
    for state, value in model.state_dict().items():
        w = value.float().numpy()
        stem, suffix = state.rsplit(".", 1) if state.endswith((".weight", ".bias")) else (state, "weight")
        outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        if stem in outside:
            if stem != "lm_head" or not config.tie_word_embeddings:
                parts.append((f"{outside[stem]}.{suffix}", w, state, None, 0))
            continue
        _, _, layer, inner = stem.split(".", 3)
        if inner == "mlp.experts.gate_up_proj":  # [experts, 2 * width, hidden]: GGUF keeps gate and up apart
            half = w.shape[1] // 2
            parts.append((f"blk.{layer}.ffn_gate_exps.weight", w[:, :half], state, slice(0, half), 0))
            parts.append((f"blk.{layer}.ffn_up_exps.weight", w[:, half:], state, slice(half, None), 0))
        elif inner == "mlp.experts.down_proj":
            parts.append((f"blk.{layer}.ffn_down_exps.weight", w, state, None, 0))
        else:
            heads = {"self_attn.q_proj": config.num_attention_heads,
                     "self_attn.k_proj": config.num_key_value_heads}.get(inner, 0) if permuted else 0
            parts.append((f"blk.{layer}.{GGUF_NAMES[inner]}.{suffix}", w, state, None, heads))
    return parts


def gguf_type(name, array, wanted):
    """As llama.cpp's converter chooses: vectors and routers stay f32."""
    if array.ndim == 1 or "_inp" in name:
        return Q.F32
    return wanted[name.split(".")[-2]] if isinstance(wanted, dict) else wanted


def vocabulary(size):
    """A byte-level vocabulary just large enough to load: four special tokens, ASCII letters, signs, three merges."""
    special = ["<unk>", "<s>", "</s>", "<|end|>"]
    merges = ["t h", "th e", "i n"]
    single = list("Ċ Ġ ".replace(" ", "")) + list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'-:;()")
    tokens = (special + [m.replace(" ", "") for m in merges] + single)[:size]
    kinds = [gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * (len(tokens) - 4)
    while len(tokens) < size:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(gguf.TokenType.UNUSED)
    return tokens, kinds, merges


def llama3_factors(config):
    """rope_freqs.weight: by what llama.cpp divides each frequency, in place of the parameters of rope type llama3."""
    plain = 1.0 / (config.rope_parameters["rope_theta"] ** (np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim))
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (plain / scaled.double().numpy()).astype(np.float32)


def write_rope_scaling(writer, config):
    """Keys and tensors as llama.cpp's converter writes them."""
    rope_parameters = config.rope_parameters
    kind = rope_parameters["rope_type"]
    if kind in ("linear", "yarn", "longrope"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_factor(rope_parameters["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope_parameters["original_max_position_embeddings"])
    if kind == "longrope":
        _, factor = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        writer.add_rope_scaling_attn_factors(factor)
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope_parameters[f"{length}_factor"], np.float32))
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))


def write_gguf(model, path, wanted):
    """Writes the file; gives back the state dict a reader of it would have."""
    config = model.config
    arch = GGUF_ARCH[config.model_type]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"celer golden {path.stem}")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if config.model_type != "mixtral":
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if config.model_type == "qwen2_moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    tokens, kinds, merges = vocabulary(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if arch == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)

    state = {}
    write_rope_scaling(writer, config)
    for name, w, state_name, part, heads in gguf_parts(model):
        qtype = gguf_type(name, w, wanted)
        w = np.ascontiguousarray(interleave(w, heads) if heads else w)
        packed = gguf.quants.quantize(w, qtype)
        writer.add_tensor(name, packed, raw_dtype=qtype)
        back = gguf.quants.dequantize(packed, qtype).reshape(w.shape)
        back = torch.from_numpy(np.ascontiguousarray(deinterleave(back, heads) if heads else back).astype(np.float32))
        if part is None:
            state[state_name] = back
        else:
            state.setdefault(state_name, model.state_dict()[state_name].clone())[:, part] = back
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return state


def make_gguf(name, model, prompt, golden, out):
    source, wanted = GGUFS[name]
    folder = out / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    whole = source != "qwen2_moe"
    model = model if whole else sparse_layers(model)
    model_of_file = clone(model, write_gguf(model, folder / f"{name}.gguf", wanted))
    about = dict(file=f"{name}.gguf", model=source)
    if MODELS[source][3].get("grid"):
        same_as(golden, model_of_file, prompt, name)
    if whole and wanted in (Q.F32, Q.F16, Q.BF16):  # every weight is kept, so the model's own golden results hold
        same_as(golden, model_of_file, prompt, name)
        write_golden(folder / f"{name}.golden", {**about, "same_as": f"models/{source}/golden"})
    else:
        facts, mine = golden_of(model_of_file, prompt, name, varied=False, firm=MODELS[source][3].get("firm", 0))
        write_golden(folder / f"{name}.golden", {**about, **facts}, mine)


# ---- llama2.c -----------------------------------------------------------------------------------------------------


def make_llama2c(name, model, prompt, golden, out):
    source, version, tied = LLAMA2C[name]
    folder = out / "llama2c"
    folder.mkdir(parents=True, exist_ok=True)
    config, state = model.config, {k: v.numpy() for k, v in model.state_dict().items()}
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    layers = range(config.num_hidden_layers)
    head_dim = config.hidden_size // config.num_attention_heads
    kept = {}  # what the file holds, in transformers' names and order

    def floats(*names):
        for n in names:
            kept[n] = state[n]
            yield rows(n).astype("<f4").tobytes()

    def rows(n):
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(n.split(".")[-2], 0)
        return interleave(state[n], heads) if heads else state[n]

    def int8(*names):
        for n in names:
            w = rows(n).reshape(-1, LLAMA2C_GROUP)
            scale = (np.abs(w).max(1) / np.float32(127)).astype(np.float32)
            q = np.rint(w / scale[:, None]).astype(np.int8)
            back = (q.astype(np.float32) * scale[:, None]).reshape(state[n].shape)
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(n.split(".")[-2], 0)
            kept[n] = deinterleave(back, heads) if heads else back
            yield q.tobytes() + scale.astype("<f4").tobytes()

    def each(inner):
        return [f"model.layers.{i}.{inner}.weight" for i in layers]

    attention = sum((each(f"self_attn.{p}_proj") for p in "qkvo"), [])
    ffn = each("mlp.gate_proj") + each("mlp.down_proj") + each("mlp.up_proj")  # w1, w2, w3
    embedding, norm, head = "model.embed_tokens.weight", "model.norm.weight", [] if tied else ["lm_head.weight"]
    attention_norms, ffn_norms = each("input_layernorm"), each("post_attention_layernorm")
    vocab = config.vocab_size
    shape = struct.pack("<7i", config.hidden_size, config.intermediate_size, len(layers), config.num_attention_heads,
                        config.num_key_value_heads, vocab if tied or version else -vocab, config.max_position_embeddings)
    if version == 0:
        angle = np.outer(np.arange(config.max_position_embeddings), 1e4 ** -(np.arange(0, head_dim, 2) / head_dim))
        tables = [np.cos(angle).astype("<f4").tobytes(), np.sin(angle).astype("<f4").tobytes()]
        body = [shape, *floats(embedding, *attention_norms, *attention, *ffn_norms, *ffn, norm), *tables, *floats(*head)]
    else:
        header = struct.pack("<Ii", 0x616B3432, version) + shape + struct.pack("<B", tied)
        if version == 2:
            header += struct.pack("<i", LLAMA2C_GROUP)
        body = [header.ljust(256, b"\0"), *floats(*attention_norms, *ffn_norms, norm)]
        body += (int8 if version == 2 else floats)(embedding, *attention, *ffn, *head)
    (folder / f"{name}.bin").write_bytes(b"".join(body))

    about = dict(file=f"{name}.bin", model=source, version=version, tied=tied)
    kept = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in kept.items()}
    model_of_file = clone(model, kept, tie_word_embeddings=tied)
    if version < 2 and not tied:
        same_as(golden, model_of_file, prompt, name)
        write_golden(folder / f"{name}.golden", {**about, "same_as": f"models/{source}/golden"})
    else:
        facts, mine = golden_of(model_of_file, prompt, name, varied=False)
        write_golden(folder / f"{name}.golden", {**about, **facts}, mine)


# ---- all of it ----------------------------------------------------------------------------------------------------


def make(name, seed, out):
    if MODELS[name][3].get("grid"):  # the folder would be four times the size of its GGUF
        with tempfile.TemporaryDirectory() as temp:
            model, prompt, golden = make_model(name, seed, pathlib.Path(temp))
    else:
        model, prompt, golden = make_model(name, seed, out)
    for file, (source, _) in GGUFS.items():
        if source == name:
            make_gguf(file, model, prompt, golden, out)
    for file, (source, *_) in LLAMA2C.items():
        if source == name:
            make_llama2c(file, model, prompt, golden, out)


def search(name, first, tries):
    for seed in range(first, first + tries):
        with tempfile.TemporaryDirectory() as temp:
            try:
                make(name, seed, pathlib.Path(temp))
                print(f"{name}: seed {seed}")
                return
            except Unfit as why:
                print(f"{name}: seed {seed} not fit: {why}")
    raise SystemExit(f"{name}: none of {tries} seeds passes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden"))
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--search", nargs="*", choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--from-seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    minicpm_reference.register()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.search is not None:
        for name in args.search:
            search(name, args.from_seed, 200)
        return
    for name in args.only:
        make(name, MODELS[name][1], args.out)
        print(f"{name}: done")
    readable(args.out)
    files = [f for f in args.out.rglob("*") if f.is_file()]
    print(f"{args.out}: {len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    main()
