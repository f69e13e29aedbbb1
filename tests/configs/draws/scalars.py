"""Scalars, fused tensors, partial and interleaved rope, layers without rope, weights less one: Mistral 3, Granite, MiniCPM,
Phi-3, GLM-4-9B, ERNIE 4.5, SmolLM3, Gemma 1."""

import gguf_forms
import minicpm_reference
import numpy as np


def shape(rng, head_dims=(4, 6, 10, 16), even_heads=False):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    head_dim = rng.choice(head_dims)
    return {
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * (head_dim if even_heads else rng.randint(2, 8)),
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 128,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "hidden_act": rng.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh"]),
        "tie_word_embeddings": rng.random() < 0.5,
    }


def some_missing(rng, config, keys):
    """Without some keys, for which the class has a default."""
    for key in keys:
        if rng.random() < 0.15:
            del config[key]
    return config


def rope(rng, kinds=("default", "default", "linear", "yarn", "llama3", "dynamic")):
    kind = rng.choice(kinds)
    out = {"rope_type": kind, "rope_theta": rng.choice([1e2, 1e4])}
    if kind != "default":
        out["factor"] = rng.choice([2.0, 4.0])
    if kind in ("yarn", "llama3"):
        out["original_max_position_embeddings"] = rng.choice([16, 64])
    if kind == "llama3":
        out.update(low_freq_factor=1.0, high_freq_factor=4.0)
    return out


def drawn(rng, config, form_of=None, **more):
    """form_of(): changes what llama.cpp's converter does not write."""
    out = {"config": config, "length": rng.randint(1, 45), **more}
    kept = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if "long_factor" in kept:
        # Its angles depend on the length of the sequence so far; celer knows how long a prompt is before it is read.
        out["step"] = True
        original = kept.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        if original < out["length"] <= original + 3:
            out["length"] = original
    if form_of and rng.random() < 0.3:
        form_of()
        out.update(form=config["model_type"], raw=False)
    return out


def rotated(arch, keys=None, change=None):
    """A form whose architecture rotates neighbours: rows of q and k in another order."""

    def write(case, folder, tensors):
        config = case["config"]
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

        def permute(name, array):
            part = name.split(".")[-2]
            pairs = change(config, name, array) if change else [(name, array)]
            return [(n, gguf_forms.permuted(a, heads[part]) if part in heads else a) for n, a in pairs]

        return gguf_forms.write(case, folder, tensors, arch, keys, permute)

    return write


def written(arch, keys=None, change=None):
    def write(case, folder, tensors):
        return gguf_forms.write(case, folder, tensors, arch, keys,
                                change and (lambda name, array: change(case["config"], name, array)))

    return write


# ---- Mistral 3 ------------------------------------------------------------------------------------------------------


def ministral3(rng):
    config = {"model_type": "ministral3", **shape(rng)}
    config["rope_parameters"] = {
        **rope(rng, ("yarn", "yarn", "default")), "original_max_position_embeddings": rng.choice([3, 8, 16]),
        "llama_4_scaling_beta": rng.choice([0.1, 0.3])}
    if config["rope_parameters"]["rope_type"] == "yarn" and rng.random() < 0.7:
        config["rope_parameters"].update(mscale=1.0, mscale_all_dim=rng.choice([1.0, 0.5]))
    if rng.random() < 0.2:
        del config["rope_parameters"]
    if rng.random() < 0.3:
        config["sliding_window"] = rng.randint(2, 20)

    def form_of():
        config.pop("sliding_window", None)
        config["hidden_act"] = "silu"
        config["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}

    return drawn(rng, config, form_of)


def ministral3_keys(writer, config):
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_scaling_yarn_log_mul(config["rope_parameters"]["mscale_all_dim"])
    writer.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])


def mistral3(rng):
    if rng.random() < 0.5:
        text = ministral3(rng)["config"]
    else:
        text = {"model_type": "mistral", **shape(rng), "sliding_window": rng.choice([None, rng.randint(2, 20)]),
                "rope_theta": 1e4}
    tied = text.pop("tie_word_embeddings")
    if rng.random() < 0.3:
        text["tie_word_embeddings"] = not tied  # which means nothing there
    vision = {"model_type": "pixtral", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "head_dim": 8, "intermediate_size": 16, "image_size": 32, "patch_size": 16}
    config = {"model_type": "mistral3", "text_config": text, "vision_config": vision, "image_token_index": 1}
    if not tied or rng.random() < 0.5:
        config["tie_word_embeddings"] = tied
    return drawn(rng, config, cls="Mistral3ForConditionalGeneration")


# ---- Granite, MiniCPM -----------------------------------------------------------------------------------------------

GRANITE_SCALES = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")


