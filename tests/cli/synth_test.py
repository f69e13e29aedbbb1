#!/usr/bin/env python3
"""celer synth: synth_test.py CELER. The values are computed once more here, with Python's integers."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

CELER = None
M64 = (1 << 64) - 1


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M64
    return x ^ x >> 31


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & M64
    return h


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def value(seed, name, index):
    """Element `index` of tensor `name`: the sum of eight random bytes, centred and scaled to 0.02."""
    key = mix(mix((seed + 1) & M64) ^ fnv1a(name))
    total = sum(mix((key + index * 0x9E3779B97F4A7C15) & M64).to_bytes(8, "little"))
    return f32((total - 1020) * f32(f32(0.02) / f32(209.0215)))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return header, data[8 + size:]


class SynthCase(unittest.TestCase):
    SMALL = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "300", "--heads", "4", "--kv-heads",
             "2", "--head-dim", "32"]

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_synth_"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def synth(self, *args, code=0, says=()):
        result = subprocess.run([CELER, "synth", *map(str, args)], text=True, capture_output=True, timeout=300,
                                env={**os.environ, "COLUMNS": "200"})
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        for text in says:
            self.assertIn(text, result.stderr)
        return result


class Output(SynthCase):
    def test_values(self):
        out = self.folder / "m"
        self.synth("qwen2.5-0.5b", "--weights", "f32", "-o", out, "--seed", 5, *self.SMALL)
        header, data = read_safetensors(out / "model.safetensors")
        self.assertEqual(header["__metadata__"]["celer.synthetic"], "true")
        for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.bias", "model.layers.0.mlp.down_proj.weight"):
            begin, end = header[name]["data_offsets"]
            values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
            for index in (0, 1, 17, len(values) - 1):
                self.assertEqual(values[index], value(5, name, index), f"{name}[{index}]")
        begin, end = header["model.norm.weight"]["data_offsets"]
        self.assertEqual(set(struct.unpack("<64f", data[begin:end])), {1.0})
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["model_type"], config["num_hidden_layers"], config["hidden_size"]), ("qwen2", 2, 64))
        self.assertEqual(config["celer_synthetic"]["seed"], 5)
        tokenizer = json.loads((out / "tokenizer.json").read_text())
        self.assertEqual(len(tokenizer["model"]["vocab"]), 300)

    def test_every_format(self):
        for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"):
            out = self.folder / f"{name}.gguf"
            self.synth("llama-3.2-1b", "--weights", name, "-o", out, *self.SMALL, says=["random weights", "(llama)"])
            data = out.read_bytes()
            self.assertEqual(data[:4], b"GGUF")
            self.assertIn(b"synthetic: random weights", data[:2000])
        sizes = {name: (self.folder / f"{name}.gguf").stat().st_size for name in ("f32", "f16", "q8_0", "q4_0")}
        self.assertGreater(sizes["f32"], sizes["f16"])
        self.assertGreater(sizes["q8_0"], sizes["q4_0"])
        shape = ["--layers", 1, "--hidden", 1024, "--intermediate", 512, "--vocab", 2000, "--heads", 4, "--kv-heads", 4,
                 "--head-dim", 64]
        for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"):
            self.synth("qwen3-8b", "--weights", name, "-o", self.folder / "k.gguf", "--force", *shape, says=["(qwen3)"])

    def test_same_seed_same_bytes(self):
        files = []
        for i, (seed, threads) in enumerate(((3, "1"), (3, "4"), (4, "1"))):
            out = self.folder / f"{i}.gguf"
            os.environ["CELER_THREADS"] = threads
            self.synth("mixtral-8x7b", "--weights", "q8_0", "-o", out, "--seed", seed, "--experts", 3, *self.SMALL)
            files.append(out.read_bytes())
        del os.environ["CELER_THREADS"]
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])

    def test_existing_output(self):
        out = self.folder / "m.gguf"
        out.write_text("mine")
        self.synth("llama-2-7b", "--weights", "f16", "-o", out, *self.SMALL, code=2, says=["--force"])
        self.assertEqual(out.read_text(), "mine")
        self.synth("llama-2-7b", "--weights", "f16", "-o", out, "--force", *self.SMALL)
        folder = self.folder / "m"
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        (folder / "model-00001-of-00002.safetensors").write_text("old")
        self.synth("llama-2-7b", "--weights", "f16", "-o", folder, *self.SMALL, code=2, says=["--force"])
        self.synth("llama-2-7b", "--weights", "f16", "-o", folder, "--force", *self.SMALL)
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         ["config.json", "model.safetensors", "notes.txt", "tokenizer.json", "tokenizer_config.json"])

    def test_what_a_killed_one_leaves_is_removed_by_the_next(self):
        out = self.folder / "m.gguf"
        args = ["synth", "llama-3.2-1b", "--weights", "f32", "-o", out]
        process = subprocess.Popen([CELER, *map(str, args)], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not list(self.folder.glob("m.gguf.partial-*")) and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
        process.wait()
        self.assertEqual(len(list(self.folder.glob("m.gguf.partial-*"))), 1)
        self.synth("llama-3.2-1b", "--weights", "f32", "-o", out, *self.SMALL)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["m.gguf"])

    def test_interrupt_leaves_nothing(self):
        out = self.folder / "big.gguf"
        child = subprocess.Popen([CELER, "synth", "llama-2-7b", "--weights", "q8_0", "-o", str(out)], stderr=subprocess.PIPE)
        self.addCleanup(child.kill)
        deadline = time.monotonic() + 60
        while not list(self.folder.iterdir()) and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        error = child.communicate(timeout=60)[1].decode()
        if "MB free" in error:
            self.skipTest("not enough free disk space for a 7 GB file")
        self.assertEqual(child.returncode, 130, error)
        self.assertEqual(list(self.folder.iterdir()), [])


class Refusals(SynthCase):
    def test_sentences(self):
        out = self.folder / "m.gguf"
        for args, says in (
                (["llama-3.1-9b", "--weights", "f16", "-o", out], "unknown model 'llama-3.1-9b'; did you mean"),
                (["llama-2-7b", "--weights", "q9", "-o", out], "--weights 'q9' is not one of f32"),
                (["llama-2-7b", "--weights", "i8", "-o", out], "is not one of f32"),
                (["smollm2-135m", "--weights", "q4_k", "-o", out], "needs a multiple of 256; take q4_0"),
                (["llama-2-7b", "--weights", "q4_0", "-o", self.folder / "m"], "GGUF files only"),
                (["llama-2-7b", "--weights", "f16", "-o", self.folder / "m.safetensors"], "give the folder"),
                (["llama-2-7b", "--weights", "f16", "-o", out, "--vocab", 100], "257 or more"),
                (["llama-2-7b", "--weights", "f16", "-o", out, "--experts", 4], "no mixture of experts"),
                (["llama-2-7b", "--weights", "f16", "-o", out, "--kv-heads", 5], "llama-2-7b"),
                (["llama-2-7b", "--weights", "f16", "-o", out, "--layers", 0], "--layers"),
                (["llama-2-7b", "--weights", "f16"], "--output is required; see celer synth --help"),
                # The mistake, and not what is missing because of it.
                (["llama-2-7b", "--weigths", "f16"], "unknown flag '--weigths'; did you mean '--weights'?"),
                (["llama-2-7b", "--weights", "f16", "-o", self.folder / "no" / "such" / "m.gguf", *self.SMALL], "cannot be written"),
                (["llama-3.1-405b", "--weights", "f32", "-o", out, "--layers", 4000], "MB free"),
        ):
            self.synth(*args, code=2, says=[says])
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: synth_test.py CELER [unittest arguments]")
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
