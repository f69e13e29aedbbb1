"""A GGUF file from numbers, without packages: for FORMS of draws/."""

import struct

from compare_transformers import encode

TYPES = {"F32": 0, "F16": 1, "BF16": 30}
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value):
    """With its type in front."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    kind = 8 if isinstance(value[0], str) else 6 if isinstance(value[0], float) else 5
    items = b"".join(value_of(item)[4:] if kind != 5 else struct.pack("<i", item) for item in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + items


def rounded(numbers, dtype):
    """As a file of that type gives them back."""
    data = encode(numbers, dtype)
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return list(struct.unpack(f"<{len(numbers)}{'e' if dtype == 'F16' else 'f'}", data))


def write_gguf(path, architecture, keys, tensors):
    """keys: {name behind the architecture's: value}; tensors: [(name, dtype, shape as in safetensors, numbers)].
    Vectors become F32, as llama.cpp's converter writes them."""
    keys = {"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in keys.items()}}
    head, data = b"", b""
    for name, dtype, shape, numbers in tensors:
        dtype = "F32" if len(shape) == 1 else dtype
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", TYPES[dtype], len(data))
        data += encode(numbers, dtype)
        data += bytes(-len(data) % ALIGNMENT)
    meta = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    meta += b"".join(text(k) + value_of(v) for k, v in keys.items()) + head
    path.write_bytes(meta + bytes(-len(meta) % ALIGNMENT) + data)
    return path
