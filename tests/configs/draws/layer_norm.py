"""Families with LayerNorm: learned positions, blocks in parallel, feed-forward blocks without a gate. draws/llama.py says
what a function gives; the forms write GGUF files as llama.cpp's converter does."""

import gguf
import numpy as np

GELUS = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]
EPS = [1e-5, 1e-3, 1e-6]
F = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16, "BF16": gguf.GGMLQuantizationType.BF16}


def flip(rng, chance=0.5):
    return rng.random() < chance


def shape(rng, grouped=True, even=True, **names):
    """Sizes; names: what the family calls them."""
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3]) if grouped else rng.choice([1, 2, 3, 5])
    head_dim = rng.choice([4, 6, 8, 10, 16] if even else [3, 4, 5, 8, 16])
    sizes = {"vocab_size": rng.randint(20, 90), "hidden_size": heads * head_dim, "num_hidden_layers": rng.randint(1, 4),
             "num_attention_heads": heads, "max_position_embeddings": 128}
    if grouped:
        sizes["num_key_value_heads"] = kv_heads
    return {names.get(k, k): v for k, v in sizes.items()}, heads, head_dim


def drawn(rng, config, gguf_form=None, chance=0.35, **more):
    out = {"config": config, "length": rng.randint(1, 45), **more}
    if gguf_form and "refused" not in out and flip(rng, chance):
        out["form"] = gguf_form
    return out


def rope(rng, config, partial=None):
    """As newer or as older files say it."""
    theta = rng.choice([1e4, 5e5, 100.0])
    if flip(rng):
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
        if partial is not None:
            config["rope_parameters"]["partial_rotary_factor"] = partial
    else:
        config["rope_theta"] = theta
        if partial is not None:
            config["partial_rotary_factor"] = partial


def partial_of(rng, head_dim):
    """A share that leaves an even number of dimensions."""
    return rng.choice([d for d in range(2, head_dim + 1, 2)]) / head_dim


def opt(rng):
    config, _, _ = shape(rng, grouped=False, even=False)
    config |= {"model_type": "opt", "ffn_dim": rng.randint(5, 60), "pad_token_id": 1, "do_layer_norm_before": True,
               "activation_function": rng.choice(GELUS), "enable_bias": flip(rng, 0.7), "tie_word_embeddings": flip(rng)}
    config["max_position_embeddings"] = rng.choice([110, 128, 201])
    kind = rng.random()
    if kind < 0.4:  # as OPT-350m
        config["do_layer_norm_before"] = False
    elif kind < 0.5:
        config["_remove_final_layer_norm"] = True
    if flip(rng, 0.4):
        config["word_embed_proj_dim"] = rng.randint(2, 40)
    if kind > 0.95:
        return drawn(rng, config | {"layer_norm_elementwise_affine": False}, refused="layer_norm_elementwise_affine")
    return drawn(rng, config)


def gpt2(rng):
    config, _, _ = shape(rng, grouped=False, even=False, hidden_size="n_embd", num_hidden_layers="n_layer",
                         num_attention_heads="n_head", max_position_embeddings="n_positions")
    config |= {"model_type": "gpt2", "activation_function": rng.choice(GELUS), "layer_norm_epsilon": rng.choice(EPS),
               "tie_word_embeddings": flip(rng, 0.7)}
    if flip(rng):
        config["n_inner"] = rng.choice([None, rng.randint(5, 60)])
    if flip(rng, 0.2):
        config["scale_attn_weights"] = flip(rng)
    if flip(rng, 0.05):
        return drawn(rng, config | {"scale_attn_by_inverse_layer_idx": True}, refused="scale_attn_by_inverse_layer_idx")
    can = config["activation_function"] in ("gelu_new", "gelu_pytorch_tanh") and config.get("scale_attn_weights", True)
    return drawn(rng, config, "gguf" if can else None)


