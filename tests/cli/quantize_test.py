#!/usr/bin/env python3
"""celer quantize from the outside: files that run, sentences for bad input, and nothing half-written."""
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

CELER = sys.argv[1]
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "128", "--vocab", "300", "--heads", "4",
         "--kv-heads", "2", "--head-dim", "16"]
failures = []


def celer(*args, code=0):
    done = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=600)
    if done.returncode != code:
        failures.append(f"celer {' '.join(map(str, args))}: exit code {done.returncode}, expected {code}: {done.stderr}")
    return done


def check(condition, what):
    if not condition:
        failures.append(what)


def tensors_of(folder):
    with open(folder / "model.safetensors", "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size))


def with_huge_norm(folder, out, name):
    """A copy of a folder whose tensor `name` is 3e38 everywhere: activations behind it are not finite."""
    shutil.copytree(folder, out)
    data = bytearray((folder / "model.safetensors").read_bytes())
    begin, end = tensors_of(folder)[name]["data_offsets"]
    at = 8 + struct.unpack("<Q", data[:8])[0]
    huge = struct.pack("<f", 3e38)
    data[at + begin:at + end] = huge * ((end - begin) // 4)
    (out / "model.safetensors").write_bytes(data)


def decompress_with_package(folder):
    """The rounded weights as the compressed-tensors package gives them, or None without it."""
    try:
        import torch
        from compressed_tensors.compressors import unpack_from_int32
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"not compared with compressed-tensors: {error}")
        return None
    stored, out = load_file(folder / "model.safetensors"), {}
    for name in [n for n in stored if n.endswith(".weight_packed")]:
        base = name[: -len("_packed")]
        shape = torch.Size(stored[base + "_shape"].tolist())
        scale = stored[base + "_scale"].float()
        values = unpack_from_int32(stored[name], 4, shape).float()
        zeros = unpack_from_int32(stored[base + "_zero_point"], 4, torch.Size([shape[0], scale.shape[1]]),
                                  packed_dim=0).float()
        group = shape[1] // scale.shape[1]
        spread = lambda t: t.repeat_interleave(group, dim=1)
        out[base] = (values - spread(zeros)) * spread(scale)
    return out


def run_bad(args):
    done = subprocess.run([CELER, "quantize", *map(str, args)], capture_output=True, text=True, timeout=600)
    check(done.returncode not in (0, 139, 134), f"quantize {args}: exit code {done.returncode}")
    check(done.stderr.startswith("error:"), f"quantize {args}: {done.stderr}")
    return done.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        tmp = pathlib.Path(name)
        text = tmp / "text.txt"
        text.write_text("".join(f"{i} is a number, and so is {i * i}. " for i in range(400)))
        gguf, folder = tmp / "m.gguf", tmp / "hf"
        celer("synth", "llama-3.2-1b", "--weights", "f32", "-o", gguf, *SHAPE)
        celer("synth", "llama-3.2-1b", "--weights", "f32", "-o", folder, *SHAPE)
        few = ["--samples", "4", "--window", "64"]

        # GGUF: a plan, an importance matrix, a file that runs.
        plan = celer("quantize", gguf, "--explain", "--weights", "q4_0").stdout
        for words in ("q4_0", "as it is", "before", "after", "error", "x as fast"):
            check(words in " ".join(plan.split()), f"--explain says nothing of '{words}': {plan}")
        celer("quantize", gguf, "--imatrix-out", tmp / "i.gguf", "--calibration", text, *few)
        celer("quantize", gguf, "--imatrix-out", tmp / "i.dat", "--calibration", text, *few)
        for imatrix in ("i.gguf", "i.dat"):
            celer("quantize", gguf, "-o", tmp / "q.gguf", "--weights", "q4_1", "--imatrix", tmp / imatrix, "--force")
        celer("ppl", tmp / "q.gguf", text, "--window", "64", "--chunks", "1")
        celer("quantize", gguf, "-o", tmp / "awq.gguf", "--weights", "q4_0", "--method", "awq", "--calibration", text, *few)
        celer("quantize", gguf, "-o", tmp / "nl.gguf", "--weights", "iq4_nl", "--imatrix", tmp / "i.gguf")
        for kv in ("fp8", "int8-channel"):
            celer("ppl", tmp / "nl.gguf", text, "--window", "64", "--chunks", "1", "--kv", kv)
        said = celer("ppl", tmp / "nl.gguf", text, "--window", "64", "--chunks", "1", "--kv", "int4", code=2).stderr
        check("heads of this model have 16; take --kv int8" in said, f"--kv int4: {said}")
        celer("ppl", tmp / "awq.gguf", text, "--window", "64", "--chunks", "1")
        said = celer("inspect", tmp / "q.gguf").stdout
        check("q4_1" in said.lower(), f"inspect: {said}")

        # A folder in the layout of compressed-tensors.
        for method in ("rtn", "gptq", "awq"):
            extra = ["--calibration", text, "--tokenizer", gguf, *few] if method != "rtn" else []
            celer("quantize", folder, "-o", tmp / method, "--weights", "int4-g32", "--method", method, *extra)
            config = json.loads((tmp / method / "config.json").read_text())["quantization_config"]
            check(config["format"] == "pack-quantized" and "lm_head" in config["ignore"], f"config: {config}")
            names = tensors_of(tmp / method)
            check(names["model.layers.0.mlp.up_proj.weight_packed"]["shape"] == [128, 8], f"tensors: {list(names)}")
        celer("quantize", folder, "-o", tmp / "f", "--weights", "int4-g32", "--dequantized")
        celer("ppl", tmp / "f", text, "--window", "64", "--chunks", "1", "--tokenizer", gguf)
        package = decompress_with_package(tmp / "rtn")
        if package:
            from safetensors.torch import load_file
            ours = load_file(tmp / "f" / "model.safetensors")
            for tensor, values in package.items():
                check(bool((ours[tensor] == values).all()), f"{tensor}: the package decodes it differently")

        # Eight bits, with activations to match; a budget that is kept, and its recipe.
        celer("quantize", folder, "-o", tmp / "w8a8", "--weights", "w8a8", "--method", "smoothquant", "--calibration", text,
              "--tokenizer", gguf, *few)
        celer("quantize", folder, "-o", tmp / "fp8", "--weights", "fp8")
        for name, kind, dtype in (("w8a8", "int-quantized", "I8"), ("fp8", "float-quantized", "F8_E4M3")):
            config = json.loads((tmp / name / "config.json").read_text())["quantization_config"]
            group = config["config_groups"]["group_0"]
            check(config["format"] == kind and group["input_activations"]["strategy"] == "token", f"config: {config}")
            names = tensors_of(tmp / name)
            check(names["model.layers.0.mlp.up_proj.weight"]["dtype"] == dtype, f"tensors: {list(names)}")
            celer("ppl", tmp / name, text, "--window", "64", "--chunks", "1", "--tokenizer", gguf)
        budget = ["--target-bpw", "6", "--calibration", text, *few, "--recipe-out", tmp / "r.json"]
        said = celer("quantize", gguf, "-o", tmp / "b.gguf", *budget).stderr
        check("bits per weight" in said and "divergence" in said, f"--target-bpw: {said}")
        check((tmp / "b.gguf").stat().st_size < 6.2 / 32 * gguf.stat().st_size + 20000, "--target-bpw 6 is not kept")
        celer("quantize", gguf, "-o", tmp / "again.gguf", "--recipe", tmp / "r.json", "--calibration", text, *few)
        check((tmp / "b.gguf").read_bytes() == (tmp / "again.gguf").read_bytes(), "the recipe gives another file")

        # A run that is stopped goes on: a work folder of the same run is used, and gone at the end.
        gptq = ["--weights", "int4-g32", "--method", "gptq", "--calibration", text, "--tokenizer", gguf, *few]
        check(not list(tmp.glob("*.work")), "a work folder is left")
        (tmp / "other.work").mkdir()
        (tmp / "other.work" / "layer-0000.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        said = run_bad([folder, "-o", tmp / "other", *gptq])
        check("other.work" in said, f"another run's work: {said}")

        # A folder that is quantized already: done again from its decoded weights, and said to lose.
        done = celer("quantize", tmp / "rtn", "-o", tmp / "rtn8", "--weights", "int8")
        check("quantized already" in done.stderr and "loses more" in done.stderr, f"int4 to int8: {done.stderr}")
        check(tensors_of(tmp / "rtn8")["model.layers.0.mlp.up_proj.weight_packed"]["shape"] == [128, 16], "int4 to int8: tensors")
        celer("ppl", tmp / "rtn8", text, "--window", "64", "--chunks", "1", "--tokenizer", gguf)
        done = celer("quantize", tmp / "q.gguf", "-o", tmp / "q8.gguf", "--weights", "q4_0")
        check("quantized already (q" in done.stderr, f"q4_1 to q4_0: {done.stderr}")

        # Noise is no text to learn from.
        noise = tmp / "noise.txt"
        noise.write_bytes(random.Random(1).randbytes(20000))
        said = celer("quantize", gguf, "--imatrix-out", tmp / "n.gguf", "--calibration", noise, *few).stderr
        check("looks like noise" in said and "100.1 % of its size" in said, f"noise: {said}")
        said = celer("quantize", gguf, "--imatrix-out", tmp / "n.gguf", "--calibration", text, *few).stderr
        check("noise" not in said and "over and over" not in said, f"text: {said}")

        # Somebody else's folder that has the name of a work folder stays.
        (tmp / "mine.work").mkdir()
        (tmp / "mine.work" / "notes.txt").write_text("mine")
        celer("quantize", folder, "-o", tmp / "mine", "--weights", "int4-g32")
        check((tmp / "mine.work" / "notes.txt").exists(), "a folder of somebody else was removed")

        # Bad input: one sentence, and nothing new on the disk.
        short = tmp / "short.txt"
        short.write_text("too short")
        loud = tmp / "loud"
        with_huge_norm(folder, loud, "model.layers.1.post_attention_layernorm.weight")
        before = sorted(p.name for p in tmp.iterdir())
        out = tmp / "bad.gguf"
        for args, words in (
                ([gguf, "-o", out, "--weights", "q9"], "no format"),
                ([gguf, "-o", out, "--weights", "int4-g32"], "GGUF"),
                ([gguf, "-o", tmp / "bad", "--weights", "q4_0"], ".gguf"),
                ([folder, "-o", out], "folder"),
                ([gguf, "-o", gguf], "the model itself"),
                ([gguf, "-o", tmp / "q.gguf"], "--force"),
                ([gguf, "-o", out, "--tensor", "nothing=q8_0"], "fits no tensor"),
                ([gguf, "-o", out, "--tensor", "oops"], "PATTERN=FORMAT"),
                ([gguf, "-o", out, "--method", "magic"], "gptq"),
                ([gguf, "-o", out, "--imatrix", text], "imatrix"),
                ([gguf, "-o", out, "--method", "awq", "--calibration", short], "longer text"),
                ([folder, "-o", tmp / "bad", "--weights", "int4-g128"], "128"),
                ([folder, "-o", tmp / "bad", "--weights", "q4_0"], "GGUF"),
                ([loud, "-o", tmp / "bad", *gptq], "not finite"),
                ([loud, "-o", tmp / "bad", "--weights", "w8a8", "--method", "smoothquant", *gptq[4:]], "not finite"),
                ([folder, "-o", tmp / "bad", "--target-bpw", "4.6", "--calibration", text, "--among", "int4-g32"],
                 "embed_tokens"),
                ([gguf, "-o", out, "--weights", "f16", "--method", "gptq", "--calibration", text], "int4"),
                ([folder, "-o", tmp / "bad", "--weights", "int8", "--method", "smoothquant"], "w8a8"),
                ([folder, "-o", tmp / "bad", "--weights", "int4-g32", "--method", "gptq", "--device", "cuda:99"], "CUDA"),
                ([folder, "-o", tmp / "bad", "--weights", "int4-g32", "--device", "gpu"], "cuda"),
                ([gguf, "-o", out, "--target-bpw", "1.5", "--calibration", text, *few], "--target-bpw 1.5"),
                ([gguf, "-o", out, "--memory", "6GiB", "--target-bpw", "5"], "one of them"),
                ([gguf, "-o", out, "--memory", "6GiB", "--weights", "q4_0"], "--weights"),
                ([gguf, "-o", out, "--among", "q4_0"], "--among"),
                ([gguf, "-o", out, "--memory", "6GiB", "--among", "int4"], "GGUF"),
                ([tmp / "q8.gguf", "-o", out, "--weights", "q4_0"], "nothing would change"),
                ([folder, "-o", tmp / "bad", "--weights", "f32"], "nothing would change"),
                ([gguf], "-o OUT")):
            said = run_bad(args)
            check(words in said and said.count("\n") <= 4, f"quantize {args}: {said}")
        check(sorted(p.name for p in tmp.iterdir()) == before, "a failed run left something behind")
    for failure in failures:
        print(failure)
    print("quantize: " + (f"{len(failures)} failures" if failures else "ok"))
    return 1 if failures else 0


sys.exit(main())
