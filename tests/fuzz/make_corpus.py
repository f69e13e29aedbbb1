#!/usr/bin/env python3
"""Makes tests/fuzz/corpus/ for the file formats: small valid files by the `gguf` and `safetensors` Python packages
and by hand, and files with one lie each. Other targets (tokenizers, templates) keep their own folders beside."""
import json
import pathlib
import struct

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


if __name__ == "__main__":
    make_gguf()
    make_gguf_split()
    make_safetensors()
    make_llama2c()
    make_published()
