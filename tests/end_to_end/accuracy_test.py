#!/usr/bin/env python3
"""How far from exact arithmetic the kernels of this machine are: accuracy_test.py CELER.

SmolLM2 (skipped where it cannot be fetched) and small models with awkward statistics, by `celer eval` on the text that is built in.
docs/accuracy.md has the figures that the bounds come from.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from safetensors.numpy import load_file, save_file

CELER = os.path.abspath(sys.argv[1])
SHAPE = ["--layers", "2", "--hidden", "256", "--intermediate", "512", "--vocab", "512", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "64"]


def run(*args, **more):
    return subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=800, **more)


def evaluate(model, *flags, device="cpu"):
    done = run("eval", model, "--device", device, "--json", *flags)
    if done.returncode != 0:
        raise AssertionError(f"celer eval {model} {' '.join(flags)} -> {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)["results"][1:]  # the first is exact


def integer_kernels():
    """Every variant of matmul that runs here and multiplies integers."""
    operators = json.loads(run("kernels", "--json").stdout)["operators"]
    variants = next(op["variants"] for op in operators if op["operator"] == "matmul")
    return [v["name"] for v in variants if v["runs_here"] and v["name"].startswith(("arm_", "x86_"))]


class SmolLm2(unittest.TestCase):
    def test_kernels_are_nearer_to_exact_than_llama_cpp(self):
        pulled = run("pull", "smollm2")
        if pulled.returncode != 0:
            self.skipTest("SmolLM2 is neither cached nor reachable")
        names = integer_kernels()
        results = evaluate(pulled.stdout.strip(), "--windows", "4", "--kernels", ",".join(names or ["default"]), "--kv", "f16")
        for r in results:
            with self.subTest(kernels=r["kernels"]):
                # Seen here: 0.0019 on Arm, 0.0008 on x86; llama.cpp's kernels 0.0028 on another text, and 0.0067 before outliers
                # were multiplied apart.
                self.assertLess(r["kl_mean"], 0.0026)
                self.assertGreater(r["kl_mean"], 0)
                self.assertLess(r["kl_p99"], 0.025)
                self.assertGreater(r["same_top1"], 0.94)


class Awkward(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_accuracy_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        made = run("synth", "llama-3.1-8b", "--weights", "f32", "-o", cls.folder / "plain", *SHAPE)
        assert made.returncode == 0, made.stderr
        tried = run("eval", cls.folder / "plain", "--device", "cuda", "--windows", "1", "--window", "128", "--kv", "f16")
        cls.cuda = tried.returncode == 0
        assert cls.cuda or "CUDA" in tried.stderr, tried.stderr

    def model(self, name, change):
        """The plain model with its tensors changed."""
        folder = self.folder / name
        shutil.copytree(self.folder / "plain", folder)
        files = list(folder.glob("*.safetensors"))
        self.assertEqual(len(files), 1)
        tensors = {key: value.copy() for key, value in load_file(files[0]).items()}
        for layer in range(2):
            at = f"model.layers.{layer}."
            change({key[len(at):]: value for key, value in tensors.items() if key.startswith(at)})
        save_file(tensors, files[0])
        return folder

    def check(self, name, change):
        model = self.model(name, change)
        # Floats with every KV type: only keys and values are rounded. Then integers.
        for r in evaluate(model, "--windows", "1", "--window", "128", "--kv", "f32,f16,bf16,int8"):
            with self.subTest(kv=r["kv"]):
                self.assertTrue(np.isfinite(r["kl_max"]))
                self.assertLess(r["kl_mean"], {"f32": 1e-7, "f16": 5e-6, "bf16": 1e-4, "int8": 3e-3}[r["kv"]])
        for r in evaluate(model, "--windows", "1", "--window", "128", "--kv", "f16,bf16,int8,fp8", device="cuda") if self.cuda else ():
            with self.subTest(device="cuda", kv=r["kv"]):
                self.assertTrue(np.isfinite(r["kl_max"]))
                self.assertLess(r["kl_mean"], {"f16": 1e-4, "bf16": 1e-3, "int8": 3e-3, "fp8": 3e-2}[r["kv"]])
        # Rounding the weights costs something by itself: the portable kernel shows how much.
        kernels = ["portable", *integer_kernels()]
        plain, *others = evaluate(model, "--windows", "1", "--window", "128", "--kernels", ",".join(kernels), "--weights", "int8-g32")
        for r in others:
            with self.subTest(kernels=r["kernels"]):
                self.assertTrue(np.isfinite(r["kl_max"]))
                self.assertLess(r["kl_mean"], 1.5 * plain["kl_mean"] + 1e-4)

    def test_plain(self):
        self.check("same", lambda w: None)

    def test_tiny_queries_of_one_head(self):
        def change(w):
            w["self_attn.q_proj.weight"][:64] *= 1e-5
        self.check("tiny_queries", change)

    def test_huge_queries_tiny_keys(self):
        def change(w):
            w["self_attn.q_proj.weight"][:] *= 1e4
            w["self_attn.k_proj.weight"][:] *= 1e-4
        self.check("huge_queries", change)

    def test_huge_keys_and_values(self):
        def change(w):
            w["self_attn.q_proj.weight"][:] *= 1e-3
            w["self_attn.k_proj.weight"][:] *= 1e3
            w["self_attn.v_proj.weight"][:] *= 1e3
            w["self_attn.o_proj.weight"][:] *= 1e-3
        self.check("huge_keys", change)

    def test_outlier_channels(self):
        def change(w):
            for norm, products in (("input_layernorm.weight", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                                   ("post_attention_layernorm.weight", ("mlp.gate_proj", "mlp.up_proj"))):
                for channel in (3, 77, 200):
                    w[norm][channel] *= 100
                    for name in products:
                        w[name + ".weight"][:, channel] *= 0.01
        self.check("outliers", change)

    def test_massive_activations(self):
        def change(w):
            w["mlp.down_proj.weight"][7] *= 1e3
        self.check("massive", change)

    def test_rows_of_zeros(self):
        def change(w):
            w["mlp.up_proj.weight"][:100] = 0
            w["self_attn.v_proj.weight"][64:] = 0
            w["input_layernorm.weight"][:32] = 0
        self.check("zeros", change)

    def test_scales_at_the_edge_of_f16(self):
        def change(w):
            w["input_layernorm.weight"][:] *= 1e6
            for name in ("q", "k", "v"):
                w[f"self_attn.{name}_proj.weight"][:] *= 1e-6
        self.check("edge", change)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