def granite_of(rng, model_type, **more):
    config = {"model_type": model_type, **shape(rng), "rope_parameters": rope(rng),
              "embedding_multiplier": rng.choice([1.0, 3.0, 12]), "residual_multiplier": rng.choice([0.22, 0.5, 1.0]),
              "attention_multiplier": rng.choice([0.05, 0.2, 0.5]), "logits_scaling": rng.choice([1.0, 6.0, 16]),
              "attention_bias": rng.random() < 0.4, **more}
    some_missing(rng, config, GRANITE_SCALES)

    def form_of():
        # As a converter without head_dim can write it.
        config.update(hidden_size=config["num_attention_heads"] * config["head_dim"], hidden_act="silu",
                      rope_parameters=rope(rng, ("default", "linear", "yarn")))

    return config, form_of


def granite(rng):
    return drawn(rng, *granite_of(rng, "granite", mlp_bias=rng.random() < 0.4))


def granitemoe(rng, model_type="granitemoe", **more):
    experts = rng.choice([1, 2, 5, 8])
    return drawn(rng, *granite_of(rng, model_type, num_local_experts=experts,
                                  num_experts_per_tok=rng.randint(1, min(4, experts)), **more))


def granitemoeshared(rng):
    return granitemoe(rng, "granitemoeshared", shared_intermediate_size=rng.choice([0, rng.randint(3, 40)]))


def granite_keys(writer, config):
    writer.add_rope_dimension_count(config["head_dim"])
    for key, add in (("attention_multiplier", writer.add_attention_scale),
                     ("embedding_multiplier", writer.add_embedding_scale),
                     ("residual_multiplier", writer.add_residual_scale), ("logits_scaling", writer.add_logit_scale)):
        if config.get(key):
            add(config[key])
    if config.get("shared_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


def granite_experts(_, name, array):
    """The halves of input_linear, under the names of the tensors in GGUF."""
    block = f"blk.{name.split('.')[2]}.ffn_" if ".layers." in name else ""
    for part, suffix in (("block_sparse_moe", "_exps"), ("shared_mlp", "_shexp")):
        if name.endswith(f"{part}.input_linear.weight"):
            gate, up = np.split(array, 2, axis=-2)
            return [(f"{block}gate{suffix}.weight", gate), (f"{block}up{suffix}.weight", up)]
        if name.endswith(f"{part}.output_linear.weight"):
            return [(f"{block}down{suffix}.weight", array)]
    return [(name, array)]


def minicpm(rng):
    """MiniCPM's class is not a part of transformers; this is what it adds to Llama."""
    minicpm_reference.register()
    config = {"model_type": "minicpm", **shape(rng), "attention_bias": rng.random() < 0.3,
              "scale_emb": rng.choice([1, 3, 12]), "scale_depth": rng.choice([1.0, 1.4]),
              "dim_model_base": rng.choice([1, 4, 256])}
    some_missing(rng, config, ("scale_emb", "scale_depth", "dim_model_base"))
    config["rope_parameters"] = rope(rng, ("default", "linear", "dynamic"))
    if rng.random() < 0.3:
        config["rope_parameters"] = longrope(rng, config["head_dim"])

    def form_of():
        for key, value in (("scale_emb", 1), ("scale_depth", 1.0), ("dim_model_base", 1)):
            config.setdefault(key, value)
        config.update(hidden_size=config["num_attention_heads"] * config["head_dim"], hidden_act="silu",
                      attention_bias=False, rope_parameters=rope(rng, ("default", "linear")))

    return drawn(rng, config, form_of, cls="MiniCPMForCausalLM")


def minicpm_keys(writer, config):
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_embedding_scale(float(config["scale_emb"]))
    writer.add_residual_scale(config["scale_depth"] / config["num_hidden_layers"] ** 0.5)
    writer.add_logit_scale(config["hidden_size"] / config["dim_model_base"])


# ---- Phi-3, GLM, ERNIE ----------------------------------------------------------------------------------------------


def longrope(rng, dims, kind="longrope"):
    def factors(most):
        return [round(rng.uniform(1, most), 3) for _ in range(dims // 2)]

    return {"rope_type": kind, "rope_theta": 1e4, "short_factor": factors(2), "long_factor": factors(9),
            "original_max_position_embeddings": rng.choice([8, 24])}


def phi3(rng):
    config = {"model_type": "phi3", **shape(rng, head_dims=(4, 8, 12, 16), even_heads=True)}
    head_dim = config.pop("head_dim")
    share = rng.choice([1.0, 1.0, 0.5, 0.75])
    dims = int(head_dim * share) // 2 * 2
    config.update(pad_token_id=0, sliding_window=rng.choice([None, rng.randint(2, 20)]))
    if rng.random() < 0.5:
        old = longrope(rng, dims)
        config["original_max_position_embeddings"] = old["original_max_position_embeddings"]
        if rng.random() < 0.5:
            config["rope_theta"] = old.pop("rope_theta")
            old["type"] = old.pop("rope_type")
            if rng.random() < 0.5:
                old["type"] = rng.choice(["su", "yarn"])
            config["rope_scaling"] = old
        else:
            config["rope_parameters"] = old
    else:
        config["rope_theta"] = rng.choice([1e2, 1e4])
    if share != 1:
        config["partial_rotary_factor"] = share
    if int(head_dim * share) % 2:
        config["partial_rotary_factor"] = 0.5

    def form_of():
        config.update(hidden_act="silu", sliding_window=None)

    return drawn(rng, config, form_of)


def phi3_keys(writer, config):
    parameters = config["rope_parameters"]
    dims = int(config["hidden_size"] // config["num_attention_heads"] * parameters.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(dims)
    original = parameters.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_sliding_window(config.get("sliding_window") or 0)
    if not parameters.get("long_factor"):
        return
    scale = config["max_position_embeddings"] / original
    writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(original)) ** 0.5 if scale > 1 else 1.0)
    for name in ("long", "short"):
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(parameters[f"{name}_factor"], dtype=np.float32))


def glm(rng):
    config = {"model_type": "glm", **shape(rng, head_dims=(4, 8, 12, 16)), "attention_bias": rng.random() < 0.7,
              "pad_token_id": 0}
    way = rng.choice(["new", "old", "default"])
    if way == "new":
        config["rope_parameters"] = {**rope(rng, ("default", "linear", "yarn", "dynamic")),
                                     "partial_rotary_factor": rng.choice([0.5, 1.0])}
    elif way == "old":
        config.update(rope_theta=1e3, partial_rotary_factor=rng.choice([0.5, 1.0]))

    def form_of():
        for key in ("rope_theta", "partial_rotary_factor"):
            config.pop(key, None)
        config.update(hidden_act="silu", rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5},
                      hidden_size=config["num_attention_heads"] * config["head_dim"])

    return drawn(rng, config, form_of)


