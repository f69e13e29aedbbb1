"""Multi-head latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, MiniCPM3; GGUF as llama.cpp's converter
writes them, with k_b and v_b of each head or, as older files, with both in one."""

import json

import compare_transformers as base

MAX_POSITIONS = 192


def latent(rng, hidden, heads, bias=True):
    config = {
        "vocab_size": rng.randint(20, 90),
        "hidden_size": hidden,
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": rng.random() < 0.3,
        "q_lora_rank": rng.choice([None, rng.randint(3, 24), rng.randint(3, 24)]),
        "kv_lora_rank": rng.randint(3, 40),
        "qk_nope_head_dim": rng.randint(1, 20),
        "qk_rope_head_dim": rng.choice([2, 4, 6, 8, 12, 16]),
        "v_head_dim": rng.randint(1, 24),
    }
    if bias and rng.random() < 0.25:
        config["attention_bias"] = True
    rope(rng, config)
    return config


def rope(rng, config):
    """In one of the two ways that files have it."""
    kind = rng.choice(["default", "yarn", "yarn", "yarn", "linear", "llama3", "longrope"])
    if kind == "default":
        if rng.random() < 0.5:
            config["rope_theta"] = rng.choice([100.0, 500000.0])
        return
    original, factor, half = rng.choice([4, 8, 16]), rng.choice([1.5, 4.0, 40]), config["qk_rope_head_dim"] // 2
    fields = {
        "linear": {"factor": factor},
        "llama3": {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": original},
        "yarn": {"factor": factor, "original_max_position_embeddings": original},
        "longrope": {"short_factor": [round(rng.uniform(0.8, 1.5), 3) for _ in range(half)],
                     "long_factor": [round(rng.uniform(1, 8), 3) for _ in range(half)],
                     "original_max_position_embeddings": original, "factor": factor},
    }[kind]
    if kind == "yarn":
        mscale = rng.choice([0.707, 1.0])
        fields |= rng.choice([{}, {"mscale": mscale, "mscale_all_dim": mscale}, {"mscale": mscale, "mscale_all_dim": mscale},
                              {"mscale": 1.0, "mscale_all_dim": 0.5}, {"mscale_all_dim": 1.0}])
        fields |= {key: value for key, value in (("beta_fast", 4.0), ("beta_slow", 0.5)) if rng.random() < 0.3}
    if rng.random() < 0.5:
        config["rope_theta"] = 10000.0
        config["rope_scaling"] = {rng.choice(["type", "rope_type"]): kind, **fields}
    else:
        config["rope_parameters"] = {"rope_type": kind, "rope_theta": rng.choice([1000.0, 10000.0]), **fields}


def experts(rng, config, grouped=True):
    groups = rng.choice([1, 2, 4]) if grouped else 1
    size = rng.randint(2, 4)
    used = rng.randint(1, groups)
    config |= {
        "n_routed_experts": groups * size,
        "num_experts_per_tok": rng.randint(1, used * size),
        "moe_intermediate_size": rng.randint(3, 24),
        "n_shared_experts": rng.randint(1, 3),
        "routed_scaling_factor": rng.choice([1.0, 2.5, 0.7]),
        "first_k_dense_replace": rng.randint(0, 2),
    }
    if groups > 1:
        config |= {"n_group": groups, "topk_group": used}
    return config


def drawn(rng, config, **more):
    out = {"config": config, "length": rng.randint(1, 45), **more}
    if rope_of(config)[0] == "longrope":  # the long factors from the first token on
        out["length"] += 19
    if fits_gguf(config) and rng.random() < 0.5:
        out["form"] = rng.choice(["gguf", "old gguf"])
    return out


def deepseek_v2(rng):
    heads = rng.randint(1, 6)
    config = experts(rng, latent(rng, heads * rng.randint(2, 8), heads))
    config["model_type"] = "deepseek_v2"
    for key in ("kv_lora_rank", "qk_nope_head_dim"):  # odd ones fail in transformers
        config[key] += config[key] % 2
    if rng.random() < 0.15:
        config["mlp_bias"] = True
    if "n_group" in config:
        config["topk_method"] = "group_limited_greedy"
    elif rng.random() < 0.5:
        config |= {"topk_method": "greedy", "n_group": 1, "topk_group": 1}
    return drawn(rng, config)


def sigmoid(rng, config):
    config["norm_topk_prob"] = rng.random() < 0.7
    config["rope_interleave"] = rng.random() < 0.7
    config.setdefault("n_group", 1)
    config.setdefault("topk_group", 1)
    return config


def deepseek_v3(rng):
    config = sigmoid(rng, experts(rng, latent(rng, rng.randint(5, 48), rng.randint(1, 6))))
    config["model_type"] = "deepseek_v3"
    return drawn(rng, config)


def kimi_k2(rng):
    config = sigmoid(rng, experts(rng, latent(rng, rng.randint(5, 48), rng.randint(1, 6)), grouped=False))
    config["model_type"] = "deepseek_v3"  # transformers has no other
    out = drawn(rng, config)
    out.setdefault("form", "kimi")
    return out


def glm4_moe_lite(rng):
    config = sigmoid(rng, experts(rng, latent(rng, rng.randint(5, 48), rng.randint(1, 6))))
    del config["first_k_dense_replace"]
    config["model_type"] = "glm4_moe_lite"
    if rng.random() < 0.5:
        config["mlp_layer_types"] = [rng.choice(["dense", "sparse"]) for _ in range(config["num_hidden_layers"])]
    return drawn(rng, config)


def minicpm3(rng):
    heads = rng.randint(1, 6)
    config = latent(rng, heads * rng.randint(2, 8), heads)
    config["model_type"] = "minicpm3"
    if rng.random() < 0.3:
        config["v_head_dim"] = None
    if rng.random() < 0.3:
        config["mlp_bias"] = True
    if rng.random() < 0.6:
        config |= {"scale_emb": rng.choice([3, 12.0]), "scale_depth": rng.choice([None, 1.4, 2]),
                   "dim_model_base": rng.choice([None, 8, 64])}
    return drawn(rng, config)


def write_kimi(case, folder, tensors):
    config = case["config"] | {"model_type": "kimi_k2", "scoring_func": "sigmoid", "topk_method": "noaux_tc",
                               "moe_layer_freq": 1, "num_nextn_predict_layers": 0}
    (folder / "config.json").write_text(json.dumps(config))
    base.write_safetensors(folder, [(n, d, s, base.encode(x, d)) for n, d, s, x in tensors], case["shards"])
    return folder


# ---- GGUF -----------------------------------------------------------------------------------------------------------


def rope_of(config):
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return rope.get("rope_type", rope.get("type", "default")), rope


def fits_gguf(config):
    """Whether keys of GGUF can say it."""
    kind, rope = rope_of(config)
    if config.get("attention_bias") or config.get("mlp_bias") or not config.get("rope_interleave", True):
        return False
    if config["model_type"] == "minicpm3":
        values = config["v_head_dim"] or config["hidden_size"] // config["num_attention_heads"]
        return (kind == "default" and config["q_lora_rank"] and "scale_emb" not in config
                and values == config["hidden_size"] // config["num_attention_heads"])
    if config.get("mlp_layer_types") or config.get("first_k_dense_replace", 1) >= config["num_hidden_layers"] or (kind == "yarn" and rope.get("mscale", 0) != rope.get("mscale_all_dim", 0)):
        return False
    return kind in ("default", "linear", "yarn")


def write_gguf(case, folder, tensors, split):
    import gguf
    import numpy as np
    config = case["config"]
    arch = "minicpm3" if config["model_type"] == "minicpm3" else "deepseek2"
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    for key, value in metadata(config, arch, split).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{arch}.{key}", value)
    dtype = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16,
             "BF16": gguf.GGMLQuantizationType.BF16}[case["dtype"]]
    for name, array in gguf_tensors(config, tensors, arch, split):
        vector = array.ndim == 1
        kind = gguf.GGMLQuantizationType.F32 if vector else dtype
        data = stored(array, case["dtype"]) if vector else gguf.quants.quantize(array, kind)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def stored(array, dtype):
    """As transformers reads them from a file of that type."""
    import numpy as np
    if dtype == "BF16":
        return (array.view(np.uint32) & 0xffff0000).view(np.float32)
    return array.astype({"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)


def metadata(config, arch, split):
    rope_dim, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    key_dim, heads = config["qk_nope_head_dim"] + rope_dim, config["num_attention_heads"]
    kind, rope = rope_of(config)
    out = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if split and arch == "deepseek2" else heads,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rope_dim,
        "rope.freq_base": float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        "vocab_size": config["vocab_size"],
    }
    if config["q_lora_rank"]:
        out["attention.q_lora_rank"] = config["q_lora_rank"]
    if arch == "minicpm3":
        return out | {"attention.key_length": key_dim}
    if split:
        out |= {"attention.key_length": rank + rope_dim, "attention.value_length": rank,
                "attention.key_length_mla": key_dim, "attention.value_length_mla": config["v_head_dim"]}
    else:
        out |= {"attention.key_length": key_dim, "attention.value_length": config["v_head_dim"]}
    if kind != "default":
        out |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        out["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        out |= {f"rope.scaling.yarn_{key}": float(rope[key]) for key in ("beta_fast", "beta_slow") if key in rope}
        if "mscale_all_dim" in rope:
            out["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    v3 = config["model_type"] != "deepseek_v2"
    out |= {"leading_dense_block_count": config.get("first_k_dense_replace", 1),
            "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_gating_func": 2 if v3 else 1}
    if v3 and config["norm_topk_prob"]:
        out["expert_weights_norm"] = True
    if (config.get("n_group") or 1) > 1:
        out |= {"expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"]}
    return out


NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight", "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight", "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight", "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight", "self_attn.kv_b_proj.weight": "attn_kv_b.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def gguf_tensors(config, tensors, arch, split):
    import numpy as np
    stacks = {}
    for name, _, shape, numbers in tensors:
        array = np.array(numbers, dtype=np.float32).reshape(shape)
        layer, part = "", name
        if name.startswith("model.layers."):
            number, part = name.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        if part.startswith("mlp.experts."):
            _, _, expert, kind, _ = part.split(".")
            stacks.setdefault(f"{layer}ffn_{kind.removesuffix('_proj')}_exps.weight", {})[int(expert)] = array
        elif part == "self_attn.kv_b_proj.weight" and split and arch == "deepseek2":
            both = array.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            nope = config["qk_nope_head_dim"]
            yield layer + "attn_k_b.weight", both[:, :nope].transpose(0, 2, 1).copy()
            yield layer + "attn_v_b.weight", both[:, nope:].copy()
        elif not (part == "lm_head.weight" and config["tie_word_embeddings"]):
            yield layer + NAMES[part], array
    for name, parts in stacks.items():
        yield name, np.stack([parts[i] for i in range(len(parts))])


FORMS = {"kimi": write_kimi,
         "gguf": lambda case, folder, tensors: write_gguf(case, folder, tensors, True),
         "old gguf": lambda case, folder, tensors: write_gguf(case, folder, tensors, False)}
FAMILIES = {"deepseek_v2": deepseek_v2, "deepseek_v3": deepseek_v3, "kimi_k2": kimi_k2, "glm4_moe_lite": glm4_moe_lite,
            "minicpm3": minicpm3}
