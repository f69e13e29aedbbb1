"""GGUF files for draws/: what llama.cpp's converter makes of a model as transformers saves it.

A file of draws/ makes a form of it and draws models with "raw": False, so that config.json names everything:

  FORMS = {"gguf": lambda case, folder, tensors: gguf_forms.write(case, folder, tensors, "olmo2", keys=olmo2_keys)}
"""

import re

import gguf
import numpy as np

TYPES = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16,
         "BF16": gguf.GGMLQuantizationType.BF16}


def write(case, folder, tensors, arch, keys=None, change=None, kinds=None):
    """Gives the file's path. keys(writer, config) adds an architecture's own metadata; change(name, array) gives the
    (name, array) pairs that the converter makes of a tensor, under names of transformers, or GGUF's for a layer. kinds: {regular expression:
    type} of tensors that are not as drawn."""
    config = case["config"].get("text_config") or case["config"]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, arch)
    common_keys(writer, config)
    if keys:
        keys(writer, config)
    archs = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(archs[arch], config["num_hidden_layers"])
    changed = []
    for name, dtype, shape, numbers in tensors:
        array = as_stored(np.array(numbers, dtype=np.float32), dtype).reshape(shape)
        changed += change(name, array) if change else [(name, array)]
    for name, array in stacked(changed):
        new = name if name.startswith("blk.") else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, f"{arch} has no tensor for {name}"
        plain = array.ndim == 1 or "ffn_gate_inp" in new
        kind = TYPES["F32" if plain else case["dtype"]]
        for pattern, other in (kinds or {}).items():
            if re.search(pattern, new):
                kind = gguf.GGMLQuantizationType[other]
        writer.add_tensor(new, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_stored(array, dtype):
    """The numbers that transformers reads of its file."""
    if dtype == "F16":
        return array.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        return (array.view(np.uint32) & np.uint32(0xffff0000)).view(np.float32)
    return array


def stacked(tensors):
    """Matrices of one expert each as stacks of all."""
    out, stacks = [], {}
    for name, array in tensors:
        found = re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name)
        if found:
            stacks.setdefault(found[1] + found[3], {})[int(found[2])] = array
        else:
            out.append((name, array))
    return out + [(name, np.stack([parts[i] for i in sorted(parts)])) for name, parts in stacks.items()]


def permuted(array, heads):
    """Rows of q or k (or their biases) for architectures whose pairs are neighbours: LlamaModel.permute."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def rope_of(config):
    """Parameters of layers with full attention, or of all."""
    rope = config.get("rope_parameters") or {}
    return rope.get("full_attention") or rope


def common_keys(writer, config):
    """What TextModel.set_gguf_parameters writes."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if config.get("num_key_value_heads"):
        writer.add_head_count_kv(config["num_key_value_heads"])
    rope = rope_of(config)
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
                         ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
                         ("beta_slow", writer.add_rope_scaling_yarn_beta_slow)):
            if rope.get(key) is not None:
                add(rope[key])
    if rope.get("rope_theta") is not None:
        writer.add_rope_freq_base(rope["rope_theta"])
    local = (config.get("rope_parameters") or {}).get("sliding_attention") or {}
    if local.get("rope_theta") is not None:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if config.get("rms_norm_eps") is not None:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if config.get(key) is not None:
            writer.add_layer_norm_eps(config[key])
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
