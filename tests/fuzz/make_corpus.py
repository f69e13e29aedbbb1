#!/usr/bin/env python3
"""Makes tests/fuzz/corpus/ for the file formats: small valid files by the `gguf` and `safetensors` Python packages
and by hand, and files with one lie each. Other targets (tokenizers, templates) keep their own folders beside."""
import json
import pathlib
import struct
import zlib

import gguf
import numpy as np
from safetensors.numpy import save

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


def put(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_bytes(metadata=(), tensors=(), data=b"", version=3, counts=None):
    """metadata: (key, type, value bytes); tensors: (name, dims innermost first, type, offset)."""
    n_tensors, n_metadata = counts or (len(tensors), len(metadata))
    out = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_metadata)
    for key, kind, value in metadata:
        out += string(key) + struct.pack("<I", kind) + value
    for name, dims, kind, offset in tensors:
        out += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, offset)
    if tensors:
        out += b"\0" * (-len(out) % 32)
    return out + data


def make_gguf():
    path = CORPUS / "gguf" / "python_package.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["<s>", "a", "\u6a21"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    writer.add_bool("synthetic", True)
    weights = (np.arange(64, dtype=np.float32).reshape(2, 32) - 31) / 17
    writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("output_norm.weight", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    inner = struct.pack("<IQ", 0, 2) + b"xy"
    every = [("u8", 0, b"\1"), ("i8", 1, b"\xff"), ("u16", 2, b"\1\0"), ("i16", 3, b"\xff\xff"),
             ("u32", 4, struct.pack("<I", 7)), ("i32", 5, struct.pack("<i", -7)), ("f32", 6, struct.pack("<f", 0.5)),
             ("bool", 7, b"\1"), ("str", 8, string("text")), ("u64", 10, struct.pack("<Q", 2**64 - 1)),
             ("i64", 11, struct.pack("<q", -1)), ("f64", 12, struct.pack("<d", 1e300)),
             ("strs", 9, struct.pack("<IQ", 8, 2) + string("a") + string("")),
             ("ints", 9, struct.pack("<IQii", 5, 2, -1, 1)), ("nested", 9, struct.pack("<IQ", 9, 2) + inner + inner)]
    put("gguf", "every_type.gguf", gguf_bytes(every))
    put("gguf", "version2.gguf", gguf_bytes(version=2, tensors=[("w", [32, 2], 8, 0)], data=bytes(68)))
    put("gguf", "blocks.gguf", gguf_bytes([("general.alignment", 4, struct.pack("<I", 32))],
                                          [("a", [256], 12, 0), ("b", [256], 14, 160)], data=bytes(160 + 210)))
    huge = 2**64 - 1
    put("gguf", "big_endian.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    put("gguf", "huge_counts.gguf", gguf_bytes(counts=(huge, huge)))
    put("gguf", "huge_string.gguf", gguf_bytes([("k", 8, struct.pack("<Q", huge) + b"x" * 16)]))
    put("gguf", "huge_array.gguf", gguf_bytes([("k", 9, struct.pack("<IQ", 12, 2**61 + 1) + b"x" * 16)]))
    put("gguf", "deep_array.gguf", gguf_bytes([("k", 9, struct.pack("<IQ", 9, 1) * 40)]))
    put("gguf", "dims_wrap.gguf", gguf_bytes(tensors=[("t", [2**32, 2**32], 0, 0)], data=bytes(64)))
    put("gguf", "bytes_wrap.gguf", gguf_bytes(tensors=[("t", [2**62 + 1], 0, 0)], data=bytes(64)))
    put("gguf", "offset_wrap.gguf", gguf_bytes(tensors=[("t", [16], 0, 2**64 - 32)], data=bytes(64)))
    put("gguf", "overlap.gguf", gguf_bytes(tensors=[("a", [16], 0, 0), ("b", [8], 0, 32)], data=bytes(64)))
    put("gguf", "bad_type.gguf", gguf_bytes(tensors=[("t", [256], 16, 0)], data=bytes(64)))
    put("gguf", "alignment_zero.gguf", gguf_bytes([("general.alignment", 4, bytes(4))], [("t", [4], 0, 0)], bytes(16)))


def make_gguf_split():
    def part(number, count, tensor, total=2):
        metadata = [("split.no", 2, struct.pack("<H", number)), ("split.count", 2, struct.pack("<H", count)),
                    ("split.tensors.count", 5, struct.pack("<i", total))]
        return gguf_bytes(metadata, [(tensor, [8], 0, 0)], bytes(range(32)))

    def both(first, second):
        return struct.pack("<H", len(first)) + first + second

    put("gguf_split", "two.bin", both(part(0, 2, "a"), part(1, 2, "b")))
    put("gguf_split", "twins.bin", both(part(0, 2, "a"), part(1, 2, "a")))
    put("gguf_split", "swapped.bin", both(part(1, 2, "a"), part(0, 2, "b")))
    put("gguf_split", "wrong_total.bin", both(part(0, 2, "a", -1), part(1, 2, "b")))
    put("gguf_split", "no_tensors.bin", both(gguf_bytes(), part(1, 2, "b")))


def safetensors_bytes(header, data=b""):
    return struct.pack("<Q", len(header)) + header.encode() + data


def make_safetensors():
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "h": np.ones(3, np.float16), "i": np.zeros(2, np.int64)}
    put("safetensors", "python_package.safetensors", save(tensors, {"format": "np"}))
    entry = '"%s":{"dtype":"%s","shape":%s,"data_offsets":%s}'
    put("safetensors", "empty.safetensors", safetensors_bytes("{}"))
    put("safetensors", "scalar.safetensors", safetensors_bytes("{" + entry % ("s", "BF16", "[]", "[0,2]") + "}  ", bytes(2)))
    put("safetensors", "overlap.safetensors", safetensors_bytes(
        "{" + entry % ("a", "U8", "[4]", "[0,4]") + "," + entry % ("b", "U8", "[4]", "[2,6]") + "}", bytes(6)))
    put("safetensors", "hole.safetensors", safetensors_bytes("{" + entry % ("a", "U8", "[4]", "[2,6]") + "}", bytes(6)))
    put("safetensors", "twins.safetensors", safetensors_bytes(
        "{" + ",".join([entry % ("a", "U8", "[4]", "[0,4]")] * 2) + "}", bytes(4)))
    put("safetensors", "wrap.safetensors", safetensors_bytes(
        "{" + entry % ("a", "F32", "[4611686018427387905]", "[0,4]") + "}", bytes(4)))
    put("safetensors", "long_header.safetensors", struct.pack("<Q", 2**64 - 1) + b"{}")
    put("safetensors", "nested.safetensors", safetensors_bytes('{"a":' + "[" * 200))
    put("safetensors", "escapes.safetensors", safetensors_bytes(
        '{"__metadata__":{"\\u0000\\ud83d\\ude00":"\\n"},' + entry % ("\\u001b", "BOOL", "[1]", "[0,1]") + "}", bytes(1)))


def make_lora_adapter():
    """Of the model in lora_adapter_fuzz.cc: 1 layer, hidden 16, 2 experts of 8."""
    def peft(name, tensors, **config):
        text = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}).encode()
        data = save({"base_model.model." + key: np.full(shape, 0.25, np.float32) for key, shape in tensors.items()})
        put("lora_adapter", name + ".bin", b"\1" + text + b"\0" + data)

    attention = "model.layers.0.self_attn."
    pair = {attention + "q_proj.lora_A.weight": (2, 16), attention + "q_proj.lora_B.weight": (16, 2)}
    experts = "model.layers.0.mlp.experts."
    peft("plain", pair)
    peft("dora", pair | {attention + "q_proj.lora_magnitude_vector": (16,)}, use_dora=True)
    peft("bias", pair | {attention + "q_proj.lora_B.bias": (16,)}, lora_bias=True)
    peft("patterns", pair, use_rslora=True, rank_pattern={"q_.*": 2, "^x$": 7}, alpha_pattern={"layers.0.*": 3})
    peft("embedding", {"model.embed_tokens.lora_embedding_A": (2, 257), "model.embed_tokens.lora_embedding_B": (16, 2)})
    peft("saved", {"lm_head.weight": (257, 16), "model.embed_tokens.weight": (257, 16)}, ensure_weight_tying=True)
    peft("experts", {experts + "base_layer.lora_A.weight": (4, 16), experts + "base_layer.lora_B.weight": (16, 4),
                     experts + "lora_A.weight": (4, 8), experts + "lora_B.weight": (16, 4)}, peft_version="0.19.1")
    peft("rank_0", {attention + "q_proj.lora_A.weight": (0, 16), attention + "q_proj.lora_B.weight": (16, 0)})
    peft("other_model", {attention + "q_proj.lora_A.weight": (2, 24), attention + "q_proj.lora_B.weight": (24, 2)})

    def form(name, *tensors, alpha=4.0):
        metadata = [("general.type", 8, string("adapter")), ("general.architecture", 8, string("qwen3moe")),
                    ("adapter.type", 8, string("lora")), ("adapter.lora.alpha", 6, struct.pack("<f", alpha))]
        listed, data = [], b""
        for tensor, dims in tensors:
            listed.append((tensor, dims, 0, len(data)))
            data += struct.pack("<f", 0.25) * int(np.prod(dims))
            data += b"\0" * (-len(data) % 32)
        put("lora_adapter", name + ".bin", b"\0" + gguf_bytes(metadata, listed, data))

    form("gguf", ("blk.0.attn_q.weight.lora_a", [16, 2]), ("blk.0.attn_q.weight.lora_b", [2, 16]))
    form("gguf_experts", ("blk.0.ffn_up_exps.weight.lora_a", [16, 2, 2]), ("blk.0.ffn_up_exps.weight.lora_b", [2, 8, 2]))
    form("gguf_rank_0", ("blk.0.attn_q.weight.lora_a", [16]), ("blk.0.attn_q.weight.lora_b", [16]))
    form("gguf_nan", ("blk.0.attn_q.weight.lora_a", [16, 2]), ("blk.0.attn_q.weight.lora_b", [2, 16]), alpha=float("nan"))