def gpt_neox(rng):
    config, _, head_dim = shape(rng, grouped=False)
    config |= {"model_type": "gpt_neox", "intermediate_size": rng.randint(5, 60), "hidden_act": rng.choice(GELUS + ["gelu"] * 4),
               "layer_norm_eps": rng.choice(EPS), "use_parallel_residual": flip(rng), "attention_bias": flip(rng, 0.7),
               "tie_word_embeddings": flip(rng, 0.3)}
    if flip(rng, 0.3):
        config["rotary_pct"] = partial_of(rng, head_dim)
        config["rotary_emb_base"] = rng.choice([1e4, 500])
    else:
        rope(rng, config, partial_of(rng, head_dim))
        if "partial_rotary_factor" in config:  # the class reads its own names only
            config["rotary_pct"] = config.pop("partial_rotary_factor")
            config["rotary_emb_base"] = config.pop("rope_theta")
    can = config["hidden_act"] == "gelu" and not config["tie_word_embeddings"]
    return drawn(rng, config, "gguf" if can else None)


def phi(rng):
    config, _, head_dim = shape(rng)
    config |= {"model_type": "phi", "intermediate_size": rng.randint(5, 60), "hidden_act": rng.choice(GELUS + ["gelu_new"] * 4),
               "layer_norm_eps": rng.choice(EPS), "qk_layernorm": flip(rng, 0.3), "tie_word_embeddings": flip(rng, 0.2)}
    rope(rng, config, partial_of(rng, head_dim))
    can = config["hidden_act"] == "gelu_new" and not config["qk_layernorm"] and not config["tie_word_embeddings"]
    return drawn(rng, config, "gguf" if can else None)


def starcoder2(rng):
    config, _, head_dim = shape(rng)
    config |= {"model_type": "starcoder2", "intermediate_size": rng.randint(5, 60), "norm_epsilon": rng.choice(EPS),
               "hidden_act": rng.choice(GELUS + ["gelu_pytorch_tanh"] * 4), "use_bias": flip(rng, 0.7),
               "sliding_window": rng.choice([None, 3, 8, 20]), "tie_word_embeddings": flip(rng)}
    rope(rng, config)
    can = config["hidden_act"] == "gelu_pytorch_tanh" and not config["sliding_window"]
    return drawn(rng, config, "gguf" if can else None)


def stablelm(rng):
    config, _, head_dim = shape(rng)
    config |= {"model_type": "stablelm", "intermediate_size": rng.randint(5, 60), "layer_norm_eps": rng.choice(EPS),
               "hidden_act": rng.choice(["silu", "silu", "gelu"]), "use_qkv_bias": flip(rng), "qk_layernorm": flip(rng),
               "use_parallel_residual": flip(rng), "tie_word_embeddings": flip(rng, 0.2)}
    rope(rng, config, partial_of(rng, head_dim))
    can = config["hidden_act"] == "silu" and not config["tie_word_embeddings"]
    return drawn(rng, config, "gguf" if can else None)


def cohere(rng):
    config, _, _ = shape(rng)
    config |= {"model_type": "cohere", "intermediate_size": rng.randint(5, 60), "layer_norm_eps": rng.choice(EPS),
               "hidden_act": rng.choice(["silu", "silu", "gelu"]), "use_qk_norm": flip(rng), "attention_bias": flip(rng, 0.3),
               "logit_scale": rng.choice([0.0625, 0.5, 1.0]), "tie_word_embeddings": flip(rng, 0.8), "pad_token_id": 0,
               "bos_token_id": 1, "eos_token_id": 2}
    rope(rng, config)
    can = config["hidden_act"] == "silu" and config["tie_word_embeddings"]
    return drawn(rng, config, "gguf" if can else None)


def cohere2(rng):
    config, _, _ = shape(rng)
    config |= {"model_type": "cohere2", "num_hidden_layers": rng.randint(1, 5), "intermediate_size": rng.randint(5, 60),
               "layer_norm_eps": rng.choice(EPS), "hidden_act": rng.choice(["silu", "silu", "gelu"]),
               "attention_bias": flip(rng, 0.3), "logit_scale": rng.choice([0.0625, 0.5, 1.0]),
               "sliding_window": rng.choice([3, 8, 20]), "tie_word_embeddings": flip(rng, 0.8), "pad_token_id": 0,
               "bos_token_id": 1, "eos_token_id": 2}
    rope(rng, config)
    usual = False
    if flip(rng, 0.4):
        config["layer_types"] = [rng.choice(["sliding_attention", "full_attention"])
                                 for _ in range(config["num_hidden_layers"])]
    elif flip(rng, 0.4):
        config["sliding_window_pattern"] = rng.randint(1, 4)
    else:
        usual = True
    can = usual and config["hidden_act"] == "silu" and config["tie_word_embeddings"]
    return drawn(rng, config, "gguf" if can else None, chance=0.7)


