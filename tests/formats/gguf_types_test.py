#!/usr/bin/env python3
"""Tiny models of every type of GGUF: gguf_types_test.py celer_config_logits CELER

A model whose matrices are random blocks of a type gives the logits of the same model as f32, which the gguf package
dequantizes. Damaged ones are refused in a sentence.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
    from gguf.quants import dequantize
    from make_block_golden import LATER, SCALES
except (ImportError, SystemExit) as error:
    print(f"skipped: {error}; pip install gguf numpy")
    sys.exit(77)

RUNNER, CELER = sys.argv[1:3]
HIDDEN, VOCAB, LAYERS, TOKENS = 256, 96, 2, [1, 5, 90, 7, 7, 33, 64, 2]
MATRICES = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256),
            "ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}


def check(ok, text):
    if not ok:
        sys.exit(text)


def random_matrix(rng, qtype, rows, cols):
    """Blocks of random codes whose scales make weights of up to 0.1."""
    elements, size = GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    if qtype == T.MXFP4:
        blocks[:, 0] = rng.integers(119, 123, len(blocks))
    elif qtype == T.NVFP4:
        blocks[:, :4] = rng.integers(1, 32, (len(blocks), 4))
    elif qtype == T.IQ1_M:
        set_iq1_m(blocks, 1.0)
        set_iq1_m(blocks, 0.1 / np.abs(dequantize(blocks, qtype)).max())
    else:
        offsets = (SCALES | LATER)[qtype]
        set_halves(blocks, offsets, 1.0)
        set_halves(blocks, offsets, 0.1 / np.abs(dequantize(blocks, qtype)).max())
    return blocks.reshape(rows, -1)


def set_halves(blocks, offsets, value):
    for at in offsets:
        blocks[:, at:at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def set_iq1_m(blocks, value):
    bits = int(np.float16(value).view(np.uint16))
    for i in range(4):
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4


def write_model(path, matrices, rest):
    """matrices: name to (array, type)."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    for name, array in rest.items():
        writer.add_tensor(name, array)
    for name, (array, qtype) in matrices.items():
        writer.add_tensor(name, array, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Runner:
    def __init__(self):
        self.process = subprocess.Popen([RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, path, prefill):
        self.process.stdin.write(json.dumps({"model": str(path), "tokens": TOKENS, "prefill": prefill}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def logits(runner, path, prefill):
    answer = runner.ask(path, prefill)
    check("error" not in answer, f"{path.name}: {answer.get('error')}")
    return np.array(answer["logits"])


def model_of(rng, qtype):
    rest = {"token_embd.weight": rng.normal(0, 1, (VOCAB, HIDDEN)).astype(np.float32),
            "output_norm.weight": np.ones(HIDDEN, np.float32)}
    matrices = {"output.weight": random_matrix(rng, qtype, VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            rest[f"blk.{layer}.{norm}.weight"] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        for name, (rows, cols) in MATRICES.items():
            matrices[f"blk.{layer}.{name}.weight"] = random_matrix(rng, qtype, rows, cols)
    return rest, matrices


def refused(path, words):
    done = subprocess.run([CELER, "ppl", str(path), str(path.parent / "text.txt")], capture_output=True, text=True, timeout=120)
    check(done.returncode not in (0, 134, 139) and done.stderr.startswith("error:"), f"{path.name}: {done.returncode} {done.stderr}")
    check(len(done.stderr.strip().splitlines()) == 1, f"{path.name}: more than a sentence: {done.stderr}")
    check(words in done.stderr, f"{path.name}: '{words}' is not in: {done.stderr}")


def damaged(folder, path, qtype):
    """Cut in a block, rows that are no whole blocks, and scales that are no numbers."""
    data = path.read_bytes()
    cut = folder / f"cut_{qtype.name}.gguf"
    cut.write_bytes(data[:-GGML_QUANT_SIZES[qtype][1] // 2 - 32])
    refused(cut, "the file is cut short or damaged")
    name = b"blk.1.ffn_down.weight"
    at = data.index(name) + len(name) + 4  # behind the number of dimensions
    check(struct.unpack_from("<2Q", data, at) == (512, 256), "the file is not as this test thinks")
    odd = folder / f"odd_{qtype.name}.gguf"
    odd.write_bytes(data[:at] + struct.pack("<2Q", 512 - 16, 256) + data[at + 16:])
    refused(odd, "blk.1.ffn_down.weight")


def not_finite(folder, rng, qtype):
    rest, matrices = model_of(rng, qtype)
    broken = matrices["blk.0.ffn_up.weight"]
    if qtype == T.IQ1_M:
        set_iq1_m(broken, np.nan)
    elif qtype == T.MXFP4:
        broken[:, 0] = 255
    else:
        offset = (SCALES | LATER)[qtype][0]
        broken[:, offset:offset + 2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    path = folder / f"nan_{qtype.name}.gguf"
    write_model(path, {name: (array, qtype) for name, array in matrices.items()}, rest)
    answer = Runner().ask(path, len(TOKENS)).get("error", "")
    check("tensor 'blk.0.ffn_up.weight' holds " in answer and "weights must be finite numbers" in answer, f"{path.name}: {answer}")


def main():
    rng, runner = np.random.default_rng(8), Runner()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("some words. " * 200)
        for qtype in SCALES | LATER:
            rest, matrices = model_of(rng, qtype)
            path, plain = folder / f"{qtype.name}.gguf", folder / "f32.gguf"
            write_model(path, {name: (array, qtype) for name, array in matrices.items()}, rest)
            write_model(plain, {name: (dequantize(array, qtype).astype(np.float32), T.F32) for name, array in matrices.items()}, rest)
            expected = logits(runner, plain, len(TOKENS))
            for prefill in (len(TOKENS), 3):
                got = logits(runner, path, prefill)
                worst = np.abs(got - expected).max() / np.abs(expected).max()
                check(worst < 2e-5, f"{qtype.name}: logits are off by {worst:.2g} of the largest")
            shown = subprocess.run([CELER, "inspect", str(path)], capture_output=True, text=True, timeout=120)
            check(shown.returncode == 0 and qtype.name.lower() in shown.stdout.lower(), f"inspect {qtype.name}: {shown.stdout}{shown.stderr}")
            if qtype in LATER:
                damaged(folder, path, qtype)
                if qtype != T.NVFP4:  # its scales are always numbers
                    not_finite(folder, rng, qtype)
            path.unlink()
    print(f"{len(SCALES | LATER)} types: ok")


if __name__ == "__main__":
    main()
