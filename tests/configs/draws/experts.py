"""Mixtures of experts with routers of their own. What a function gives: llama.py."""

import re

import gguf_forms
import numpy as np


def sizes(rng, model_type, head_dims=(4, 6, 10, 16)):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    return {
        "model_type": model_type,
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * rng.randint(2, 8),
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice(head_dims),
        "max_position_embeddings": 128,
        "rms_norm_eps": rng.choice([1e-5, 1e-3]),
        "tie_word_embeddings": rng.random() < 0.3,
    }


def yarn(rng, **more):
    return {"rope_type": "yarn", "factor": rng.choice([2.0, 4.0, 32.0]), "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": rng.choice([8, 16, 64]), **more}


def experts(rng, most=12):
    count = rng.randint(1, most)
    return count, rng.randint(1, count)


def maybe_gguf(rng, drawn):
    if rng.random() < 0.25 and not drawn["config"].get("use_bias"):
        drawn |= {"form": drawn["config"]["model_type"], "raw": False}
        if "moe_norm_min" in drawn["config"]:
            drawn["config"]["moe_norm_min"] = 1e-12  # which GGUF has no key for
    return drawn


def gpt_oss(rng):
    config = sizes(rng, "gpt_oss")
    config["num_local_experts"], config["num_experts_per_tok"] = experts(rng)
    config["sliding_window"] = rng.choice([2, 3, 7, 16, 128])
    if rng.random() < 0.3:
        config["attention_bias"] = rng.random() < 0.5
    if rng.random() < 0.3:
        config["swiglu_limit"] = rng.choice([0.5, 2.0, 20.0])
    if rng.random() < 0.3:
        config["layer_types"] = [rng.choice(["sliding_attention", "full_attention"])
                                 for _ in range(config["num_hidden_layers"])]
    rope = rng.random()
    if rope < 0.3:
        config["rope_parameters"] = yarn(rng, truncate=rng.random() < 0.5, rope_theta=rng.choice([1e4, 150000.0]))
    elif rope < 0.5:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0}
    drawn = {"config": config, "length": rng.randint(1, 60)}
    if rng.random() < 0.05:
        config["swiglu_alpha"] = 1.5
        drawn["refused"] = "swiglu_alpha"
    elif rng.random() < 0.4:  # GGUF has no keys for these, and llama.cpp always truncates
        drawn |= {"form": rng.choice(["gguf", "mxfp4", "mxfp4_gguf"]), "raw": False}
        if drawn["form"] != "gguf":
            drawn["weights"] = "f32"
            config |= {"hidden_size": 32 * rng.randint(1, 2), "intermediate_size": 32 * rng.randint(1, 2)}
        if drawn["form"] != "mxfp4":
            for key in ("layer_types", "swiglu_limit"):
                config.pop(key, None)
            config["rope_parameters"] = rng.choice([yarn(rng, rope_theta=1e4), {"rope_type": "default", "rope_theta": 1e4}])
    return drawn


