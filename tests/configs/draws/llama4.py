"""Attention in chunks, layers without rope whose queries grow, weights on what experts read: Llama 4."""

import gguf_forms


def llama4_text(rng):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    layers, experts = rng.randint(1, 6), rng.randint(2, 7)
    config = {
        "model_type": "llama4_text",
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * rng.randint(2, 8),
        "intermediate_size": rng.randint(5, 40),
        "intermediate_size_mlp": rng.randint(5, 60),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([4, 6, 10, 16]),
        "max_position_embeddings": 128,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "hidden_act": rng.choice(["silu", "silu", "gelu_pytorch_tanh"]),
        "attention_bias": rng.random() < 0.3,
        "tie_word_embeddings": rng.random() < 0.3,
        "num_local_experts": experts,
        "num_experts_per_tok": rng.choice([1, 1, 1, rng.randint(1, experts)]),
        "use_qk_norm": rng.random() < 0.7,
        "attention_chunk_size": rng.randint(2, 20),
        "attn_temperature_tuning": rng.random() < 0.7,
        "floor_scale": rng.choice([2, 5, 8192]),
        "attn_scale": rng.choice([0.1, 0.5]),
    }
    way = rng.choice(["default", "step", "layers"])
    if way == "step":
        config["interleave_moe_layer_step"] = rng.randint(1, 3)
    elif way == "layers":
        config["moe_layers"] = [i for i in range(layers) if rng.random() < 0.5]
    way = rng.choice(["default", "interval", "layers"])
    if way == "interval":
        config["no_rope_layer_interval"] = rng.randint(2, 4)
    elif way == "layers":
        config["no_rope_layers"] = [rng.choice([0, 1]) for _ in range(layers + rng.choice([0, 2]))]
        # Both lists are taken for one number a layer.
        config["no_rope_layers"] = config["no_rope_layers"][:layers]
    if rng.random() < 0.5:
        rope = {"rope_type": rng.choice(["default", "llama3"]), "rope_theta": rng.choice([1e3, 5e5])}
        if rope["rope_type"] == "llama3":
            rope.update(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
        config["rope_parameters"] = rope
    out = {"config": config, "length": rng.randint(1, 45)}
    if rng.random() < 0.25:
        for key in ("no_rope_layers", "no_rope_layer_interval", "moe_layers", "rope_parameters"):
            config.pop(key, None)
        # llama.cpp has constants for what files could say.
        config.update(hidden_act="silu", attention_bias=False, use_qk_norm=True, attention_chunk_size=8192,
                      attn_temperature_tuning=True, floor_scale=8192, attn_scale=0.1,
                      rope_parameters={"rope_type": "default", "rope_theta": 5e5},
                      num_hidden_layers=rng.randint(3, 6), interleave_moe_layer_step=rng.choice([1, 2]))
        out.update(form="llama4_text", raw=False)
    return out


def llama4_keys(writer, config):
    """Llama4Model.set_gguf_parameters, for whom the usual width is that of dense layers."""
    for data in writer.kv_data:
        data.pop("llama4.feed_forward_length", None)
    writer.add_feed_forward_length(config["intermediate_size_mlp"])
    writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def llama4_change(name, array):
    if name.endswith("gate_up_proj"):
        stem, half = name.removesuffix("gate_up_proj"), array.shape[-1] // 2
        turned = array.swapaxes(-1, -2)
        return [(stem + "gate_proj.weight", turned[:, :half]), (stem + "up_proj.weight", turned[:, half:])]
    if name.endswith("experts.down_proj"):
        return [(name + ".weight", array.swapaxes(-1, -2))]
    return [(name, array)]


FORMS = {"llama4_text": lambda case, folder, tensors: gguf_forms.write(case, folder, tensors, "llama4", keys=llama4_keys,
                                                                       change=llama4_change)}
FAMILIES = {"llama4_text": llama4_text}
