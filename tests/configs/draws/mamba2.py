"""Models with Mamba-2 layers: Granite 4, Bamba, Nemotron-H. What a function gives: llama.py."""

import gguf_forms
import numpy as np

RANGES = {r"\.A_log$": [-3, 2.5], r"\.dt_bias$": [-3, 2], r"mamba\.D$|mixer\.D$": [-1, 1]}
PLAIN = {r"ssm_(conv1d|a|d|norm)": "F32"}


def divisor(rng, number, most=8):
    return rng.choice([d for d in range(1, most + 1) if number % d == 0])


def sizes(rng, model_type):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    head_dim = rng.choice([2, 4, 6, 8, 10])
    return {
        "model_type": model_type,
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * head_dim,
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 256,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": rng.random() < 0.4,
        "attention_bias": rng.random() < 0.3,
    }


def mamba(rng, config):
    """Keys of the Mamba-2 layers of Granite 4 and Bamba."""
    expand = rng.choice([1, 2, 2, 3])
    heads = divisor(rng, expand * config["hidden_size"])
    config |= {
        "mamba_expand": expand, "mamba_n_heads": heads,
        "mamba_d_head": rng.choice(["auto", expand * config["hidden_size"] // heads]),
        "mamba_n_groups": divisor(rng, heads), "mamba_d_state": rng.choice([1, 4, 7, 8, 16, 33, 64]),
        "mamba_d_conv": rng.choice([2, 3, 4, 4, 4]), "mamba_conv_bias": rng.random() < 0.7,
        "mamba_proj_bias": rng.random() < 0.3, "mamba_chunk_size": rng.choice([1, 8, 16, 256]),
    }
    if rng.random() < 0.25:
        config["time_step_limit"] = rng.choice([[0.0, 0.7], [0.1, 1.0], [0.3, 100.0]])


def layer_kinds(rng, count, names):
    kinds = [rng.choice(names[:1] * 2 + names) for _ in range(count)]
    if names[1] not in kinds:
        kinds[rng.randrange(count)] = names[1]
    return kinds


def drawn(rng, config):
    out = {"config": config, "length": rng.choice([rng.randint(1, 45), rng.randint(60, 140)]), "ranges": RANGES}
    if "time_step_limit" in config or config.get("time_step_min", 0) > 1e-6:
        out["step"] = False  # in single steps transformers forgets the limit
    return out


def refused(rng, out, names):
    """Now and then what is not run."""
    if rng.random() > 0.08:
        return out
    config = out["config"]
    if rng.random() < 0.5:
        config["hidden_act"] = "gelu_pytorch_tanh"
        config["num_hidden_layers"] = 2
        out["refused"] = "is not silu"
    else:
        names = names[:1] * 2
        out["refused"] = "at least one with attention"
    if config["model_type"] == "bamba":
        config["attn_layer_indices"] = [0] if "act" in out["refused"] or "silu" in out["refused"] else None
    else:
        config["layer_types"] = names[:2]
        config["num_hidden_layers"] = 2
    return out


def granitemoehybrid(rng):
    config = sizes(rng, "granitemoehybrid")
    mamba(rng, config)
    names = rng.choice([["mamba", "attention"], ["linear_attention", "full_attention"]])
    config["layer_types"] = layer_kinds(rng, config["num_hidden_layers"], names)
    config |= {"embedding_multiplier": rng.choice([1.0, 3.0, 12]), "residual_multiplier": rng.choice([0.22, 0.5, 1.0]),
               "attention_multiplier": rng.choice([0.05, 0.2, 0.5]), "logits_scaling": rng.choice([1.0, 6.0, 16]),
               "shared_intermediate_size": rng.randint(3, 40), "num_local_experts": rng.choice([0, 0, 1, 2, 5, 8]),
               "position_embedding_type": rng.choice(["nope", "rope", None]),
               "rope_parameters": {"rope_type": "default", "rope_theta": rng.choice([1e4, 1e6])}}
    config["num_experts_per_tok"] = rng.randint(1, config["num_local_experts"]) if config["num_local_experts"] else 0
    out = refused(rng, drawn(rng, config), names)
    if out.get("refused") or rng.random() > 0.4:
        return out
    # What a converter can write: a form with Mamba-2 layers, without limits, biases of their projections, and with as
    # many groups of norms as of heads.
    config.pop("time_step_limit", None)
    out.pop("step", None)
    config["mamba_d_head"] = config["mamba_expand"] * config["hidden_size"] // config["mamba_n_heads"]
    config |= {"mamba_proj_bias": False, "num_hidden_layers": 3,
               "layer_types": rng.choice([names[:1] + names[1:] + names[:1], names[1:] + names[:1] * 2])}
    return out | {"form": "granitehybrid", "raw": True}


def bamba(rng):
    config = sizes(rng, "bamba")
    head_dim = rng.choice([4, 8, 12])  # half of it rotates
    config["hidden_size"] = config["num_attention_heads"] * head_dim
    mamba(rng, config)
    config["mlp_bias"] = rng.random() < 0.3
    count = config["num_hidden_layers"]
    config["attn_layer_indices"] = sorted(rng.sample(range(count), rng.randint(1, count)))
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": rng.choice([1e4, 1e6])}
    out = drawn(rng, config)
    out["step"] = False  # in single steps transformers counts positions from 0 again
    return refused(rng, out, ["mamba", "attention"])


def nemotron_h(rng):
    config = sizes(rng, "nemotron_h")
    for key in ("rms_norm_eps", "attention_bias", "tie_word_embeddings"):
        config.pop(key)
    heads = rng.choice([1, 2, 3, 4, 6])
    signs = rng.choice(["M*-", "M*-", "M*E", "M*-E"])
    kinds = layer_kinds(rng, rng.randint(1, 6), list(signs))
    config |= {
        "hidden_size": rng.randint(5, 40), "head_dim": rng.choice([2, 5, 8, 16]), "hidden_act": "relu2",
        "num_hidden_layers": len(kinds), "layer_norm_epsilon": rng.choice([1e-6, 1e-5, 1e-3]),
        "mamba_num_heads": heads, "mamba_head_dim": rng.choice([1, 3, 8, 33, 40]), "n_groups": divisor(rng, heads),
        "ssm_state_size": rng.choice([1, 4, 7, 8, 16, 33, 64]), "conv_kernel": rng.choice([2, 3, 4, 4, 4]),
        "use_conv_bias": rng.random() < 0.7, "use_bias": rng.random() < 0.3, "mlp_bias": rng.random() < 0.3,
        "chunk_size": rng.choice([1, 8, 16, 128]), "time_step_min": rng.choice([1e-7, 1e-7, 1e-7, 0.001, 0.2]),
    }
    config.pop("hidden_act")
    if rng.random() < 0.3:
        config["mlp_hidden_act"] = rng.choice(["relu2", "silu", "relu", "gelu"])
    if rng.random() < 0.5:
        config["hybrid_override_pattern"] = "".join(kinds)
    else:
        names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
        config["layers_block_type"] = [names[kind] for kind in kinds]
    groups = rng.choice([1, 1, 2])
    config["n_routed_experts"] = count = groups * rng.randint(2, 5)
    config |= {"n_group": groups, "topk_group": rng.randint(1, groups), "moe_intermediate_size": rng.randint(3, 24),
               "moe_shared_expert_intermediate_size": rng.randint(3, 24), "norm_topk_prob": rng.random() < 0.7,
               "routed_scaling_factor": rng.choice([1.0, 2.5])}
    config["num_experts_per_tok"] = rng.randint(1, count // groups * config["topk_group"])
    out = drawn(rng, config)
    chance = rng.random()
    if chance < 0.05 and "E" in kinds:
        config["moe_latent_size"] = 8
        out["refused"] = "moe_latent_size"
    elif chance < 0.1:
        config["mamba_hidden_act"] = "gelu"
        out["refused"] = "is not silu"
    elif chance < 0.4 and signs != "M*-E":
        # A converter has no keys for these; files with experts have no other feed-forward blocks.
        config |= {"use_bias": False, "mlp_bias": False, "time_step_min": 1e-7, "n_group": 1, "topk_group": 1,
                   "n_shared_experts": 1}
        config["num_experts_per_tok"] = min(config["num_experts_per_tok"], count)
        config.pop("mlp_hidden_act", None)
        out.pop("step", None)
        out |= {"form": "nemotron_h_moe" if "E" in kinds else "nemotron_h", "raw": True}
    return out


# ---- GGUF, as llama.cpp's converter writes it ----------------------------------------------------------------------


def ssm_keys(writer, conv, state, groups, heads, head_dim):
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * head_dim)


def reshaped(name, array, groups):
    """Of Mamba2Model.modify_tensors()."""
    if name.endswith(".A_log"):
        return [(name, -np.exp(array).reshape(-1, 1))]
    if name.endswith(".D"):
        return [(name, array.reshape(-1, 1))]
    if name.endswith(".dt_bias"):
        return [(name.replace(".dt_bias", ".dt_proj.bias"), array)]
    if name.endswith("conv1d.weight"):
        return [(name, array.reshape(array.shape[0], array.shape[-1]))]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return [(name, array.reshape(groups, -1))]
    return [(name, array)]


def granitehybrid(case, folder, tensors):
    config = case["config"]
    attention = [kind in ("attention", "full_attention") for kind in config["layer_types"]]

    def keys(writer, config):
        if not config["num_local_experts"]:
            writer.add_feed_forward_length(config["shared_intermediate_size"])
        else:
            writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
        writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        writer.add_head_count_kv([config["num_key_value_heads"] if full else 0 for full in attention])
        ssm_keys(writer, config["mamba_d_conv"], config["mamba_d_state"], config["mamba_n_groups"],
                 config["mamba_n_heads"], config["mamba_d_head"])

    def change(name, array):
        block = f"blk.{name.split('.')[2]}.ffn_" if ".layers." in name else ""
        for part, suffix in (("block_sparse_moe", "_exps"), ("shared_mlp", "_shexp" if config["num_local_experts"] else "")):
            if name.endswith(f"{part}.input_linear.weight"):
                gate, up = np.split(array, 2, axis=-2)
                return [(f"{block}gate{suffix}.weight", gate), (f"{block}up{suffix}.weight", up)]
            if name.endswith(f"{part}.output_linear.weight"):
                return [(f"{block}down{suffix}.weight", array)]
        for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            if f"self_attn.{part}_proj." in name:
                return [(name, gguf_forms.permuted(array, config[heads]))]
        return reshaped(name, array, config["mamba_n_groups"])

    return gguf_forms.write(case, folder, tensors, "granitehybrid", keys, change, PLAIN)


def nemotron_form(case, folder, tensors):
    config = case["config"]
    pattern = config.get("hybrid_override_pattern") or "".join(
        {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}[kind] for kind in config["layers_block_type"])

    def keys(writer, config):
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
        width = config["moe_intermediate_size"] if "E" in pattern else config["intermediate_size"]
        writer.add_feed_forward_length([width if kind in "-E" else 0 for kind in pattern])
        writer.add_head_count_kv([config["num_key_value_heads"] if kind == "*" else 0 for kind in pattern])
        ssm_keys(writer, config["conv_kernel"], config["ssm_state_size"], config["n_groups"],
                 config["mamba_num_heads"], config["mamba_head_dim"])
        if "E" in pattern:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
            writer.add_expert_shared_count(1)
            writer.add_expert_weights_norm(config["norm_topk_prob"])
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_expert_group_count(config["n_group"])

    def change(name, array):
        if name.endswith("e_score_correction_bias"):
            return [(name.replace("_bias", ".bias"), array)]
        if ".mixer.experts." in name:
            return [(name.replace("backbone.", "model.").replace(".mixer.", ".mlp."), array)]
        return reshaped(name, array, config["n_groups"])

    if "E" not in pattern:  # not what a mixture is told by
        config = case["config"] = {k: v for k, v in config.items() if k != "n_routed_experts"}
    return gguf_forms.write(case, folder, tensors, case["form"], keys, change, PLAIN)


FORMS = {"granitehybrid": granitehybrid, "nemotron_h": nemotron_form, "nemotron_h_moe": nemotron_form}
FAMILIES = {"granitemoehybrid": granitemoehybrid, "bamba": bamba, "nemotron_h": nemotron_h}