def phimoe(rng):
    config = sizes(rng, "phimoe")
    config.pop("head_dim")
    head_dim = rng.choice([4, 6, 10, 16])
    config |= {"hidden_size": config["num_attention_heads"] * head_dim, "num_local_experts": rng.randint(2, 8), "num_experts_per_tok": 2,
               "attention_bias": rng.random() < 0.6, "lm_head_bias": rng.random() < 0.6,
               "router_jitter_noise": rng.choice([0.01, 0.1, 0.4]), "max_position_embeddings": 256}
    if rng.random() < 0.3:
        config["sliding_window"] = rng.choice([5, 16, 300])
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": rng.choice([1e4, 1e6])}
    drawn = {"config": config, "length": rng.randint(1, 60)}
    if rng.random() < 0.4:  # in longer sequences the class of these versions takes the short factors, too
        scale = rng.choice([1.0, 1.24])
        config["rope_parameters"] |= {"rope_type": "longrope", "original_max_position_embeddings": 128, "short_mscale": scale,
                                      "long_mscale": scale, "short_factor": [rng.choice([1.0, 1.5, 2.0]) for _ in range(head_dim // 2)],
                                      "long_factor": [rng.choice([1.0, 4.0, 9.0]) for _ in range(head_dim // 2)]}
        if rng.random() < 0.15:
            config["rope_parameters"]["long_mscale"] = 2.0
            drawn["refused"] = "only equal ones"
    elif rng.random() < 0.06:
        config["num_experts_per_tok"] = 1
        drawn["refused"] = "a sparse mixer chooses 2"
    return drawn


def glm4_moe(rng):
    config = sizes(rng, "glm4_moe", head_dims=(4, 8, 12, 16))
    groups = rng.choice([1, 1, 2, 3])
    size = rng.randint(2, 5)
    used = rng.randint(1, groups)
    config |= {"n_routed_experts": groups * size, "n_group": groups, "topk_group": used,
               "num_experts_per_tok": rng.randint(1, used * size), "moe_intermediate_size": rng.randint(5, 30),
               "n_shared_experts": rng.choice([1, 1, 2]),
               "first_k_dense_replace": rng.randint(0, config["num_hidden_layers"]),
               "routed_scaling_factor": rng.choice([1.0, 2.5]), "norm_topk_prob": rng.random() < 0.7,
               "attention_bias": rng.random() < 0.5, "use_qk_norm": rng.random() < 0.5, "num_mtp_layers": 0}
    if rng.random() < 0.3:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0,
                                     "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return maybe_gguf(rng, {"config": config, "length": rng.randint(1, 45)})


def ernie4_5_moe(rng):
    config = sizes(rng, "ernie4_5_moe")
    config["moe_num_experts"], config["moe_k"] = experts(rng)
    config |= {"moe_intermediate_size": rng.randint(5, 30), "moe_num_shared_experts": rng.choice([0, 1, 2]),
               "moe_layer_start_index": rng.randint(0, config["num_hidden_layers"]),
               "moe_layer_interval": rng.choice([1, 1, 2]), "use_bias": rng.random() < 0.3,
               "moe_norm_min": rng.choice([1e-12, 0.5])}
    if rng.random() < 0.3:
        config["moe_layer_end_index"] = rng.randint(0, config["num_hidden_layers"] - 1)
    if rng.random() < 0.3:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0}
    return maybe_gguf(rng, {"config": config, "length": rng.randint(1, 45)})


def minimax_m2(rng):
    config = sizes(rng, "minimax_m2", head_dims=(4, 8, 12, 16))
    config["num_local_experts"], config["num_experts_per_tok"] = experts(rng)
    drawn = {"config": config, "length": rng.randint(1, 45)}
    if rng.random() < 0.5:
        config["rotary_dim"] = rng.choice([2, 4, config["head_dim"]])
    else:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0,
                                     "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return maybe_gguf(rng, drawn)


def hunyuan_v1_moe(rng):
    config = sizes(rng, "hunyuan_v1_moe")
    config["num_experts"], config["moe_topk"] = experts(rng)
    if rng.random() < 0.3:
        config["moe_topk"] = [config["moe_topk"]] * config["num_hidden_layers"]
    config["attention_bias"] = rng.random() < 0.3
    if rng.random() < 0.6:
        config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0,
                                     "alpha": rng.choice([1.5, 1000.0])}
    return maybe_gguf(rng, {"config": config, "length": rng.randint(1, 45)})


# ---- GGUF, as llama.cpp's converter writes it ------------------------------------------------------------------------


def with_suffix(name):
    """The converter's names for what has no suffix in transformers."""
    return name.replace("e_score_correction_bias", "e_score_correction.bias").replace("self_attn.sinks", "self_attn.sinks.weight")


def changed(name, array):
    if "e_score_correction_bias" in name:
        array = array.reshape(-1)
    return [(with_suffix(name), array)]


def write(case, folder, tensors, arch, keys, change=changed, **config):
    case = dict(case, config=case["config"] | config)
    return gguf_forms.write(case, folder, tensors, arch, keys=keys, change=change)


def gpt_oss_keys(writer, config):
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def gpt_oss_changed(name, array):
    halves = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    if name.endswith("gate_up_proj"):
        return [(name.replace("gate_up_proj", half) + ".weight", array[..., at].swapaxes(1, 2)) for half, at in halves.items()]
    if name.endswith("gate_up_proj_bias"):
        return [(name.replace("gate_up_proj_bias", half) + ".bias", array[..., at]) for half, at in halves.items()]
    if name.endswith("down_proj"):
        return [(name + ".weight", array.swapaxes(1, 2))]
    if name.endswith("down_proj_bias"):
        return [(name.replace("down_proj_bias", "down_proj.bias"), array)]
    return changed(name, array)


def gpt_oss_gguf(case, folder, tensors, **more):
    return gguf_forms.write(case, folder, tensors, "gpt-oss", keys=gpt_oss_keys, change=gpt_oss_changed, **more)


def mxfp4_numbers(case, folder, tensors):
    """Rounds the experts' matrices to what MXFP4 holds, for transformers too. Gives {name: (levels, exponents)} of their
    rows [experts, rows, blocks, 32]."""
    levels = np.array([0, 1, 2, 3, 4, 6, 8, 12])
    found = {}
    for name, _, shape, numbers in tensors:
        if not re.search(r"experts\.(gate_up_proj|down_proj)$", name):
            continue
        rows = np.array(numbers).reshape(shape).swapaxes(1, 2)
        blocks = rows.reshape(*rows.shape[:2], -1, 32)
        most = np.abs(blocks).max(-1, keepdims=True)
        power = np.where(most > 0, np.floor(np.log2(np.maximum(most, 1e-30))), -100) - 3
        near = np.abs(np.abs(blocks / 2.0**power)[..., None] - levels).argmin(-1)
        numbers[:] = (np.sign(blocks) * levels[near] * 2.0**power).reshape(rows.shape).swapaxes(1, 2).reshape(-1).tolist()
        found[name] = (near + 8 * (blocks < 0), power[..., 0].astype(int))
    import compare_transformers as base
    base.write_safetensors(folder.parent, [(n, d, s, base.encode(x, d)) for n, d, s, x in tensors], case["shards"])
    return found


def mxfp4(case, folder, tensors):
    """As gpt-oss is published: two codes to a byte, neighbours, and exponents."""
    import compare_transformers as base
    import json
    found = mxfp4_numbers(case, folder, tensors)
    made = []
    for name, dtype, shape, numbers in tensors:
        if name not in found:
            made.append((name, dtype, shape, base.encode(numbers, dtype)))
            continue
        codes, powers = found[name]
        packed = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
        scales = (powers + 1 + 127).astype(np.uint8)  # levels are twice the numbers of E2M1
        made.append((name + "_blocks", "U8", list(packed.shape), packed.tobytes()))
        made.append((name + "_scales", "U8", list(scales.shape), scales.tobytes()))
    config = case["config"] | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))
    base.write_safetensors(folder, made, case["shards"])
    return folder


def mxfp4_gguf(case, folder, tensors):
    mxfp4_numbers(case, folder, tensors)
    return gpt_oss_gguf(case, folder, tensors, kinds={r"ffn_(gate|up|down)_exps\.weight": "MXFP4"})


def glm4_moe_gguf(case, folder, tensors):
    import gguf

    def keys(writer, config):
        rotated = config["rope_parameters"].get("partial_rotary_factor", 0.5)
        writer.add_rope_dimension_count(int(config["head_dim"] * rotated))
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        if config.get("num_nextn_predict_layers"):  # which the number of layers counts, too
            writer.add_nextn_predict_layers(config["num_nextn_predict_layers"])
    return write(case, folder, tensors, "glm4moe", keys)


def ernie4_5_moe_gguf(case, folder, tensors):
    def keys(writer, config):
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if config["moe_num_shared_experts"]:
            writer.add_expert_shared_count(config["moe_num_shared_experts"])
            writer.add_expert_shared_feed_forward_length(config["moe_intermediate_size"] * config["moe_num_shared_experts"])
    return write(case, folder, tensors, "ernie4_5-moe", keys)


def minimax_m2_gguf(case, folder, tensors):
    import gguf

    def keys(writer, config):
        rotated = config["rope_parameters"].get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(config["head_dim"] * rotated))
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    return write(case, folder, tensors, "minimax-m2", keys)


