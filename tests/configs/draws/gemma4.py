"""Layers of several shapes, shared keys and values, embeddings of each layer, streams: Gemma 4 and 3n."""

import gguf
import gguf_forms
import numpy as np

# The scale of the embedding is rounded to the type of the file, and the reference runs in f32.
GEMMA = {"dtype": "F32"}


def shape(rng):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 4])
    return {
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * rng.randint(2, 8),
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 7),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([4, 6, 10, 16]),
        "max_position_embeddings": 128,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "sliding_window": rng.randint(2, 20),
        "hidden_activation": rng.choice(["gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu"]),
        "attention_bias": rng.random() < 0.2,
        "tie_word_embeddings": rng.random() < 0.8,
        "final_logit_softcapping": rng.choice([None, 3.0, 30.0]),
    }


def kinds(rng, layers):
    found = [rng.choice(["sliding_attention", "sliding_attention", "full_attention"]) for _ in range(layers)]
    found[-1] = "full_attention"
    return found


def shared_layers(rng, types):
    """How many of the last layers can share keys and values: before them must be a layer of each of their kinds."""
    counts = [n for n in range(1, len(types)) if set(types[-n:]) <= set(types[:-n])]
    return rng.choice(counts) if counts and rng.random() < 0.6 else 0


def gemma4_text(rng):
    config = {"model_type": "gemma4_text", **shape(rng)}
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    default = ["full_attention" if (i + 1) % 6 == 0 or i == layers - 1 else "sliding_attention" for i in range(layers)]
    types = default
    if rng.random() < 0.7:
        types = config["layer_types"] = kinds(rng, layers)
        if rng.random() < 0.1 and layers > 1:
            config["layer_types"] = types[:-1] + ["sliding_attention"]  # the last one is not
    config["global_head_dim"] = rng.choice([4, 8, 20, 32])
    config["num_kv_shared_layers"] = shared_layers(rng, types)
    config["use_double_wide_mlp"] = rng.random() < 0.5
    if rng.random() < 0.4:
        config["attention_k_eq_v"] = True
        config["num_global_key_value_heads"] = rng.choice([None] + [n for n in (1, 2, 3) if heads % n == 0])
    config["hidden_size_per_layer_input"] = rng.choice([0, 4, 7, 16])
    config["vocab_size_per_layer_input"] = config["vocab_size"] + rng.choice([0, 0, 3])
    if rng.random() < 0.4:
        experts = rng.randint(2, 7)
        config.update(enable_moe_block=True, num_experts=experts, top_k_experts=rng.randint(1, experts),
                      moe_intermediate_size=rng.randint(4, 20))
    if rng.random() < 0.7:
        full = {"rope_theta": rng.choice([1e3, 1e6]), "rope_type": "default"}
        if rng.random() < 0.8:
            full.update(rope_type="proportional", partial_rotary_factor=rng.choice([0.5, 0.6, 1.0]))
            if rng.random() < 0.2:
                full["factor"] = 2.0
        config["rope_parameters"] = {
            "full_attention": full, "sliding_attention": {"rope_theta": rng.choice([1e2, 1e4]), "rope_type": "default"}}
    elif config["global_head_dim"] < 8:
        config["global_head_dim"] = 8  # of less than 8 numbers a quarter has no pair
    out = {"config": config, "length": rng.randint(1, 45), **GEMMA}
    if rng.random() < 0.3:
        config.update(hidden_activation="gelu_pytorch_tanh", attention_bias=False, tie_word_embeddings=True,
                      layer_types=types, vocab_size_per_layer_input=config["vocab_size"])
        config["rope_parameters"] = {
            "full_attention": {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": rng.choice([1e2, 1e4]), "rope_type": "default"}}
        out.update(form="gemma4_text", raw=False)
    return out


def gemma4(rng):
    """The whole, without its parts for images and audio."""
    text = gemma4_text(rng)
    if "form" in text:
        return text
    config = text["config"]
    tied = config.pop("tie_word_embeddings")
    if rng.random() < 0.5:
        config.pop("model_type")
    whole = {"model_type": "gemma4", "text_config": config, "vision_config": None, "audio_config": None,
             "tie_word_embeddings": tied, "image_token_id": 901, "video_token_id": 902, "audio_token_id": 903,
             "boi_token_id": 904, "eoi_token_id": 905, "boa_token_id": 906, "eoa_token_index": 907}
    return {**text, "config": whole, "cls": "Gemma4ForConditionalGeneration"}


def full_shapes(config):
    """What layers with full attention have for themselves."""
    for index, layer in (config.get("per_layer_config") or {}).items():
        if config["layer_types"][int(index)] == "full_attention":
            return layer
    return {}


def replace(writer, key, add, value):
    for data in writer.kv_data:
        data.pop(f"{writer.arch}.{key}", None)
    add(value)


def gemma4_keys(writer, config):
    """Gemma4Model.set_gguf_parameters"""
    full, head_dim = full_shapes(config), config["head_dim"]
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input") or 0)
    writer.add_sliding_window_pattern(windowed)
    full_dim = full.get("head_dim", head_dim)
    replace(writer, "attention.key_length", writer.add_key_length, full_dim)
    replace(writer, "attention.value_length", writer.add_value_length, full_dim)
    writer.add_key_length_swa(head_dim)
    writer.add_value_length_swa(head_dim)
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("use_double_wide_mlp"):
        first, width = config["num_hidden_layers"] - config["num_kv_shared_layers"], config["intermediate_size"]
        replace(writer, "feed_forward_length", writer.add_feed_forward_length,
                [width * (1 if i < first else 2) for i in range(config["num_hidden_layers"])])
    if "num_key_value_heads" in full:
        replace(writer, "attention.head_count_kv", writer.add_head_count_kv,
                [config["num_key_value_heads"] if w else full["num_key_value_heads"] for w in windowed])
    writer.add_rope_dimension_count(full_dim)
    writer.add_rope_dimension_count_swa(head_dim)
    turning = int(full_dim * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    factors = np.array([1.0] * turning + [1e30] * (full_dim // 2 - turning), dtype=np.float32)
    writer.add_tensor("rope_freqs.weight", factors, raw_dtype=gguf.GGMLQuantizationType.F32)


DIRECT = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
          "layer_scalar": "layer_output_scale.weight", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
          "experts.down_proj": "ffn_down_exps.weight", "router.proj.weight": "ffn_gate_inp.weight"}


def gguf_name(name):
    """GGUF's own for what the table of names does not have as transformers stores it."""
    if name.startswith("model.layers."):
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        if rest in DIRECT:
            return f"blk.{layer}.{DIRECT[rest]}"
    return None


def gemma4_change(name, array):
    return [(gguf_name(name) or name, array)]


def gemma3n_text(rng):
    config = {"model_type": "gemma3n_text", **shape(rng)}
    layers = config["num_hidden_layers"] = rng.randint(1, 6)
    types = ["full_attention" if (i + 1) % 5 == 0 else "sliding_attention" for i in range(layers)]
    if rng.random() < 0.7:
        types = config["layer_types"] = kinds(rng, layers)
    config["final_logit_softcapping"] = rng.choice([3.0, 30.0])
    config["num_kv_shared_layers"] = shared_layers(rng, types)
    if rng.random() < 0.5:
        config["intermediate_size"] = [rng.randint(5, 60) for _ in range(layers)]
    if rng.random() < 0.7:
        config["activation_sparsity_pattern"] = [rng.choice([0.0, 0.3, 0.5, 0.95]) for _ in range(layers)]
    streams = rng.randint(1, 4)
    config.update({
        "hidden_size_per_layer_input": rng.choice([4, 7, 16]),
        "vocab_size_per_layer_input": config["vocab_size"] - rng.choice([0, 0, 5]),
        "altup_num_inputs": streams, "altup_active_idx": rng.randrange(streams),
        "altup_correct_scale": rng.random() < 0.7, "laurel_rank": rng.randint(1, 9),
    })
    way = rng.choice(["new", "old", "none"])
    if way == "new":
        config["rope_parameters"] = {"full_attention": {"rope_theta": rng.choice([1e3, 1e6]), "rope_type": "default"},
                                     "sliding_attention": {"rope_theta": 1e2, "rope_type": "default"}}
    elif way == "old":
        config.update(rope_theta=1e3, rope_local_base_freq=500.0)
    out = {"config": config, "length": rng.randint(1, 45), **GEMMA}
    if rng.random() < 0.3:
        for key in ("rope_theta", "rope_local_base_freq"):
            config.pop(key, None)
        if isinstance(config["intermediate_size"], list):
            config["intermediate_size"] = config["intermediate_size"][:1] * layers
        config.update(hidden_activation="gelu_pytorch_tanh", attention_bias=False, tie_word_embeddings=True,
                      layer_types=types, altup_correct_scale=True, altup_num_inputs=4, altup_active_idx=rng.randrange(4),
                      vocab_size_per_layer_input=config["vocab_size"], final_logit_softcapping=30.0)
        out.update(form="gemma3n_text", raw=False)
    return out


def gemma3n_keys(writer, config):
    """Gemma3NModel.set_gguf_parameters"""
    from statistics import NormalDist
    replace(writer, "feed_forward_length", writer.add_feed_forward_length, config["intermediate_size"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_activation_sparsity_scale([NormalDist().inv_cdf(s) if s > 0 else -np.inf
                                          for s in config["activation_sparsity_pattern"]])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def gemma3n_form(case, folder, tensors):
    """The projections of streams are stacks."""
    shapes = {name: shape for name, _, shape, _ in tensors}
    stacks, dtype = {}, tensors[0][1]
    rest = []
    for name, kind, shape, numbers in tensors:
        stem = next((s for s in ("altup_projections", "altup_unembed_projections") if f"model.{s}." in name), None)
        if stem:
            stacks.setdefault(stem, []).append((name, numbers))
        else:
            rest.append((name, kind, shape, numbers))
    for stem, parts in stacks.items():
        parts.sort()
        rest.append((f"model.{stem}.weight", dtype, [len(parts), *shapes[parts[0][0]]],
                     [x for _, numbers in parts for x in numbers]))
    return gguf_forms.write(case, folder, rest, "gemma3n", keys=gemma3n_keys, change=gemma3n_change)


def gemma3n_change(name, array):
    if name.endswith("altup.correct_output_scale"):
        return [(name + ".weight", array)]
    return [(name, array)]


FORMS = {
    "gemma4_text": lambda case, folder, tensors: gguf_forms.write(case, folder, tensors, "gemma4", keys=gemma4_keys,
                                                                  change=gemma4_change),
    "gemma3n_text": gemma3n_form,
}
FAMILIES = {"gemma4_text": gemma4_text, "gemma4": gemma4, "gemma3n_text": gemma3n_text}
