#!/usr/bin/env python3
"""Makes tests/formats/golden/ with the `gguf` Python package (pip install gguf numpy): what it decodes random
blocks to, and what its reference quantizer encodes chosen floats to. The tests in src/formats compare bits.

decode_TYPE.bin   uint32 blocks, the blocks' bytes, their elements as float32
encode_TYPE.bin   uint32 elements, float32 elements, the encoded bytes
--check compares with the files that are there instead of writing them.
"""
import argparse
import pathlib
import sys

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
    from gguf.quants import dequantize, quantize
except ImportError as error:
    print(f"skipped: {error}; pip install gguf numpy")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
# Where the f16 scales lie in a block: these get chosen values, everything else is random bytes.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
          T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
# Of a generator of its own, so that the files above stay as they are.
LATER = {T.IQ4_NL: [0], T.MXFP4: [], T.IQ4_XS: [0], T.IQ3_S: [0], T.IQ3_XXS: [0], T.IQ2_S: [0], T.IQ2_XS: [0],
         T.IQ2_XXS: [0], T.IQ1_S: [0], T.IQ1_M: [], T.TQ1_0: [52], T.TQ2_0: [64], T.NVFP4: []}  # none, no f16
ENCODED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.BF16, T.F16]
# Ordinary, negative, zero, minus zero, largest, smallest normal, subnormals, infinity.
EXTREMES = np.array([0x2e66, 0xb1c3, 0x0000, 0x8000, 0x7bff, 0xfbff, 0x0400, 0x0001, 0x83ff, 0x7c00], np.uint16)


def random_blocks(rng, qtype):
    elements, size = GGML_QUANT_SIZES[qtype]
    count = 24 if elements <= 64 else 6
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for k, at in enumerate((SCALES | LATER)[qtype]):
        ordinary = rng.normal(0, 0.02, count).astype(np.float16).view(np.uint16)
        chosen = np.roll(EXTREMES, k)[:count // 2]
        ordinary[:len(chosen)] = chosen
        blocks[:, at:at + 2] = ordinary.view(np.uint8).reshape(count, 2)
    if qtype == T.NVFP4:  # no number, subnormal ones, the sign
        blocks[:3, :4] = np.array([[0x7f, 0xff, 0x00, 0x80], [1, 7, 8, 0x7e], [0x81, 0x87, 0x88, 0xfe]], np.uint8)
    if qtype == T.IQ1_M:  # its f16 is the upper four bits of four 16-bit numbers, which begin at byte 48
        for block, bits in zip(blocks, [*EXTREMES[[0, 1, 5, 8, 9]], 0x7e01]):
            block[49:57:2] = block[49:57:2] & 15 | [(int(bits) >> 4 * i & 15) << 4 for i in range(4)]
    return blocks


def interesting_floats(rng):
    rows = [rng.normal(0, 0.02, 32), rng.normal(0, 30, 32), rng.uniform(-1, 1, 32), rng.uniform(0.5, 1.5, 32),
            np.zeros(32), np.full(32, 0.25), np.full(32, -3.0), np.linspace(-8, 7, 32), np.linspace(-127, 127, 32),
            rng.normal(0, 1e-7, 32), rng.normal(0, 1e4, 32), np.where(np.arange(32) == 5, -1.0, 0.0),
            np.arange(32) - 16.0, (np.arange(32) - 16.0) / 2]
    return np.stack(rows).astype(np.float32)


def decoded(rng, qtype):
    blocks = random_blocks(rng, qtype)
    with np.errstate(all="ignore"):
        floats = dequantize(blocks, qtype).astype(np.float32)
    floats[np.isnan(floats)] = np.nan  # 0 * infinity: its bits differ between processors
    return f"decode_{qtype.name.lower()}.bin", np.uint32(len(blocks)).tobytes() + blocks.tobytes() + floats.tobytes()


def files():
    rng = np.random.default_rng(20240817)
    for qtype in SCALES:
        yield decoded(rng, qtype)
    floats = interesting_floats(rng)
    for qtype in ENCODED:
        encoded = np.ascontiguousarray(quantize(floats, qtype))
        yield f"encode_{qtype.name.lower()}.bin", np.uint32(floats.size).tobytes() + floats.tobytes() + encoded.tobytes()
    for qtype in LATER:
        yield decoded(np.random.default_rng(4), qtype)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    folder = HERE / "golden"
    folder.mkdir(exist_ok=True)
    wrong = 0
    for name, data in files():
        path = folder / name
        if not args.check:
            path.write_bytes(data)
        elif not path.exists() or path.read_bytes() != data:
            wrong += 1
            print(f"{name}: differs from what the gguf package makes now")
    print("golden: " + (f"{wrong} files differ" if wrong else "ok" if args.check else "written"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