def falcon(rng):
    config, heads, head_dim = shape(rng, grouped=False)
    config |= {"model_type": "falcon", "layer_norm_epsilon": rng.choice(EPS), "bias": flip(rng, 0.3), "alibi": False,
               "activation": rng.choice(GELUS + ["gelu"] * 4), "tie_word_embeddings": flip(rng, 0.8),
               "new_decoder_architecture": flip(rng)}
    if config["new_decoder_architecture"]:
        config["num_kv_heads"] = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
        if flip(rng):
            config["num_ln_in_parallel_attn"] = rng.choice([1, 2])
    else:
        config |= {"multi_query": flip(rng), "parallel_attn": flip(rng, 0.7)}
    if flip(rng):
        config["ffn_hidden_size"] = rng.randint(5, 60)
    rope(rng, config)
    can = (config["activation"] == "gelu" and config.get("parallel_attn", True) and not config["bias"] and
           "ffn_hidden_size" not in config and config["tie_word_embeddings"])
    if flip(rng, 0.4):  # with "eager" the class adds it twice
        config["max_position_embeddings"] = 1024
        return drawn(rng, config | {"alibi": True}) | {"attention": "sdpa", "length": rng.choice([rng.randint(1, 60), 300])}
    return drawn(rng, config, "gguf" if can else None, chance=0.7)


def bloom(rng):
    config, _, _ = shape(rng, grouped=False, even=False)
    config.pop("max_position_embeddings")
    config["n_layer"] = config.pop("num_hidden_layers")
    config["n_head"] = config.pop("num_attention_heads")
    config |= {"model_type": "bloom", "layer_norm_epsilon": rng.choice(EPS), "tie_word_embeddings": flip(rng, 0.8)}
    if flip(rng, 0.05):
        return drawn(rng, config | {"apply_residual_connection_post_layernorm": True},
                     refused="apply_residual_connection_post_layernorm")
    return drawn(rng, config, "gguf" if config["tie_word_embeddings"] else None) | {"length": rng.choice([rng.randint(1, 60), 200])}


def mpt(rng):
    config, heads, _ = shape(rng, grouped=False, even=False, hidden_size="d_model", num_hidden_layers="n_layers",
                             num_attention_heads="n_heads", max_position_embeddings="max_seq_len")
    attention = {}
    if flip(rng):
        attention["clip_qkv"] = rng.choice([0.5, 2.0, 6.0])
    plain = True
    if flip(rng, 0.3):
        attention["softmax_scale"], plain = rng.choice([0.1, 0.5]), False
    config |= {"model_type": "mpt", "layer_norm_epsilon": rng.choice(EPS), "attn_config": attention, "max_seq_len": 300}
    if flip(rng, 0.05):
        attention["alibi"] = False
        return drawn(rng, config, refused="'alibi' is false")
    if flip(rng, 0.05):
        return drawn(rng, config | {"expansion_ratio": 2}, refused="expansion_ratio")
    return drawn(rng, config, "gguf" if plain else None) | {"length": rng.choice([rng.randint(1, 60), 200])}


def gptj(rng):
    config, _, head_dim = shape(rng, grouped=False, hidden_size="n_embd", num_hidden_layers="n_layer",
                                num_attention_heads="n_head", max_position_embeddings="n_positions")
    config |= {"model_type": "gptj", "activation_function": rng.choice(GELUS), "layer_norm_epsilon": rng.choice(EPS),
               "rotary_dim": rng.choice(range(2, head_dim + 1, 2)), "tie_word_embeddings": flip(rng, 0.2)}
    if flip(rng):
        config["n_inner"] = rng.choice([None, rng.randint(5, 60)])
    return drawn(rng, config)


FAMILIES = {"opt": opt, "gpt2": gpt2, "gpt_neox": gpt_neox, "phi": phi, "starcoder2": starcoder2, "stablelm": stablelm,
            "cohere": cohere, "cohere2": cohere2, "falcon": falcon, "gptj": gptj, "bloom": bloom, "mpt": mpt}


# ---- GGUF ------------------------------------------------------------------------------------------------------------

