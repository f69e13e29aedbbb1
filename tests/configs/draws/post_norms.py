"""Norms behind branches, qk-norms over rows and after rope, ropes of windowed layers, softcaps: Gemma 2 and 3, OLMo 2 and
3, OLMoE, EXAONE 4, Hunyuan, GLM-4."""

import gguf_forms


def shape(rng, head_dims=(4, 6, 10, 16), even=False):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    return {
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * rng.randint(2, 8) * (2 if even else 1),
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice(head_dims),
        "max_position_embeddings": 128,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
    }


def layer_types(rng, config):
    return [rng.choice(["sliding_attention", "full_attention"]) for _ in range(config["num_hidden_layers"])]


def scaling(rng, old=False):
    """Parameters of rope, but for theta; without some kinds in layers that no sequence's length changes."""
    kind = rng.choice(["default", "linear", "yarn", "llama3", "dynamic"] if not old else ["linear", "yarn", "llama3"])
    rope = {"rope_type": kind}
    if kind != "default":
        rope["factor"] = rng.choice([2.0, 4.0])
    if kind in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = rng.choice([16, 64])
    if kind == "yarn" and rng.random() < 0.3:
        rope["attention_factor"] = 1.1
    if kind == "llama3":
        rope.update(low_freq_factor=1.0, high_freq_factor=4.0)
    return rope


def gguf_scaling(rng):
    kind = rng.choice(["default", "linear", "yarn"])
    rope = {"rope_type": kind}
    if kind != "default":
        rope["factor"] = rng.choice([2.0, 4.0])
    if kind == "yarn":
        rope["original_max_position_embeddings"] = rng.choice([16, 64])
    return rope


def drawn(rng, config, form_of=None, **more):
    """form_of(): what a model that is to be written as GGUF must not have is taken out; True if it can be written."""
    out = {"config": config, "length": rng.randint(1, 45), **more}
    if form_of and rng.random() < 0.3:
        form_of()
        out.update(form=config["model_type"], raw=False)
    return out


# ---- Gemma ----------------------------------------------------------------------------------------------------------


# The scale of the embedding is rounded to the type of the file, and the reference runs in f32.
GEMMA = {"dtype": "F32"}


def gemma(rng, config):
    config.update({
        "hidden_activation": rng.choice(["gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu"]),
        "query_pre_attn_scalar": rng.choice([7, 24, 256]),
        "attention_bias": rng.random() < 0.3,
        "sliding_window": rng.randint(2, 20),
        "tie_word_embeddings": rng.random() < 0.8,
    })
    if rng.random() < 0.2:
        config["hidden_act"] = "gelu"  # which means nothing
    if rng.random() < 0.5:
        config["layer_types"] = layer_types(rng, config)
    return config


def for_gemma_gguf(config):
    config.update(query_pre_attn_scalar=config["head_dim"], hidden_activation="gelu_pytorch_tanh",
                  attention_bias=False, tie_word_embeddings=True)
    config.pop("layer_types", None)


def gemma2(rng):
    config = gemma(rng, {"model_type": "gemma2", **shape(rng)})
    for key, cap in (("attn_logit_softcapping", [0.5, 2.0, 50.0]), ("final_logit_softcapping", [3.0, 30.0])):
        if rng.random() < 0.8:
            config[key] = rng.choice([None, *cap])
    config["rope_parameters"] = {"rope_theta": rng.choice([1e3, 1e4]), **scaling(rng)}

    def form_of():
        for_gemma_gguf(config)
        config.update(attn_logit_softcapping=rng.choice([0.5, 50.0]), final_logit_softcapping=rng.choice([3.0, 30.0]))
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4}  # the converter writes nothing about it

    return drawn(rng, config, form_of, **GEMMA)


def kind_ropes(rng, config, theta, local_theta):
    """The rope of each kind of layer, in any of the ways that there are to say it."""
    way = rng.choice(["new", "new", "old", "none"])
    if way == "new":
        config["rope_parameters"] = {"full_attention": {"rope_theta": rng.choice(theta), **scaling(rng)}}
        if rng.random() < 0.8:
            local = {"rope_type": "default"}
            if rng.random() < 0.3:
                local = {"rope_type": "linear", "factor": 2.0}
            config["rope_parameters"]["sliding_attention"] = {"rope_theta": rng.choice(local_theta), **local}
    elif way == "old":
        config["rope_theta"] = rng.choice(theta)
        if rng.random() < 0.5:
            config["rope_scaling"] = scaling(rng, old=True)


