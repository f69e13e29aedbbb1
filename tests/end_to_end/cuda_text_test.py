#!/usr/bin/env python3
"""Text and perplexity on a GPU beside the CPU's, with the models that are there: stories260K, SmolLM2.

  python3 cuda_text_test.py build/celer

Exits with 77 (skipped) without a GPU or without any of the models.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

CELER = os.path.abspath(sys.argv[1])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
DATA = SOURCE.parent / "shared" / "data"
WIKI = DATA / "text" / "wiki.test.raw"
MODELS = {}  # name: arguments
# The CPU in f32: its integer activations round more coarsely than the GPU's.
EXACT = {**os.environ, "CELER_FORCE": "matmul:portable,attention:portable"}


def run(*args, timeout=600, **more):
    return subprocess.run([CELER, *args], capture_output=True, text=True, timeout=timeout, **more)


def ask(*args, **more):
    done = run(*args, "--json", **more)
    if done.returncode != 0:
        raise AssertionError(f"celer {' '.join(args)} -> {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


class OnTheGpu(unittest.TestCase):
    def test_greedy_text_is_the_cpus(self):
        # Pieces of eight tokens keep 16 bits of their activations; longer ones are computed as bf16, where a near tie
        # between two tokens may fall the other way.
        for name, model in MODELS.items():
            for prompt in ("Once upon a time", "How many days are in a week?"):
                with self.subTest(model=name, prompt=prompt):
                    args = ["run", *model, prompt, "--raw", "--temperature", "0", "-n", "64", "--ignore-end", "--chunk", "8"]
                    gpu = ask(*args, "--device", "cuda")
                    self.assertEqual(len(gpu["tokens"]), 64)
                    self.assertEqual(gpu["tokens"], ask(*args, "--device", "cpu", env=EXACT)["tokens"])
                    self.assertEqual(gpu["tokens"], ask(*args, "--device", "cuda")["tokens"])

    @unittest.skipUnless(WIKI.exists(), f"no {WIKI}")
    def test_perplexity_is_within_three_thousandths_of_the_cpus(self):
        for name, model in MODELS.items():
            with self.subTest(model=name):
                args = ["ppl", model[0], str(WIKI), *model[1:], "--chunks", "4"]
                gpu = ask(*args, "--device", "cuda")["perplexity"]
                cpu = ask(*args, "--device", "cpu", env=EXACT)["perplexity"]
                self.assertLess(abs(gpu / cpu - 1), 0.003, f"{gpu} on the GPU, {cpu} on the CPU")


if __name__ == "__main__":
    tiny = SOURCE / "tests" / "golden" / "models" / "llama3"
    tried = run("bench", str(tiny), "--device", "cuda", "--prompt", "2", "--tokens", "2", "--repeat", "1")
    if "there is no " in tried.stderr:  # driver, CUDA device
        print("skipped: " + tried.stderr)
        sys.exit(77)
    stories = DATA / "stories260K"
    if (stories / "stories260K.bin").exists():
        MODELS["stories260K"] = [str(stories / "stories260K.bin"), "--tokenizer", str(stories / "tok512.bin")]
    pulled = run("pull", "smollm2")
    if pulled.returncode == 0:
        MODELS["SmolLM2"] = [pulled.stdout.strip()]
    if not MODELS:
        print("skipped: neither stories260K nor SmolLM2 is here")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