ARCHITECTURES = {"gpt2": "GPT2", "gpt_neox": "GPTNEOX", "phi": "PHI2", "starcoder2": "STARCODER2", "stablelm": "STABLELM",
                 "cohere": "COMMAND_R", "cohere2": "COHERE2", "falcon": "FALCON", "bloom": "BLOOM", "mpt": "MPT"}


def first(config, *keys):
    """The value of the first key that is there."""
    return next((config[k] for k in keys if config.get(k) is not None), None)


def kv_heads_of(config, heads):
    if config["model_type"] in ("bloom", "mpt"):
        return heads
    if config["model_type"] != "falcon":
        return config.get("num_key_value_heads") or heads
    if config["new_decoder_architecture"]:
        return config["num_kv_heads"]
    return 1 if config["multi_query"] else heads


def fused(array, heads, kv_heads):
    """q, k and v of each group of heads as q | k | v."""
    rows = array.reshape(kv_heads, heads // kv_heads + 2, -1, *array.shape[1:])
    pieces = [rows[:, :-2], rows[:, -2], rows[:, -1]]
    return np.concatenate([p.reshape(-1, *array.shape[1:]) for p in pieces])


def arrange(config, name, array):
    """As the converter's modify_tensors does."""
    heads = first(config, "num_attention_heads", "n_head", "n_heads")
    if config["model_type"] == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return np.ascontiguousarray(array.T)
    if name.endswith(("query_key_value.weight", "query_key_value.bias")):
        return fused(array, heads, kv_heads_of(config, heads))
    return array


def write_metadata(writer, config):
    family, hidden = config["model_type"], first(config, "hidden_size", "n_embd", "d_model")
    heads = first(config, "num_attention_heads", "n_head", "n_heads")
    layers = first(config, "num_hidden_layers", "n_layer", "n_layers")
    writer.add_block_count(layers)
    writer.add_context_length(first(config, "max_position_embeddings", "n_positions", "max_seq_len") or 2048)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(first(config, "intermediate_size", "n_inner") or 4 * hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads_of(config, heads))
    writer.add_layer_norm_eps(first(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"))
    rope_parameters = config.get("rope_parameters") or config
    theta = first(rope_parameters, "rope_theta", "rotary_emb_base")
    if theta:
        writer.add_rope_freq_base(theta)
    if family in ("gpt_neox", "phi", "stablelm"):
        share = first(rope_parameters, "partial_rotary_factor", "rotary_pct")
        writer.add_rope_dimension_count(int(share * (hidden // heads)))
    if family in ("gpt_neox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    if family in ("cohere", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if family == "cohere2":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_dimension_count(hidden // heads)
    if family == "mpt":
        writer.add_max_alibi_bias(8)
        if config["attn_config"].get("clip_qkv"):
            writer.add_clamp_kqv(config["attn_config"]["clip_qkv"])
    if family == "falcon":
        writer.add_tensor_data_layout("jploski")


def rounded(numbers, sizes, kind):
    """As transformers reads them."""
    array = np.array(numbers, dtype=np.float32).reshape(sizes)
    if kind == "F16":
        return array.astype(np.float16).astype(np.float32)
    return (array.view(np.uint32) & 0xffff0000).view(np.float32) if kind == "BF16" else array


def write_gguf(case, folder, tensors):
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES[case["family"]])
    config = case["config"]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    write_metadata(writer, config)
    names = gguf.get_tensor_name_map(arch, first(config, "num_hidden_layers", "n_layer", "n_layers"))
    arrays = {name: arrange(config, name, rounded(numbers, sizes, case["dtype"]))
              for name, _, sizes, numbers in tensors}
    for name in sorted(arrays):  # the norms of the heads of a layer in one table
        if ".norms.0." in name:
            heads = [n for n in arrays if n.startswith(name.split(".norms.")[0] + ".norms.")]
            heads.sort(key=lambda n: int(n.split(".norms.")[1].split(".")[0]))
            table = np.stack([arrays.pop(n) for n in heads])
            arrays[name.replace(".norms.0.", ".")] = table
    for name, array in arrays.items():
        kind = F[case["dtype"]] if array.ndim == 2 and "layernorm" not in name and "_norm" not in name else F["F32"]
        known = name.removeprefix("transformer.") if case["family"] == "bloom" else name
        stored = names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert stored, name
        writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


FORMS = {"gguf": write_gguf}