def for_gguf_ropes(rng, config, theta, local_theta):
    for key in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
        config.pop(key, None)
    config["rope_parameters"] = {
        "full_attention": {"rope_theta": theta, **gguf_scaling(rng)},
        "sliding_attention": {"rope_theta": local_theta, "rope_type": "default"}}


def gemma3_text(rng):
    config = gemma(rng, {"model_type": "gemma3_text", **shape(rng)})
    if "layer_types" not in config and rng.random() < 0.7:
        config["sliding_window_pattern"] = rng.randint(1, 4)
    if rng.random() < 0.5:
        config["final_logit_softcapping"] = rng.choice([None, 3.0])
    kind_ropes(rng, config, [1e4, 1e6], [1e2, 1e4])
    if "rope_theta" in config and rng.random() < 0.5:
        config["rope_local_base_freq"] = 500.0

    def form_of():
        for_gemma_gguf(config)
        config.pop("sliding_window_pattern", None)
        config["num_hidden_layers"] = rng.randint(5, 7)
        for_gguf_ropes(rng, config, 1e6, rng.choice([1e2, 1e4]))

    return drawn(rng, config, form_of, **GEMMA)


def gemma3(rng):
    text = gemma3_text(rng)
    config = text["config"]
    if "form" in text:
        return {**text, "config": config}
    config.pop("tie_word_embeddings")
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
              "patch_size": 8, "model_type": "siglip_vision_model", "vision_use_head": False}
    if rng.random() < 0.5:
        config.pop("model_type")
    whole = {"model_type": "gemma3", "text_config": config, "vision_config": vision, "mm_tokens_per_image": 4,
             "image_token_index": 1, "boi_token_index": 2, "eoi_token_index": 3}
    return {**text, "config": whole, "cls": "Gemma3ForConditionalGeneration"}


def gemma_norms(name, array):
    return [(name, array + 1 if name.endswith("norm.weight") else array)]


def gemma2_keys(writer, config):
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def gemma3_keys(writer, config):
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


# ---- OLMo -----------------------------------------------------------------------------------------------------------


def olmo(rng, name, config):
    config = {"model_type": name, **config}
    config.update({
        "hidden_act": rng.choice(["silu", "silu", "gelu_pytorch_tanh"]),
        "attention_bias": rng.random() < 0.3,
        "tie_word_embeddings": rng.random() < 0.3,
        "pad_token_id": None,
    })
    return config


def for_olmo_gguf(config):
    config.update(hidden_act="silu", attention_bias=False)


def olmo2(rng):
    config = olmo(rng, "olmo2", shape(rng))
    config["rope_parameters"] = {"rope_theta": rng.choice([1e3, 5e5]), **scaling(rng)}

    def form_of():
        for_olmo_gguf(config)
        config["rope_parameters"] = {"rope_theta": 5e5, **gguf_scaling(rng)}

    return drawn(rng, config, form_of)


def olmo3(rng):
    config = olmo(rng, "olmo3", shape(rng))
    config["sliding_window"] = rng.randint(2, 20)
    if rng.random() < 0.7:
        config["layer_types"] = layer_types(rng, config)
    kind_ropes(rng, config, [1e3, 5e5], [1e3, 5e5])

    def form_of():
        for_olmo_gguf(config)
        for_gguf_ropes(rng, config, 5e5, 5e5)

    return drawn(rng, config, form_of)


def olmo2_keys(writer, config):
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def olmoe(rng):
    config = olmo(rng, "olmoe", shape(rng, even=True))
    del config["head_dim"]
    experts = rng.randint(2, 7)
    config.update({
        "num_experts": experts, "num_experts_per_tok": rng.randint(1, experts),
        "norm_topk_prob": rng.random() < 0.5,
        "rope_parameters": {"rope_theta": rng.choice([1e3, 1e4]), **scaling(rng)},
    })
    if rng.random() < 0.03:
        return {"config": {**config, "clip_qkv": 1.0}, "length": 5, "refused": "clip_qkv"}

    def form_of():
        for_olmo_gguf(config)
        config.update(norm_topk_prob=False, rms_norm_eps=1e-5)
        config["rope_parameters"] = {"rope_theta": 1e4, **gguf_scaling(rng)}

    return drawn(rng, config, form_of)


