"""Models with recurrent layers: Qwen3-Next, Qwen3.5 and their mixtures. See llama.py."""

import math
import re

from write_gguf import rounded, write_gguf


def qwen_next(rng, model_type, experts):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    head_dim = rng.choice([8, 10, 16, 24])
    partial = rng.choice([0.25, 0.5, 1.0]) if head_dim % 8 == 0 else rng.choice([0.4, 0.6, 1.0])
    layers = rng.randint(1, 5)
    kinds = [rng.choice(["linear_attention", "linear_attention", "full_attention"]) for _ in range(layers)]
    if "full_attention" not in kinds:
        kinds[rng.randrange(layers)] = "full_attention"
    key_heads = rng.choice([1, 2, 3])
    config = {
        "model_type": model_type,
        "vocab_size": rng.randint(20, 90),
        "hidden_size": rng.randint(5, 40),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 256,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "attention_bias": rng.random() < 0.3,
        "tie_word_embeddings": rng.random() < 0.5,
        "linear_conv_kernel_dim": rng.choice([2, 3, 4, 4, 4, 7]),
        "linear_key_head_dim": rng.choice([1, 4, 7, 8, 16, 33]),
        "linear_value_head_dim": rng.choice([1, 4, 9, 16, 33, 40]),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * rng.choice([1, 2, 3]),
        "rope_parameters": {"rope_type": "default", "rope_theta": rng.choice([1e4, 1e6]),
                            "partial_rotary_factor": partial},
    }
    if rng.random() < 0.7:
        config["layer_types"] = kinds
    else:
        config["num_hidden_layers"] = interval = rng.choice([1, 2, 3, 4])
        config["full_attention_interval"] = interval
    if rng.random() < 0.2:
        del config["rope_parameters"]["partial_rotary_factor"]
        config["head_dim"] = rng.choice([8, 16, 32])
    if model_type.startswith("qwen3_5") and rng.random() < 0.3:
        config["rope_parameters"]["mrope_section"] = [1, 1, 0]
        config["rope_parameters"]["mrope_interleaved"] = True
    if experts:
        config["num_experts"] = count = rng.randint(2, 9)
        config["num_experts_per_tok"] = rng.randint(1, count)
        config["moe_intermediate_size"] = rng.randint(3, 24)
        config["shared_expert_intermediate_size"] = rng.randint(3, 24)
    elif model_type == "qwen3_next":
        config["num_experts"] = 0
    if model_type != "qwen3_5_moe_text":
        config["intermediate_size"] = rng.randint(5, 50)
    if model_type == "qwen3_next":
        config["norm_topk_prob"] = rng.random() < 0.7
        if rng.random() < 0.3:
            config["mlp_only_layers"] = [rng.randrange(config["num_hidden_layers"])]
        config["decoder_sparse_step"] = rng.choice([1, 1, 2])
    # transformers' chunks have 64 tokens.
    return {"config": config, "length": rng.choice([rng.randint(1, 45), rng.randint(60, 140)]),
            "ranges": {r"\.A_log$": [-3, 2.5], r"\.dt_bias$": [-2, 2]}}


def refused(rng, drawn):
    """Now and then what is not run."""
    if rng.random() > 0.08:
        return drawn
    kind = rng.randrange(2)
    if kind == 0:
        drawn["config"]["hidden_act"] = "gelu_pytorch_tanh"
        drawn["config"]["num_hidden_layers"] = 2
        drawn["config"]["layer_types"] = ["linear_attention", "full_attention"]
        drawn["refused"] = "'hidden_act' is not silu"
    else:
        drawn["config"]["layer_types"] = ["linear_attention"] * drawn["config"]["num_hidden_layers"]
        drawn["refused"] = "at least one with attention"
    drawn["config"].pop("mlp_only_layers", None)
    return drawn


def nested(rng, model_type, cls):
    """The whole model, with its part for images, as its files are."""
    drawn = qwen_next(rng, f"{model_type}_text", "moe" in model_type)
    text = drawn["config"]
    text.pop("full_attention_interval", None)
    if "layer_types" not in text:
        text["layer_types"] = ["linear_attention"] * (text["num_hidden_layers"] - 1) + ["full_attention"]
    drawn["config"] = {
        "model_type": model_type,
        "text_config": text,
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2, "out_hidden_size":
                          text["hidden_size"], "num_position_embeddings": 16, "patch_size": 4},
        "tie_word_embeddings": text["tie_word_embeddings"],
        "image_token_id": 1, "video_token_id": 2, "vision_start_token_id": 3, "vision_end_token_id": 4,
    }
    drawn["cls"] = cls
    return drawn


# ---- GGUF, as llama.cpp's converter writes it ----------------------------------------------------------------------

GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight", "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight", "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight", "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a", "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}


def rows_of(numbers, count):
    width = len(numbers) // count
    return [numbers[i * width:(i + 1) * width] for i in range(count)]