def hunyuan_v1_moe_gguf(case, folder, tensors):
    config = case["config"]
    top, rope, dim = config["moe_topk"], config["rope_parameters"], config["head_dim"]
    theta = rope["rope_theta"] * rope.get("alpha", 1.0) ** (dim / (dim - 2))

    def keys(writer, fields):
        writer.add_expert_feed_forward_length(fields["intermediate_size"])
        writer.add_expert_shared_feed_forward_length(fields["intermediate_size"])
    return write(case, folder, tensors, "hunyuan-moe", keys, num_experts_per_tok=top[0] if isinstance(top, list) else top,
                 rope_parameters={"rope_type": "default", "rope_theta": theta})


FORMS = {"gguf": gpt_oss_gguf, "mxfp4": mxfp4, "mxfp4_gguf": mxfp4_gguf, "glm4_moe": glm4_moe_gguf,
         "ernie4_5_moe": ernie4_5_moe_gguf, "minimax_m2": minimax_m2_gguf, "hunyuan_v1_moe": hunyuan_v1_moe_gguf}
FAMILIES = {"phimoe": phimoe, "gpt_oss": gpt_oss, "glm4_moe": glm4_moe, "ernie4_5_moe": ernie4_5_moe, "minimax_m2": minimax_m2,
            "hunyuan_v1_moe": hunyuan_v1_moe}