# ---- Others ---------------------------------------------------------------------------------------------------------


def exaone4(rng):
    config = {"model_type": "exaone4", **shape(rng)}
    config["tie_word_embeddings"] = rng.random() < 0.3
    config["rope_parameters"] = {"rope_theta": rng.choice([1e3, 1e6]), **scaling(rng)}
    way = rng.choice(["pattern", "types", "none"])
    if way == "none":
        config.update(sliding_window=None, layer_types=["full_attention"] * config["num_hidden_layers"])
    else:
        config["sliding_window"] = rng.randint(2, 20)
        if way == "types":
            config.update(layer_types=layer_types(rng, config), sliding_window_pattern=rng.choice(["LLLG", 3]))
        elif rng.random() < 0.7:
            config["sliding_window_pattern"] = rng.randint(1, 4)

    def form_of():
        config["rope_parameters"] = {"rope_theta": 1e6, **gguf_scaling(rng)}

    return drawn(rng, config, form_of)


def exaone4_keys(writer, config):
    writer.add_vocab_size(config["vocab_size"])
    if config.get("sliding_window") is not None:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def hunyuan_v1_dense(rng):
    config = {"model_type": "hunyuan_v1_dense", **shape(rng)}
    config.update(attention_bias=rng.random() < 0.3, tie_word_embeddings=rng.random() < 0.5, pad_token_id=0)
    rope = {"rope_theta": rng.choice([1e3, 1e4]), **scaling(rng)}
    if rng.random() < 0.5:
        rope = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 1.0, "alpha": rng.choice([3.0, 1000.0])}
    config["rope_parameters"] = rope

    def form_of():
        config["attention_bias"] = False
        config["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}

    return drawn(rng, config, form_of)


def hunyuan_keys(writer, config):
    rope, dim = config["rope_parameters"], config["head_dim"]
    import gguf
    # What common_keys wrote before is replaced.
    for data in writer.kv_data:
        for key in (f"{writer.arch}.rope.freq_base", f"{writer.arch}.context_length"):
            data.pop(key, None)
    writer.add_rope_freq_base(rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2)))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256 * 1024)
    writer.add_context_length(256 * 1024)


def glm4(rng):
    config = {"model_type": "glm4", **shape(rng, head_dims=(8, 12, 16))}
    config.update({
        "attention_bias": rng.random() < 0.6,
        "tie_word_embeddings": rng.random() < 0.3,
        "pad_token_id": 0,
        "hidden_act": rng.choice(["silu", "gelu_pytorch_tanh"]),
    })
    way = rng.choice(["new", "old", "default"])
    if way == "new":
        config["rope_parameters"] = {"rope_theta": rng.choice([1e3, 1e4]), **scaling(rng),
                                     "partial_rotary_factor": rng.choice([0.5, 1.0])}
    elif way == "old":
        config.update(rope_theta=1e3, partial_rotary_factor=rng.choice([0.5, 1.0]))

    def form_of():
        config.update(hidden_act="silu")
        for key in ("rope_theta", "partial_rotary_factor"):
            config.pop(key, None)
        config["rope_parameters"] = {"rope_theta": 1e4, "partial_rotary_factor": 0.5, **gguf_scaling(rng)}

    return drawn(rng, config, form_of)


def glm4_keys(writer, config):
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))


def form(arch, keys=None, change=None):
    return lambda case, folder, tensors: gguf_forms.write(case, folder, tensors, arch, keys, change)


FORMS = {
    "gemma2": form("gemma2", gemma2_keys, gemma_norms),
    "gemma3_text": form("gemma3", gemma3_keys, gemma_norms),
    "olmo2": form("olmo2", olmo2_keys),
    "olmo3": form("olmo2", olmo2_keys),
    "olmoe": form("olmoe"),
    "exaone4": form("exaone4", exaone4_keys),
    "hunyuan_v1_dense": form("hunyuan-dense", hunyuan_keys),
    "glm4": form("glm4", glm4_keys),
}
FAMILIES = {
    "gemma2": gemma2, "gemma3_text": gemma3_text, "gemma3": gemma3, "olmo2": olmo2, "olmo3": olmo3, "olmoe": olmoe,
    "exaone4": exaone4, "hunyuan_v1_dense": hunyuan_v1_dense, "glm4": glm4,
}