def tiled(rows, config, per_head):
    """Value heads from grouped by key head to one after the other of each key head."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    each = heads // keys
    order = [k * each + j for j in range(each) for k in range(keys)]
    return [row for head in order for row in rows[head * per_head:(head + 1) * per_head]]


def flat(rows):
    return [x for row in rows for x in row]


def reordered(inner, numbers, config):
    """The tensor with tiled value heads."""
    dim, heads = config["linear_value_head_dim"], config["linear_num_value_heads"]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if inner in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        rows = rows_of(numbers, keys + heads * dim)
        return flat(rows[:keys] + tiled(rows[keys:], config, dim))
    if inner == "linear_attn.in_proj_z.weight":
        return flat(tiled(rows_of(numbers, heads * dim), config, dim))
    if inner in ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight", "linear_attn.dt_bias", "linear_attn.A_log"):
        return flat(tiled(rows_of(numbers, heads), config, 1))
    if inner == "linear_attn.out_proj.weight":
        return flat(tiled(row, config, dim) for row in rows_of(numbers, config["hidden_size"]))
    return numbers


def split_qkvz(numbers, config):
    """Qwen3-Next's rows of each key head as q, k and v of all, and z."""
    each = config["linear_num_value_heads"] // config["linear_num_key_heads"] * config["linear_value_head_dim"]
    sizes = [config["linear_key_head_dim"]] * 2 + [each] * 2
    parts = [[], [], [], []]
    rows = rows_of(numbers, config["linear_num_key_heads"] * sum(sizes))
    for head in range(config["linear_num_key_heads"]):
        for part, size in zip(parts, sizes):
            part += rows[:size]
            rows = rows[size:]
    return flat(parts[0] + parts[1] + parts[2]), flat(parts[3])


def gguf_tensors(config, tensors, architecture):
    stacks = {}
    for name, dtype, shape, exact in tensors:
        numbers = rounded(exact, dtype)
        outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                   "lm_head.weight": "output.weight"}
        match = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        layer, inner = match.groups() if match else ("", "")
        if name.endswith("norm.weight") and inner != "linear_attn.norm.weight":
            numbers = [x + 1 for x in numbers]
        if name in outside:
            yield outside[name], dtype, shape, numbers
            continue
        if expert := re.match(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight", inner):
            stacks.setdefault((layer, expert[2]), {})[int(expert[1])] = (dtype, shape, numbers)
            continue
        if inner == "linear_attn.in_proj_qkvz.weight":
            qkv, z = split_qkvz(numbers, config)
            hidden = shape[1]
            yield f"blk.{layer}.attn_qkv.weight", dtype, [len(qkv) // hidden, hidden], qkv
            yield f"blk.{layer}.attn_gate.weight", dtype, [len(z) // hidden, hidden], z
            continue
        if architecture != "qwen3next":
            numbers = reordered(inner, numbers, config)
        if inner == "linear_attn.A_log":
            numbers = [-math.exp(x) for x in numbers]
        if inner == "linear_attn.conv1d.weight":
            shape, dtype = [shape[0], shape[2]], "F32"
        yield f"blk.{layer}.{GGUF_NAMES[inner]}", dtype, shape, numbers
    for (layer, part), experts in stacks.items():
        dtype, shape, _ = experts[0]
        yield f"blk.{layer}.ffn_{part}_exps.weight", dtype, [len(experts), *shape], flat(experts[e][2] for e in sorted(experts))


def gguf(case, folder, tensors):
    config = case["config"]
    architecture = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}[config["model_type"]]
    rope = config["rope_parameters"]
    dim = int(config["head_dim"] * rope.get("partial_rotary_factor", 0.25))
    keys = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"], "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(rope["rope_theta"]), "rope.dimension_count": dim,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": config.get("full_attention_interval", 4),
    }
    keys["feed_forward_length"] = config.get("intermediate_size", 1)
    if config.get("num_experts"):
        keys |= {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
                 "expert_feed_forward_length": config["moe_intermediate_size"],
                 "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
    if architecture != "qwen3next":
        keys["rope.dimension_sections"] = [11, 11, 10, 0]
    return write_gguf(folder / "model.gguf", architecture, keys, list(gguf_tensors(config, tensors, architecture)))


FORMS = {"gguf": gguf}


def in_gguf(rng, drawn):
    """Some as GGUF, which has a period of the layers, no dense layers in mixtures and no biases."""
    config = drawn["config"]
    if drawn.get("refused") or rng.random() > 0.35:
        return drawn
    config.pop("layer_types", None)
    config["full_attention_interval"] = interval = rng.choice([1, 2, 3])
    config["num_hidden_layers"] = interval * rng.choice([1, 2])
    config["attention_bias"] = False
    for key in ("mlp_only_layers", "decoder_sparse_step"):
        config.pop(key, None)
    if config.get("num_experts"):
        config["norm_topk_prob"] = True
    if config["model_type"] == "qwen3_5_moe_text":
        config.pop("norm_topk_prob", None)
    return drawn | {"form": "gguf", "raw": True}


def drawn(rng, model_type, experts):
    return in_gguf(rng, refused(rng, qwen_next(rng, model_type, experts)))


FAMILIES = {
    "qwen3_next": lambda rng: drawn(rng, "qwen3_next", rng.random() < 0.8),
    "qwen3_5_text": lambda rng: drawn(rng, "qwen3_5_text", False),
    "qwen3_5_moe_text": lambda rng: drawn(rng, "qwen3_5_moe_text", True),
    "qwen3_5": lambda rng: nested(rng, "qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": lambda rng: nested(rng, "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
}
