#!/usr/bin/env python3
"""Random configurations of every family: logits as transformers computes them, or one sentence.

  compare_transformers.py --runner build-cpu/tests/configs/celer_config_logits --check        # the sample, no torch needed
  compare_transformers.py --runner ... --count 500 [--family qwen2 ...] [--seed 1]            # draw and compare; needs torch
  compare_transformers.py --runner ... --write-sample 24                                      # make sample.json again

Each case is a config.json with fields drawn at random (names of old and new versions, missing keys, null, rope types,
windows, biases, tied heads, keys that mean nothing, keys that nobody knows), tiny random weights in one of three types
and one or more files, and sometimes a tokenizer. It passes if celer's logits are within 1e-4 of transformers' (over the
greatest logit), or if celer says in one sentence why it does not run it. What transformers refuses, celer must refuse,
and a key that nobody knows must be named in a warning. "float noise": a row of logits that transformers itself computes
no better, against its own result in f64.

Packages: tools/requirements-golden.txt. The sample holds configurations and logits; its weights are drawn again.
"""

import argparse
import array
import collections
import copy
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SAMPLE = HERE / "sample.json"
FAMILIES = ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"]
TOLERANCE = 1e-4  # over the greatest logit

MISSING = object()  # the key is left out


# ---- weights --------------------------------------------------------------------------------------------------------


def values(rng, count, scale, dtype):
    """Numbers that the type holds exactly, in [-scale, scale]; scale is a power of two."""
    if dtype == "F32":
        return [(x - 32768) / 32768 * scale for x in array.array("H", rng.randbytes(2 * count))]
    return [(x - 128) / 128 * scale for x in rng.randbytes(count)]


def encode(numbers, dtype):
    if dtype == "F16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    if dtype == "BF16":
        data = b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
    return data


def power_of_two(x):
    return 2.0 ** round(math.log2(x))