def make_llama2c():
    dim, hidden, layers, heads, kv_heads, vocab, length = config = (4, 4, 1, 2, 1, 3, 2)
    kv = dim // heads * kv_heads
    header = struct.pack("<7i", *config)
    matrices = [(vocab, dim), (dim, dim), (kv, dim), (kv, dim), (dim, dim), (hidden, dim), (dim, hidden), (hidden, dim)]
    floats = (2 * layers + 1) * dim + sum(r * c for r, c in matrices)
    put("llama2c", "legacy.bin", header + bytes(4 * floats + 2 * 4 * length * (dim // heads // 2)))
    unshared = struct.pack("<7i", *config[:5], -vocab, length)
    put("llama2c", "legacy_unshared.bin",
        unshared + bytes(4 * floats + 2 * 4 * length * (dim // heads // 2) + 4 * vocab * dim))
    v1 = struct.pack("<Ii", 0x616B3432, 1) + header + b"\1"
    put("llama2c", "v1.bin", v1.ljust(256, b"\0") + bytes(4 * floats))
    v2 = struct.pack("<Ii", 0x616B3432, 2) + header + b"\1" + struct.pack("<i", 2)
    values = sum(r * c for r, c in matrices)
    put("llama2c", "v2.bin", v2.ljust(256, b"\0") + bytes(4 * (2 * layers + 1) * dim + values + 4 * values // 2))
    put("llama2c", "huge.bin", struct.pack("<7i", 2**31 - 2, 2**31 - 1, 4096, 1, 1, 2**31 - 1, 2**31 - 1))
    put("llama2c", "zero_heads.bin", struct.pack("<7i", 4, 4, 1, 0, 0, 3, 2) + bytes(16))


def store_zip(entries, zip64=False, lie=None):
    """A store-only archive by hand. `lie`: field to value, in every entry."""
    lie = lie or {}
    out, central = b"", b""
    for name, data in entries:
        crc, size, at = lie.get("crc", zlib.crc32(data)), lie.get("size", len(data)), len(out)
        extra = struct.pack("<HHQQ", 1, 16, size, size) if zip64 else b""
        stored = 0xFFFFFFFF if zip64 else size & 0xFFFFFFFF
        head = struct.pack("<HHHHHIIIHH", 45 if zip64 else 20, lie.get("flags", 0), lie.get("method", 0), 0, 0, crc,
                           stored, stored, len(name), len(extra))
        out += b"PK\3\4" + head + name.encode() + extra + data
        central += (b"PK\1\2" + struct.pack("<H", 45 if zip64 else 20) + head +
                    struct.pack("<HHHII", 0, 0, 0, 0, lie.get("offset", at) & 0xFFFFFFFF) + name.encode() + extra)
    count = lie.get("count", len(entries))
    return out + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(central), len(out), 0)


def make_store_zip():
    entries = [("conv.weight", bytes(range(32))), ("conv.bias", b"\0" * 8), ("empty", b"")]
    put("store_zip", "plain.bin", store_zip(entries))
    put("store_zip", "zip64.bin", store_zip(entries, zip64=True))
    for name, lie in (("compressed", {"method": 8}), ("encrypted", {"flags": 1}), ("descriptor", {"flags": 8}),
                      ("huge", {"size": 2**32 - 2}), ("offset", {"offset": 2**31}), ("count", {"count": 60000})):
        put("store_zip", name + ".bin", store_zip(entries, lie=lie))
    put("store_zip", "huge64.bin", store_zip(entries, zip64=True, lie={"size": 2**64 - 1}))
    put("store_zip", "twice.bin", store_zip(entries[:1] * 2))
    put("store_zip", "empty.bin", store_zip([]))


def make_pnnx_param():
    head = "7767517\n"

    def network(*lines, weights=None):
        text = head + f"{len(lines) + 2} 9\npnnx.Input x 0 1 0 #0=(1,2,4,4)f32\n" + "".join(
            line + "\n" for line in lines) + "pnnx.Output y 1 0 9\n"
        return text.encode() + (b"=BIN=\n" + store_zip(weights) if weights else b"")

    floats = struct.pack("<36f", *[i / 36 for i in range(36)])
    conv = ("nn.Conv2d c 1 1 0 9 bias=True dilation=(1,1) groups=1 in_channels=2 kernel_size=(3,3) out_channels=2 "
            "padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(2)f32 @weight=(2,2,3,3)f32")
    weights = [("c.bias", floats[:8]), ("c.weight", floats)]
    put("pnnx_param", "conv.param", network(conv, weights=weights))
    put("pnnx_param", "conv_reflect.param", network(conv.replace("zeros", "reflect"), weights=weights))
    put("pnnx_param", "conv_short.param", network(conv, weights=[("c.bias", floats[:8]), ("c.weight", floats[:8])]))
    put("pnnx_param", "conv_huge.param", network(conv.replace("(2,2,3,3)", "(4294967296,4294967296)"), weights=weights))
    for name, line in (
            ("relu", "nn.ReLU r 1 1 0 9"),
            ("cycle", "nn.ReLU r 1 1 9 9"),
            ("unknown", "models.yolo.Detect d 1 1 0 9"),
            ("view", "Tensor.view v 1 1 0 9 shape=(1,-1) $input=0"),
            ("view_huge", "Tensor.view v 1 1 0 9 shape=(4611686018427387904,4) $input=0"),
            ("permute", "Tensor.permute p 1 1 0 9 dims=(0,2,3,9) $input=0"),
            ("slice", "Tensor.slice s 1 1 0 9 dims=(1) starts=(0) ends=(1) steps=(1) $input=0"),
            ("pool", "nn.MaxPool2d p 1 1 0 9 ceil_mode=True dilation=(1,1) kernel_size=(3,3) padding=(1,1) "
                     "return_indices=False stride=(2,2)"),
            ("pool_zero", "nn.AvgPool2d p 1 1 0 9 ceil_mode=False count_include_pad=True kernel_size=(0,0) "
                          "padding=(0,0) stride=(0,0)"),
            ("expression", "pnnx.Expression e 1 1 0 9 expr=mul(add(@0,1),sigmoid(@0))"),
            ("expression_bad", "pnnx.Expression e 1 1 0 9 expr=add(@7,["),
            ("mean", "torch.mean m 1 1 0 9 dim=(2,3) keepdim=True $input=0"),
            ("onnx", "onnx.Clip c 1 1 0 9 opset=13"),
            ("softmax", "F.softmax s 1 1 0 9 dim=-9 $input=0")):
        put("pnnx_param", name + ".param", network(line))
    put("pnnx_param", "cat.param", network(
        "torch.chunk k 1 2 0 1 2 chunks=2 dim=1 $input=0", "torch.cat c 2 1 1 2 9 dim=1"))
    put("pnnx_param", "counts.param", (head + "1000000 -1\npnnx.Input x 0 1 0\n").encode())
    put("pnnx_param", "many.param", (head + "1 1\nnn.ReLU r 99999999999999999999 1 0 1\n").encode())


def make_pnnx_expression():
    for i, text in enumerate((
            "add(@0,@1)", "mul(add(@0,1),neg(@0))", "[size(@0,0),-1,2.5,True,None]", "[]",
            "pow(abs(@0),0.5)", "floor_divide(@1,2)", "remainder(@1,0)", "div(@0,0)", "lshift(@1,70)",
            "and(@1,@1)", "xor(@1,-1)", "torch.bool(@0)", "torch.long(@0)", "int(2.9)", "size(@0)",
            "size(@0,9)", "max(@0,@0)", "logaddexp(@0,@0)", "sqrt(sub(@0,1e999))", "@18446744073709551616",
            "add(" * 300, "neg(" * 150 + "@0" + ")" * 150, "f()", "add(@0,[1,2])", "add(1,2)3")):
        put("pnnx_expression", f"{i:02}.txt", text.encode())


def published(config, **tensors):
    """Input of the target "published": a quantization_config, a zero byte, a safetensors file."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name.replace("__", ".").replace(".BNB", "__")] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return json.dumps(config).encode() + b"\0" + safetensors_bytes(json.dumps(header), data)


def make_published():
    rng = np.random.default_rng(5)
    words = lambda n: rng.integers(0, 2**31 - 1, n, dtype=np.int32).tobytes()
    bytes_of = lambda n: rng.integers(0, 120, n, dtype=np.uint8).tobytes()
    halves = lambda n: np.full(n, 0.25, np.float16).tobytes()
    floats = lambda n: np.full(n, 0.3, np.float32).tobytes()
    group = lambda **weights: {"quant_method": "compressed-tensors", "format": "any", "config_groups": {
        "g": {"targets": ["Linear"], "weights": weights}}}
    shape = ("I64", [2], struct.pack("<qq", 8, 32))
    put("published", "gptq.bin", published(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False},
        w__qweight=("I32", [4, 8], words(32)), w__qzeros=("I32", [1, 1], b"\x77" * 4),
        w__scales=("F16", [1, 8], halves(8)), w__g_idx=("I32", [32], bytes(128))))
    put("published", "awq.bin", published(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        w__qweight=("I32", [32, 1], words(32)), w__qzeros=("I32", [1, 1], words(1)),
        w__scales=("F16", [1, 8], halves(8))))
    put("published", "packed.bin", published(
        group(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
        w__weight_packed=("I32", [8, 4], words(32)), w__weight_scale=("F16", [8, 1], halves(8)), w__weight_shape=shape,
        w__weight_zero_point=("I32", [1, 1], words(1))))
    put("published", "int8.bin", published(
        group(num_bits=8, type="int", strategy="channel"),
        w__weight=("I8", [8, 4], bytes_of(32)), w__weight_scale=("F32", [8, 1], floats(8))))
    put("published", "nvfp4.bin", published(
        group(num_bits=4, type="float", strategy="tensor_group", group_size=16),
        w__weight_packed=("U8", [2, 16], bytes_of(32)), w__weight_scale=("F8_E4M3", [2, 2], bytes_of(4)),
        w__weight_global_scale=("F32", [1], floats(1))))
    put("published", "fp8.bin", published(
        {"quant_method": "fp8", "weight_block_size": [2, 4]},
        w__weight=("F8_E4M3", [3, 5], bytes_of(15)), w__weight_scale_inv=("F32", [2, 2], floats(4))))
    put("published", "mxfp4.bin", published(
        {"quant_method": "mxfp4"}, w_blocks=("U8", [2, 1, 1, 16], bytes_of(32)), w_scales=("U8", [2, 1, 1], bytes_of(2))))
    state = json.dumps({"blocksize": 64, "shape": [2, 32], "nested_blocksize": 256, "nested_offset": 0.1}).encode()
    put("published", "nf4.bin", published(
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        w__weight=("U8", [32, 1], bytes_of(32)), w__weight__absmax=("U8", [1], b"\5"), w__weight__quant_map=("F32", [16], floats(16)),
        w__weight__nested_absmax=("F32", [1], floats(1)), w__weight__nested_quant_map=("F32", [256], floats(256)),
        w__weight__quant_state__bitsandbytes__BNBnf4=("U8", [len(state)], state)))


def make_scheduler():
    """The layout is that of src/engine/loop/scheduler_fuzz.cc: an engine, then commands."""
    def engine(blocks, host=0, ahead=0, chunk=32, mixed=0, cache=True, preemption=2, draft=0, starvation_steps=100):
        return bytes([1, blocks - 5, host, ahead, chunk - 1, mixed, 0 if cache else 1, preemption, draft, starvation_steps - 1])

    def beams(width, prompt, tokens, priority=0, family=0, deadline=None):
        head = [0 if deadline is None else 2, family, prompt - 1, tokens - 1, priority, 0, 3, width - 1, width - 1, 0]
        return bytes(head + ([] if deadline is None else [deadline]))

    def answers(n, prompt, tokens, priority=0, family=0):
        return bytes([0, family, prompt - 1, tokens - 1, priority, 0, 0, n - 1, 0])

    steps, cancel, expire = bytes([15]), lambda request: bytes([3, request - 1]), bytes([4])
    put("scheduler", "beams_16_in_18.bin", engine(18) + beams(16, 2, 14))
    put("scheduler", "beams_8_in_10.bin", engine(10, cache=False) + beams(8, 2, 14))
    put("scheduler", "two_searches.bin", engine(20, host=20, preemption=1) + beams(4, 30, 40) + beams(4, 31, 30, family=1) + steps * 4)
    put("scheduler", "computed_again.bin", engine(13, chunk=3, cache=False) + beams(4, 20, 24) + answers(3, 30, 40) + steps * 6)
    put("scheduler", "ahead.bin", engine(12, ahead=1, mixed=4) + answers(4, 16, 30) + beams(3, 16, 30) + steps * 3 + cancel(2))
    put("scheduler", "guesses.bin", engine(14, draft=7, host=8) + answers(2, 33, 39) + beams(3, 33, 20) + steps * 5)
    put("scheduler", "deadlines.bin", engine(9, host=9, preemption=1) + (beams(2, 20, 40, deadline=1) + steps) * 4 + expire * 6)
    # Low priority among long answers of high priority, which come again and again.
    put("scheduler", "starved.bin", engine(12, starvation_steps=40) + beams(4, 20, 30, priority=2) + steps +
        (answers(1, 20, 50, family=1) + steps * 4) * 8)
    put("scheduler", "starved_swapped.bin", engine(12, starvation_steps=20, host=20, preemption=1) + beams(4, 20, 30, priority=2) + steps +
        (answers(2, 12, 60, family=2) + steps * 3) * 8)


def make_kv_wire():
    """Of server/kv_transfer/kv_wire.h."""
    def text(value):
        return struct.pack("<H", len(value)) + value.encode()

    def identity(block_bytes, **fields):
        return struct.pack("<QB", block_bytes, len(fields)) + b"".join(text(name) + text(value) for name, value in fields.items())

    def frame(body, version=1, magic=b"CELERKV\n"):
        return magic + struct.pack("<II", version, len(body)) + body
    ask = text("engine") + text("0123456789abcdef") + bytes(range(32)) + struct.pack("<II", 3, 70) + identity(4096, kv="f16", model="tiny")
    put("kv_wire", "ask.bin", frame(ask))
    put("kv_wire", "ask_of_nothing.bin", frame(text("e") + text("t") + bytes(32) + struct.pack("<II", 7, 7) + identity(1)))
    put("kv_wire", "other_version.bin", frame(ask, version=2))
    put("kv_wire", "too_long.bin", b"CELERKV\n" + struct.pack("<II", 1, 0xffffffff))
    put("kv_wire", "twice_the_same_field.bin", frame(text("") + struct.pack("<QB", 16, 2) + (text("a") + text("b")) * 2))
    put("kv_wire", "answer.bin", frame(text("") + identity(4096, kv="f16")))
    put("kv_wire", "refusal.bin", frame(text("nothing is held under '0'\x1b[0m") + identity(0)))
    put("kv_wire", "piece.bin", struct.pack("<IIQ", 5, 0, 0x0123456789abcdef))
    put("kv_wire", "http.bin", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


if __name__ == "__main__":
    make_gguf()
    make_gguf_split()
    make_safetensors()
    make_llama2c()
    make_store_zip()
    make_pnnx_param()
    make_pnnx_expression()
    make_published()
    make_scheduler()
    make_lora_adapter()
    make_kv_wire()
