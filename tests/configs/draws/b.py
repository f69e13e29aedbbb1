"""Mixtures of experts with routers of their own. What a function gives: llama.py."""


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
    refused = None
    if rng.random() < 0.05:
        config["swiglu_alpha"] = 1.5
        refused = "swiglu_alpha"
    return {"config": config, "length": rng.randint(1, 60), "refused": refused}


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
    return {"config": config, "length": rng.randint(1, 45)}


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
    return {"config": config, "length": rng.randint(1, 45)}


def minimax_m2(rng):
    config = sizes(rng, "minimax_m2", head_dims=(4, 8, 12, 16))
    config["num_local_experts"], config["num_experts_per_tok"] = experts(rng)
    drawn = {"config": config, "length": rng.randint(1, 45)}
    if rng.random() < 0.5:
        config["rotary_dim"] = rng.choice([2, 4, config["head_dim"]])
    else:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0,
                                     "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return drawn


def hunyuan_v1_moe(rng):
    config = sizes(rng, "hunyuan_v1_moe")
    config["num_experts"], config["moe_topk"] = experts(rng)
    if rng.random() < 0.3:
        config["moe_topk"] = [config["moe_topk"]] * config["num_hidden_layers"]
    config["attention_bias"] = rng.random() < 0.3
    if rng.random() < 0.6:
        config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0,
                                     "alpha": rng.choice([1.5, 1000.0])}
    return {"config": config, "length": rng.randint(1, 45)}


FAMILIES = {"gpt_oss": gpt_oss, "glm4_moe": glm4_moe, "ernie4_5_moe": ernie4_5_moe, "minimax_m2": minimax_m2,
            "hunyuan_v1_moe": hunyuan_v1_moe}
