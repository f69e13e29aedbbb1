#!/usr/bin/env python3
"""What celer convert writes, in llama.cpp itself: its logits beside those of transformers (tests/golden).

  convert_llama_cpp.py build/celer [--family llama3,gemma3]

Not in CI: llama-cpp-python (0.3.36 or newer) builds llama.cpp. Weights are f32, since llama.cpp rounds activations to the type of narrower
ones. It refuses some of these tiny shapes. Prints a row of a table for each model.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
TOLERANCE = 5e-3  # of the greatest logit: GELU and SiLU of llama.cpp are tables of f16


def reference(name):
    golden = json.loads((MODELS / name / "golden.json").read_text())
    data = (MODELS / name / "golden.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])["prompt_logits"]["data_offsets"]
    return golden["prompt"], struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])


def llama_cpp_logits(path, tokens, vocab):
    """One row after the other, or what llama.cpp says."""
    import llama_cpp as lc
    said = []

    @lc.llama_log_callback
    def log(level, text, _):
        said.append(text.decode(errors="replace"))

    lc.llama_log_set(log, ctypes.c_void_p(0))
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lc.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return next((line.strip() for line in said if "error loading model" in line), "".join(said)[-300:])
    context = lc.llama_context_default_params()
    context.n_ctx, context.n_batch, context.n_ubatch, context.n_threads, context.n_threads_batch = 256, 256, 256, 1, 1
    context.type_k = context.type_v = 0  # f32
    context.flash_attn_type = 0
    context.offload_kqv = False
    state = lc.llama_init_from_model(model, context)
    if not state:
        return "".join(said)[-300:]
    batch = lc.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    if lc.llama_decode(state, batch) != 0:
        return "llama_decode fails: " + "".join(said)[-300:]
    rows = []
    for i in range(len(tokens)):
        rows += lc.llama_get_logits_ith(state, i)[:vocab]
    return rows


def judge(name, path):
    tokens, expected = reference(name)
    got = llama_cpp_logits(path, tokens, len(expected) // len(tokens))
    if isinstance(got, str):
        return "refused by llama.cpp", got
    most = max(map(abs, expected))
    worst = max(abs(a - b) for a, b in zip(got, expected)) / most
    return ("equal" if worst < TOLERANCE else "differs"), f"{worst:.1e}"


def child(name, path, pipe):
    os.environ["GGML_NO_BACKTRACE"] = "1"
    pipe.send(judge(name, path))


def apart(name, path):
    """In a process of its own: what llama.cpp cannot read may end it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=child, args=(name, path, theirs))
    process.start()
    theirs.close()
    try:
        got = ours.recv()
    except EOFError:
        got = ("llama.cpp aborted", "")
    process.join(10)
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("--family", default="")
    args = parser.parse_args()
    names = args.family.split(",") if args.family else sorted(model.name for model in MODELS.iterdir())
    differs = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.gguf"
            done = subprocess.run([args.celer, "convert", MODELS / name, "-o", path, "--weights", "f32"], capture_output=True, text=True)
            verdict, detail = apart(name, path) if done.returncode == 0 else ("refused by celer", done.stderr.strip())
        differs += verdict == "differs"
        print(f"| {name} | {verdict} | {detail.replace(str(MODELS) + '/', '')} |", flush=True)
    sys.exit(differs > 0)


if __name__ == "__main__":
    main()