def glm_keys(writer, config):
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))


def ernie4_5(rng):
    config = {"model_type": "ernie4_5", **shape(rng), "use_bias": rng.random() < 0.4, "rope_parameters": rope(rng)}
    some_missing(rng, config, ("tie_word_embeddings", "rope_parameters"))

    def form_of():
        config.update(hidden_act="silu", use_bias=False, rope_parameters=rope(rng, ("default", "linear", "yarn")))

    return drawn(rng, config, form_of)


# ---- SmolLM3, Gemma -------------------------------------------------------------------------------------------------


def smollm3(rng):
    config = {"model_type": "smollm3", **shape(rng), "attention_bias": rng.random() < 0.3,
              "mlp_bias": rng.random() < 0.3, "rope_parameters": rope(rng), "pad_token_id": 0}
    config["num_hidden_layers"] = rng.randint(1, 6)
    layers = config["num_hidden_layers"]
    if rng.random() < 0.4:
        config["no_rope_layers"] = [rng.randint(0, 1) for _ in range(layers + rng.choice([0, 2]))]
    elif rng.random() < 0.5:
        config["no_rope_layer_interval"] = rng.randint(1, 5)
    if rng.random() < 0.4:
        config.update(use_sliding_window=True, sliding_window=rng.randint(2, 20))
        if rng.random() < 0.5:
            config["layer_types"] = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    some_missing(rng, config, ("tie_word_embeddings", "rope_parameters"))

    def form_of():
        for key in ("no_rope_layers", "no_rope_layer_interval", "layer_types", "use_sliding_window", "sliding_window"):
            config.pop(key, None)
        config.update(hidden_act="silu", rope_parameters=rope(rng, ("default", "linear", "yarn")))

    return drawn(rng, config, form_of)


def gemma(rng):
    config = {"model_type": "gemma", **shape(rng), "attention_bias": rng.random() < 0.3, "rope_parameters": rope(rng)}
    if rng.random() < 0.3:
        config["hidden_activation"] = rng.choice([None, "gelu_pytorch_tanh"])  # of an older class
    some_missing(rng, config, ("tie_word_embeddings", "hidden_act", "rope_parameters"))

    def form_of():
        config.update(hidden_act="gelu_pytorch_tanh", attention_bias=False, tie_word_embeddings=True,
                      rope_parameters={"rope_type": "default", "rope_theta": 1e4})

    # In other types transformers would round the scale of the embedding when it loads them as such.
    return drawn(rng, config, form_of, dtype="F32")


def gemma_norms(_, name, array):
    return [(name, array + 1 if name.endswith("norm.weight") else array)]


FORMS = {
    "ministral3": rotated("mistral3", ministral3_keys),
    "granite": rotated("granite", granite_keys),
    "granitemoe": rotated("granitemoe", granite_keys, granite_experts),
    "granitemoeshared": rotated("granitemoe", granite_keys, granite_experts),
    "minicpm": rotated("minicpm", minicpm_keys),
    "phi3": written("phi3", phi3_keys),
    "glm": written("chatglm", glm_keys),
    "ernie4_5": written("ernie4_5"),
    "smollm3": rotated("smollm3", lambda writer, config: writer.add_rope_dimension_count(config["head_dim"])),
    "gemma": written("gemma", change=gemma_norms),
}
FAMILIES = {
    "ministral3": ministral3, "mistral3": mistral3, "granite": granite, "granitemoe": granitemoe,
    "granitemoeshared": granitemoeshared, "minicpm": minicpm, "phi3": phi3, "glm": glm, "ernie4_5": ernie4_5,
    "smollm3": smollm3, "gemma": gemma,
}