def tensors(plan):
    """(name, shape) of each tensor of the model."""
    h, q, kv = plan["hidden"], plan["heads"] * plan["head_dim"], plan["kv_heads"] * plan["head_dim"]
    yield "model.embed_tokens.weight", [plan["vocab"], h]
    for i in range(plan["layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", [h]
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{at}self_attn.{name}_proj.weight", [rows, h]
            if plan["qkv_bias"]:
                yield f"{at}self_attn.{name}_proj.bias", [rows]
        yield at + "self_attn.o_proj.weight", [h, q]
        if plan["o_bias"]:
            yield at + "self_attn.o_proj.bias", [h]
        if plan["qk_norm"]:
            yield at + "self_attn.q_norm.weight", [plan["head_dim"]]
            yield at + "self_attn.k_norm.weight", [plan["head_dim"]]
        yield at + "post_attention_layernorm.weight", [h]

        def mlp(prefix, width, bias, names=("gate_proj", "up_proj", "down_proj")):
            for name in names:
                down = name in ("down_proj", "w2")
                yield f"{prefix}{name}.weight", [h, width] if down else [width, h]
                if bias:
                    yield f"{prefix}{name}.bias", [h if down else width]

        if i not in plan["sparse"]:
            yield from mlp(at + "mlp.", plan["intermediate"], plan["mlp_bias"])
            continue
        mixtral = plan["family"] == "mixtral"
        block = at + ("block_sparse_moe." if mixtral else "mlp.")
        yield block + "gate.weight", [plan["experts"], h]
        for e in range(plan["experts"]):
            yield from mlp(f"{block}experts.{e}.", plan["moe_intermediate"], False,
                           ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj"))
        if plan["shared_intermediate"]:
            yield from mlp(block + "shared_expert.", plan["shared_intermediate"], False)
            yield block + "shared_expert_gate.weight", [1, h]
    yield "model.norm.weight", [h]
    if plan["head"] != "none":
        yield "lm_head.weight", [plan["vocab"], h]


def write_weights(case, folder):
    plan, rng = case["plan"], random.Random(case["seed"])
    made, embedding = [], None
    for name, shape in tensors(plan):
        count = math.prod(shape)
        dtype = case["dtype"]
        if name.endswith("norm.weight"):
            numbers = [1 + x for x in values(rng, count, 0.25, "F16")]
            dtype = "F32" if case["norms_f32"] else dtype
            if dtype == "BF16":
                numbers = [round(x * 128) / 128 for x in numbers]
        elif len(shape) == 1:
            numbers = values(rng, count, 0.5, dtype)
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            numbers = values(rng, count, 1.0, dtype)
        else:
            numbers = values(rng, count, power_of_two(2.5 / math.sqrt(shape[1])), dtype)
        if name == "model.embed_tokens.weight":
            embedding = numbers
        if name == "lm_head.weight" and plan["head"] == "same":
            numbers = embedding
        if plan["head"] == "only" and name == "model.embed_tokens.weight":
            continue
        if name == case.get("transposed"):
            shape = shape[::-1]
        if name == case.get("flattened"):
            shape = [count]
        made.append((name, dtype, shape, encode(numbers, dtype)))
    write_safetensors(folder, made, case["shards"])


def write_safetensors(folder, made, shards):
    """(name, dtype, shape, bytes) of each tensor in one or more files."""
    groups = [made[i::shards] for i in range(shards)]
    index = {}
    for i, group in enumerate(groups):
        file = "model.safetensors" if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors"
        header, body = {}, b""
        for name, dtype, shape, data in group:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
            index[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + body)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


# ---- drawing --------------------------------------------------------------------------------------------------------


def draw_rope(rng, config, dim, positions):
    """Puts rope fields in; `positions` may change. Gives the new number of positions that can be used."""
    theta = rng.choice([MISSING, MISSING, 100.0, 10000.0, 500000, 1e6])
    kind = rng.choice(["default", "default", "none at all", "linear", "llama3", "yarn", "yarn", "dynamic", "longrope"])
    if kind == "none at all":
        if theta is not MISSING:
            config["rope_theta"] = theta
        return positions
    original = rng.choice([4, 8, 16, 32])
    rope = {}
    factor = rng.choice([1.0, 1.5, 2.0, 4.0, 8, 32.0])
    if kind == "linear":
        rope = {"factor": factor}
    elif kind == "llama3":
        low = rng.choice([1.0, 0.5, 2])
        rope = {"factor": factor, "low_freq_factor": low, "high_freq_factor": low + rng.choice([1, 3.0]),
                "original_max_position_embeddings": original}
    elif kind == "yarn":
        rope = {"factor": rng.choice([factor, factor, factor, None]), "original_max_position_embeddings": original}
        for key, choices in (("attention_factor", [0.7, 1.3, None]), ("beta_fast", [32, 4.0, 64, 0]),
                             ("beta_slow", [1, 0.25, 2.0]), ("mscale", [1.0, 0.707, 0]),
                             ("mscale_all_dim", [1.0, 0.4]), ("truncate", [True, False, False, None])):
            if rng.random() < 0.35:
                rope[key] = rng.choice(choices)
    elif kind == "dynamic":
        rope = {"factor": factor}
        positions = rng.choice([6, 11, 20, positions])
    elif kind == "longrope":
        rope = {"short_factor": [round(rng.uniform(0.8, 1.5), 3) for _ in range(dim // 2)],
                "long_factor": [round(rng.uniform(1, 8), 3) for _ in range(dim // 2)],
                "original_max_position_embeddings": original}
        if rng.random() < 0.5:
            rope["factor"] = factor
        if rng.random() < 0.2:
            rope["attention_factor"] = 1.25
        if rng.random() < 0.1:
            rope["long_factor"] = rope["long_factor"][:-1]
    if rope.get("original_max_position_embeddings"):
        where = rng.random()
        if where < 0.2:
            config["original_max_position_embeddings"] = rng.choice([5, 12, 24])  # wins over the inner one
        elif where < 0.35:
            del rope["original_max_position_embeddings"]
    if rng.random() < 0.06:
        rope.pop(rng.choice(sorted(rope)), None) if rope else None  # perhaps one that is needed
    if rng.random() < 0.05:
        rope[rng.choice(["factor", "beta_fast", "low_freq_factor", "next_year"])] = 3.0  # perhaps not used
    if rng.random() < 0.03:
        rope["partial_rotary_factor"] = rng.choice([1.0, 0.5])
    style = rng.choice(["old", "old type", "new", "both"])
    named = {("type" if style == "old type" else "rope_type"): kind, **rope}
    if style.startswith("old"):
        if theta is not MISSING:
            config["rope_theta"] = theta
        config["rope_scaling"] = named if kind != "default" or rng.random() < 0.5 else None
    else:
        if theta is not MISSING:
            named["rope_theta"] = theta
        if style == "both":
            if rng.random() < 0.5:
                config["rope_scaling"] = rng.choice([None, {"rope_type": "linear", "factor": 2.0}])
            config["rope_theta"] = rng.choice([2000.0, 30000])
        config["rope_parameters"] = named
    if kind == "dynamic" and (config.get("rope_scaling") or config.get("rope_parameters", {})) is named:
        return min(64, int(positions * max(1, factor))), positions
    return positions, positions


def draw_windows(rng, config, family, layers):
    if family in ("mistral", "mixtral"):
        window = rng.choice([MISSING, None, 1, 3, 7, 16, 4096])
        if window is not MISSING:
            config["sliding_window"] = window
        if rng.random() < (0.2 if family == "mistral" else 0.03) and window not in (MISSING, None):
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    elif family.startswith("qwen"):
        for key, choices in (("use_sliding_window", [True, True, False]), ("sliding_window", [1, 3, 7, 16, 4096, None]),
                             ("max_window_layers", [0, 1, 2, layers, 28])):
            if rng.random() < 0.75:
                config[key] = rng.choice(choices)
        if rng.random() < (0.05 if family == "qwen3_moe" else 0.3):
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
            if "sliding_attention" in config["layer_types"] and rng.random() < 0.9:
                config["use_sliding_window"] = True
            if rng.random() < 0.05:
                config["layer_types"][0] = rng.choice(["linear_attention", "chunked_attention"])
    elif rng.random() < 0.05:
        config["sliding_window"] = rng.choice([None, None, 4])


HARMLESS = {"architectures": ["Any"], "torch_dtype": "bfloat16", "use_cache": False, "attention_dropout": 0.1,
            "initializer_range": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": [2, 3],
            "transformers_version": "4.40.0", "pretraining_tp": 2, "_name_or_path": "x", "temperature": 0.3,
            "router_aux_loss_coef": 0.5, "output_router_logits": False, "max_length": 20}
NEUTRAL = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "is_causal": True, "clip_qkv": None,
           "logit_scale": 1.0, "pruned_heads": {}, "rope_interleaved": False, "sliding_window_pattern": None}
REFUSED = {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 30.0, "is_causal": False, "embedding_multiplier": 12.0,
           "quantization_config": {"quant_method": "hqq", "nbits": 4}, "query_pre_attn_scalar": 64, "alibi": True}
UNKNOWN = {"attention_flavour": "vanilla", "next_years_scale": 2.0, "head_gate": True, "router_bias_term": [1, 2]}


def draw(family, number, seed):
    rng = random.Random(f"{family} {number} {seed}")
    moe = family in ("mixtral", "qwen2_moe", "qwen3_moe")
    config = {"model_type": family}
    plan = {"family": family, "layers": rng.randint(1, 4 if not moe else 3), "vocab": rng.randint(17, 60),
            "qkv_bias": family in ("qwen2", "qwen2_moe"), "o_bias": False, "mlp_bias": False,
            "qk_norm": family.startswith("qwen3"), "sparse": [], "experts": 0, "moe_intermediate": 0,
            "shared_intermediate": 0}
    # Heads: those of the class where the key is left out.
    class_kv = {"mistral": 8, "mixtral": 8, "qwen3_moe": 4, "qwen2_moe": 16}.get(family)
    kv_missing = rng.random() < 0.12
    if kv_missing and class_kv:
        plan["kv_heads"], plan["heads"] = class_kv, class_kv * rng.choice([1, 2])
    else:
        plan["kv_heads"] = rng.choice([1, 1, 2, 3])
        plan["heads"] = plan["kv_heads"] * rng.choice([1, 2, 3, 5])
        if family == "llama" and (kv_missing or rng.random() < 0.1):
            plan["kv_heads"] = plan["heads"]
    config["num_attention_heads"] = plan["heads"]
    if not kv_missing or (family != "llama" and not class_kv):
        null = plan["kv_heads"] == plan["heads"] and rng.random() < 0.3 and family in ("llama", "qwen2", "qwen3")
        config["num_key_value_heads"] = None if null else plan["kv_heads"]
    even = rng.choice([2, 4, 6, 8, 10])
    style = rng.choice(["explicit", "missing", "null", "class"])
    if style == "class" and family == "qwen3":
        plan["head_dim"], plan["hidden"] = 128, rng.choice([10, 24])
    elif style == "explicit" or family == "qwen3" or (family == "mixtral" and rng.random() < 0.7):
        plan["head_dim"] = config["head_dim"] = even
        plan["hidden"] = rng.randint(5, 40)
        if family == "llama":
            plan["hidden"] = plan["heads"] * rng.randint(1, 6)
    else:
        plan["head_dim"] = even
        plan["hidden"] = plan["heads"] * even + (rng.randint(0, plan["heads"] - 1) if family != "llama" and rng.random() < 0.2 else 0)
        if style == "null" and family in ("llama", "mistral", "mixtral"):
            config["head_dim"] = None
    plan["intermediate"] = rng.randint(3, 50)
    config.update(hidden_size=plan["hidden"], intermediate_size=plan["intermediate"], vocab_size=plan["vocab"],
                  num_hidden_layers=plan["layers"])
    act = rng.choice([MISSING, "silu", "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu"])
    if rng.random() < 0.02:
        act = rng.choice(["quick_gelu", "tanh"])
    if act is not MISSING:
        config["hidden_act"] = act
    eps = rng.choice([MISSING, 1e-5, 1e-6, 1e-3, 0.1])
    if eps is not MISSING:
        config["rms_norm_eps"] = eps

    # Experts.
    if moe:
        class_experts = {"mixtral": 8, "qwen2_moe": 60, "qwen3_moe": 128}[family]
        class_top = {"mixtral": 2, "qwen2_moe": 4, "qwen3_moe": 8}[family]
        plan["experts"] = rng.choice([2, 3, 5, 8, 9]) if rng.random() < 0.95 else class_experts if family == "mixtral" else 0
        name = "num_local_experts" if family == "mixtral" else "num_experts"
        name = {"mixtral": rng.choice(["num_local_experts", "num_local_experts", "num_experts"]),
                "qwen2_moe": "num_experts", "qwen3_moe": rng.choice(["num_experts", "num_local_experts"])}[family]
        if not (plan["experts"] == class_experts and rng.random() < 0.5):
            config[name] = plan["experts"]
        top = rng.randint(1, max(1, plan["experts"]))
        if plan["experts"] >= class_top and rng.random() < 0.2:
            top = class_top
        else:
            config["num_experts_per_tok"] = top
        plan["moe_intermediate"] = plan["intermediate"] if family == "mixtral" else rng.randint(2, 20)
        if family == "mixtral":
            plan["sparse"] = list(range(plan["layers"]))
        else:
            config["moe_intermediate_size"] = plan["moe_intermediate"]
            step = rng.choice([MISSING, 1, 1, 2, 3])
            dense = rng.choice([MISSING, None, [], [0], [plan["layers"] - 1, 7]])
            if step is not MISSING:
                config["decoder_sparse_step"] = step
            if dense is not MISSING:
                config["mlp_only_layers"] = dense
            every = 1 if step is MISSING else step
            skip = dense if isinstance(dense, list) else []
            plan["sparse"] = [i for i in range(plan["layers"]) if plan["experts"] and (i + 1) % every == 0 and i not in skip]
            if rng.random() < 0.7:
                config["norm_topk_prob"] = rng.random() < 0.5
        if family == "qwen2_moe":
            plan["shared_intermediate"] = config["shared_expert_intermediate_size"] = rng.randint(2, 20)
            if rng.random() < 0.5:
                config["qkv_bias"] = plan["qkv_bias"] = rng.random() < 0.5
    # Biases, also where the class does not know the key.
    if rng.random() < 0.4 and (family in ("llama", "qwen3", "qwen3_moe") or rng.random() < 0.1):
        config["attention_bias"] = rng.random() < 0.7
        if family in ("llama", "qwen3", "qwen3_moe"):
            plan["qkv_bias"] = plan["o_bias"] = config["attention_bias"]
    if rng.random() < 0.4 and (family == "llama" or rng.random() < 0.1):
        config["mlp_bias"] = rng.random() < 0.7
        if family == "llama":
            plan["mlp_bias"] = config["mlp_bias"]

    positions = rng.choice([40, 64, 100])
    positions, said = (lambda p: p if isinstance(p, tuple) else (p, p))(draw_rope(rng, config, plan["head_dim"], positions))
    class_positions = {"llama": 2048, "mistral": 131072, "mixtral": 131072}.get(family, 32768)
    if positions == said and rng.random() < 0.1 and "rope_scaling" not in config and "rope_parameters" not in config:
        positions = class_positions
    else:
        config["max_position_embeddings"] = said
    draw_windows(rng, config, family, plan["layers"])
    if family == "mistral" and "layer_types" in config:  # the class that transformers takes then needs it
        config["head_dim"] = plan["head_dim"]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if family == "mixtral" and rope.get("rope_type", rope.get("type")) in ("yarn", "dynamic", "longrope"):
        config["head_dim"] = plan["head_dim"]  # the same

    tie = rng.choice([MISSING, False, True, True])
    if tie is not MISSING:
        config["tie_word_embeddings"] = tie
    plan["head"] = rng.choice(["none", "none", "same", "other", "only"]) if tie is True else "other"

    if rng.random() < 0.5:
        for key in rng.sample(sorted(HARMLESS), rng.randint(1, 5)):
            config[key] = HARMLESS[key]
    if rng.random() < 0.2:
        for key in rng.sample(sorted(NEUTRAL), 2):
            config[key] = NEUTRAL[key]
    if rng.random() < 0.03:
        key = rng.choice(sorted(REFUSED))
        config[key] = REFUSED[key]
    unknown = rng.choice(sorted(UNKNOWN)) if rng.random() < 0.1 else None
    if unknown:
        config[unknown] = UNKNOWN[unknown]

    case = {"family": family, "number": number, "seed": rng.getrandbits(32), "config": config, "plan": plan,
            "dtype": rng.choice(["BF16", "F16", "F32"]), "norms_f32": rng.random() < 0.2,
            "shards": rng.choice([1, 1, 2, 3]), "unknown": unknown}
    if rng.random() < 0.04:
        matrices = [name for name, shape in tensors(plan) if len(shape) == 2 and shape[0] != shape[1] and 1 not in shape
                    and "experts" not in name and not (plan["head"] == "only" and "embed" in name)]
        case[rng.choice(["transposed", "flattened"])] = rng.choice(matrices)
    length = rng.randint(2, min(positions, 33))
    case["tokens"] = [rng.randrange(plan["vocab"]) for _ in range(length)]
    case["prefill"] = rng.choice([length, length, max(1, length - 3)])
    if config.get("sliding_window") == 1:  # transformers' cache keeps too much of a window of one token
        case["prefill"] = length
    case["tokenizer"] = rng.choice([None, None, "byte_level", "byte_fallback", "unigram"])
    if case["tokenizer"]:  # its vocabulary is the model's
        case["text"] = rng.choice(TEXTS)
        case["special"] = rng.random() < 0.5
    return case


# ---- tokenizers -----------------------------------------------------------------------------------------------------

TEXTS = ["Hello world", "  two  spaces ", "naïve café, 12345!", "日本語 text", "tabs\tand\nlines\n", "I'll it's WE'RE don't",
         "🙂 emoji", "x = [1, 2];", "a", "مرحبا"]
SPLITS = [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
          r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def make_tokenizer(case, folder):
    """Writes tokenizer.json; gives the ids of the case's text and the size of the vocabulary."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
    rng = random.Random(case["seed"])
    special = ["<unk>", "<s>", "</s>"]
    size = rng.choice([300, 320, 350])
    if case["tokenizer"] == "byte_level":
        made = tokenizers.Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.2, use_regex=True)
        if rng.random() < 0.7:
            byte_level = pre_tokenizers.Sequence([
                pre_tokenizers.Split(tokenizers.Regex(rng.choice(SPLITS)), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        made.pre_tokenizer = byte_level
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    elif case["tokenizer"] == "byte_fallback":
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                          decoders.Strip(" ", 1, 0)])
        special += [f"<0x{i:02X}>" for i in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    else:
        made = tokenizers.Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=100, special_tokens=special, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(TEXTS * 3 + ["the cat sat on the mat and the rat"] * 5, trainer)
    if case["special"]:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    text = json.loads(made.to_str())
    # Byte tokens are ordinary tokens of the vocabulary, as converters write them.
    text["added_tokens"] = [t for t in text["added_tokens"] if t["id"] < 3]
    (folder / "tokenizer.json").write_text(json.dumps(text))
    again = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return again.encode(case["text"]).ids, again.get_vocab_size()


# ---- running --------------------------------------------------------------------------------------------------------


class Runner:
    """celer_config_logits, which answers a line of JSON with a line of JSON."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the runner ended with code {self.process.wait()} on {json.dumps(request)}")
        return json.loads(line)


def write_case(case, folder):
    (folder / "config.json").write_text(json.dumps(case["config"]))
    write_weights(case, folder)


def run_celer(runner, case, folder):
    request = {"model": str(folder), "prefill": case["prefill"]}
    request.update({"text": case["text"]} if case["tokenizer"] else {"tokens": case["tokens"]})
    return runner.ask(request)


def run_transformers(case, folder, double=False):
    """Rows of logits, or why it does not run."""
    import torch
    import transformers
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64 if double else torch.float32, attn_implementation="eager", output_loading_info=True,
            **({"experts_implementation": "eager"} if case["plan"]["experts"] else {}))
        for key in ("missing_keys", "mismatched_keys", "error_msgs"):
            if info.get(key):
                return None, f"{key}: {sorted(map(str, info[key]))[0]}"
        model.eval()
        prefill, tokens = case["prefill"], torch.tensor([case["tokens"]])
        with torch.no_grad():
            if prefill == len(case["tokens"]):
                rows = model(tokens, use_cache=False).logits[0]
            else:
                out = model(tokens[:, :prefill], use_cache=True)
                parts = [out.logits[0]]
                for i in range(prefill, len(case["tokens"])):
                    out = model(tokens[:, i:i + 1], past_key_values=out.past_key_values, use_cache=True)
                    parts.append(out.logits[0])
                rows = torch.cat(parts)
        if not torch.isfinite(rows).all():
            return None, "a logit is not finite"
        return rows.tolist(), None
    except Exception as error:  # whatever it raises is a refusal
        kind = "TypeError" if "NoneType" in str(error) else type(error).__name__
        return None, f"{kind}: {' '.join(str(error).split())[:200]}"


def worst(answer, rows):
    """Greatest difference of the last rows, over the greatest logit."""
    vocab = answer["vocab"]
    got = answer["logits"][-len(rows) * vocab:]
    expected = [x for row in rows for x in row]
    if len(got) != len(expected):
        return math.inf
    scale = max(max(abs(x) for x in expected), 1e-30)
    return max(abs(a - b) for a, b in zip(got, expected)) / scale


def within_noise(case, answer, rows, folder):
    """Whether the rows that differ are those that float itself cannot tell: transformers in f32 and f64 differ as much."""
    exact, _ = run_transformers(case, folder, double=True)
    if exact is None:
        return False
    vocab = answer["vocab"]
    scale = max(max(abs(x) for x in row) for row in rows)
    for i, (row, right) in enumerate(zip(rows, exact)):
        got = answer["logits"][i * vocab:(i + 1) * vocab]
        noise = max(abs(a - b) for a, b in zip(row, right))
        if max(abs(a - b) for a, b in zip(got, right)) > max(TOLERANCE * scale, 4 * noise):
            return False
    return True


def sentence(text):
    return bool(text) and "\n" not in text and len(text) < 600


def verdict(case, answer, rows, refusal):
    """(kind, is it wrong, words)."""
    if "error" in answer:
        good = sentence(answer["error"])
        return ("both refuse" if rows is None else "one sentence"), not good, answer["error"]
    if case["unknown"] and not any(case["unknown"] in w for w in answer["warnings"]):
        return "silent about an unknown key", True, case["unknown"]
    if rows is None and refusal.startswith("TypeError"):
        return "transformers fails", False, refusal  # Mixtral with YaRN and without head_dim, for example
    if rows is None:
        return "runs what transformers refuses", True, refusal
    difference = worst(answer, rows)
    if difference > TOLERANCE:
        return "differs", True, f"{difference:.2e}"
    return "agrees", False, ""


def without_folder(text, folder):
    return text.replace(str(folder), "MODEL")


def compare(args):
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    runner, failures, sample = Runner(args.runner), 0, []
    for family in args.family:
        counts, sentences = collections.Counter(), collections.Counter()
        kept = 0
        numbers = [args.number] if args.number is not None else range(args.count)
        for number in numbers:
            case = draw(family, number, args.seed)
            with tempfile.TemporaryDirectory() as temp:
                folder = pathlib.Path(temp)
                if case["tokenizer"]:
                    ids, vocab = make_tokenizer(case, folder)
                    limit = len(case["tokens"])
                    if not 1 <= len(ids) <= 33 or len(ids) > 64:
                        case["tokenizer"] = None
                    else:
                        case["tokens"], case["plan"]["vocab"], case["config"]["vocab_size"] = ids, vocab, vocab
                        case["prefill"] = len(ids)
                        positions = case["config"].get("max_position_embeddings", 2048)
                        if len(ids) > positions:
                            case["tokenizer"], case["tokens"] = None, ids[:min(limit, positions)]
                            case["prefill"] = len(case["tokens"])
                write_case(case, folder)
                rows, refusal = run_transformers(case, folder)
                answer = run_celer(runner, case, folder)
                kind, wrong, words = verdict(case, answer, rows, refusal)
                if kind == "differs" and within_noise(case, answer, rows, folder):
                    kind, wrong = "float noise", False
                if "tokens" in answer and answer["tokens"] != case["tokens"]:
                    kind, wrong, words = "other tokens", True, f"{case['text']!r}: {answer['tokens']}, not {case['tokens']}"
                counts[kind] += 1
                if words and not wrong:
                    sentences[f"{kind}: {without_folder(words, folder)[:120]}"] += 1
                if wrong:
                    failures += 1
                    print(f"{family} {number}: {kind}: {words}\n    {json.dumps(case['config'])}")
                    if args.keep:
                        shutil.copytree(folder, args.keep / f"{family}-{number}", dirs_exist_ok=True)
                elif args.write_sample and kept < args.write_sample and kind != "float noise" \
                        and not case["tokenizer"] and case["plan"]["hidden"] < 64:
                    kept += 1
                    sample.append(sample_of(case, rows if "error" not in answer else None, answer, folder))
        print(f"{family:10} " + ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items())), flush=True)
        if args.verbose:
            for text, n in sentences.most_common():
                print(f"    {n:4} {text}")
    if args.write_sample:
        SAMPLE.write_text("[\n" + ",\n".join(json.dumps(s) for s in sample) + "\n]\n")
        print(f"{SAMPLE}: {len(sample)} cases, {SAMPLE.stat().st_size} bytes")
    return failures


def sample_of(case, rows, answer, folder):
    case = {k: v for k, v in case.items() if v is not None}
    if rows is None:
        case["sentence"] = without_folder(answer["error"], folder)
    else:
        case["logits"] = [[float(f"{x:.6g}") for x in row] for row in rows[-2:]]
    return case


# ---- the sample -----------------------------------------------------------------------------------------------------


def check(args):
    runner, failures, counts = Runner(args.runner), 0, collections.Counter()
    for case in json.loads(SAMPLE.read_text()):
        case = {"unknown": None, "tokenizer": None, **case}
        with tempfile.TemporaryDirectory() as temp:
            folder = pathlib.Path(temp)
            write_case(case, folder)
            answer = run_celer(runner, case, folder)
            if "sentence" in case:
                said = without_folder(answer.get("error", "nothing"), folder)
                kind, wrong, words = "refused", said != case["sentence"], f"says {said!r}, expected {case['sentence']!r}"
            else:
                kind, wrong, words = verdict(case, answer, case["logits"], None)
                wrong |= "error" in answer
        counts[kind] += 1
        if wrong:
            failures += 1
            print(f"{case['family']} {case['number']}: {kind}: {words}\n    {json.dumps(case['config'])}")
    print(", ".join(f"{kind} {n}" for kind, n in sorted(counts.items())))
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", required=True, help="celer_config_logits")
    parser.add_argument("--check", action="store_true", help="compare with the logits in sample.json")
    parser.add_argument("--family", nargs="*", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--count", type=int, default=500, help="cases per family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="this case only")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the models of cases that fail")
    parser.add_argument("--write-sample", type=int, default=0, metavar="N", help="keep N cases per family in sample.json")
    parser.add_argument("--verbose", action="store_true", help="count celer's sentences")
    args = parser.parse_args()
    failures = check(args) if args.check else compare(args)
    sys.exit(f"{failures} cases are wrong" if failures else 0)


if __name__ == "__main__":
    main()
